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
