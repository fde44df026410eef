//! Rights in a space, from outside of it: who may do what, and the operator's hands on that.
//!
//! Each question is a connection of its own, without a session. Changes go to the leader of a group; after a
//! revocation every member is asked whether it has applied it.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tercel_engine::{Error, limits};
pub use tercel_wire::access::{BadPrincipal, BadRole, Principal, Role};
use tercel_wire::frame::Header;
use tercel_wire::id::{MemberId, Stamp};
use tercel_wire::message::{Access, Accessed, Accessing, FromClient, FromServer, Right};

use crate::address::{Address, Addresses};
use crate::disk::secret::Secret;
use crate::proving::Prover;
use crate::server::group::members;
use crate::single::{ask, ask_leader};

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
    /// After [`revoke`], the members that may still serve by the rights before; else none.
    pub unheard: Vec<Unheard>,
}

/// A member of the group that has not said in time that it judges by a revocation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unheard {
    /// The member, as `tercel group status` names it.
    pub member: MemberId,
    /// Its address.
    pub address: String,
    /// The reason.
    pub why: String,
}

impl Rights {
    /// Says whether a principal has a role, by [`Rights::all`]: its own, or as anyone.
    pub fn has(&self, who: &Principal, role: &Role) -> bool {
        let is_its = |of: &Principal| of == who || *of == Principal::Anyone;
        !self.is_judged || self.all.iter().any(|(of, has)| is_its(of) && has.covers(role))
    }

    /// The answer, and a state as of which it was given.
    fn read(header: &Header, answer: FromServer<'_>) -> Option<(Rights, Stamp)> {
        let FromServer::Accessed(Accessed { who, roles, is_judged, rights }) = answer else { return None };
        let all = rights.into_iter().map(|right| (right.who, right.role)).collect();
        Some((Rights { who, roles, is_judged, all, unheard: Vec::new() }, header.stamp))
    }

    fn ask(
        servers: &Addresses,
        secret: Option<&Path>,
        (step, right): (Accessing, Option<Right>),
    ) -> Result<(Rights, Stamp), Error> {
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
    Ok(Rights::ask(servers, secret, (Accessing::Whoami, None))?.0)
}

/// Asks for all rights in a space.
///
/// # Errors
/// `Unavailable` if no server answers; `Denied` for a principal that has neither `grant` nor `operate`.
pub fn list(servers: &Addresses, secret: Option<&Path>) -> Result<Rights, Error> {
    Ok(Rights::ask(servers, secret, (Accessing::List, None))?.0)
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
    Ok(Rights::ask(servers, secret, (Accessing::Grant, Some(right)))?.0)
}

/// Takes a role from a principal, and waits until that is durable. The leader refuses it from then on. Waits
/// then for every other member of the group to say that it has applied that, for two keepalives at most:
/// [`Rights::unheard`] names those that have not. Such a member serves no page once it has not heard its
/// leader for two keepalives. A copy that a client has in its cache stays with it. Gives the rights behind
/// it.
///
/// # Errors
/// As [`grant`]; `Unavailable` also if the role is revoked, and the members cannot be learned.
pub fn revoke(
    servers: &Addresses,
    secret: Option<&Path>,
    who: &Principal,
    role: &Role,
) -> Result<Rights, Error> {
    let right = Right { who: who.clone(), role: role.clone() };
    let (rights, at) = Rights::ask(servers, secret, (Accessing::Revoke, Some(right)))?;
    Ok(Rights { unheard: unheard(servers, at)?, ..rights })
}

/// Asks all members of a group until they show this state, and names those that do not in time.
fn unheard(servers: &Addresses, at: Stamp) -> Result<Vec<Unheard>, Error> {
    let members = match members(servers) {
        Ok(members) => members,
        // The server is of no group: it alone serves the space.
        Err(Error::Denied(_)) => return Ok(Vec::new()),
        Err(why) => {
            let text = format!("the role is revoked, and the members of the group are not known: {why}");
            return Err(Error::Unavailable(format!(
                "{text}; revoke it again to learn whether all have applied it"
            )));
        }
    };
    let end = Instant::now() + HEARD_MAX;
    let await_one = |(member, _, address): &(MemberId, bool, String)| {
        let why = await_shown(servers, address, at, end)?;
        Some(Unheard { member: *member, address: address.clone(), why })
    };
    Ok(thread::scope(|scope| {
        let asked: Vec<_> = members.iter().map(|member| scope.spawn(|| await_one(member))).collect();
        asked.into_iter().filter_map(|one| one.join().expect("a question does not panic")).collect()
    }))
}

/// Asks a member until it shows this state. Gives the reason if it does not in time.
fn await_shown(servers: &Addresses, address: &str, at: Stamp, end: Instant) -> Option<String> {
    let Ok(address) = address.parse::<Address>() else { return Some("its address is none".into()) };
    let whoami = FromClient::Access(Access { step: Accessing::Whoami, right: None });
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(STEP);
        let why = match ask((&address, servers.tls()), None, &whoami, left, Rights::read) {
            Ok((_, shown)) if shown >= at => return None,
            Ok((_, shown)) => format!("it shows state {shown}, and the revocation is in state {at}"),
            Err(why) => Error::from(why).to_string(),
        };
        if Instant::now() + STEP >= end {
            return Some(why);
        }
        thread::sleep(STEP);
    }
}

/// Time for a change of rights to become durable.
const ACCESS_MAX: Duration = Duration::from_secs(5);

/// Time for members to apply a revocation: two keepalives, after which one that hears no leader serves no
/// page.
const HEARD_MAX: Duration = Duration::from_millis(2 * limits::KEEPALIVE_MS as u64);

/// Pause between two questions to a member, which applies a change within some milliseconds.
const STEP: Duration = Duration::from_millis(20);
