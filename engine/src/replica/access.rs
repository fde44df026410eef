//! Rights: which principal has which role in the space, and which client is whose.
//!
//! Before the first grant nothing is judged. From then on a principal may do what a right says and nothing
//! else, also when the last right is gone: a space that was shut is opened by a grant to `anyone` alone. The
//! invariant: a client whose operations are known here is one principal's.

use std::collections::{BTreeMap, BTreeSet};

use tercel_wire::access::{Principal, Role};
use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{ClientId, Stamp};
use tercel_wire::message::Right;
use tercel_wire::message::form::Form;

use super::digest::RowSum;
use crate::limits;

/// The rights in a space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    rights: BTreeSet<(Principal, Role)>,
    /// The stamp of the last change; zero before the first.
    changed: Stamp,
    /// The principal of each client that has anything in the order.
    clients: BTreeMap<ClientId, Principal>,
}

impl Access {
    /// Says whether rights are judged: there was a grant.
    #[inline]
    pub fn is_judged(&self) -> bool {
        self.changed > Stamp::ZERO
    }

    /// The stamp of the last change, which tells the rights from those before.
    #[inline]
    pub fn epoch(&self) -> Stamp {
        self.changed
    }

    /// All rights, in order.
    pub fn rights(&self) -> impl ExactSizeIterator<Item = &(Principal, Role)> {
        self.rights.iter()
    }

    /// The roles of a principal, those of `anyone` included.
    pub fn roles(&self, who: &Principal) -> impl Iterator<Item = &Role> {
        let is_its = move |(of, _): &&(Principal, Role)| *of == Principal::Anyone || of == who;
        self.rights.iter().filter(is_its).map(|(_, role)| role)
    }

    /// Says whether a right is among them.
    pub fn has(&self, right: &Right) -> bool {
        self.rights.contains(&(right.who.clone(), right.role.clone()))
    }

    /// Says whether there is room for one more right.
    pub fn has_room(&self) -> bool {
        self.rights.len() < limits::RIGHTS_MAX
    }

    /// The principal of a client, if that is known.
    pub fn owner(&self, client: ClientId) -> Option<&Principal> {
        self.clients.get(&client)
    }

    /// A right is granted or revoked.
    pub(super) fn change(&mut self, stamp: Stamp, is_granted: bool, right: &Right) {
        let right = (right.who.clone(), right.role.clone());
        match is_granted {
            true => _ = self.rights.insert(right),
            false => _ = self.rights.remove(&right),
        }
        self.changed = stamp;
    }

    /// A client is this principal's from now on.
    pub(super) fn own(&mut self, client: ClientId, who: &Principal) {
        self.clients.insert(client, who.clone());
    }

    /// Nothing is known of a client any more.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }

    /// For [`super::Replica::digest`].
    pub(super) fn digest(&self) -> u64 {
        let mut sum = RowSum::default();
        if self.is_judged() {
            sum.add(&[self.changed.0]);
        }
        let mut bytes = Vec::new();
        for (who, role) in &self.rights {
            bytes.clear();
            who.encode(&mut bytes);
            role.encode(&mut bytes);
            sum.add(&[1, crc32fast::hash(&bytes).into()]);
        }
        for (client, who) in &self.clients {
            sum.add(&[client.0, 0, crc32fast::hash(who.to_string().as_bytes()).into()]);
        }
        sum.value()
    }

    /// Appends it, if rights are judged: a state without is as it was before there were any.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        if !self.is_judged() {
            return;
        }
        out.put_u64(self.changed.0);
        out.put_u32(self.rights.len() as u32);
        for (who, role) in &self.rights {
            who.encode(out);
            role.encode(out);
        }
        out.put_u32(self.clients.len() as u32);
        for (client, who) in &self.clients {
            out.put_u64(client.0);
            who.encode(out);
        }
    }

    /// Reads it off the end of a state.
    pub(super) fn take(r: &mut Reader<'_>) -> Result<Access, DecodeError> {
        if r.rest().is_empty() {
            return Ok(Access::default());
        }
        let changed = Stamp(r.u64()?);
        if changed == Stamp::ZERO || changed > Stamp::LAST {
            return Err(DecodeError::BadField("stamp"));
        }
        let rights = Vec::<Right>::take(r, "rights")?;
        let rights: BTreeSet<_> = rights.into_iter().map(|right| (right.who, right.role)).collect();
        if rights.len() > limits::RIGHTS_MAX {
            return Err(DecodeError::TooMany("rights"));
        }
        let clients = (0..r.count(12, "clients")?).map(|_| Ok((ClientId(r.u64()?), Principal::decode(r)?)));
        Ok(Access { rights, changed, clients: clients.collect::<Result<_, DecodeError>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(who: &str, role: &str) -> Right {
        Right { who: who.parse().unwrap(), role: role.parse().unwrap() }
    }

    #[test]
    fn rights_come_back_and_stay_judged() {
        let mut access = Access::default();
        let mut bytes = Vec::new();
        access.put(&mut bytes);
        assert!(bytes.is_empty() && !access.is_judged());
        access.change(Stamp(5), true, &right("client:anna", "write Account"));
        access.change(Stamp(6), true, &right("anyone", "read"));
        access.own(ClientId(9), &Principal::Uid(7));
        access.put(&mut bytes);
        assert_eq!(Access::take(&mut Reader::new(&bytes)).as_ref(), Ok(&access));
        for cut in 1..bytes.len() {
            assert!(Access::take(&mut Reader::new(&bytes[..cut])).is_err(), "{cut}");
        }
        let anna = Principal::client("anna").unwrap();
        assert_eq!(access.roles(&anna).count(), 2);
        assert_eq!(access.roles(&Principal::Uid(7)).collect::<Vec<_>>(), [&Role::Read]);
        let before = access.digest();
        for (who, role) in [("client:anna", "write Account"), ("anyone", "read")] {
            access.change(Stamp(7), false, &right(who, role));
        }
        access.forget(ClientId(9));
        assert!(access.is_judged() && access.rights().len() == 0 && access.digest() != before);
    }
}
