//! The operator's hands on a group that is served: who its members are, and who comes, votes, goes and leads.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tercel_engine::Error;
use tercel_engine::order::quorum::members::Members;
use tercel_engine::status::ServerStatus;
use tercel_wire::cursor::Reader;
use tercel_wire::id::{MemberId, SpaceId, ViewId};
use tercel_wire::message::{FromClient, FromServer, Nothing, Regroup, Regrouping};
use tercel_wire::page::PAGE_BYTES;

use super::{create_member, inspect};
use crate::address::{Address, Addresses};
use crate::disk::DiskError;
use crate::disk::dir::{DataDir, Space, random_u64, today};
use crate::disk::held::HeldDir;
use crate::disk::secret::{SECRET_NAME, Secret};
use crate::disk::votes::unmark_removed;
use crate::health::{Health, HealthState};
use crate::proving::Prover;
use crate::server::ServerError;
use crate::single::{ask, ask_leader};

/// A change of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A member that learns votes from now on. It must have caught up.
    Vote,
    /// A member goes. Its server stops.
    Remove,
    /// A member takes the lead over.
    Lead,
}

/// The members of a group: identity, whether it votes, address.
pub type Listed = Vec<(MemberId, bool, String)>;

/// The answer of a group.
struct Roster {
    group: u64,
    space: SpaceId,
    view_first: u32,
    members: Members,
}

impl Roster {
    fn read(answer: FromServer<'_>) -> Option<Roster> {
        let FromServer::Grouped(grouped) = answer else { return None };
        let members = Members::decode(&mut Reader::new(grouped.members)).ok()?;
        let (group, space, view_first) = (grouped.group, grouped.space, grouped.view_first);
        Some(Roster { group, space, view_first, members })
    }

    fn listed(&self) -> Listed {
        self.members.iter().map(|member| (member.id, member.votes, member.address.clone())).collect()
    }

    /// Asks the leader for a step.
    fn ask(
        servers: &Addresses,
        prover: Option<&Prover>,
        (step, member): (Regrouping, MemberId),
        address: &str,
        within: Duration,
    ) -> Result<Roster, Error> {
        let regroup = Regroup { step, member, address: address.into() };
        let regroup = FromClient::Regroup(regroup);
        ask_leader(servers, prover, &regroup, within, |_, answer| Roster::read(answer))
    }
}

/// Asks the leader of a group for a change, and waits until that is stable. `servers` are addresses of some
/// members; the member is named by its identity or its address. Gives the members after it.
///
/// # Errors
/// `Denied` if it cannot be; `Unavailable` if it cannot be now, or nobody leads.
pub fn change(
    servers: &Addresses,
    what: Change,
    member: &str,
    secret: Option<&Path>,
) -> Result<Listed, Error> {
    let secret = secret.map(Secret::read).transpose().map_err(|why| Error::Denied(why.to_string()))?;
    let prover = secret.map(Prover::operator);
    let listed = members(servers)?;
    let named = listed.iter().find(|(id, _, address)| id.to_string() == member || address == member);
    let Some((id, ..)) = named else {
        let text = format!(
            "{member} is no member of the group: {}`tercel group status` lists them",
            if what == Change::Vote { "a server joins first (`tercel serve --join ADDR`); " } else { "" }
        );
        return Err(Error::Denied(text));
    };
    if what == Change::Lead {
        may_lead(servers, &listed, *id)?;
    }
    let step = match what {
        Change::Vote => Regrouping::Vote,
        Change::Remove => Regrouping::Remove,
        Change::Lead => Regrouping::Lead,
    };
    let after = Roster::ask(servers, prover.as_ref(), (step, *id), "", CHANGE_MAX)?.listed();
    if what == Change::Lead {
        await_lead(servers, &after, *id)?;
    }
    Ok(after)
}

/// The address of a member.
fn address_of(servers: &Addresses, members: &Listed, of: MemberId) -> Option<Addresses> {
    let (.., address) = members.iter().find(|(id, ..)| *id == of)?;
    address.parse::<Address>().ok().map(|at| servers.at(at))
}

/// Sees that a member has room on its disk: one that leads without would have all commits wait.
fn may_lead(servers: &Addresses, members: &Listed, to: MemberId) -> Result<(), Error> {
    let status = address_of(servers, members, to).map(|at| status_of(at, LOOK_MAX));
    match status {
        Some(Ok(status)) if status.storage.disk_full => {
            let text =
                format!("the disk of member {to} is full: make room there first, or name another member");
            Err(Error::Denied(text))
        }
        // The group says itself what it thinks of one that does not answer.
        _ => Ok(()),
    }
}

/// Waits until a member leads.
fn await_lead(servers: &Addresses, members: &Listed, to: MemberId) -> Result<(), Error> {
    let end = Instant::now() + CHANGE_MAX;
    let address = address_of(servers, members, to);
    let leads = |at: &Addresses| {
        let health = health_of(at.clone(), LOOK_MAX);
        health.is_ok_and(|it| !matches!(it.state, HealthState::Following | HealthState::NotLeading))
    };
    while !address.as_ref().is_some_and(leads) {
        if Instant::now() >= end {
            let text =
                format!("member {to} was asked to lead, and does not yet; look with `tercel group status`");
            return Err(Error::Unavailable(text));
        }
        std::thread::sleep(LEAD_STEP);
    }
    Ok(())
}

/// Asks a group for its members.
///
/// # Errors
/// `Unavailable` if no server answers; `Denied` if it is of no group.
pub fn members(servers: &Addresses) -> Result<Listed, Error> {
    Ok(Roster::ask(servers, None, (Regrouping::Look, MemberId(0)), "", LOOK_MAX)?.listed())
}

/// Asks a server, the first of these addresses, for its status, whether or not it leads its group.
///
/// # Errors
/// `Unavailable` if it does not answer in time; `Corrupt` if the answer is none.
pub fn status_of(server: impl Into<Addresses>, within: Duration) -> Result<ServerStatus, Error> {
    let (server, stat) = (server.into(), FromClient::Stat(Nothing));
    let json = ask(server.first(), None, &stat, within, |_, answer| match answer {
        FromServer::Status(status) => Some(status.json.to_vec()),
        _ => None,
    });
    ServerStatus::parse(&json?)
}

/// Asks a server, the first of these addresses, for its health, whether or not it leads its group.
///
/// # Errors
/// `Unavailable` if it does not answer in time.
pub fn health_of(server: impl Into<Addresses>, within: Duration) -> Result<Health, Error> {
    let (server, health) = (server.into(), FromClient::AskHealth(Nothing));
    let health = ask(server.first(), None, &health, within, |_, answer| match answer {
        FromServer::Health(health) => Some(Health::from(health)),
        _ => None,
    });
    health.map_err(Error::from)
}

/// Makes an empty directory that of a new member, reached at an address, and has the group feed it as soon as
/// it is served. The member votes once the operator lets it. Of a directory that joined before, the group
/// is told the address; one that has heard a leader is content if nobody answers, for then all members start.
///
/// # Errors
/// If the directory is of no member or of another group; if the group does not answer, or refuses.
pub fn join(
    dir: &Path,
    servers: &Addresses,
    address: &Address,
    secret: Option<&Path>,
) -> Result<MemberId, ServerError> {
    let of_group = |error: Error| match error {
        Error::Denied(text) | Error::Unavailable(text) => ServerError::Join(text),
        error => ServerError::Join(error.to_string()),
    };
    address.is_for_others()?;
    let found = if DataDir::is_absent(dir) { None } else { Some(inspect(dir)) };
    if let Some(Err(ServerError::Disk(DiskError::Io { source, .. }))) = &found
        && source.kind() == std::io::ErrorKind::NotFound
    {
        let text =
            format!("{} holds another space; --join and --follow need an empty directory", dir.display());
        return Err(ServerError::Join(text));
    }
    let found = found.transpose()?;
    let given = secret.map(Secret::read).transpose()?;
    let kept = if found.is_some() { Secret::of(&HeldDir::open(dir)?)? } else { None };
    if let (Some(given), Some(_), None) = (&given, &found, &kept) {
        given.write(&HeldDir::open(dir)?)?;
    }
    let has_heard = found.as_ref().is_some_and(|found| found.promised > ViewId::NONE.number);
    let look = match Roster::ask(servers, None, (Regrouping::Look, MemberId(0)), "", LOOK_MAX) {
        Err(Error::Unavailable(_)) if has_heard => return Ok(found.map_or(MemberId(0), |it| it.member)),
        look => look.map_err(of_group)?,
    };
    let secret = given.or(kept).ok_or_else(|| match found {
        Some(_) => ServerError::NoSecret(dir.into()),
        None => ServerError::Join(
            "its members prove to each other that they have its secret; copy the file `secret` of a member's directory \
             here, and name it with --secret FILE (`tercel group secret` tells where it is)"
                .into(),
        ),
    })?;
    let prover = Prover::operator(secret.clone());
    let (is_new, me) = match &found {
        Some(found) if found.group != look.group => {
            let text = format!("{} is of group {:016x}, and not of this", dir.display(), found.group);
            return Err(ServerError::Join(text));
        }
        Some(found) if has_heard && look.members.get(found.member).is_none() => {
            let text = format!(
                "member {} was removed from the group; join with another directory, an empty one",
                found.member
            );
            return Err(ServerError::Join(text));
        }
        Some(found) => {
            if look.members.get(found.member).is_some() {
                // It may have been removed before it was added again.
                unmark_removed(&HeldDir::open(dir)?)?;
            }
            (false, found.member)
        }
        None => (true, MemberId(random_u64(dir)?)),
    };
    if is_new {
        let Roster { space: id, view_first, group, members } = look;
        let space = Space { id, page_bytes: PAGE_BYTES as u32, created: today(), view_first };
        create_member(dir, &space, (group, me), &members, &secret)?;
    } else {
        secret.write(&HeldDir::open(dir)?)?;
    }
    match Roster::ask(servers, Some(&prover), (Regrouping::Learn, me), &address.to_string(), CHANGE_MAX) {
        Ok(_) => Ok(me),
        Err(Error::Unavailable(_)) if has_heard => Ok(me),
        Err(error) => {
            if is_new && matches!(error, Error::Denied(_)) {
                // Nothing is in it.
                let _ = std::fs::remove_dir_all(dir);
            }
            Err(of_group(error))
        }
    }
}

/// The file with the secret of the group that a directory is of. A group that has none, because it was made
/// by a build that needed none, is given one: the file is to be copied to the directory of every other
/// member. Says whether it is new.
///
/// # Errors
/// If the directory is not one of a server, or cannot be read or written.
pub fn secret(dir: &Path) -> Result<(PathBuf, bool), ServerError> {
    if DataDir::is_absent(dir) {
        return Err(ServerError::NoSpace(dir.into()));
    }
    let held = HeldDir::open(dir)?;
    let is_new = Secret::of(&held)?.is_none();
    if is_new {
        Secret::draw(dir)?.write(&held)?;
    }
    Ok((dir.join(SECRET_NAME), is_new))
}

/// Time for a change to become stable, those before it included.
const CHANGE_MAX: Duration = Duration::from_secs(5);

/// Time between two looks whether a member leads.
const LEAD_STEP: Duration = Duration::from_millis(5);

/// Time for a group to answer.
const LOOK_MAX: Duration = Duration::from_secs(2);
