//! The versions of interfaces by which connections call, and when such a version is let go of.
//!
//! Callers of one build share a version. It stands as long as a connection has bound it, and after that until
//! room is needed. The invariant: a number means one version for as long as the server runs. The number of a
//! version that was let go of has no methods any more: a caller that still has it binds anew.

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

/// The tables in which versions stand.
pub(super) struct Tables<'a> {
    pub services: &'a mut Services,
    pub methods: &'a mut Offers,
}

impl Tables<'_> {
    fn len(&self, is_service: bool) -> usize {
        if is_service { self.services.len() } else { self.methods.len() }
    }

    fn add(&mut self, of: u16, version: Version, stands: Interface) {
        match stands.is_service() {
            true => self.services.add_version(of, version, stands),
            false => self.methods.add_version(of, version, stands),
        }
    }

    fn empty(&mut self, gone: &Standing) {
        match gone.caller.is_service() {
            true => self.services.empty_version(gone.number),
            false => self.methods.empty_version(gone.number),
        }
    }
}

impl Versions {
    /// The number of the version of a caller, of an interface with the number `of`.
    ///
    /// # Errors
    /// `Full`, in words, if its description is too large, or too many versions are in use or were.
    pub(super) fn bind(
        &mut self,
        conn: Conn,
        caller: &Interface,
        (of, version, stands): (u16, Version, Interface),
        mut tables: Tables<'_>,
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
        let of_conn = self.all.iter().filter(|standing| standing.conns.contains(&conn));
        let (count, bytes_of_conn) = of_conn.fold((0, bytes), |(n, sum), one| (n + 1, sum + one.bytes));
        if count >= limits::VERSIONS_CONN_MAX || bytes_of_conn > limits::VERSIONS_CONN_BYTES_MAX {
            return full("and as many others on this connection as the server takes: build it anew");
        }
        let number = tables.len(caller.is_service());
        if number >= limits::VERSIONS_EVER_MAX {
            return full("and has met as many others as it tells apart: start the server again");
        }
        if !self.make_room(bytes, &mut tables) {
            return full("and as many others are in use as the server takes: build it anew, or call later");
        }
        let number = number as u16;
        self.bytes += bytes;
        tables.add(of, version, stands);
        self.all.push(Standing { caller: caller.clone(), number, bytes, conns: vec![conn] });
        Ok(number)
    }

    /// Lets go of versions that no connection has bound, the oldest first, until there is room for one of so
    /// many bytes. Says whether there is.
    fn make_room(&mut self, bytes: usize, tables: &mut Tables<'_>) -> bool {
        while self.all.len() >= limits::VERSIONS_MAX || self.bytes + bytes > limits::VERSIONS_BYTES_MAX {
            let Some(at) = self.all.iter().position(|standing| standing.conns.is_empty()) else {
                return false;
            };
            let gone = self.all.remove(at);
            self.bytes -= gone.bytes;
            tables.empty(&gone);
        }
        true
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
        methods: Offers,
        versions: Versions,
    }

    impl Here {
        fn bind(&mut self, conn: u64, caller: &Interface) -> Result<u16, String> {
            let (of, own) = self.services.find("Till").unwrap();
            let (version, stands) = Version::new(own, caller);
            let tables = Tables { services: &mut self.services, methods: &mut self.methods };
            self.versions.bind(Conn(conn), caller, (of, version, stands), tables).map_err(|(_, why)| why)
        }
    }

    fn here() -> Here {
        let service = Service::new::<Till>(|_, _, _, _| Ok(crate::rpc::Ended::Returned));
        let services = Services::default().with(service);
        Here { services, methods: Offers::default(), versions: Versions::default() }
    }

    #[test]
    fn callers_of_one_build_share_a_version() {
        let mut here = here();
        assert_eq!(here.bind(1, &caller(7, 1)), Ok(1));
        assert_eq!(here.bind(2, &caller(7, 1)), Ok(1));
        assert_eq!(here.bind(2, &caller(8, 1)), Ok(2));
        // Clients are told of the service alone.
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
    fn number_means_one_version_for_ever() {
        let mut here = here();
        let conn_of = |build: usize| (build / limits::VERSIONS_CONN_MAX) as u64;
        for build in 0..limits::VERSIONS_MAX {
            here.bind(conn_of(build), &caller(build, 1)).unwrap();
        }
        let why = here.bind(99, &caller(1_000, 1)).unwrap_err();
        assert!(why.contains("are in use"), "{why}");
        // The first one of a connection that is gone makes room.
        here.versions.left(Conn(1));
        let number = here.bind(99, &caller(1_000, 1)).unwrap();
        assert_eq!(usize::from(number), 1 + limits::VERSIONS_MAX);
        let gone = 1 + limits::VERSIONS_CONN_MAX as u16;
        assert!(here.services.procedure(gone, 0).is_none());
        assert!(
            here.services.procedure(gone + 1, 0).is_some() && here.services.procedure(number, 0).is_some()
        );
        // The versions that others have bound are as before; one that was let go of gets another number.
        assert_eq!(here.bind(99, &caller(3, 1)), Ok(4));
        assert_eq!(here.bind(98, &caller(limits::VERSIONS_CONN_MAX, 1)), Ok(number + 1));
    }

    #[test]
    fn server_tells_so_many_versions_apart() {
        let mut here = here();
        for build in 1..limits::VERSIONS_EVER_MAX {
            assert_eq!(here.bind(build as u64, &caller(build, 1)), Ok(build as u16));
            here.versions.left(Conn(build as u64));
        }
        let why = here.bind(1, &caller(0, 1)).unwrap_err();
        assert!(why.contains("start the server again"), "{why}");
        // A version that stands is still bound.
        let last = limits::VERSIONS_EVER_MAX - 1;
        assert_eq!(here.bind(1, &caller(last, 1)), Ok(last as u16));
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
        let fit = limits::VERSIONS_CONN_BYTES_MAX / bytes(&large(0));
        assert!(bytes(&large(0)) <= limits::VERSION_BYTES_MAX && fit < limits::VERSIONS_CONN_MAX);
        assert!((0..fit).all(|build| here.bind(1, &large(build)).is_ok()));
        assert!(here.bind(1, &large(fit)).unwrap_err().contains("on this connection"));
        // Others have their own, until all have as much as there is.
        let mut taken = fit;
        let why = loop {
            match here.bind((taken / fit) as u64 + 1, &large(taken)) {
                Ok(_) => taken += 1,
                Err(why) => break why,
            }
        };
        assert!(why.contains("are in use") && taken >= 3 * fit, "{taken}: {why}");
        here.versions.left(Conn(1));
        here.bind(99, &large(taken)).unwrap();
        assert!(here.versions.bytes <= limits::VERSIONS_BYTES_MAX);
    }
}
