//! The status of a server: what it counts, and what it knows of itself, its group and its network.
//!
//! It is one record at both ends. A server sends it as JSON, and the names of fields are the names there; a
//! field that one end does not know keeps its default at that end, or is kept in [`ServerStatus::more`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;

/// The status of a server. Counts begin with its process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ServerStatus {
    /// The space's own number, in hexadecimal digits.
    pub space: String,
    /// The number of the view that orders the space: it grows with every start of a server.
    pub view: u64,
    /// The newest commit that clients can see.
    pub visible: u64,
    /// Other spaces that its writers had seen, each up to a commit, as `space:commit`.
    pub rests_on: Vec<String>,
    /// Work for clients.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Use of the room of pages.
    #[serde(flatten)]
    pub pages: Pages,
    /// State of the log and of the page store.
    #[serde(flatten)]
    pub storage: Storage,
    /// Facts that a leader alone knows; none of a follower.
    #[serde(flatten)]
    pub leading: Option<Leading>,
    /// Facts that a follower alone knows; none of a leader.
    #[serde(flatten)]
    pub following: Option<Following>,
    /// The group; none of a server that is of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// The protection of connections from other machines.
    pub network: Network,
    /// The archive; none without one.
    #[serde(flatten)]
    pub archive: Option<Archive>,
    /// Fields that this build does not know: the server is newer.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// Work for clients since the server's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Traffic {
    /// Clients that are connected now.
    pub sessions: u64,
    /// Commits.
    pub commits: u64,
    /// Transactions refused because others were first.
    pub conflicts: u64,
    /// Pages that clients asked for.
    pub fetches: u64,
    /// Among them, those for which no page was sent because the client's copy was still true.
    pub fetches_unchanged: u64,
    /// Objects that clients were told have changed.
    pub invalidations: u64,
    /// Pages that clients are told of changes to, each as often as clients have it.
    pub subscriptions: u64,
    /// Pages that clients had to give up, for watching too many.
    pub revocations: u64,
    /// Objects that outgrew their page and moved to another.
    pub forwards: u64,
    /// Times that no client was let in, for want of descriptors.
    pub accepts_paused: u64,
    /// Connections that were ended because too much had arrived in part or was not taken.
    pub ended_for_room: u64,
    /// Bytes of transactions of which parts are still to come.
    pub staged_bytes: u64,
}

/// Use of the room of pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Pages {
    /// Pages of 8 KiB given out, to objects or to clients for objects to come.
    pub pages: u64,
    /// Pages that the space can give out.
    pub pages_max: u64,
    /// Pages among those given out that something is in.
    pub pages_in_use: u64,
    /// Pages that can still be given out.
    pub pages_free: u64,
    /// Pages among those given out to clients that may make objects in them.
    pub pages_granted: u64,
    /// Bytes of these pages.
    pub bytes_granted: u64,
    /// Pages among those given out that nothing is in, and that are given out again.
    pub pages_returned: u64,
    /// Pages among those given out that nothing may be in, and that a reference to a place in them keeps.
    pub pages_held_back: u64,
    /// Large values that were replaced and are yet to be freed.
    pub trees_released: u64,
    /// Chunks of large values that were freed since the start.
    pub freed: u64,
    /// Objects collected since the start, because no root reached them.
    pub collected: u64,
    /// The number of the collection that was just asked for; zero if none was.
    pub collection_ticket: u64,
}

/// State of the log and of the page store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Storage {
    /// Set while commits wait for room on the disk.
    pub disk_full: bool,
    /// Pages read from disk.
    pub page_reads: u64,
    /// Pages written to disk.
    pub pages_installed: u64,
    /// Bytes of objects in memory that are in the log and not yet in pages.
    pub mob_bytes: u64,
    /// Pages that these objects belong to.
    pub mob_pages: u64,
    /// Bytes of the log on disk.
    pub log_bytes: u64,
    /// Microseconds in which the log's disk had what it was given, of 99 in 100 times.
    pub sync_p99_us: u64,
    /// Syncs among them that took 100 ms or more.
    pub slow_syncs: u64,
    /// Commits that a start after a crash would replay.
    pub replay_entries: u64,
    /// The commit of the backup under way, or zero.
    pub backup_stamp: u64,
    /// Bytes kept in memory for that backup.
    pub backup_bytes: u64,
    /// Times of the log's syncs.
    pub syncs: Syncs,
}

/// Times of syncs, counted by their length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Syncs {
    /// The end of each class in microseconds, the last one left out.
    pub bounds_us: Vec<u64>,
    /// The number of syncs of each class.
    pub counts: Vec<u64>,
    /// The sum of all, in microseconds.
    pub sum_us: u64,
}

/// Facts that a leader alone knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Leading {
    /// The collection of what no root reaches.
    pub collection: Collection,
    /// The use of the room of pages at its last count; none if nothing was counted since the leader began.
    pub counted: Option<Counted>,
    /// Transactions over several spaces.
    pub across: Across,
    /// The objects over which most transactions were refused since this server leads, the most first.
    #[serde(default)]
    pub contended: Vec<Contended>,
    /// Fresh pages in an hour; none if they were not watched for long enough.
    pub fresh_pages_per_hour: Option<u64>,
    /// Seconds until no page is left; none if that is not known, or is never at the present rate.
    pub seconds_to_full: Option<u64>,
    /// The same in words.
    pub time_to_full: String,
    /// Warnings for an operator, a sentence each.
    pub warnings: Vec<String>,
}

/// An object over which transactions were refused because others were first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Contended {
    /// Its reference, PAGE.SLOT.
    pub object: String,
    /// The name of its class; empty if the server did not have it in memory.
    pub class: String,
    /// The transactions, at most: of rare objects more may be counted.
    pub conflicts: u64,
}

/// The collection of what no root reaches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Collection {
    /// The phase of the one under way: `mark`, `sweep`, `grace`, `stage`, `free`; or `none`.
    pub phase: String,
    /// Collections that came to their end in this view.
    pub done: u64,
    /// Objects that the one under way has reached.
    pub reached: u64,
    /// Objects that it found to be out of reach.
    pub out_of_reach: u64,
    /// The page that it sweeps next.
    pub page: u64,
    /// Objects and chunks made since the last one.
    pub made_since: u64,
    /// The report of the last one; none if there was none in this view.
    pub last: Option<Collected>,
}

/// The report of a collection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Collected {
    /// The reason for which it freed nothing; none if it came to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Set if it was only to say what it would free.
    pub dry_run: bool,
    /// Bytes of its marks.
    pub mark_bytes: u64,
    /// Objects that roots reach.
    pub reached: u64,
    /// Objects that none reached.
    pub objects: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Pages that it let go.
    pub pages_let_go: u64,
    /// The room of pages as it found it.
    #[serde(flatten)]
    pub room: Room,
    /// The objects by class.
    pub classes: Vec<OutOfReach>,
}

/// Objects of a class that no root reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OutOfReach {
    /// The name of the class.
    pub class: String,
    /// The number of objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// References of some.
    pub examples: Vec<String>,
}

/// Use of the pages with anything in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Room {
    /// Bytes of objects that roots reach, with their large values.
    pub live_bytes: u64,
    /// Bytes of objects that none reaches, with theirs.
    pub garbage_bytes: u64,
    /// Bytes that are neither objects nor what a page needs for itself.
    pub free_bytes: u64,
    /// The number of these pages.
    pub pages_counted: u64,
}

/// A count of the room of pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Counted {
    /// The result.
    #[serde(flatten)]
    pub room: Room,
    /// Seconds since then.
    pub seconds_ago: u64,
}

/// Transactions over several spaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Across {
    /// Parts that wait to hear how their transactions ended.
    pub prepared: u64,
    /// Milliseconds since the oldest of them was prepared.
    pub oldest_ms: u64,
    /// Transactions that another space has yet to hear the end of.
    pub decided: u64,
    /// The reason for which a space cannot be asked; empty if all can.
    pub unreached: String,
    /// The oldest parts.
    pub parts: Vec<Part>,
}

/// A part of a transaction over several spaces that waits to hear how it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Part {
    /// The operation.
    pub of: String,
    /// The space that decides, in hexadecimal digits.
    pub coordinator: String,
    /// The commit that it was prepared at.
    pub prepared: u64,
    /// Milliseconds since then.
    pub age_ms: u64,
}

/// Facts that a follower alone knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Following {
    /// Clients that read at this member.
    pub readers: u64,
    /// Clients among them for which it is connected to the leader.
    pub passed_on: u64,
    /// Milliseconds since the leader's last word on how far the space is; none if it never said one.
    pub leader_silent_ms: Option<u64>,
}

/// The group, as this member knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Group {
    /// The group's own number, in hexadecimal digits.
    pub group: String,
    /// The number of the member that says this.
    pub member: String,
    /// The view that this member takes part in.
    pub view: u64,
    /// Set if this member leads and answers clients.
    pub leads: bool,
    /// The address of the leader; none while there is none.
    pub leader: Option<String>,
    /// The address of the last leader.
    pub led: Option<String>,
    /// Milliseconds without a leader; none while there is one.
    pub unled_ms: Option<u64>,
    /// The reason for which the view began.
    pub why: String,
    /// Position of the first entry of its log.
    pub begins: u64,
    /// Position of the last entry of its log.
    pub end: u64,
    /// Position up to which a quorum's disks have the log.
    pub stable: u64,
    /// Not set if its log had ended in damage and is not whole again.
    pub sure: bool,
    /// Set if this member needs a copy of the space.
    pub lost: bool,
    /// The words of another member that refused this one a moment ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The view that began with members whose logs had ended in damage, or by a rescue.
    pub unsure_view: Option<u64>,
    /// The members.
    pub members: Vec<Member>,
}

/// A member, as another knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Member {
    /// Its number.
    pub member: String,
    /// The address at which others reach it.
    pub address: String,
    /// Set if it votes.
    pub votes: bool,
    /// Set if it leads, as far as this member knows.
    pub leads: bool,
    /// Position of the last entry that its disk has; none if that is not known.
    pub end: Option<u64>,
    /// Entries that it lacks.
    pub lag: Option<u64>,
    /// Microseconds of a round trip to it.
    pub round_trip_us: Option<u64>,
    /// Milliseconds since it was heard.
    pub silent_ms: Option<u64>,
    /// Set if its process has ended.
    pub gone: bool,
    /// Set if it needs a copy of the space.
    pub lost: bool,
}

/// The protection of connections from other machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Network {
    /// Whole days until the server's certificate ends; none without one.
    pub certificate_days_left: Option<i64>,
    /// Set if the files of the certificate have changed, and are wrong.
    pub certificate_outdated: bool,
    /// Set if other machines may connect in plain words.
    pub plain_remote: bool,
    /// Warnings for an operator, a sentence each.
    pub warnings: Vec<String>,
}

/// The archive that a server writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Archive {
    /// 1 if the archive does not get on: the server's log says why.
    pub archive_stuck: u8,
    /// 1 if nothing is archived any more.
    pub archive_ended: u8,
    /// Milliseconds up to now that the archive lacks; none where another member's writer archives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_lag_ms: Option<u64>,
}

impl ServerStatus {
    /// The status as a server sends it.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("its keys are texts")
    }

    /// Reads a status that a server sent.
    ///
    /// # Errors
    /// `Corrupt` if it is none.
    pub fn parse(json: &[u8]) -> Result<ServerStatus, Error> {
        serde_json::from_slice(json).map_err(|e| Error::Corrupt(format!("the server's status: {e}")))
    }
}
