//! Rights in a space, from outside of it: who may do what, and the operator's hands on that.
//!
//! Each question is a connection of its own, without a session. Changes go to the leader of a group.

use std::path::Path;
use std::time::Duration;

use tercel_engine::Error;
pub use tercel_wire::access::{BadPrincipal, BadRole, Principal, Role};
use tercel_wire::message::{Access, Accessed, Accessing, FromClient, FromServer, Right};

use crate::address::Addresses;
use crate::disk::secret::Secret;
use crate::proving::Prover;
use crate::single::ask_leader;

/// The rights in a space, as far as the principal that asks may see them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rights {
    /// The principal that asks, as the server knows it.
    pub who: Principal,
    /// The roles of the principal, those included that nobody can take from it.
    pub roles: Vec<Role>,
    /// Set if rights are judged. Before the first grant everyone may do everything.
    pub is_judged: bool,
    /// All rights, in order; none for a principal that has neither `grant` nor `operate`.
    pub all: Vec<(Principal, Role)>,
}

impl Rights {
    /// Says whether a principal has a role, by [`Rights::all`]: its own, or as anyone.
    pub fn has(&self, who: &Principal, role: &Role) -> bool {
        let is_its = |of: &Principal| of == who || *of == Principal::Anyone;
        !self.is_judged || self.all.iter().any(|(of, has)| is_its(of) && has.covers(role))
    }

    fn read(answer: FromServer<'_>) -> Option<Rights> {
        let FromServer::Accessed(Accessed { who, roles, is_judged, rights }) = answer else { return None };
        let all = rights.into_iter().map(|right| (right.who, right.role)).collect();
        Some(Rights { who, roles, is_judged, all })
    }

    fn ask(
        servers: &Addresses,
        secret: Option<&Path>,
        (step, right): (Accessing, Option<Right>),
    ) -> Result<Rights, Error> {
        let secret = secret.map(Secret::read).transpose().map_err(|why| Error::Denied(why.to_string()))?;
        let prover = secret.map(Prover::operator);
        let access = FromClient::Access(Access { step, right });
        ask_leader(servers, prover.as_ref(), &access, ACCESS_MAX, Rights::read)
    }
}

/// Asks a server for which principal it takes this process, and which roles that has. With the group's
/// secret, both ends prove first that they have it.
///
/// # Errors
/// `Unavailable` if no server answers; `Denied` if the secret is another group's.
pub fn whoami(servers: &Addresses, secret: Option<&Path>) -> Result<Rights, Error> {
    Rights::ask(servers, secret, (Accessing::Whoami, None))
}

/// Asks for all rights in a space.
///
/// # Errors
/// `Unavailable` if no server answers; `Denied` for a principal that has neither `grant` nor `operate`.
pub fn list(servers: &Addresses, secret: Option<&Path>) -> Result<Rights, Error> {
    Rights::ask(servers, secret, (Accessing::List, None))
}

/// Gives a principal a role, and waits until that is durable. The first grant ever shuts everyone else out:
/// from then on only what is granted may be done. Gives the rights behind it.
///
/// # Errors
/// `Unavailable` if nobody leads, or the space has 256 rights, as many as it can; `Denied` for a principal
/// without `grant`.
pub fn grant(
    servers: &Addresses,
    secret: Option<&Path>,
    who: &Principal,
    role: &Role,
) -> Result<Rights, Error> {
    let right = Right { who: who.clone(), role: role.clone() };
    Rights::ask(servers, secret, (Accessing::Grant, Some(right)))
}

/// Takes a role from a principal, and waits until that is durable. The leader refuses it from then on, and
/// every other member as soon as it has applied that, within two keepalives. A copy that a client has in its
/// cache stays with it. Gives the rights behind it.
///
/// # Errors
/// As [`grant`].
pub fn revoke(
    servers: &Addresses,
    secret: Option<&Path>,
    who: &Principal,
    role: &Role,
) -> Result<Rights, Error> {
    let right = Right { who: who.clone(), role: role.clone() };
    Rights::ask(servers, secret, (Accessing::Revoke, Some(right)))
}

/// Time for a change of rights to become durable.
const ACCESS_MAX: Duration = Duration::from_secs(5);
