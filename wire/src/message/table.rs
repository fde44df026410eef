//! The table of messages: numbers, names, senders, fields and answers. Everything that goes by kind follows
//! from it: [`Kind`], [`FromClient`] and [`FromServer`] with their codecs, the bodies' types, the lists that
//! tests and fuzz targets go through, and the table in `docs/formats.md`.
//!
//! A row is `NUMBER NAME BODY => ANSWERS`, with `'a` before the name if the body borrows. A body is the
//! fields in the order of their bytes, or the type that has its codec elsewhere, or `()`. A client's numbers
//! are below 64. `Refused` is among the answers of every request.

use super::declare::{body, form, messages, type_of, words};
use super::form::{
    Form, FromOne, Methods, NoneAtMax, Numbered, PagesEnd, Servers, ServiceSlot, Tail, ToEnd, Told,
};
use super::{
    Accessing, Awaited, BackupPart, Change, Credit, Decision, HealthState, Held, Hole, Item, MessageError,
    Nothing, Opening, Outcome, PageReply, Prepared, Refusal, Regrouping, Request, Response, Resume, Right,
    Settle, Via,
};
use crate::access::{Principal, Role};
use crate::cursor::{DecodeError, Reader};
use crate::id::{ClassId, ClientId, MemberId, OpId, PageId, SpaceId, Stamp, ViewId};
use crate::interface::Interface;
use crate::layout::Layout;
use crate::token::Token;
use crate::vector::Vector;

messages! {
FromClient {
    /// The first message of a connection.
    1 Hello {
        /// Drawn at random by the process.
        client: ClientId,
        /// Counts the connections of the process from 1; an older one never takes a younger one's place.
        connection: u64,
        /// Versions of the protocol that it speaks.
        version_min: u16,
        /// The newest of them.
        version_max: u16,
        /// The space it expects; 0 is any.
        space: SpaceId,
        /// The state kept from an earlier connection.
        resume: Option<Resume>,
        /// The part of the group's leader in the session; all of it without this.
        via: Option<Via> as Tail,
    } => Welcome;
    /// Asks for a page and subscribes to it.
    2 Fetch {
        /// The page.
        page: PageId,
        /// Counts the client's fetches, so that a late [`Unsubscribe`] cannot undo a newer fetch.
        fetch: u64,
        /// The client has a copy of the page, and heard of all changes to it up to this stamp: if nothing has
        /// changed since, it needs no other.
        since: Option<Stamp> as Tail,
    } => Page | Unchanged;
    /// Asks to execute a transaction. What follows its head is the end of the transaction's bytes, in the
    /// form of `CommitEffects`; `parts` pieces came before.
    3 'a Commit {
        /// The operation.
        op: OpId,
        /// Pieces sent before this one.
        parts: u32,
        /// The last piece.
        bytes: &'a [u8],
    } => Verdict;
    /// A piece of a transaction too large for one message; the pieces of an operation are joined in order and
    /// the [`Commit`] that follows ends with the last of them.
    4 'a Part {
        /// The operation.
        op: OpId,
        /// Counts the parts from 0.
        index: u32,
        /// The piece.
        bytes: &'a [u8],
    };
    /// Asks what became of an operation whose answer did not come; if it was not executed, it never will be.
    5 Resolve {
        /// The operation.
        op: OpId,
    } => Verdict;
    /// The header carries the watermark. It answers a [`Stream`] that asks for it.
    6 Ack ();
    /// Drops subscriptions, each up to the fetch it names.
    7 Unsubscribe {
        /// Pages and the number of the last fetch that was served.
        pages: Vec<(PageId, u64)>,
    };
    /// Asks for empty pages to make objects in.
    8 Lease {
        /// Counts the session's grants from 1; one that was not heard of is asked for again by the same
        /// number.
        seq: u64,
        /// The number of pages asked for.
        pages: u16,
        /// Pages of earlier grants in which the client makes nothing more, each with the first slot that it
        /// gave to no object.
        done: Vec<(PageId, u16)>,
    } => Leased;
    /// Asks for the number of a class, which is defined unless it is there.
    9 Define (Layout) => Defined;
    /// Asks for all classes.
    10 Catalogue () => Classes;
    /// Asks how far the space is. The echo counts from the sending of the question: the server asks its
    /// sequencer whether it still leads, and answers behind everything that was visible then.
    11 Ping {
        /// Asks as well whether this state is of the server's history. [`Refused`] if it is not.
        of: Option<Token> as Tail,
    } => Pong;
    /// Asks for the server's status.
    12 Stat () => Status;
    /// Ends the session. The server closes the connection.
    13 Bye ();
    /// Begins a backup.
    14 Backup () => BackupBegun;
    /// Asks for its next part.
    15 BackupNext () => BackupPart;
    /// Asks for a collection of what no root reaches. The status has the number of the collection that will
    /// do it.
    16 Collect {
        /// Set for a collection that only reports what it would free.
        is_dry: bool,
    } => Status;
    /// Asks for the numbers by which a class's methods are called on this connection.
    17 Bind {
        /// The interface as the caller knows it.
        interface: Interface,
    } => Bound;
    /// Asks for the interfaces that the server has.
    19 Interfaces () => Offered;
    /// Asks an object for a method, or a service for a procedure.
    20 Request (Request<'a>) => Response | Verdict;
    /// The caller waits no longer: what has not been begun never will be, and what runs may end early. It is
    /// answered all the same.
    21 Cancel {
        /// The slot of the call.
        slot: u16 as ServiceSlot,
        /// Its sequence.
        seq: u64 as FromOne,
    };
    /// An item of the stream that a procedure takes.
    22 InputItem (Item<'a>);
    /// A caller has sent all items of its stream.
    23 InputEnd {
        /// The slot of the call.
        slot: u16 as ServiceSlot,
        /// Its sequence.
        seq: u64 as FromOne,
        /// The number of items sent.
        items: u64,
    };
    /// Reports the bytes consumed of the stream that a procedure gives.
    24 OutputCredit (Credit);
    /// Asks whether the server serves. It is also answered before a [`Hello`].
    25 AskHealth () => Health;
    /// The first message of a connection from another member of the server's group, or from an operator who
    /// has the group's secret. It says nothing more until the connection is proven; the receiver sends its
    /// own packets over a connection of its own.
    26 Join {
        /// The group; an operator's may be 0, for any.
        group: u64,
        /// The space; an operator's may be 0, for any.
        space: SpaceId,
        /// The member that connects; 0 is an operator.
        member: MemberId,
        /// The number of its process's start.
        start: u64,
        /// The version of the packets and entries that it speaks: all members speak the same.
        version: u16,
        /// The numbers that tell the connection from every other one. Builds that proved nothing sent none.
        opening: Option<Opening> as Tail,
    } => Challenge;
    /// A packet between members, as the order encodes it.
    27 'a Packet {
        /// The packet.
        bytes: &'a [u8],
    };
    /// Asks a member about its group, or the leader to change it: one change at a time. It is also answered
    /// before a [`Hello`], once the change is stable.
    28 Regroup {
        /// The change.
        step: Regrouping,
        /// The member that it is about.
        member: MemberId,
        /// Where a member that is new is reached by clients and members.
        address: String,
    } => Grouped;
    /// Tells that calls which come over datagrams of this connection are of this session.
    29 Datagrams {
        /// The connection, as its caller has drawn it at random: no other sender knows it.
        connection: u64 as FromOne,
    };
    /// Orders that what follows in the space rests on what the client has seen of other spaces. It may be
    /// asked again.
    30 Depend {
        /// The states that were seen.
        on: Vector,
    } => Dependencies;
    /// A member asks the leader for a copy of the space: the log no longer has what it needs.
    31 Transfer {
        /// The group.
        group: u64,
        /// The member.
        member: MemberId,
    } => TransferBegun;
    /// Asks to prepare this space's part of a transaction over several spaces: it is judged as a commit would
    /// be, and what it read and writes is held until the transaction is settled. The stamp of the verdict is
    /// that of the prepare.
    32 'a Prepare {
        /// The operation here.
        op: OpId,
        /// The transaction: the operation at its coordinator.
        of: OpId,
        /// The space that decides it.
        coordinator: SpaceId,
        /// States that this space will rest on, at least, if the transaction is committed.
        seen: Vector,
        /// As in [`Commit`], in one piece.
        bytes: &'a [u8],
    } => Verdict;
    /// Asks the coordinator of a transaction over several spaces to commit it: all others have prepared. This
    /// is its own part's commit, too.
    33 'a Decide {
        /// The operation, which is the transaction.
        op: OpId,
        /// The other spaces that it read or writes.
        parts: Vec<Prepared>,
        /// The states that it depends on, and the prepares of those of its parts that write.
        seen: Vector,
        /// As in [`Commit`], in one piece.
        bytes: &'a [u8],
    } => Verdict;
    /// Tells a space the end of a transaction that it has prepared. One that it has settled before is
    /// settled; of one that was prepared in another history, by the view that is named, the space says so.
    34 Settle (Settle) => Settled;
    /// Asks the coordinator of a transaction what became of it. If it was not decided, it never will be.
    35 Inquire {
        /// The transaction.
        of: OpId,
    } => Decided;
    /// Asks to be answered once no prepare up to a stamp waits for its settlement.
    36 AwaitSettled {
        /// The stamp.
        upto: Stamp,
        /// The parts that are meant, if not all.
        of: Option<Awaited> as Tail,
    } => SettledUpto;
    /// Proves that the sender of a [`Join`] has the group's secret.
    37 Prove {
        /// The proof over both ends of the connection.
        proof: [u8; 32],
    } => Proven;
    /// Begins to read the leader's log behind a position. What is stable can then be asked for, in order, and
    /// the log is kept from there on within its bounds. A connection reads in one place.
    38 FollowLog {
        /// The position. 0 is that of the last stable entry, or the one before the first piece of a large
        /// transaction that is under way.
        after: u64,
    } => LogFollowed;
    /// Asks for the next entries of the log. If none is stable, the answer waits for a second at most, and
    /// has none then. Refused as too old if the log begins later.
    39 LogNext () => BackupPart;
    /// Asks which rights there are in the space, or the leader to change them. It is also answered before a
    /// [`Hello`], a change once it is visible.
    40 Access {
        /// The question, or the change.
        step: Accessing,
        /// The right to be granted or revoked; none for a question.
        right: Option<Right> as Tail,
    } => Accessed;
    /// The client that greets next on this connection is this principal. A server believes it of members, and
    /// of a principal with the role `speak-for`, if it is a client or the subject of a token.
    41 OnBehalf {
        /// The principal.
        who: Principal,
    };
}
FromServer {
    /// From now on the connection is a session.
    64 Welcome {
        /// The version that both speak.
        version: u16,
        /// The space.
        space: SpaceId,
        /// The view that answers.
        view: ViewId,
        /// The stamp from which the stream goes on: everything up to it is in the client's hands, or nothing
        /// of it matters because the client has nothing cached.
        watermark: Stamp,
        /// Set if the client's copies stay valid; if not, the client drops all of them before it sets its
        /// watermark.
        resumed: bool,
        /// Set if the client still owns the places that it was granted.
        places: bool,
        /// Silence after which each side asks the other, in milliseconds.
        keepalive_ms: u32,
        /// Fetches, operations and calls of services, of each, that the client may have under way.
        credit: u16,
        /// Bytes that its calls of methods may have under way, and as many its calls of services.
        credit_bytes: u32,
        /// Bytes that one transaction may have.
        transaction_bytes_max: u32,
        /// Bytes of a page.
        page_bytes: u16,
        /// Addresses of the group's members, by which the client finds the next leader; none of a server that
        /// is alone.
        servers: Vec<String> as Servers,
    };
    /// A page of which the client has no current copy. The frame's stamp says at which stamp it holds.
    65 Page (PageReply<'a>);
    /// The outcome of an operation.
    67 Verdict {
        /// The operation.
        op: OpId,
        /// The outcome.
        outcome: Outcome,
    };
    /// The changes after `from` and up to `to`, in the pages that the client is subscribed to. It is sent
    /// unasked.
    68 Stream {
        /// The stamp that this message continues.
        from: Stamp,
        /// The client's watermark once all of it is applied.
        to: Stamp,
        /// Commits in order.
        changes: Vec<Change>,
        /// Pages the server wants to forget, each up to a fetch: the client drops them and unsubscribes.
        revoked: Vec<(PageId, u64)>,
        /// The client is to acknowledge at once: pages wait for that to be given out again.
        ack: bool,
    } where Stream::check;
    /// Fewer pages than asked for if the space or the client's share ends.
    69 Leased {
        /// The number of the session's last grant, which this is unless it has no pages.
        seq: u64,
        /// The stamp of the grant, if it gave any page out again; else zero. A state below it may have other
        /// objects there.
        birth: Stamp,
        /// The pages, empty but for those of `holes`, in ascending order.
        pages: Vec<PageId>,
        /// The pages among them in which there is something.
        holes: Vec<Hole>,
    };
    /// The class is in the catalogue.
    70 Defined {
        /// The number of the class.
        class: ClassId,
    };
    /// The classes of the space.
    71 Classes {
        /// Ids and layouts.
        classes: Vec<(ClassId, Layout)>,
    };
    /// The frame's stamp is visible, and the sequencer has confirmed after the [`Ping`] came that the server
    /// still led. It comes behind the [`Stream`] up to that stamp.
    72 Pong {
        /// Set while the space has few pages left, or soon will have none.
        nearly_full: bool,
        /// The parts of transactions over several spaces that are not settled in that state, though they were
        /// prepared when the question came; none if there are no such parts.
        held: Option<Held> as Tail,
    };
    /// The server's status.
    73 'a Status {
        /// In JSON.
        json: &'a [u8],
    };
    /// A request that the server does not serve, or the end of the connection if the frame's call is 0.
    74 Refused {
        /// The party that must act.
        reason: Refusal,
        /// The text for a person.
        text: String as Told,
        /// Beside *not leader* the addresses of the members, the leader's first if it is known.
        servers: Vec<String> as Servers,
    };
    /// From now on parts can be asked for, all of them of one stamp.
    75 BackupBegun {
        /// Every commit up to this stamp is in it, and none after.
        stamp: Stamp,
        /// The view in which it was begun.
        view: ViewId,
        /// The first page that nothing can be in; pages below it may be missing.
        pages_end: u32 as PagesEnd,
        /// Bytes of the ordered state, which come before the pages.
        state_bytes: u32,
    };
    /// The next part of a backup.
    76 BackupPart (BackupPart<'a>);
    /// The numbers of an interface and its methods.
    77 Bound {
        /// The number of the interface; none if this server does not have it: its methods run at clients
        /// alone.
        interface: Option<u16> as NoneAtMax,
        /// The number of each of the caller's methods.
        methods: Vec<Numbered> as Methods,
        /// For a service: which table the server keeps this client's calls in. Calls that were sent while it
        /// was another one are not known.
        table: Option<u32> as Tail,
    };
    /// The interfaces that the server has.
    79 Offered {
        /// The interfaces, one after the other.
        interfaces: Vec<Interface> as ToEnd,
    };
    /// The result of a call.
    80 Response (Response<'a>);
    /// An item of the stream that a procedure gives. The frame's stamp is 0 if the procedure has not used the
    /// space.
    81 OutputItem (Item<'a>);
    /// Reports the bytes consumed of the stream that a procedure takes.
    82 InputCredit (Credit);
    /// Nothing in the page has changed after the stamp that the client named, and the client is subscribed to
    /// it.
    83 Unchanged {
        /// The page.
        page: PageId,
        /// The number of the fetch.
        fetch: u64,
    };
    /// The server's health. It is answered on arrival, and waits neither for the log nor for the page store.
    84 Health {
        /// The service that the server can offer.
        state: HealthState,
        /// Since when it has been up, in microseconds.
        up_us: u64,
        /// Calls of methods and slow procedures that run or wait, of all clients.
        calls: u32,
        /// Why it is in this state, or what its operator should know; empty if there is nothing to say.
        reason: String,
    };
    /// The group is as it was asked to be.
    85 'a Grouped {
        /// The group.
        group: u64,
        /// The space.
        space: SpaceId,
        /// The number of the first view of this history of the space; 0 unless it was restored.
        view_first: u32,
        /// The members, as the order encodes their list.
        members: &'a [u8],
    };
    /// The group's members have changed: the client finds the next leader by these. It is sent unasked.
    86 Addresses {
        /// As in [`Welcome`].
        servers: Vec<String> as Servers,
    };
    /// States of other spaces on which the space rests, so far as they changed: sent unasked before the
    /// welcome, and before the stream up to the stamp at which they did.
    87 Dependencies {
        /// The states.
        on: Vector,
    };
    /// From now on the parts of a copy can be asked for, as those of a backup, and behind the pages the log.
    88 TransferBegun {
        /// The last entry that the state contains, and the last of the log that is sent.
        stamp: Stamp,
        /// The view in which it was begun.
        view: ViewId,
        /// As in [`BackupBegun`].
        pages_end: u32 as PagesEnd,
        /// As in [`BackupBegun`].
        state_bytes: u32,
        /// The first entry that is sent: pages may lack what came from there on.
        replay_from: Stamp,
        /// The view of the entry before that.
        before_view: ViewId,
        /// Its position.
        before: u64,
    };
    /// The transaction is settled here, and the stream up to the stamp of the frame has what it changed.
    89 Settled ();
    /// The end of a transaction over several spaces.
    90 Decided {
        /// The end.
        decision: Decision,
        /// Empty unless it is committed: the states that it depends on, and its own stamps.
        seen: Vector,
    };
    /// In all states from the stamp of the frame on, no prepare up to the stamp that was asked for waits for
    /// its settlement.
    91 SettledUpto {
        /// The parts that wait all the same, as far as the question lets them.
        held: Option<Held> as Tail,
    };
    /// Asks the sender of a [`Join`] to prove that it has the group's secret, and proves that the server has.
    92 Challenge {
        /// The group.
        group: u64,
        /// The member that answers; 0 of a server that is of no group.
        member: MemberId,
        /// The number of its process's start.
        start: u64,
        /// Drawn at random for the connection.
        nonce: [u8; 32],
        /// The proof over both ends of the connection.
        proof: [u8; 32],
        /// The number that a member's process drew, and starts of its directory that others may know, as in
        /// [`Opening`].
        drawn: Option<(u64, Vec<(u64, u64)>)> as Tail,
    };
    /// The connection counts for the member that has proven itself, or for an operator.
    93 Proven ();
    /// From now on the log can be read behind a position.
    94 LogFollowed {
        /// The last stable entry.
        stamp: Stamp,
        /// The view that the server leads.
        view: ViewId,
        /// The position behind which the log is read.
        position: u64,
        /// The position of the last stable entry.
        stable: u64,
    };
    /// The rights in the space, as far as the one that asks may see them.
    95 Accessed {
        /// The principal that asks.
        who: Principal,
        /// The roles of the principal, those included that nobody can take from it.
        roles: Vec<Role>,
        /// Set if rights are judged: without a grant ever, everyone may do everything.
        is_judged: bool,
        /// All rights, in order; none for a principal that neither grants nor operates.
        rights: Vec<Right>,
    };
}
}
