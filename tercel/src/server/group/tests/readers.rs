//! Clients that read at a member which follows.

use super::*;
use crate::{ClientConfig, Isolation, ReadFrom};

impl Groups {
    /// A client that reads at a member.
    fn reader(&self, i: usize) -> Client {
        self.reader_with(i, ClientConfig::default())
    }

    fn reader_with(&self, i: usize, config: ClientConfig) -> Client {
        let read_from = ReadFrom::Address(self.members[i].1.clone());
        Client::connect_with(self.addresses(), ClientConfig { read_from, ..config }).unwrap()
    }

    /// The number after a name in the status of a member.
    fn number(&self, i: usize, name: &str) -> Option<u64> {
        let status = status_of(&self.members[i].1, WITHIN).ok()?;
        let (_, rest) = status.split_once(&format!("\"{name}\":"))?;
        rest.split([',', '}']).next()?.parse().ok()
    }

    /// A member that does not lead.
    fn follower(&self) -> usize {
        (self.leader() + 1) % self.members.len()
    }
}

#[test]
fn reader_at_follower_sees_others_and_own_writes() {
    let group = Groups::of(3);
    let (writer, follower) = (group.client(), group.follower());
    add(&writer);
    let reader = group.reader(follower);
    assert_eq!(count(&reader), 1);
    assert_eq!(group.number(follower, "readers"), Some(1));
    add(&writer);
    until(|| (count(&reader) == 2).then_some(()));
    for n in 3..20 {
        add(&reader);
        assert_eq!(count(&reader), n);
    }
    assert_eq!(group.number(follower, "passed_on"), Some(1));
    let strict = writer.transaction().isolation(Isolation::Strict);
    assert_eq!(strict.run(|tx| Ok(tx.find_root::<Counter>("counter")?.unwrap().count())).unwrap(), 19);
    assert_eq!(reader.stats().client.connections, 1);
}
