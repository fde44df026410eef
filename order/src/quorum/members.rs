//! Lists of members. A list counts from the moment it is appended, and goes back with a cut (Ongaro's thesis,
//! section 4.1: a server always uses the latest configuration in its log).

use std::collections::VecDeque;

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{LogPosition, MemberId};

/// The most members that a group has, those that do not vote included.
pub const MEMBERS_MAX: usize = 16;

/// The most members that vote.
pub const VOTERS_MAX: usize = 7;

/// Bytes of the address of a member, at most.
pub const ADDRESS_BYTES_MAX: usize = 400;

/// A member, as its group knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub id: MemberId,
    /// Set if it votes; else it only learns.
    pub votes: bool,
    /// Where it is reached by clients and members, as its operator wrote it.
    pub address: String,
}

/// A list of members, by identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members(Vec<Member>);

impl Members {
    /// A list. `None` if a member is named twice, nobody votes, there are too many, or an address is
    /// too long.
    pub fn new(mut members: Vec<Member>) -> Option<Members> {
        members.sort_by_key(|member| member.id);
        let is_unique = members.windows(2).all(|pair| pair[0].id < pair[1].id);
        let voters = members.iter().filter(|member| member.votes).count();
        let are_short = members.iter().all(|member| member.address.len() <= ADDRESS_BYTES_MAX);
        let fits = are_short && members.len() <= MEMBERS_MAX && (1..=VOTERS_MAX).contains(&voters);
        (is_unique && fits).then_some(Members(members))
    }

    /// All of them, by identity.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.iter()
    }

    /// The identities of those that vote.
    pub fn voters(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.0.iter().filter(|member| member.votes).map(|member| member.id)
    }

    /// The member of an identity.
    pub fn get(&self, id: MemberId) -> Option<&Member> {
        self.0.iter().find(|member| member.id == id)
    }

    /// Says whether the member is there and votes.
    pub fn votes(&self, id: MemberId) -> bool {
        self.get(id).is_some_and(|member| member.votes)
    }

    /// The number of members that make a quorum: more than half of those that vote.
    pub fn quorum(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// Says whether the two differ in the vote of at most one member, so that any quorum of one meets any
    /// quorum of the other.
    pub fn is_next_to(&self, other: &Members) -> bool {
        let ours = self.voters().filter(|id| !other.votes(*id)).count();
        let theirs = other.voters().filter(|id| !self.votes(*id)).count();
        ours + theirs <= 1
    }

    /// Appends it, as the payload of a record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.0.len() as u32);
        for member in &self.0 {
            out.put_u64(member.id.0);
            out.put_u8(member.votes.into());
            out.put_bytes(member.address.as_bytes());
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes are no list, or a list that no group has.
    pub fn decode(r: &mut Reader<'_>) -> Result<Members, DecodeError> {
        let mut members = Vec::new();
        for _ in 0..r.count(MEMBER_BYTES_MIN, "members")? {
            let id = MemberId(r.u64()?);
            let votes = match r.u8()? {
                0 => false,
                1 => true,
                _ => return Err(DecodeError::BadField("votes")),
            };
            members.push(Member { id, votes, address: r.str("address")?.to_owned() });
        }
        Members::new(members).ok_or(DecodeError::BadField("members"))
    }
}

const MEMBER_BYTES_MIN: usize = 13;

/// The lists of a log: the newest that is stable, and those that were appended since.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    all: VecDeque<(LogPosition, Members)>,
    /// The members when this one joined.
    pub(super) joined: Option<Members>,
}

impl Lists {
    /// Begins with the list that counts up to a position.
    pub(super) fn new(at: LogPosition, members: Members) -> Lists {
        Lists { all: VecDeque::from([(at, members)]), joined: None }
    }

    /// The list that counts: the newest.
    pub(super) fn newest(&self) -> &Members {
        &self.all[self.all.len() - 1].1
    }

    /// The position of the newest list.
    pub(super) fn newest_at(&self) -> LogPosition {
        self.all[self.all.len() - 1].0
    }

    /// The newest list at or below a position.
    pub(super) fn at(&self, position: LogPosition) -> &Members {
        let found = self.all.iter().rev().find(|(at, _)| *at <= position);
        &found.unwrap_or(&self.all[0]).1
    }

    /// The newest stable list, and those after that.
    pub(super) fn may_count(&self) -> impl Iterator<Item = &Members> {
        self.all.iter().map(|(_, members)| members)
    }

    /// A list was appended.
    pub(super) fn push(&mut self, at: LogPosition, members: Members) {
        self.all.push_back((at, members));
    }

    /// The log was cut above a position, which is not below what is stable.
    pub(super) fn cut(&mut self, above: LogPosition) {
        while self.all.len() > 1 && self.newest_at() > above {
            self.all.pop_back();
        }
    }

    /// Everything up to a position is stable: lists before the newest there are of no more use.
    pub(super) fn stable(&mut self, upto: LogPosition) {
        while self.all.get(1).is_some_and(|(at, _)| *at <= upto) {
            self.all.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(of: &[(u64, bool)]) -> Option<Members> {
        let member =
            |(id, votes): &(u64, bool)| Member { id: MemberId(*id), votes: *votes, address: "a:1".into() };
        Members::new(of.iter().map(member).collect())
    }

    #[test]
    fn lists_that_no_group_has_are_refused() {
        assert_eq!(members(&[]), None);
        assert_eq!(members(&[(1, false)]), None);
        assert_eq!(members(&[(1, true), (1, false)]), None);
        let eight: Vec<_> = (0..8).map(|id| (id, true)).collect();
        assert!(members(&eight).is_none() && members(&eight[1..]).is_some());
    }

    #[test]
    fn list_comes_back_and_no_prefix_does() {
        let list = members(&[(3, true), (1, false), (2, true)]).unwrap();
        let mut bytes = Vec::new();
        list.encode(&mut bytes);
        assert_eq!(Members::decode(&mut Reader::new(&bytes)), Ok(list));
        for cut in 0..bytes.len() {
            assert!(Members::decode(&mut Reader::new(&bytes[..cut])).is_err());
        }
    }

    #[test]
    fn lists_with_one_vote_between_them_are_next() {
        let three = members(&[(1, true), (2, true), (3, true)]).unwrap();
        assert!(three.is_next_to(&members(&[(1, true), (2, true), (3, true), (4, true)]).unwrap()));
        assert!(three.is_next_to(&members(&[(1, true), (2, true), (3, false), (4, false)]).unwrap()));
        assert!(!three.is_next_to(&members(&[(1, true), (2, true), (4, true)]).unwrap()));
    }

    #[test]
    fn newest_list_counts_until_it_is_cut() {
        let [one, two] = [members(&[(1, true)]).unwrap(), members(&[(1, true), (2, true)]).unwrap()];
        let mut lists = Lists::new(LogPosition(0), one.clone());
        lists.push(LogPosition(5), two.clone());
        assert_eq!((lists.newest(), lists.at(LogPosition(4))), (&two, &one));
        lists.cut(LogPosition(5));
        assert_eq!(lists.newest(), &two);
        lists.cut(LogPosition(4));
        assert_eq!(lists.newest(), &one);
        lists.push(LogPosition(5), two.clone());
        lists.stable(LogPosition(5));
        lists.cut(LogPosition(5));
        assert_eq!(lists.at(LogPosition(5)), &two);
    }
}
