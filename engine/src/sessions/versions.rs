//! Which connections call by versions of interfaces, and when such a version is let go of.
//!
//! Callers of one build share a version. It stands as long as a connection has bound it, and after that until
//! its number is needed: calls that are under way then have ended, or name a connection that is gone. The
//! invariant: the number of a version that a connection has bound means that version alone.

use tercel_wire::interface::Interface;
use tercel_wire::message::{Limit, Refusal};

use crate::effect::Conn;
use crate::limits;
use crate::rpc::versions::Version;
use crate::rpc::{Offers, Services};

/// The versions of all interfaces.
#[derive(Debug, Default)]
pub(super) struct Versions {
    all: Vec<Standing>,
    /// Bytes of their descriptions.
    bytes: usize,
}

/// A version under its number.
#[derive(Debug)]
struct Standing {
    /// The interface as its callers have described it.
    caller: Interface,
    number: u16,
    bytes: usize,
    /// The connections that have bound it.
    conns: Vec<Conn>,
}

/// The table in which a version stands.
pub(super) enum Table<'a> {
    Services(&'a mut Services),
    Methods(&'a mut Offers),
}

impl Table<'_> {
    fn len(&self) -> usize {
        match self {
            Table::Services(services) => services.len(),
            Table::Methods(offers) => offers.len(),
        }
    }

    fn put(&mut self, of: u16, at: u16, version: Version, stands: Interface) {
        match self {
            Table::Services(services) => services.put_version(of, at, version, stands),
            Table::Methods(offers) => offers.put_version(of, at, version, stands),
        }
    }
}

impl Versions {
    /// The number of the version of a caller, of an interface with the number `of`.
    ///
    /// # Errors
    /// `Full`, in words, if its description is too large, or too many versions are in use.
    pub(super) fn bind(
        &mut self,
        conn: Conn,
        caller: &Interface,
        (of, version, stands): (u16, Version, Interface),
        mut table: Table<'_>,
    ) -> Result<u16, (Refusal, String)> {
        if let Some(standing) = self.all.iter_mut().find(|standing| standing.caller == *caller) {
            if !standing.conns.contains(&conn) {
                standing.conns.push(conn);
            }
            return Ok(standing.number);
        }
        let mut encoded = Vec::new();
        caller.encode(&mut encoded);
        let bytes = encoded.len();
        let full = |why: &str| {
            let name = &caller.name;
            let text = format!("the caller has another version of interface `{name}` than the server, {why}");
            Err((Refusal::Full(Limit::Named), text))
        };
        if bytes > limits::VERSION_BYTES_MAX {
            return full("and its description is too large: build both from one source");
        }
        let of_conn = self.all.iter().filter(|standing| standing.conns.contains(&conn)).count();
        if of_conn >= limits::VERSIONS_CONN_MAX {
            return full("and as many others on this connection as the server takes: build it anew");
        }
        let is_kind = |standing: &Standing| standing.caller.is_service() == caller.is_service();
        let is_full = self.all.len() >= limits::VERSIONS_MAX
            || self.bytes + bytes > limits::VERSIONS_BYTES_MAX
            || table.len() >= usize::from(u16::MAX);
        let unused = self.all.iter().position(|standing| standing.conns.is_empty() && is_kind(standing));
        let unused = unused.filter(|_| is_full);
        let freed = unused.map_or(0, |at| self.all[at].bytes);
        let fits = self.bytes - freed + bytes <= limits::VERSIONS_BYTES_MAX;
        if is_full && (unused.is_none() || !fits) {
            return full("and as many others are in use as the server takes: build it anew, or call later");
        }
        let number = match unused {
            Some(at) => self.all.swap_remove(at).number,
            None => table.len() as u16,
        };
        self.bytes = self.bytes - freed + bytes;
        table.put(of, number, version, stands);
        self.all.push(Standing { caller: caller.clone(), number, bytes, conns: vec![conn] });
        Ok(number)
    }

    /// A connection is gone.
    pub(super) fn left(&mut self, conn: Conn) {
        self.all.iter_mut().for_each(|standing| standing.conns.retain(|of| *of != conn));
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::interface::{InterfaceSchema, MethodSchema, Mode, NO_ITEMS};
    use tercel_wire::layout::{Layout, Shape};
    use tercel_wire::payload::PayloadSchema;
    use tercel_wire::schema::{Scalar, Schema};

    use super::*;
    use crate::rpc::{Service, ServiceInterface};

    struct Till;

    const NOTHING: PayloadSchema = PayloadSchema::of(Schema { name: "pay", fields: &[] });

    impl ServiceInterface for Till {
        const SCHEMA: &'static InterfaceSchema = &InterfaceSchema {
            name: "Till",
            methods: &[MethodSchema {
                name: "pay",
                reads: false,
                mode: Mode::Plain,
                takes: NOTHING,
                gives: NOTHING,
                fails: NOTHING,
                input: NO_ITEMS,
                output: NO_ITEMS,
            }],
        };
    }

    /// A caller of a build of its own: one with a field of so long a name, or more such fields.
    fn caller(build: usize, fields: usize) -> Interface {
        let mut caller = Interface::of_service(Till::SCHEMA);
        let field = |n| (format!("f{build:09}-{n:0100}"), Shape::Scalar(Scalar::U8));
        caller.methods[0].takes = Layout::new("pay".into(), (0..fields).map(field).collect());
        caller
    }

    struct Here {
        services: Services,
        versions: Versions,
    }

    impl Here {
        fn bind(&mut self, conn: u64, caller: &Interface) -> Result<u16, String> {
            let (of, own) = self.services.find("Till").unwrap();
            let (version, stands) = Version::new(own, caller);
            let table = Table::Services(&mut self.services);
            self.versions.bind(Conn(conn), caller, (of, version, stands), table).map_err(|(_, why)| why)
        }
    }

    fn here() -> Here {
        let service = Service::new::<Till>(|_, _, _, _| Ok(crate::rpc::Ended::Returned));
        Here { services: Services::default().with(service), versions: Versions::default() }
    }

    #[test]
    fn callers_of_one_build_share_a_version() {
        let mut here = here();
        assert_eq!(here.bind(1, &caller(7, 1)), Ok(1));
        assert_eq!(here.bind(2, &caller(7, 1)), Ok(1));
        assert_eq!(here.bind(2, &caller(8, 1)), Ok(2));
        // What clients are told of is the service alone.
        assert_eq!((here.services.len(), here.services.interfaces().count()), (3, 1));
    }

    #[test]
    fn connection_with_many_builds_is_refused_alone() {
        let mut here = here();
        for build in 0..limits::VERSIONS_CONN_MAX {
            here.bind(1, &caller(build, 1)).unwrap();
        }
        let why = here.bind(1, &caller(1_000, 1)).unwrap_err();
        assert!(why.contains("`Till`") && why.contains("on this connection"), "{why}");
        assert_eq!(here.bind(2, &caller(1_000, 1)), Ok(1 + limits::VERSIONS_CONN_MAX as u16));
        // Those that it has it keeps.
        assert_eq!(here.bind(1, &caller(3, 1)), Ok(4));
    }

    #[test]
    fn number_is_given_anew_once_nobody_has_it() {
        let mut here = here();
        let conn_of = |build: usize| (build / limits::VERSIONS_CONN_MAX) as u64;
        for build in 0..limits::VERSIONS_MAX {
            here.bind(conn_of(build), &caller(build, 1)).unwrap();
        }
        let why = here.bind(99, &caller(1_000, 1)).unwrap_err();
        assert!(why.contains("are in use"), "{why}");
        here.versions.left(Conn(1));
        let number = usize::from(here.bind(99, &caller(1_000, 1)).unwrap());
        assert!(
            (1 + limits::VERSIONS_CONN_MAX..=2 * limits::VERSIONS_CONN_MAX).contains(&number),
            "{number}"
        );
        assert_eq!(here.services.len(), 1 + limits::VERSIONS_MAX);
        let stands = here.services.with_versions().nth(number).unwrap();
        assert_eq!(stands.methods[0].takes, caller(1_000, 1).methods[0].takes);
        // What others have bound is what it was.
        assert_eq!(here.bind(99, &caller(3, 1)), Ok(4));
    }

    #[test]
    fn large_descriptions_are_refused_by_their_bytes() {
        let mut here = here();
        let mut huge = caller(1, 250);
        let names = (0..20).map(|n| format!("m{n}"));
        let method = huge.methods[0].clone();
        huge.methods.extend(names.map(|name| tercel_wire::interface::Method { name, ..method.clone() }));
        let why = here.bind(1, &huge).unwrap_err();
        assert!(why.contains("its description is too large"), "{why}");
        let bytes = |caller: &Interface| {
            let mut bytes = Vec::new();
            caller.encode(&mut bytes);
            bytes.len()
        };
        let large = |build| {
            let mut large = caller(build, 250);
            let method = large.methods[0].clone();
            let names = (0..7).map(|n| format!("m{n}"));
            large.methods.extend(names.map(|name| tercel_wire::interface::Method { name, ..method.clone() }));
            large
        };
        let fit = limits::VERSIONS_BYTES_MAX / bytes(&large(0));
        assert!(bytes(&large(0)) <= limits::VERSION_BYTES_MAX && fit < limits::VERSIONS_CONN_MAX);
        assert!((0..fit).all(|build| here.bind(1, &large(build)).is_ok()));
        assert!(here.bind(1, &large(fit)).unwrap_err().contains("are in use"));
        here.versions.left(Conn(1));
        here.bind(2, &large(fit)).unwrap();
        assert!(here.versions.bytes <= limits::VERSIONS_BYTES_MAX);
    }
}
