//! A group begun anew with one directory, when the quorum of another is lost for good. What a member's log
//! ends with is told, so that the directory which has most can be chosen.
//!
//! The invariant: from the first write on, the directory is of another group than before, so the members of
//! the old one refuse it. A rescue that is interrupted can be run again.

use std::path::Path;

use tercel_engine::order::quorum::members::{Member, Members};
use tercel_engine::replica::entry::Entry;
use tercel_engine::server::{Recovery, ServerConfig};
use tercel_wire::id::{LogPosition, MemberId, PageId, Stamp, ViewId};
use tercel_wire::log::{Kind, Last, encode_record};
use tercel_wire::page::PAGE_BYTES;

use crate::address::Address;
use crate::check::renumber;
use crate::disk::dir::{DataDir, LOG_NAME, Looked, NewSpace, random_u64, view_apart};
use crate::disk::held::HeldDir;
use crate::disk::log::{Log, LogConfig, LogEnds, ends};
use crate::disk::pages::{PageRead, checkpoint, stored_upto};
use crate::disk::secret::Secret;
use crate::server::ServerError;
use crate::server::start::{replay_member, whole};

/// The end of a member's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The last commit that is known to be on a quorum's disks.
    pub stable: Stamp,
    /// The last one in the log.
    pub last: Stamp,
    /// The view in which that was ordered.
    pub view: u32,
    /// Not set if the log ends in damage, and may have held more.
    pub is_sure: bool,
}

/// Looks at the end of a member's log, and changes nothing.
///
/// # Errors
/// If the directory is in use, or its log is damaged.
pub fn log_ends(dir: &Path) -> Result<Ends, ServerError> {
    let looked = Looked::at(dir)?;
    looked.format?;
    let held = HeldDir::open(dir)?;
    let LogEnds { stable, last, is_sure } = ends(&held.below(LOG_NAME, false)?, looked.space?.id)?;
    Ok(Ends { stable, last: last.stamp, view: last.view.number, is_sure })
}

/// Makes the directory of a member of a group, whose quorum is lost for good, the only member of a new group.
/// It keeps everything that is in its log. It is reached at `address`, or where it was reached before.
///
/// # Errors
/// If the directory is of no member, is in use, or cannot be recovered.
pub fn rescue(dir: &Path, address: Option<&Address>) -> Result<MemberId, ServerError> {
    address.map_or(Ok(()), Address::is_for_others)?;
    let was = super::inspect(dir)?;
    let mut held = open(dir)?;
    let mut whole = Whole::recover(&held)?;
    let newest = whole.last.view.number.max(was.promised);
    let number = match view_apart(dir, newest)? {
        Some(number) => number,
        None => {
            // A packet, or damage, has used the numbers up: nothing follows in this log.
            drop((whole, held));
            let number = renumber(dir).map_err(|why| ServerError::Stopped(why.to_string()))?;
            held = open(dir)?;
            whole = Whole::recover(&held)?;
            number
        }
    };
    let known = whole.recovery.members().and_then(|list| list.get(was.member)).map(|it| it.address.clone());
    let of_votes = was.members.iter().find(|(id, ..)| *id == was.member).map(|(.., at)| at.clone());
    let at = address.map(Address::to_string).or(known).or(of_votes);
    let at = at.ok_or_else(|| ServerError::Join("no address of this member is known: name one".into()))?;
    let (group, me) = (random_u64(dir)?, MemberId(random_u64(dir)?));
    let members = Members::new(vec![Member { id: me, votes: true, address: at }])
        .ok_or_else(|| ServerError::Join("its address is too long".into()))?;
    // Members of the old group are not to be believed.
    held.give_secret(&Secret::draw(dir)?)?;
    held.begin_history(group, me, members.clone(), number)?;
    whole.go_on(ViewId::new(number, random_u64(dir)? as u32), true, &members)?;
    Ok(me)
}

pub(super) fn open(dir: &Path) -> Result<DataDir, ServerError> {
    let new = NewSpace {
        id: None,
        page_bytes: PAGE_BYTES as u32,
        segment_bytes: LogConfig::default().segment_bytes,
    };
    Ok(DataDir::open(dir, &new)?)
}

/// A directory's log, with everything that is in it applied.
pub(super) struct Whole {
    pub(super) recovery: Recovery,
    /// The position before the first entry of its log.
    pub(super) begins: LogPosition,
    log: Log,
    last: Last,
}

impl Whole {
    /// Recovers the directory. What is not known to be stable counts, too.
    pub(super) fn recover(dir: &DataDir) -> Result<Whole, ServerError> {
        let pages = dir.pages()?;
        let (checkpoint, space) = (checkpoint(&pages as &dyn PageRead)?, dir.space().id);
        let config = ServerConfig::default();
        let mut recovery = Recovery::new(config, space, checkpoint.as_ref(), PageId::MAX.get())?;
        let log_dir = dir.log_dir()?;
        let (log, opened) =
            replay_member(&log_dir, (space, LogConfig::default()), stored_upto(&pages)?, &mut recovery)?;
        whole(&log, &opened, &recovery, checkpoint.as_ref())?;
        for entry in recovery.kept() {
            recovery.replay(entry.view, entry.stamp, entry.kind, &entry.payload)?;
        }
        Ok(Whole { recovery, begins: opened.begins.position, last: log.tail().last, log })
    }

    /// Goes on in a view that keeps all of it, with these members. `lost` is set if others may have had
    /// stable entries that it lacks.
    pub(super) fn go_on(self, view: ViewId, lost: bool, members: &Members) -> Result<(), ServerError> {
        let Whole { mut log, mut last, .. } = self;
        let begins = Entry::View { kept: last.stamp, lost };
        let mut records = Vec::new();
        for entry in [begins, Entry::Members(members.clone())] {
            let (stamp, kind) = (last.stamp.next(), Kind::new(entry.kind()));
            let kind = kind.ok_or_else(|| ServerError::Stopped("an entry has no kind".into()))?;
            encode_record(&mut records, &mut last.chain, kind, view, stamp, &entry.encode())
                .map_err(|error| ServerError::Stopped(error.to_string()))?;
            last = Last { stamp, view, position: last.position.next(), ..last };
        }
        log.append(&records)?;
        log.sync()?;
        log.sure()?;
        log.stable_upto(last.position);
        Ok(log.close()?)
    }
}
