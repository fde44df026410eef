//! The way of each message of a client that reads at a member which follows.

use tercel_wire::message::FromClient;

/// The way of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sessions) enum Way {
    /// It is served from the state here.
    Here,
    /// The leader decides it.
    Leader,
    /// It is refused, with this sentence.
    Refused(&'static str),
}

/// The way of a message.
pub(in crate::sessions) fn way(message: &FromClient<'_>) -> Way {
    match message {
        FromClient::Hello(_)
        | FromClient::AskHealth(_)
        | FromClient::Stat(_)
        | FromClient::Regroup(_)
        | FromClient::Join(_)
        | FromClient::Packet(_)
        | FromClient::Transfer(_)
        | FromClient::Ack(_)
        | FromClient::Fetch(_)
        | FromClient::Unsubscribe(_)
        | FromClient::Catalogue(_)
        | FromClient::Datagrams(_)
        | FromClient::Bye(_) => Way::Here,
        // Only the leader's list of views says whether a token's state is of the space's history.
        FromClient::Ping(ping) if ping.of.is_some() => Way::Leader,
        // One question over the line answers those of all readers.
        FromClient::Ping(_) => Way::Here,
        FromClient::Commit(_)
        | FromClient::Part(_)
        | FromClient::Resolve(_)
        | FromClient::Lease(_)
        | FromClient::Define(_)
        | FromClient::Depend(_)
        | FromClient::Bind(_)
        | FromClient::Interfaces(_)
        | FromClient::Request(_)
        | FromClient::Cancel(_)
        | FromClient::InputItem(_)
        | FromClient::InputEnd(_)
        | FromClient::OutputCredit(_)
        | FromClient::Collect(_) => Way::Leader,
        FromClient::Backup(_) | FromClient::BackupNext(_) => {
            Way::Refused("a backup is taken from the leader of the group: connect there for it")
        }
    }
}
