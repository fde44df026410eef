//! A message of each kind that a client sends, and the roles of which each alone lets it pass.
//!
//! Every way to a server is tried with this one table. The invariant: the roles are written here by hand,
//! apart from the server's own table of needs.

use tercel_wire::access::Principal;
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClassId, ClientId, MemberId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::interface::Interface;
use tercel_wire::message::*;
use tercel_wire::vector::{Seen, Vector};

use crate::hand::{Work, layout, object};

/// The roles that are tried, each alone. `Asked` is a service, and `Counts` are methods of objects.
pub const ROLES: [&str; 9] =
    ["read", "write", "define", "call Asked", "call Counts", "backup", "operate", "grant", "speak-for"];

/// The roles that the superuser and the server's own user have on its host.
pub const OF_OPERATORS: [&str; 2] = ["operate", "grant"];

const CALLS: &[&str] = &["call Asked", "call Counts"];
const ALL: &[&str] = &ROLES;

/// A client, and the space that its messages are about: an object of the class `C` is in the page's slot 0.
pub struct Requests {
    /// The client that sends the messages.
    pub client: ClientId,
    /// The view that its operations name.
    pub view: ViewId,
    /// A state that is visible.
    pub visible: Stamp,
    /// The class [`layout`] gives for the name `C`.
    pub class: ClassId,
    /// The page.
    pub page: PageId,
    /// The service `Asked`, whose first procedure takes nothing.
    pub service: Interface,
    /// The methods `Counts`, the first of which takes nothing.
    pub of_objects: Interface,
    /// A right that is there.
    pub revoked: Right,
}

/// A message, and the roles that let it pass.
pub struct Asked {
    /// Its kind.
    pub kind: Kind,
    /// Its body.
    pub body: Vec<u8>,
    /// Each of these roles alone is enough. If there is none, only members and operators are served.
    pub roles: &'static [&'static str],
}

impl Asked {
    /// Says whether a principal with this role alone is served; an operator has two more.
    pub fn is_for(&self, role: &str, is_operator: bool) -> bool {
        if self.roles.is_empty() {
            return is_operator;
        }
        self.roles.iter().any(|of| *of == role || is_operator && OF_OPERATORS.contains(of))
    }

    /// Says whether a server that serves it answers.
    pub fn is_answered(&self) -> bool {
        let unanswered = [
            Kind::Ack,
            Kind::Cancel,
            Kind::Datagrams,
            Kind::InputEnd,
            Kind::InputItem,
            Kind::OutputCredit,
            Kind::Part,
            Kind::Unsubscribe,
        ];
        !unanswered.contains(&self.kind)
    }

    /// Checks that a refusal names who lacks what, and how that is given.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_words(&self, who: &str, text: &str) {
        let Some(needed) = self.roles.first() else {
            return assert!(text.contains("only operators and members"), "{:?}: {text}", self.kind);
        };
        let names = |role: &str| text.contains(&format!("{who} lacks the role `{role}"));
        let is_named = self.roles.iter().any(|needed| names(needed.split(' ').next().unwrap_or(needed)));
        // A class that is known may be looked up by those who read.
        let is_looked_up = self.kind == Kind::Define && names("read`");
        assert!(is_named || is_looked_up, "{:?} needs {needed}: {text}", self.kind);
        assert!(text.contains(&format!("`tercel access grant {who} ")), "{text}");
    }
}

impl Requests {
    /// The object's reference.
    ///
    /// # Panics
    /// Never: slot 0 is a slot.
    pub fn oref(&self) -> Oref {
        Oref::new(self.page, 0).unwrap()
    }

    /// The effects of a transaction that changes the object.
    fn writes(&self) -> Vec<u8> {
        let (object, mut bytes) = (object(self.class, 2), Vec::new());
        let writes = vec![Write { oref: self.oref(), new: false, object: &object }];
        Work { base: self.visible, reads: vec![], writes }.encode(&mut bytes);
        bytes
    }

    /// The call of a service's procedure, of a method that writes, and of one that reads.
    pub fn calls(&self) -> [Request<'static>; 3] {
        let call = |slot, object| Request {
            slot,
            seq: 1,
            again: false,
            interface: 0,
            method: 0,
            object,
            key: &[],
            payload: &[],
        };
        let target = Some((self.oref(), self.visible));
        [call(Some(0), None), call(Some(0), target), call(None, target)]
    }

    /// A message of each kind.
    pub fn all(&self) -> Vec<Asked> {
        let mut all = Vec::new();
        let mut add = |message: FromClient<'_>, roles| {
            let mut body = Vec::new();
            message.encode(&mut body);
            all.push(Asked { kind: message.kind(), body, roles });
        };
        // No operation is named twice: the answer of one would be the other's.
        let mut seq = 0;
        let mut op = || {
            seq += 1;
            OpId { client: self.client, slot: 3, seq, view: self.view }
        };
        let (writes, mut reads) = (self.writes(), Vec::new());
        Work { base: self.visible, reads: vec![self.oref()], writes: vec![] }.encode(&mut reads);
        let changes: &[&str] = &["read", "write"];
        let classes: &[&str] = &["read", "write", "define"];
        add(FromClient::Hello(Hello::new(self.client)), ALL);
        add(FromClient::Fetch(Fetch { page: self.page, fetch: 1, since: None }), &["read"]);
        add(FromClient::Commit(Commit { op: op(), parts: 0, bytes: &writes }), &["write"]);
        add(FromClient::Commit(Commit { op: op(), parts: 0, bytes: &reads }), changes);
        add(FromClient::Part(Part { op: op(), index: 0, bytes: &writes }), changes);
        add(FromClient::Resolve(Resolve { op: op() }), ALL);
        add(FromClient::Ack(Nothing), ALL);
        add(FromClient::Unsubscribe(Unsubscribe { pages: vec![(self.page, 1)] }), ALL);
        add(FromClient::Lease(Lease { seq: 1, pages: 1, done: vec![] }), &["write"]);
        add(FromClient::Define(layout("C")), classes);
        add(FromClient::Define(layout("D")), &["define"]);
        add(FromClient::Catalogue(Nothing), classes);
        add(FromClient::Ping(Ping { of: None }), ALL);
        add(FromClient::Stat(Nothing), &["operate"]);
        add(FromClient::Bye(Nothing), ALL);
        add(FromClient::Backup(Nothing), &["backup"]);
        add(FromClient::BackupNext(Nothing), &["backup"]);
        add(FromClient::FollowLog(FollowLog { after: 0 }), &["backup"]);
        add(FromClient::LogNext(Nothing), &["backup"]);
        add(FromClient::Collect(Collect { is_dry: true }), &["operate"]);
        add(FromClient::Bind(Bind { interface: self.service.clone() }), &["call Asked"]);
        let of_objects = Bind { interface: self.of_objects.clone() };
        add(FromClient::Bind(of_objects), &["read", "call Asked", "call Counts"]);
        add(FromClient::Interfaces(Nothing), ALL);
        let [service, writing, reading] = self.calls();
        add(FromClient::Request(service), &["call Asked"]);
        add(FromClient::Request(writing), &["call Counts"]);
        add(FromClient::Request(reading), &["call Counts"]);
        add(FromClient::Cancel(Cancel { slot: 0, seq: 1 }), CALLS);
        add(FromClient::InputItem(Item { slot: 0, seq: 1, ordinal: 1, payload: &[] }), CALLS);
        add(FromClient::InputEnd(InputEnd { slot: 0, seq: 1, items: 1 }), CALLS);
        add(FromClient::OutputCredit(Credit { slot: 0, seq: 1, bytes: 1 }), CALLS);
        add(FromClient::AskHealth(Nothing), ALL);
        let member = MemberId(9);
        let join = Join { group: 1, space: SpaceId(1), member, start: 1, version: 1, opening: None };
        add(FromClient::Join(join), ALL);
        add(FromClient::Prove(Prove { proof: [0; 32] }), ALL);
        add(FromClient::Packet(Packet { bytes: &[] }), ALL);
        let regroup = |step| Regroup { step, member, address: String::new() };
        add(FromClient::Regroup(regroup(Regrouping::Look)), ALL);
        add(FromClient::Regroup(regroup(Regrouping::Remove)), &["operate"]);
        add(FromClient::Datagrams(Datagrams { connection: 1 }), CALLS);
        let mut on = Vector::default();
        on.add(SpaceId(9), Seen::at(ViewId::new(1, 1), Stamp(1)));
        add(FromClient::Depend(Depend { on }), &["write", "call Asked", "call Counts"]);
        add(FromClient::Depend(Depend { on: Vector::forgetting(SpaceId(9)) }), &["operate"]);
        add(FromClient::Transfer(Transfer { group: 1, member }), &[]);
        let coordinator = SpaceId(9);
        let part = |op, bytes| Prepare { op, of: op, coordinator, seen: Vector::default(), bytes };
        add(FromClient::Prepare(part(op(), &writes)), &["write"]);
        add(FromClient::Prepare(part(op(), &reads)), changes);
        let parts = vec![Prepared { space: coordinator, view: self.view, at: Stamp(1), writes: true }];
        let decide = |op, bytes| Decide { op, parts: parts.clone(), seen: Vector::default(), bytes };
        add(FromClient::Decide(decide(op(), &writes)), &["write"]);
        add(FromClient::Decide(decide(op(), &reads)), changes);
        let settle = Settle { of: op(), coordinator, prepared: Stamp(1), seen: None, view: None };
        add(FromClient::Settle(settle), ALL);
        add(FromClient::Inquire(Inquire { of: op() }), ALL);
        add(FromClient::AwaitSettled(AwaitSettled { upto: Stamp(1), of: None }), ALL);
        let access = |step, right| FromClient::Access(Access { step, right });
        add(access(Accessing::Whoami, None), ALL);
        add(access(Accessing::List, None), &["operate", "grant"]);
        add(access(Accessing::Grant, Some(Right { role: "read".parse().unwrap(), ..right() })), &["grant"]);
        add(access(Accessing::Revoke, Some(self.revoked.clone())), &["grant"]);
        // It is said before a greeting: the session ends for that.
        add(FromClient::OnBehalf(OnBehalf { who: Principal::Uid(0) }), ALL);
        assert!(FromClient::KINDS.iter().all(|kind| all.iter().any(|asked| asked.kind == *kind)));
        all
    }
}

/// A right that no test needs, for [`Requests::revoked`].
///
/// # Panics
/// Never: the words are a right's.
pub fn right() -> Right {
    Right { who: "client:z".parse().unwrap(), role: "backup".parse().unwrap() }
}

/// The sentence of a denial for want of a role or of trust; none of any other message.
///
/// # Panics
/// If the body is not of the kind.
pub fn denial(kind: Kind, body: &[u8]) -> Option<String> {
    let text = match kind {
        Kind::Refused => {
            let refused = Refused::decode(body).expect("a server sends messages");
            (refused.reason == Refusal::Denied).then_some(refused.text)
        }
        Kind::Response => match Response::decode(body).expect("a server sends messages").end {
            ResponseEnd::Refused(Refusal::Denied, text) => Some(text.into()),
            _ => None,
        },
        _ => None,
    };
    text.filter(|text| text.contains(" lacks the role `") || text.contains("only operators and members"))
}
