//! Every bound of the engine, with its reason.

use tercel_wire::frame::{BODY_BYTES_MAX, CALL_BODY_BYTES_MAX};
use tercel_wire::id::SERVICE_SLOTS_MAX;

/// Bytes of objects that one transaction may write. Staged transactions are held in the server's memory until
/// they are whole, and a log record holds all of one.
pub const TRANSACTION_BYTES_MAX: usize = 128 << 20;

/// Bytes of a piece of a staged transaction: large enough to make the frame's cost vanish, small enough that
/// other clients' frames pass between.
pub const PART_BYTES: usize = 256 << 10;

/// Bytes that wait to be sent at which a client's next commit waits with its caller: a few parts, so that a
/// slow connection costs a process one large transaction and not one of each thread.
pub const UNSENT_BYTES_MAX: usize = 1 << 20;

/// Requests that a client may have under way: fetches and commits of a few dozen threads.
pub const CREDIT: u16 = SERVICE_SLOTS_MAX;

/// [`CREDIT`], of which tests allow few.
pub fn credit() -> u16 {
    crate::mutant::bound(CREDIT as usize, 3) as u16
}

/// Pages granted at once: a bulk load fills them in some milliseconds, and an idle client blocks only half a
/// megabyte of addresses.
pub const LEASE_PAGES: u16 = 64;
/// Granted pages of a session that are not full: a bulk load that gives 128 MB of objects their places before
/// it writes them.
pub const LEASED_PAGES_MAX: usize = 1 << 16;

/// [`LEASED_PAGES_MAX`], which client and server must agree on also where tests make it small.
pub fn leased_pages_max() -> usize {
    crate::mutant::bound(LEASED_PAGES_MAX, 160)
}

/// Granted pages of a client in which it made nothing: two bulk loads at once.
pub const LEASED_UNUSED_MAX: usize = 1 << 15;

/// Granted pages of all clients that are not full: a few bulk loads at once. Each is a row of ordered state,
/// of 13 bytes in a checkpoint; and a sixteenth of a space's pages is the most that clients can hold and use
/// for nothing.
pub const GRANTED_MAX: usize = 1 << 18;

/// Bytes of what an operation returns, which is kept with its answer.
pub const REPLY_BYTES_MAX: usize = 1 << 10;

/// Bytes of the arguments of one call, and of what it gives: 64 MiB of values, and what stands beside them in
/// a message.
pub const CALL_MAX: usize = CALL_BODY_BYTES_MAX - 64;

/// Bytes of an item of a stream: what fits into a message of any kind.
pub const ITEM_MAX: usize = BODY_BYTES_MAX - 64;

/// Bytes of items of a stream that may be sent and not consumed: about what a network of a gigabit takes in a
/// round trip of two milliseconds. Each stream costs its receiver so much memory.
pub const WINDOW_BYTES: usize = 256 << 10;

/// [`WINDOW_BYTES`], which both ends must agree on also where tests make it small.
pub fn window_bytes() -> usize {
    crate::mutant::bound(WINDOW_BYTES, 4 << 10)
}

/// Bytes after which an item of any size may be sent, and the receiver reports how much it has consumed: then
/// the sender never waits for what will not be said. A receiver has this and one message at most, if that is
/// more than a window.
pub fn window_step_bytes() -> usize {
    window_bytes() / 4
}

/// Calls with streams that a client may have under way: with the windows of both directions 16 MiB of each
/// client at most, if its items are small. One more is refused.
pub const STREAMING_MAX: usize = 32;

/// Time for which the procedure of a call without a deadline waits at its streams for an inactive client, in
/// microseconds. The client neither sends nor consumes an item in that time. It is longer than a usual outage
/// of the network, and bounds the waste of a thread of the pool. Callers of this crate always have a
/// deadline.
pub const STREAM_STILL_US: u64 = 60_000_000;

/// Bytes of arguments of calls that wait in a server: of a few of the largest.
pub const CALL_BYTES_MAX: usize = 4 * CALL_BODY_BYTES_MAX;

/// The same of the calls of one connection: a client that fills its share leaves room for others.
pub const CALL_CONN_BYTES_MAX: usize = CALL_BYTES_MAX / 2;

/// Bytes of arguments that a client's calls of methods may have under way: with their entries as many as one
/// connection may have wait. Its calls of services may have as many.
pub const CALL_CREDIT_BYTES: usize = CALL_CONN_BYTES_MAX - CREDIT as usize * CALL_ENTRY_BYTES;

/// Pages that waiting calls of methods have missed, kept for all calls together: some eight megabytes.
pub const CALL_PAGES_MISSED_MAX: usize = 1 << 20;

/// The cost of a waiting call of a method beside the bytes of its arguments: the memory for its entry in the
/// tables.
pub const CALL_ENTRY_BYTES: usize = 256;

/// Methods of waiting calls that are run before other connections are served again: a few hundred
/// microseconds, if they are small.
pub const CALLS_AT_ONCE: usize = 32;

/// [`CALLS_AT_ONCE`], of which tests allow few.
pub fn calls_at_once() -> usize {
    crate::mutant::bound(CALLS_AT_ONCE, 2)
}

/// Bytes of one response of a service that are kept until its client has it: most results. One that is larger
/// is lost with the connection that it was sent on.
pub const KEPT_BYTES_MAX: usize = 64 << 10;

/// Bytes of responses that are kept of one client: 4 KiB for each of its slots.
pub const KEPT_CLIENT_BYTES_MAX: usize = 1 << 20;

/// Bytes of responses that are kept of all clients. Above half of it those of clients that have no connection
/// are let go of; above it those of the client whose next call is answered.
pub const KEPT_ALL_BYTES_MAX: usize = 64 << 20;

/// A log that has something to write and writes nothing for so long is said to be stuck, in microseconds.
/// Disks that work take less than a second for a sync, also at their worst.
pub const LOG_STALLED_US: u64 = 5_000_000;

/// Time for which a server keeps its table of the calls of a client without a connection, in microseconds: an
/// outage of a minute loses no call.
pub const SERVED_ABSENT_US: u64 = 60_000_000;

/// Clients without a connection whose calls a server knows of.
pub const SERVED_ABSENT_MAX: usize = 4_096;

/// Versions of interfaces whose callers were built at another time than this server: the programs of some
/// releases, with as many interfaces each.
pub const VERSIONS_MAX: usize = 256;

/// Versions that one connection binds: more than a program has interfaces.
pub const VERSIONS_CONN_MAX: usize = 64;

/// Bytes of the descriptions of those that one connection binds: a quarter of all.
pub const VERSIONS_CONN_BYTES_MAX: usize = 1 << 20;

/// Numbers of interfaces and their versions that a server gives out while it runs. None is given out again,
/// and each takes some bytes at every connection whose rights are judged.
pub const VERSIONS_EVER_MAX: usize = 1_024;

/// Bytes of the description of one version: 256 methods with layouts of 200 bytes each.
pub const VERSION_BYTES_MAX: usize = 256 << 10;

/// Bytes of the descriptions of all versions, which have some twenty times as many in memory.
pub const VERSIONS_BYTES_MAX: usize = 4 << 20;

/// Calls of slow procedures that wait for a thread of the server's pool: some for each client of a busy
/// server. One more is refused.
pub const JOBS_MAX: usize = 256;

/// Chunks of large values after which an entry that frees them ends. It has at most those of one node more.
pub const FREED_MAX: usize = 1 << 10;

/// Pages in the index of what was freed, or given out again, some 150 bytes each: of a transaction that began
/// before more of that, every read, write and reference is answered `TooOld`.
pub const FREED_PAGES_MAX: usize = 1 << 18;

/// Trees of chunks that wait to be freed, 4 bytes each: far more than a server falls behind by. A commit that
/// would release more is answered `Full`.
pub const RELEASED_MAX: usize = 1 << 20;

/// Views that are remembered, with what each kept: a start every hour for half a year.
pub const VIEWS_MAX: usize = 4_096;

/// Silence after which a side asks the other, in milliseconds. Twice this stops serializable reads.
pub const KEEPALIVE_MS: u32 = 2_000;

/// Time that a server of a group has for a sign of life while it owes an answer, in microseconds. A client
/// asks after as long, so that it gives up a leader when the other members do.
pub const HASTE_US: u64 = 75_000;

/// Time that it has for the answer to a greeting: one that does not lead says so at once.
pub const GREETED_US: u64 = 40_000;

/// The number of times that these are doubled, each time after a server was given up that still led.
pub const HASTE_DOUBLINGS: u32 = 6;

/// Attempts at the first greeting that are answered by nonsense until a client with several addresses gives
/// up: none of them seems to be a server's.
pub const STRANGERS_MAX: u32 = 12;

/// Time for which a session may hold up that pages are given out again while it is busy, in microseconds: a
/// transaction of 128 MB takes nine minutes to arrive at two megabits a second. One that is not busy has two
/// keepalives.
pub const HELD_UP_US: u64 = 600_000_000;

/// The interval at which an idle session receives the newest watermark, in microseconds: bounds the lag of
/// its reads.
pub const HEARTBEAT_US: u64 = 50_000;

/// References in the index of recent writes: 16 bytes each. A base older than the index reaches is answered
/// `TooOld`, so this times the commit rate is how long an update transaction may take. The index has all or
/// nothing of what a transaction wrote, so it may have more by what one wrote.
pub const LAST_WRITES_MAX: usize = 1 << 18;

/// Clients whose last answers are kept: more than there are sessions, for only a client without one is
/// evicted when another comes.
pub const CLIENTS_MAX: usize = SESSIONS_MAX + 4_096;
/// Bytes of those answers in memory and in a saved state, which is stored with each checkpoint: a million
/// answers that say no more than that an operation committed, or 60,000 of the longest. Clients without a
/// session are evicted for it, down to 7/8.
pub const ANSWERS_BYTES_MAX: usize = 64 << 20;
/// Evicted clients that are remembered as such.
pub const EVICTED_MAX: usize = 65_536;

/// Pages that one session may be subscribed to: more than its cache can hold in most cases. Beyond it the
/// server revokes.
pub const SUBSCRIPTIONS_MAX: usize = 1 << 20;

/// Pages that all sessions together are subscribed to: a thousand clients with caches of 128 MB. Each costs
/// some 50 bytes, so they cost a server less than a gigabyte. Beyond it the session that has most is asked
/// for pages back.
pub const SUBSCRIPTIONS_ALL_MAX: usize = 1 << 24;

/// Pages of greetings that are being taken in, of all clients that greet: 48 of the largest greetings, at 16
/// bytes a page. A client that comes above it must come again.
pub const GREETED_PAGES_MAX: usize = 1 << 22;

/// Time for which a server warns that its group's view began with members that were not sure of their logs,
/// in microseconds: long enough for whoever looks once a minute.
pub const UNSURE_TOLD_US: u64 = 60_000_000;

/// Time for which a greeting waits for a leader at a member of a group that knows none, in microseconds:
/// about the time after which a silent leader is suspected. The client then asks the next member.
pub const GREETING_WAIT_US: u64 = 150_000;

/// Bytes of messages that have arrived in part, of all connections of a server: eight of the largest calls.
/// Messages mostly arrive within a few round trips, so honest clients have less under way. Where the sum
/// comes near it, the connections that hold most are ended.
pub const RECEIVED_BYTES_MAX: usize = 512 << 20;

/// The same of connections that have not greeted, whose messages are greetings: strangers take no room from
/// clients.
pub const GREETING_BYTES_MAX: usize = 64 << 20;

/// Bytes of answers that were not taken, of all connections of a server: a thousand clients that ask and do
/// not read, for what one asks waits at a megabyte. Where the sum comes near it, the connections that hold
/// most are ended.
pub const UNSENT_ALL_BYTES_MAX: usize = 1 << 30;

/// Unsent answers above which a connection is not read: a hundred pages. A fast reader leaves less between
/// two turns of the loop, and a thousand connections that do not read cost a server one gigabyte and not
/// sixteen.
pub const UNSENT_ASK_MAX: usize = 1 << 20;

/// Microseconds for which a turn of the loop serves the connections that are ready together, and once more
/// those of the run queue: a dozen requests. A connection that is ready later has one frame handled.
pub const SLICE_US: u64 = 50;

/// Events that a host takes at once: enough for every client of a busy server to share a sync, few enough
/// that the first reply of a batch waits less than a millisecond for the last request.
pub const EVENTS_AT_ONCE: usize = 256;

/// Bytes of the rests of large messages that are received in a turn, of all connections: some hundred
/// microseconds', and a few times what the events of a turn bring.
pub const RESTS_BYTES_AT_ONCE: usize = 1 << 20;

/// Calls in lines that are served before the clock is read, and in each turn.
pub const LINES_AT_ONCE: u32 = 16;

/// Microseconds for which calls in lines alone are served before the other sources are looked at. A look
/// there takes as long as some calls, and one call in a hundred should not wait for a look.
pub const LINES_SLICE_US: u64 = 100;

/// Microseconds for which connections in shared memory are served before the others are looked at.
pub const CHANNELS_SLICE_US: u64 = 20;

/// Receives from a socket for datagrams before the next one has its turn: about a millisecond's, if packets
/// are large.
pub const RECEIVES_AT_ONCE: u32 = 64;

/// Microseconds for packets in one turn, longer only by the calls that came together last.
pub const DATAGRAMS_SLICE_US: u64 = 500;

/// Turns of a loop that does not sleep after which it waits for a thread that wants the machine. A thread
/// that sleeps takes some turns to wake up.
pub const TURNS_AT_ONCE: u32 = 4;

/// Time in which a connection that was ended may take its last bytes, in microseconds.
pub const LINGER_US: u64 = 5_000_000;

/// Bytes that connections which the server has ended may still take, of all of them: hundreds of thousands of
/// last words. What comes above it is dropped with its connection.
pub const LAST_BYTES_MAX: usize = 64 << 20;

/// Pages asked back from one session and not yet given back. A client answers within a round trip; one that
/// goes on fetching without an answer is cut off here.
pub const REVOKING_MAX: usize = 1_024;

/// Bytes of transactions arriving in parts, of all sessions together: a few of the largest at once.
pub const STAGED_BYTES_MAX: usize = 4 * TRANSACTION_BYTES_MAX;

/// Pages known to be empty that a client stays subscribed to, so that the client receives a birth there.
pub const EMPTY_PAGES_MAX: usize = 1_024;

/// Objects that the watches of a client look at, counted for each watch: some megabytes.
pub const WATCHED_MAX: usize = 1 << 16;

/// Changes kept for sessions that resume, in objects.
pub const RECENT_CHANGES_MAX: usize = 1 << 16;

/// Sessions of a server.
pub const SESSIONS_MAX: usize = 16_384;

/// Bytes of a call over datagrams: a larger one goes as a message.
pub const DATAGRAM_CALL_MAX: usize = 8 << 20;

/// Connections of datagrams of a server, and bytes of the requests of each that are not whole yet.
pub const DATAGRAM_CONNECTIONS_MAX: usize = 1_024;
pub const DATAGRAM_PENDING_BYTES_MAX: usize = DATAGRAM_CALL_MAX;

/// Classes of a space.
pub const CLASSES_MAX: usize = 4_096;

/// Attempts of `run`, each from a newer state than the one before, until it gives the conflict to its caller.
pub const RUN_ATTEMPTS_MAX: u32 = 64;

/// Attempts that a run loses before other runs of its home make way for it. It has three times as many left
/// then.
pub const LOSSES_MAX: u32 = 16;
/// Attempts of `run` in all: some ten seconds of pauses, in which a client that hears nothing new of its
/// server loses its connection or catches up.
pub const RUN_RETRIES_MAX: u32 = 1_024;

/// Time for which it is run again in one state, in microseconds.
pub const RUN_SAME_US: u64 = 10_000_000;

/// Transactions open at once inside of a server: threads of its program and methods under way.
pub const LOCAL_TRANSACTIONS_MAX: usize = 64;

/// Bytes that a transaction inside of a server may copy of what it reads: tens of thousands of objects. With
/// as many transactions as may be open they are half a gigabyte, which only a program that reads that much
/// uses.
pub const LOCAL_READ_BYTES_MAX: usize = 8 << 20;

/// Parts of a backup that its client may have asked for and not yet got: one is read while the next is on its
/// way.
pub const BACKUP_ASKED_MAX: usize = 4;

/// The interval at which a backup's progress is checked, in microseconds, and the pages that it must have
/// passed since. A backup of 10 GB can hold up the reuse of space in the page store for a day at most.
pub const BACKUP_WINDOW_US: u64 = 60_000_000;
/// See [`BACKUP_WINDOW_US`].
pub const BACKUP_WINDOW_PAGES_MIN: usize = 1_024;

/// Connections that read the log at once: an archive, and the backups of a few.
pub const LOG_READERS_MAX: usize = 8;

/// The longest time for which a request for entries of the log waits for the next one, in microseconds: half
/// of the keepalive that is usual.
pub const LOG_WAIT_US: u64 = 1_000_000;

/// Parts of transactions over several spaces that are prepared at once, and their bytes, which a checkpoint
/// has in it.
pub const PREPARES_MAX: usize = 4_096;
pub const PREPARES_BYTES_MAX: usize = 16 << 20;

/// The prepares of one client.
pub const PREPARES_CLIENT_MAX: usize = 512;

/// Decisions about transactions over several spaces whose parts are not known to be settled: some hundred
/// bytes each.
pub const DECISIONS_MAX: usize = 1 << 14;

/// The decisions of one client.
pub const DECISIONS_CLIENT_MAX: usize = 4_096;

/// Questions of one connection that wait until parts are settled: three kinds, of each what a client asks at
/// most.
pub const AWAITING_MAX: usize = 48;

/// Spaces that one transaction reads or writes.
pub const SPACES_MAX: usize = 16;

/// Time for which a commit waits until a part lets go of what it holds, in microseconds.
pub const HELD_US: u64 = 250_000;

/// Refusals of transactions that wait for their turns.
pub const LOSERS_MAX: usize = 1_024;

/// Time for which a client that lost over an object has it to itself, in microseconds: a round trip, and a
/// transaction's own time on a busy host.
pub const TURN_US: u64 = 10_000;

/// Rights in a space: a principal's are gone through when they change, and all of them stand in a checkpoint.
pub const RIGHTS_MAX: usize = 256;
