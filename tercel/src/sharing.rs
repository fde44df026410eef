//! The users between which memory is shared. Both ends ask the kernel for the user at the other end before
//! they share anything.

/// The peers to share memory with: of a server its clients, of a client its servers.
///
/// The server copies arrivals before it judges them. A client can thus do no more by writing into the memory
/// than by sending other bytes. Only a procedure that takes [`LentBytes`](crate::LentBytes) reads where its
/// caller wrote, and only for clients of the server's own user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SharedMemory {
    /// No client: all go by the socket.
    Off,
    /// Clients of the own user; for a client servers of that, and of the superuser, too.
    #[default]
    SameUser,
    /// All that meet at the socket.
    AnyUser,
}

impl SharedMemory {
    /// Says whether a server of the user `own_uid` takes channels from a process of the user `peer_uid`.
    pub(crate) fn admits(self, own_uid: u32, peer_uid: u32) -> bool {
        match self {
            SharedMemory::Off => false,
            SharedMemory::SameUser => peer_uid == own_uid,
            SharedMemory::AnyUser => true,
        }
    }

    /// Says whether a client of the user `own_uid` hands channels to a server of the user `server_uid`.
    pub(crate) fn trusts(self, own_uid: u32, server_uid: u32) -> bool {
        // The superuser can look into the memory of any process.
        self.admits(own_uid, server_uid) || (self == SharedMemory::SameUser && server_uid == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_another_user_are_admitted_only_where_all_are() {
        // The superuser is no exception, at either end.
        let uids = [0, 1000, 1001, u32::MAX];
        for (own, peer) in uids.into_iter().flat_map(|own| uids.map(|peer| (own, peer))) {
            assert!(!SharedMemory::Off.admits(own, peer), "{peer} by {own}");
            assert_eq!(SharedMemory::SameUser.admits(own, peer), own == peer, "{peer} by {own}");
            assert!(SharedMemory::AnyUser.admits(own, peer), "{peer} by {own}");
        }
        assert_eq!(SharedMemory::default(), SharedMemory::SameUser);
    }

    #[test]
    fn servers_of_another_user_are_trusted_only_where_all_are_or_if_they_are_the_superusers() {
        let uids = [0, 1000, 1001, u32::MAX];
        for (own, server) in uids.into_iter().flat_map(|own| uids.map(|server| (own, server))) {
            assert!(!SharedMemory::Off.trusts(own, server), "{server} by {own}");
            let is_trusted = own == server || server == 0;
            assert_eq!(SharedMemory::SameUser.trusts(own, server), is_trusted, "{server} by {own}");
            assert!(SharedMemory::AnyUser.trusts(own, server), "{server} by {own}");
        }
    }
}
