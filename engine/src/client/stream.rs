//! Applying the server's stream of changes: flags first, then the watermark, then new bytes.

use tercel_wire::frame::Kind;
use tercel_wire::id::{OpId, Oref, Stamp};
use tercel_wire::message::Stream;

use super::Client;
use crate::error::Error;
use crate::mutant::{Rule, dropped};
use crate::table::Set;

impl Client {
    pub(super) fn stream(&mut self, s: Stream) -> Result<(), Error> {
        let w = self.reader.watermark();
        if s.from > w && !dropped(Rule::WatermarkJumps) {
            return Err(Error::Unavailable(format!("the server's stream jumps from {w} to {}", s.from)));
        }
        if s.from == s.to && s.changes.is_empty() && s.revoked.is_empty() && !s.ack {
            self.questions.shown_life();
        }
        let mut own: Vec<(Stamp, OpId, usize)> = Vec::new();
        for (i, change) in s.changes.iter().enumerate() {
            if change.stamp <= w {
                continue;
            }
            for oref in &change.orefs {
                if dropped(Rule::WatermarkBeforeFlags) {
                    self.flags_late.push(*oref);
                } else if !(change.own.is_some() && dropped(Rule::OwnDoesNotFlag)) {
                    self.writer.flag(*oref);
                }
                self.fetches.changed(*oref, change.stamp, change.own.is_some());
                self.watches.changed(*oref, change.stamp);
            }
            match change.own {
                Some(op) => own.push((change.stamp, op, i)),
                None => self.stats.invalidations += change.orefs.len() as u64,
            }
        }
        let mut revoked = Vec::new();
        for (page, fetch) in &s.revoked {
            if self.fetches.revoke(*page, *fetch, self.writer.is_cached(*page)) {
                self.writer.flag_page(*page);
                self.watches.lose_page(*page);
                revoked.push((*page, *fetch));
            }
        }
        if s.to > w {
            self.writer.advance(s.to);
        }
        for (stamp, op, i) in own {
            let later = &s.changes[i + 1..];
            let later: Set<Oref> = later.iter().flat_map(|c| c.orefs.iter().copied()).collect();
            self.install_own(op, stamp, &later);
        }
        if !s.revoked.is_empty() {
            // The server waits for it, and for those that were given back before.
            self.give_back(revoked);
            self.send_leaving();
        }
        if s.ack {
            // Every header says up to where.
            self.say(Kind::Ack, &[]);
        }
        self.install_early()
    }

    /// Makes this client's own new versions readable here, where the server reports later changes to us.
    fn install_own(&mut self, op: OpId, stamp: Stamp, later: &Set<Oref>) {
        for local_write in self.ops.take_local_writes(op, stamp) {
            let heard = self.fetches.is_subscribed(local_write.oref.page()) || dropped(Rule::OwnUnsubscribed);
            if later.contains(&local_write.oref) || !heard {
                continue;
            }
            let page = local_write.oref.page();
            let birth = match local_write.new {
                true => self.leases.birth(page).inspect(|birth| self.fetches.born(page, *birth)),
                false => self.fetches.birth_of(local_write.oref),
            };
            // Without the birth of its page it would be found by references that are older than the object.
            let Some(birth) = birth.or(dropped(Rule::OwnUnsubscribed).then_some(Stamp::ZERO)) else {
                continue;
            };
            // A full cache is no reason to fail: the object will be fetched when it is wanted.
            let _ = self.writer.install_own(local_write.oref, &local_write.object, birth);
        }
    }
}
