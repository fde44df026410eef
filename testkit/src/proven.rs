//! The proof of a connection of a member, for hosts that have a secret.

use tercel_engine::server::{Conn, Input, MEMBERS_VERSION, OPERATOR, Proof};
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{MemberId, SpaceId};
use tercel_wire::message::{Challenge, Join, Opening, Prove};

/// The proof that the host expects of every connection.
const PROOF: Proof = [4; 32];

/// The host's answer to [`Effect::Challenge`](tercel_engine::server::Effect::Challenge).
pub fn challenged(conn: Conn) -> Input<'static> {
    let (nonce, proof) = ([2; 32], [3; 32]);
    let challenge = Challenge { group: 7, member: MemberId(1), start: 1, nonce, proof, drawn: None };
    Input::Challenged(conn, Some((challenge, PROOF)))
}

/// The two messages of a connection that proves itself: the second comes once the first was answered.
pub fn messages() -> [(Header, Vec<u8>); 2] {
    let opening = Some(Opening { process: 0, nonce: [0; 32], earlier: None });
    let (member, version) = (OPERATOR, MEMBERS_VERSION);
    let (mut join, mut prove) = (Vec::new(), Vec::new());
    Join { group: 0, space: SpaceId(0), member, start: 0, version, opening }.encode(&mut join);
    Prove { proof: PROOF }.encode(&mut prove);
    [(Header::new(Kind::Join, 0), join), (Header::new(Kind::Prove, 0), prove)]
}
