//! The promises of extended virtual synchrony, held against what each process was given.

use std::collections::{BTreeMap, BTreeSet};

use tercel_wire::cursor::le64;

use super::world::bytes_of;
use crate::members::{RingId, Set};
use crate::{Configuration, Level, Message};

/// A delivery at a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Configuration(Configuration),
    /// The sender, the name, and whether it is safe.
    Message(usize, u64, bool),
}

impl Event {
    pub fn message(message: Message) -> Event {
        let name = le64(&message.bytes, 0);
        assert_eq!(message.bytes, bytes_of(name, message.bytes.len() - 8), "a message is whole");
        Event::Message(message.from.0.into(), name, message.level == Level::Safe)
    }
}

/// A process of a member, from its start to its end.
#[derive(Debug)]
pub struct Life {
    pub member: usize,
    pub submitted: Vec<u64>,
    pub events: Vec<Event>,
    pub is_over: bool,
}

/// The messages of one ring at one process.
#[derive(Debug, Default)]
struct Part {
    /// All, with those of the transitional configuration.
    names: Vec<u64>,
    /// Those of them that are in the regular one.
    regular: usize,
    safe: Vec<u64>,
    /// Members of the regular configuration, and of the transitional one, if it came.
    members: Set,
    together: Option<Set>,
    next: Option<RingId>,
}

impl Life {
    pub fn new(member: usize) -> Life {
        Life { member, submitted: Vec::new(), events: Vec::new(), is_over: false }
    }

    /// Messages that were delivered.
    pub fn messages(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Message(..))).count()
    }

    /// Says whether a message was among the last that came.
    pub fn has(&self, wanted: u64) -> bool {
        self.events
            .iter()
            .rev()
            .take(100)
            .any(|event| matches!(event, Event::Message(_, name, _) if *name == wanted))
    }

    pub fn was_with(&self, members: Set) -> bool {
        let is_it = |event: &Event| matches!(event, Event::Configuration(c) if c.members == members && !c.is_transitional);
        self.events.iter().any(is_it)
    }

    pub fn transitions(&self) -> usize {
        let is_one = |event: &&Event| matches!(event, Event::Configuration(c) if c.is_transitional);
        self.events.iter().filter(is_one).count()
    }

    /// Its rings in order, with their messages.
    fn parts(&self, all: usize) -> Result<Vec<(RingId, Part)>, String> {
        let mut parts: Vec<(RingId, Part)> = Vec::new();
        for event in &self.events {
            let last = parts.last_mut();
            match (event, last) {
                (Event::Configuration(c), last) if c.is_transitional => {
                    let (ring, part) = last.ok_or("a transitional configuration comes first")?;
                    if *ring != c.ring || part.together.is_some() || c.is_primary {
                        return Err(format!("{c:?} follows {ring:?}"));
                    }
                    let is_in = c.members.is_in(part.members) && c.members.has(self.place());
                    part.together = is_in.then_some(c.members);
                    part.together.ok_or(format!("{c:?} has strangers, or not this one"))?;
                }
                (Event::Configuration(c), last) => {
                    if let Some((ring, part)) = last {
                        let together = part.together.ok_or(format!("{c:?} has none before it"))?;
                        part.next = Some(c.ring);
                        if !together.is_in(c.members) || c.ring.number <= ring.number {
                            return Err(format!("{c:?} follows {ring:?} with {together:?}"));
                        }
                    }
                    if c.is_primary != (2 * c.members.count() > all) || !c.members.has(self.place()) {
                        return Err(format!("{c:?} of {all}"));
                    }
                    parts.push((c.ring, Part { members: c.members, ..Part::default() }));
                }
                (Event::Message(_, name, is_safe), last) => {
                    let (_, part) = last.ok_or("a message comes first")?;
                    part.names.push(*name);
                    part.regular += usize::from(part.together.is_none());
                    part.safe.extend(is_safe.then_some(*name));
                }
            }
        }
        Ok(parts)
    }

    fn place(&self) -> crate::members::Place {
        crate::members::Place(self.member as u8)
    }
}

/// Says which promise is broken, if one is.
pub fn all(lives: &[Life], members: usize) -> Result<(), String> {
    let mut parts = Vec::new();
    for (at, life) in lives.iter().enumerate() {
        let its = life.parts(members).map_err(|blame| format!("member {}: {blame}", life.member))?;
        parts.extend(its.into_iter().map(|(ring, part)| (at, ring, part)));
    }
    rings(lives, &parts)?;
    each(lives)?;
    for (n, (a, ring, one)) in parts.iter().enumerate() {
        for (b, _, other) in parts[n + 1..].iter().filter(|(_, other, _)| other == ring) {
            let who = (lives[*a].member, lives[*b].member);
            pair(one, other).map_err(|blame| format!("members {who:?} in {ring:?}: {blame}"))?;
        }
        safe(lives, &parts, *ring, one)?;
    }
    Ok(())
}

/// A ring is one list of members and one process of each; its numbers rise at each member.
fn rings(lives: &[Life], parts: &[(usize, RingId, Part)]) -> Result<(), String> {
    let (mut seen, mut last, mut home) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    for (at, ring, part) in parts {
        let member = lives[*at].member;
        if last.insert(member, ring.number).is_some_and(|before| before >= ring.number)
            || !seen.insert((*ring, member))
        {
            return Err(format!("member {member} has {ring:?} after a higher one, or twice"));
        }
        for name in &part.names {
            if *home.entry(*name).or_insert(*ring) != *ring {
                return Err(format!("message {name} is in two rings"));
            }
        }
    }
    Ok(())
}

/// Each process: nothing twice, each sender's messages in order, and all its own.
fn each(lives: &[Life]) -> Result<(), String> {
    for life in lives {
        let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::new());
        for event in &life.events {
            let Event::Message(from, name, _) = event else { continue };
            if !seen.insert(*name) || last.insert(*from, *name).is_some_and(|before| before > *name) {
                return Err(format!("member {}: message {name} comes twice, or late", life.member));
            }
        }
        if let Some(name) = life.submitted.iter().find(|name| !life.is_over && !seen.contains(name)) {
            return Err(format!("member {} does not get its own message {name}", life.member));
        }
    }
    Ok(())
}

/// Two members of a ring: one order, and one set if they go on together.
fn pair(one: &Part, other: &Part) -> Result<(), String> {
    if one.members != other.members {
        return Err("they have other members".into());
    }
    let common = one.regular.min(other.regular);
    if one.names[..common] != other.names[..common] {
        return Err("they begin in other orders".into());
    }
    let theirs: BTreeMap<u64, usize> = other.names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let places: Vec<usize> = one.names.iter().filter_map(|name| theirs.get(name).copied()).collect();
    if !places.is_sorted() {
        return Err("their orders differ".into());
    }
    if one.next.is_some() && one.next == other.next && one.together != other.together {
        return Err("they go to one configuration together and are told other members".into());
    }
    let go_together = one.together.is_some() && one.together == other.together && one.next == other.next;
    if go_together && one.next.is_some() && (&one.names, one.regular) != (&other.names, other.regular) {
        return Err("they go on together and have other messages, or their configuration elsewhere".into());
    }
    Ok(())
}

/// A safe message is delivered by each member of the configuration it was delivered in, unless that fails.
fn safe(lives: &[Life], parts: &[(usize, RingId, Part)], ring: RingId, part: &Part) -> Result<(), String> {
    for name in &part.safe {
        let is_regular = part.names[..part.regular].contains(name);
        let all = if is_regular { part.members } else { part.together.unwrap_or_default() };
        for place in all.iter() {
            let its =
                parts.iter().find(|(at, id, _)| lives[*at].member == usize::from(place.0) && *id == ring);
            let has = its.is_some_and(|(at, _, its)| lives[*at].is_over || its.names.contains(name));
            // A process that crashed before the ring was there for it has no part in it.
            let crashed = its.is_none() && lives.iter().any(|life| life.place() == place && life.is_over);
            if !has && !crashed {
                return Err(format!("safe message {name} of {ring:?} is not at member {}", place.0));
            }
        }
    }
    Ok(())
}
