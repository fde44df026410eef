//! Seats: the rights of each connection's principal, as the replica says them.
//!
//! A connection has a seat from when it connects: its principal, and the roles of that as bits, made anew
//! when rights or classes have changed since. The leader asks here in the step in which it orders, sessions
//! when a message comes. The invariant: no bit is older than the last change of rights that was applied.

use std::sync::Arc;

use tercel_wire::access::{Principal, Role};
use tercel_wire::id::{ClassId, Stamp};
use tercel_wire::interface::Interface;

use crate::effect::{Conn, INSIDE, ServerConfig, Who};
use crate::mutant::{Rule, dropped};
use crate::replica::Replica;
use crate::replica::access::Access;
use crate::replica::released::is_chunk;
use crate::table::Map;

/// Roles, a bit each.
pub(crate) type Bits = u8;

pub(crate) const READ: Bits = 1;
pub(crate) const WRITE: Bits = 1 << 1;
pub(crate) const DEFINE: Bits = 1 << 2;
pub(crate) const CALL: Bits = 1 << 3;
pub(crate) const BACKUP: Bits = 1 << 4;
pub(crate) const OPERATE: Bits = 1 << 5;
pub(crate) const GRANT: Bits = 1 << 6;
pub(crate) const SPEAK_FOR: Bits = 1 << 7;
/// Any role.
pub(crate) const ANY: Bits = READ | WRITE | DEFINE | CALL | BACKUP | OPERATE | GRANT | SPEAK_FOR;
/// The roles of an operator at the server's host, and of those who have the group's secret.
pub(crate) const TRUSTED: Bits = OPERATE | GRANT;

fn bit(role: &Role) -> Bits {
    match role {
        Role::Read => READ,
        Role::Write(_) => WRITE,
        Role::Define => DEFINE,
        Role::Call(_) => CALL,
        Role::Backup => BACKUP,
        Role::Operate => OPERATE,
        Role::Grant => GRANT,
        Role::SpeakFor => SPEAK_FOR,
    }
}

/// Which methods of an interface may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    None,
    All,
    /// A bit each.
    Some([u64; 4]),
}

impl Calls {
    fn of(interface: &Interface, roles: &[&Role]) -> Calls {
        let called =
            || roles.iter().filter_map(|role| if let Role::Call(what) = role { Some(what) } else { None });
        if called().any(|what| *what == interface.name) {
            return Calls::All;
        }
        let mut bits = [0; 4];
        let methods = called().filter_map(|what| what.strip_prefix(&interface.name)?.strip_prefix('.'));
        for method in methods.filter_map(|name| interface.methods.iter().position(|of| of.name == name)) {
            bits[method / 64] |= 1 << (method % 64);
        }
        if bits == [0; 4] { Calls::None } else { Calls::Some(bits) }
    }

    #[inline]
    fn has(self, method: u16) -> bool {
        match self {
            Calls::None => false,
            Calls::All => true,
            Calls::Some(bits) => {
                let word = bits.get(usize::from(method) / 64).copied().unwrap_or(0);
                word >> (method % 64) & 1 == 1
            }
        }
    }
}

/// The rights of a principal, ready to be tested.
#[derive(Debug)]
pub(crate) struct Rights {
    /// The change of rights that they are of, and the number of classes then.
    at: (Stamp, usize),
    pub bits: Bits,
    /// Set for a principal that writes objects of all classes.
    writes_all: bool,
    /// The classes whose objects it writes otherwise, in order.
    classes: Vec<ClassId>,
    /// By the numbers of services, and of the interfaces of objects. Behind those that are the server's own
    /// are the versions of them.
    services: Vec<Calls>,
    methods: Vec<Calls>,
    /// The numbers of both without versions.
    own: [usize; 2],
}

impl Rights {
    fn of(who: &Principal, trust: &Trust, replica: &Replica, config: &ServerConfig) -> Rights {
        let may_speak = |speaker: &Principal| replica.access.roles(speaker).any(|r| *r == Role::SpeakFor);
        let is_mute = matches!(trust, Trust::OnBehalf(Some(speaker)) if !may_speak(speaker));
        let roles: Vec<&Role> = replica.access.roles(who).filter(|_| !is_mute).collect();
        let is_own = *trust == Trust::Own;
        let mut bits = match trust {
            Trust::None | Trust::OnBehalf(_) => 0,
            Trust::Operator => TRUSTED,
            Trust::Own => ANY & !SPEAK_FOR,
        };
        roles.iter().for_each(|role| bits |= bit(role));
        let names = |class: &str| {
            let mut of = roles.iter();
            of.any(|role| matches!(role, Role::Write(name) if name == class))
        };
        let all = replica.catalogue.all();
        let calls = |it: &Interface| if is_own { Calls::All } else { Calls::of(it, &roles) };
        let classes = all.into_iter().filter(|(_, layout)| names(layout.name())).map(|(id, _)| id);
        Rights {
            at: epoch(replica),
            bits,
            writes_all: is_own
                || roles.iter().any(|role| matches!(role, Role::Write(class) if class.is_empty())),
            classes: classes.collect(),
            services: config.services.with_versions().map(calls).collect(),
            methods: config.methods.with_versions().map(calls).collect(),
            own: [config.services.interfaces().len(), config.methods.interfaces().len()],
        }
    }

    /// Says whether a procedure may be called, by its numbers.
    #[inline]
    pub(crate) fn calls_service(&self, service: u16, method: u16) -> bool {
        self.services.get(usize::from(service)).is_some_and(|of| of.has(method))
    }

    /// Says whether a method may be called, by its numbers.
    pub(crate) fn calls_method(&self, interface: u16, method: u16) -> bool {
        self.methods.get(usize::from(interface)).is_some_and(|of| of.has(method))
    }

    /// Says whether anything of a service, or of an interface of objects, may be called.
    pub(crate) fn calls_any(&self, of_service: bool, interface: u16) -> bool {
        let all = if of_service { &self.services } else { &self.methods };
        all.get(usize::from(interface)).is_some_and(|of| *of != Calls::None)
    }

    /// Says whether an object of this class may be written. Leaves of large values go with their owners.
    pub(crate) fn writes(&self, class: ClassId) -> bool {
        self.writes_all
            || self.classes.binary_search(&class).is_ok()
            || is_chunk(class) && self.bits & WRITE != 0
    }

    /// The change of rights that they are of.
    #[inline]
    pub(crate) fn is_of(&self, replica: &Replica) -> bool {
        self.at == epoch(replica) || dropped(Rule::RightsOfOldEpoch)
    }

    fn has_all_of(&self, other: &Rights) -> bool {
        // Versions go when nobody has them bound: that takes no right away.
        let keeps = |mine: &[Calls], its: &[Calls], own: usize| {
            let mut own = its.iter().zip(mine).take(own);
            own.all(|(its, mine)| *its == Calls::None || its == mine || *mine == Calls::All)
        };
        self.bits & other.bits == other.bits
            && (self.writes_all
                || !other.writes_all && other.classes.iter().all(|id| self.classes.contains(id)))
            && keeps(&self.services, &other.services, self.own[0])
            && keeps(&self.methods, &other.methods, self.own[1])
    }
}

/// Tells rights from those before: the last change of them, and the number of classes.
fn epoch(replica: &Replica) -> (Stamp, usize) {
    (replica.access.epoch(), replica.catalogue.len())
}

/// A role that a principal lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lack {
    pub who: Arc<Principal>,
    /// The role, as it would be granted.
    pub role: String,
    /// Who can grant it, and how.
    ask: String,
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lack { who, role, ask } = self;
        write!(
            f,
            "{who} lacks the role `{role}` in this space; {ask} can give it: `tercel access grant {who} {role}`"
        )
    }
}

/// The trust in a connection beside what its principal was granted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Trust {
    None,
    /// A member, or this principal, says for whom it speaks: nothing else of the connection counts, and that
    /// only as long as it may.
    OnBehalf(Option<Arc<Principal>>),
    /// The other end has proven that it has the group's secret, or the host vouches for it.
    Operator,
    /// The connection is of the server's own process.
    Own,
}

/// A connection's principal, and its rights.
#[derive(Debug)]
struct Seat {
    who: Arc<Principal>,
    trust: Trust,
    rights: Option<Arc<Rights>>,
    /// Those that it had at the last look at all connections, or when it came; none if nothing was judged.
    had: Option<Arc<Rights>>,
}

/// The seats of all connections.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    all: Map<Conn, Seat>,
    /// The change of rights as of which all connections were looked at.
    looked: Stamp,
}

impl Seats {
    /// A connection is there.
    pub(crate) fn connected(&mut self, conn: Conn, who: &Who, of: (&Replica, &ServerConfig)) {
        // A member's name alone is no proof that its connection is a member's: its secret is.
        let trust = if who.is_own_process { Trust::Own } else { Trust::None };
        self.sit(conn, who.principal(), trust, of);
    }

    fn sit(
        &mut self,
        conn: Conn,
        who: Principal,
        trust: Trust,
        (replica, config): (&Replica, &ServerConfig),
    ) {
        let rights = || Arc::new(Rights::of(&who, &trust, replica, config));
        let rights = replica.access.is_judged().then(rights);
        self.all.insert(conn, Seat { who: Arc::new(who), trust, rights: rights.clone(), had: rights });
    }

    /// The connection is gone.
    pub(crate) fn left(&mut self, conn: Conn) {
        self.all.remove(&conn);
    }

    /// Requests on a connection are this principal's, as a member says, or else the one whose the connection
    /// was.
    pub(crate) fn speaks_for(
        &mut self,
        conn: Conn,
        who: Principal,
        is_member: bool,
        of: (&Replica, &ServerConfig),
    ) {
        let speaker = self.who(conn).filter(|_| !is_member).cloned();
        self.sit(conn, who, Trust::OnBehalf(speaker), of);
    }

    /// The principal that speaks for that of a connection, if one does by its role.
    pub(crate) fn speaker(&self, conn: Conn) -> Option<&Arc<Principal>> {
        match &self.all.get(&conn)?.trust {
            Trust::OnBehalf(speaker) => speaker.as_ref(),
            _ => None,
        }
    }

    /// The other end of the connection is an operator or a member.
    pub(crate) fn is_trusted(&mut self, conn: Conn) {
        if let Some(seat) = self.all.get_mut(&conn).filter(|seat| seat.trust == Trust::None) {
            (seat.trust, seat.rights) = (Trust::Operator, None);
        }
    }

    /// Says whether the host could vouch for its other end.
    pub(crate) fn may_be_vouched(&self, conn: Conn) -> bool {
        self.all.get(&conn).is_some_and(|seat| seat.trust == Trust::None)
    }

    /// Says whether rights have changed, visibly, since all connections were looked at.
    #[inline]
    pub(crate) fn have_changed(&mut self, access: &Access, visible: Stamp) -> bool {
        let epoch = access.epoch();
        epoch <= visible && std::mem::replace(&mut self.looked, epoch) != epoch
    }

    /// The principal of a connection.
    pub(crate) fn who(&self, conn: Conn) -> Option<&Arc<Principal>> {
        self.all.get(&conn).map(|seat| &seat.who)
    }

    /// The rights of a connection; none of one that is gone, or is the server itself.
    #[inline]
    pub(crate) fn rights(
        &mut self,
        conn: Conn,
        replica: &Replica,
        config: &ServerConfig,
    ) -> Option<&Arc<Rights>> {
        let seat = self.all.get_mut(&conn)?;
        if !seat.rights.as_ref().is_some_and(|rights| rights.is_of(replica)) {
            seat.rights = Some(Arc::new(Rights::of(&seat.who, &seat.trust, replica, config)));
        }
        seat.rights.as_ref()
    }

    /// The rights of a connection are to be looked up again.
    pub(crate) fn look_again(&mut self, conn: Conn) {
        self.all.get_mut(&conn).into_iter().for_each(|seat| seat.rights = None);
    }

    /// Says whether a connection may do what `test` asks of its rights.
    ///
    /// # Errors
    /// The lack of this role.
    pub(crate) fn check(
        &mut self,
        conn: Conn,
        (replica, config): (&Replica, &ServerConfig),
        test: impl FnOnce(&Rights) -> bool,
        role: impl FnOnce() -> String,
    ) -> Result<(), Lack> {
        if !replica.access.is_judged() || conn == INSIDE {
            return Ok(());
        }
        if self.rights(conn, replica, config).is_some_and(|rights| test(rights)) {
            return Ok(());
        }
        Err(self.lack(conn, role(), &replica.access))
    }

    /// A role that a connection lacks, in words.
    pub(crate) fn lack(&self, conn: Conn, role: String, access: &Access) -> Lack {
        let who = self.who(conn).cloned().unwrap_or_default();
        Lack { who, role, ask: granters(access) }
    }

    /// Checks the classes of what a transaction writes; of one that writes nothing, that it may read.
    ///
    /// # Errors
    /// The lack of a role.
    pub(crate) fn check_writes(
        &mut self,
        conn: Conn,
        of: (&Replica, &ServerConfig),
        mut classes: impl ExactSizeIterator<Item = ClassId>,
    ) -> Result<(), Lack> {
        if !of.0.access.is_judged() || conn == INSIDE {
            return Ok(());
        }
        if classes.len() == 0 {
            return self.check(
                conn,
                of,
                |rights| rights.bits & (READ | WRITE) != 0,
                || Role::Read.to_string(),
            );
        }
        let rights = self.rights(conn, of.0, of.1);
        let Some(wrong) = classes.find(|class| !rights.is_some_and(|rights| rights.writes(*class))) else {
            return Ok(());
        };
        let class = of.0.catalogue.class(wrong).map_or("", |layout| layout.name());
        Err(self.lack(conn, Role::Write(class.into()).to_string(), &of.0.access))
    }

    /// Says of each connection that has lost a right with the last change whether any is left.
    pub(crate) fn shrunk(&mut self, replica: &Replica, config: &ServerConfig) -> Vec<(Conn, bool)> {
        if !replica.access.is_judged() || dropped(Rule::RightsOfOldEpoch) {
            return Vec::new();
        }
        let (mut lost, mut made) = (Vec::new(), Map::default());
        for (conn, seat) in &mut self.all {
            // Many connections may be of one principal.
            let make = || Arc::new(Rights::of(&seat.who, &seat.trust, replica, config));
            let now: Arc<Rights> =
                made.entry((seat.who.clone(), seat.trust.clone())).or_insert_with(make).clone();
            // Before the first grant it could do everything.
            let kept = seat.had.as_ref().map_or(seat.trust == Trust::Own, |before| now.has_all_of(before));
            if !kept {
                lost.push((*conn, now.bits != 0));
            }
            (seat.rights, seat.had) = (Some(now.clone()), Some(now));
        }
        lost.sort_unstable();
        lost
    }
}

/// The principals that grant, as a sentence names them.
fn granters(access: &Access) -> String {
    let granting = access.rights().filter(|(_, role)| *role == Role::Grant).map(|(who, _)| who.to_string());
    let mut all: Vec<String> = granting.take(NAMED_MAX).collect();
    all.push("the superuser or the server's own user on its host".into());
    all.join(", ")
}

/// Principals that a sentence names.
const NAMED_MAX: usize = 3;
