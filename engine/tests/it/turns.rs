//! The server alone, spoken to by hand: a client that loses over an object is refused when it can win.

use crate::world::hand::{A, B, Hand, Said, Work, object, outcomes};
use tercel_engine::limits::TURN_US;
use tercel_engine::server::{Conn, Input, ServerConfig};
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, ViewId};
use tercel_wire::message::{Outcome, Refusal, Write};

const C: Conn = Conn(3);
const D: Conn = Conn(4);

/// A server with one object that four clients change.
struct Space {
    hand: Hand,
    class: ClassId,
    x: Oref,
    seq: u64,
}

fn space() -> Space {
    let mut hand = Hand::storing(ServerConfig::default(), 0);
    hand.greet(C, 7, 1);
    hand.greet(D, 8, 1);
    let class = hand.define(A);
    let x = Oref::new(hand.lease(A, 1)[0], 0).unwrap();
    let mut space = Space { hand, class, x, seq: 0 };
    space.write(A, true);
    space.hand.sync();
    space
}

impl Space {
    /// A client writes the object as of what is visible.
    fn write(&mut self, conn: Conn, new: bool) -> Said {
        self.seq += 1;
        let op = OpId { client: ClientId(conn.0 + 4), slot: 0, seq: self.seq, view: ViewId::new(1, 7) };
        let object = object(self.class, self.seq as u8);
        let writes = vec![Write { oref: self.x, new, object: &object }];
        let work = Work { base: self.hand.server.visible(), reads: vec![], writes };
        self.hand.commit(conn, op, &work)
    }

    fn pass(&mut self, us: u64) -> Said {
        self.hand.now = self.hand.now.plus_us(us);
        self.hand.turn()
    }

    fn lost(&self) -> Outcome {
        Err(Refusal::Conflict(self.x))
    }
}

/// The clients that were answered.
fn answered(said: &Said) -> Vec<Conn> {
    let is_outcome = |one: &&(Conn, _, _, _)| !outcomes([*one]).is_empty();
    said.iter().filter(is_outcome).map(|(conn, ..)| *conn).collect()
}

#[test]
fn losers_win_one_after_the_other() {
    let mut s = space();
    s.write(A, false);
    for conn in [B, C, D] {
        assert_eq!(answered(&s.write(conn, false)), [], "nothing newer is visible yet");
    }
    for next in [B, C, D] {
        let said = s.hand.sync();
        assert_eq!(answered(&said).last(), Some(&next), "its turn has come, and nobody else's");
        assert!(outcomes(&said).contains(&s.lost()));
        // A client that has not lost yet waits, too, and the client whose turn it is is let through.
        assert_eq!(answered(&s.write(next, false)), []);
    }
    assert!(matches!(outcomes(&s.hand.sync())[..], [Ok(_)]));
    // Nobody is left, and anyone may write at once.
    s.write(A, false);
    assert!(matches!(outcomes(&s.hand.sync())[..], [Ok(_)]));
}

#[test]
fn whoever_comes_in_between_waits_behind() {
    let mut s = space();
    s.write(A, false);
    s.write(B, false);
    assert_eq!(answered(&s.hand.sync()), [A, B]);
    // It is B's turn.
    assert_eq!(answered(&s.write(A, false)), []);
    s.write(B, false);
    let said = s.hand.sync();
    assert_eq!(answered(&said), [B, A]);
    assert_eq!(outcomes(&said)[1], s.lost());
}

#[test]
fn turn_that_is_not_taken_ends() {
    let mut s = space();
    s.write(A, false);
    s.write(B, false);
    s.write(C, false);
    assert_eq!(answered(&s.hand.sync()), [A, B]);
    assert_eq!(answered(&s.pass(TURN_US - 1)), []);
    assert_eq!(s.hand.server.deadline(), Some(s.hand.now.plus_us(1)));
    assert_eq!(answered(&s.pass(1)), [C]);
    // A client that is gone has no turn.
    s.hand.input(Input::Disconnected(C));
    s.write(D, false);
    assert!(matches!(outcomes(&s.hand.sync())[..], [Ok(_)]));
}
