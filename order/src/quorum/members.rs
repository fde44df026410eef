//! Lists of members. A list counts from the moment it is appended, and goes back with a cut (Ongaro's thesis,
//! section 4.1: a server always uses the latest configuration in its log).

use std::collections::VecDeque;

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{EntryId, LogPosition, MemberId, ViewId};

/// The most members that a group has, those that do not vote included.
pub const MEMBERS_MAX: usize = 16;

/// The most members that vote.
pub const VOTERS_MAX: usize = 7;

/// Bytes of the address of a member, at most.
pub const ADDRESS_BYTES_MAX: usize = 400;

/// A member, as its group knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The identity of the member.
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
        encode_list(&self.0, out);
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes are no list, or a list that no group has.
    pub fn decode(r: &mut Reader<'_>) -> Result<Members, DecodeError> {
        Members::new(decode_list(r)?).ok_or(DecodeError::BadField("members"))
    }
}

fn encode_list(members: &[Member], out: &mut Vec<u8>) {
    out.put_u32(members.len() as u32);
    for member in members {
        out.put_u64(member.id.0);
        out.put_u8(member.votes.into());
        out.put_bytes(member.address.as_bytes());
    }
}

fn decode_list(r: &mut Reader<'_>) -> Result<Vec<Member>, DecodeError> {
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
    Ok(members)
}

const MEMBER_BYTES_MIN: usize = 13;

/// The members that may vote, by the lists that a member has acknowledged. It is remembered beside the
/// promise, so it outlives a log that loses its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Electorate {
    /// The entry of the newest list, or a later one up to which there is no other.
    pub at: EntryId,
    /// The newest list, by identity.
    newest: Vec<Member>,
    /// Others that voted by the list before, unless the newest is known to be stable.
    before: Vec<Member>,
    /// Not set if something was acknowledged with a log that may have lost lists.
    pub(super) is_settled: bool,
}

impl Electorate {
    /// The electorate of a member that has acknowledged nothing, and joined by this list.
    pub fn of(members: &Members) -> Electorate {
        let newest = members.0.clone();
        Electorate { at: EntryId::default(), newest, before: Vec::new(), is_settled: true }
    }

    /// The members of the newest list, by identity.
    pub fn newest(&self) -> &[Member] {
        &self.newest
    }

    pub(super) fn newest_voters(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.newest.iter().filter(|member| member.votes).map(|member| member.id)
    }

    /// Those that vote by the list before alone.
    pub(super) fn voters_before(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.before.iter().map(|member| member.id)
    }

    /// All that may vote.
    pub(super) fn voters(&self) -> impl Iterator<Item = &Member> {
        self.newest.iter().filter(|member| member.votes).chain(&self.before)
    }

    /// Says whether a member may vote.
    pub(super) fn votes(&self, id: MemberId) -> bool {
        self.voters().any(|voter| voter.id == id)
    }

    /// Says whether its newest list is younger than an entry.
    pub(super) fn is_younger(&self, than: EntryId) -> bool {
        (self.at.view.number, self.at.position) > (than.view.number, than.position)
    }

    /// Adds voters. `None` if they are too many to be remembered.
    pub(super) fn with<'a>(mut self, voters: impl Iterator<Item = &'a Member>) -> Option<Electorate> {
        for voter in voters {
            if !self.votes(voter.id) {
                self.before.push(voter.clone());
            }
        }
        self.before.sort_by_key(|voter| voter.id);
        if self.newest.len() + self.before.len() > ELECTORATE_MAX {
            self.newest.retain(|member| member.votes);
        }
        (self.newest.len() + self.before.len() <= ELECTORATE_MAX).then_some(self)
    }

    /// Appends one, or that none is known, with at most 7,460 bytes.
    pub(super) fn encode_known(one: Option<&Electorate>, out: &mut Vec<u8>) {
        out.put_u8(one.map_or(0, |one| if one.is_settled { 1 } else { 2 }));
        if let Some(one) = one {
            one.at.view.encode(out);
            out.put_u64(one.at.position.0);
            encode_list(&one.newest, out);
            encode_list(&one.before, out);
        }
    }

    /// Reads one, if one is known.
    pub(super) fn decode_known(r: &mut Reader<'_>) -> Result<Option<Electorate>, DecodeError> {
        let is_settled = match r.u8()? {
            0 => return Ok(None),
            1 => true,
            2 => false,
            _ => return Err(DecodeError::BadField("electorate")),
        };
        let at = EntryId { view: ViewId::decode(r)?, position: LogPosition(r.u64()?) };
        let (newest, before) = (decode_list(r)?, decode_list(r)?);
        let is_ordered = |list: &[Member]| list.windows(2).all(|pair| pair[0].id < pair[1].id);
        let are_short = newest.iter().chain(&before).all(|member| member.address.len() <= ADDRESS_BYTES_MAX);
        let fits = are_short && newest.len() + before.len() <= ELECTORATE_MAX;
        match is_ordered(&newest) && is_ordered(&before) && fits {
            true => Ok(Some(Electorate { at, newest, before, is_settled })),
            false => Err(DecodeError::BadField("electorate")),
        }
    }
}

/// Two lists that follow each other differ in one vote.
const ELECTORATE_MAX: usize = MEMBERS_MAX + 2;
/// Bytes of the longest electorate.
pub(super) const ELECTORATE_BYTES_MAX: usize = 25 + ELECTORATE_MAX * (8 + 1 + 4 + ADDRESS_BYTES_MAX);

/// The lists of a log: the newest that is stable, and those that were appended since.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    all: VecDeque<(LogPosition, Members)>,
    /// The members when this one joined.
    pub(super) joined: Option<Members>,
    /// The electorate that is remembered, or is being saved with a number. None if it is not known, as after
    /// a build that remembered none.
    pub(super) kept: Option<Electorate>,
    pub(super) saving: Option<u64>,
    /// Lists up to here are in the remembered electorate, durably.
    covered: LogPosition,
    /// The remembered electorate has a list that was cut above this position.
    reverts: Option<LogPosition>,
    /// The youngest electorate that another member told.
    pub(super) told: Option<Electorate>,
}

impl Lists {
    /// Begins with the list that counts up to a position.
    pub(super) fn new(at: LogPosition, members: Members, kept: Option<Electorate>) -> Lists {
        let (all, covered) = (VecDeque::from([(at, members)]), LogPosition::ZERO);
        Lists { all, joined: None, kept, saving: None, covered, reverts: None, told: None }
    }

    /// The position of the list that counts at what is stable, or of a later entry.
    pub(super) fn stable_at(&self) -> LogPosition {
        self.all[0].0
    }

    /// The electorate by the lists of a log, whose newest list is this entry.
    pub(super) fn electorate(&self, at: EntryId) -> Option<Electorate> {
        let before = self.all.iter().rev().nth(1).into_iter().flat_map(|(_, members)| members.iter());
        Electorate { at, ..Electorate::of(self.newest()) }.with(before.filter(|member| member.votes))
    }

    /// Another member tells its electorate.
    pub(super) fn hear(&mut self, electorate: Option<&Electorate>) {
        let at = self.told.as_ref().map_or(EntryId::default(), |told| told.at);
        if let Some(younger) = electorate.filter(|electorate| electorate.is_younger(at)) {
            self.told = Some(younger.clone());
        }
    }

    /// The remembered electorate is durable, and names the newest list.
    pub(super) fn cover(&mut self) {
        (self.saving, self.covered, self.reverts) = (None, self.newest_at(), None);
    }

    /// The remembered electorate says as much as the log up to there; nothing behind that is acknowledged.
    pub(super) fn remembered_upto(&self) -> Option<LogPosition> {
        let uncovered = self.all.iter().map(|(at, _)| *at).find(|at| *at > self.covered);
        uncovered.map(|at| LogPosition(at.0 - 1)).into_iter().chain(self.reverts).min()
    }

    /// The list that counts: the newest.
    pub(super) fn newest(&self) -> &Members {
        &self.all[self.all.len() - 1].1
    }

    /// Says whether a member votes by any list that may count.
    pub(super) fn any_votes(&self, id: MemberId) -> bool {
        self.all.iter().any(|(_, members)| members.votes(id))
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

    /// A list was appended.
    pub(super) fn push(&mut self, at: LogPosition, members: Members) {
        self.all.push_back((at, members));
    }

    /// The log was cut above a position, which is not below what is stable.
    pub(super) fn cut(&mut self, above: LogPosition) {
        while self.all.len() > 1 && self.newest_at() > above {
            self.all.pop_back();
            self.reverts = Some(self.reverts.map_or(above, |reverts| reverts.min(above)));
        }
        self.covered = self.covered.min(above);
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

    fn voters(of: &Electorate) -> Vec<u64> {
        of.voters().map(|voter| voter.id.0).collect()
    }

    #[test]
    fn electorate_has_voters_of_list_before() {
        let [before, newest] = [&[(1, true), (2, true), (3, true)], &[(1, true), (2, false), (4, true)]];
        let mut lists = Lists::new(LogPosition(3), members(before).unwrap(), None);
        lists.push(LogPosition(5), members(newest).unwrap());
        let at = EntryId { view: ViewId::new(2, 1), position: LogPosition(5) };
        assert_eq!(voters(&lists.electorate(at).unwrap()), [1, 4, 2, 3]);
        lists.stable(LogPosition(5));
        let electorate = lists.electorate(at).unwrap();
        assert_eq!((voters(&electorate), electorate.newest().len()), (vec![1, 4], 3));
    }

    #[test]
    fn electorate_with_too_many_members_keeps_voters() {
        let of = |first: u64| {
            let list: Vec<_> = (first..first + 16).map(|id| (id, id < first + 7)).collect();
            Electorate::of(&members(&list).unwrap())
        };
        let both = of(1).with(of(101).voters()).unwrap();
        assert_eq!((both.newest().len(), both.voters().count()), (7, 14));
        assert_eq!(both.with(of(201).voters()), None);
    }

    #[test]
    fn newest_list_counts_until_it_is_cut() {
        let [one, two] = [members(&[(1, true)]).unwrap(), members(&[(1, true), (2, true)]).unwrap()];
        let mut lists = Lists::new(LogPosition(0), one.clone(), None);
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
