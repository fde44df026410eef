//! A server's process begins: it opens and recovers, or it must wait, or something is wrong.
//!
//! As in a real process, what the machine says first is durable before it serves anybody, and power may fail even now.
//! Whether what was recovered is what had been promised is seen here, with the eyes of [`super::truth`].

use std::collections::BTreeMap;

use tercel_engine::server::{Effect, Effects, Input, LogRoom, Recovery, ServerConfig};
use tercel_wire::id::{PageId, Stamp};

use super::log::Log;
use super::server::{Running, encode};
use super::{Event, Phase, SPACE, World};
use crate::rule::{Rule, RunnerRule};

impl World {
    pub(super) fn create_space(&mut self) {
        let salt = self.random.next_u64();
        Log::create(&mut self.disk, SPACE, salt, self.plan.segment_bytes);
        self.start_server();
    }

    fn config(&self) -> ServerConfig {
        ServerConfig {
            mob_bytes: self.plan.mob_bytes,
            cache_bytes: self.plan.images_bytes,
            keepalive_ms: self.plan.keepalive_ms,
            subscriptions_max: self.plan.subscriptions,
            view_first: 0,
        }
    }

    /// Opens and recovers, as a new process does. If that cannot be, another one tries later.
    pub(super) fn start_server(&mut self) {
        self.server.is_restarting = false;
        if self.server.is_up() || self.is_over() {
            return;
        }
        self.server.life += 1;
        match self.recover() {
            Ok((running, out)) => {
                self.server.running = Some(running);
                self.perform(out);
            }
            Err(Failed::Again(why)) => {
                self.say(format_args!("s       does not start: {why}"));
                self.restart_soon();
            }
            Err(Failed::Wrong(why)) => self.blame(format!("recovery: {why}")),
        }
    }

    fn recover(&mut self) -> Result<(Running, Effects), Failed> {
        let is_first = self.server.life == 1;
        let stored_end = if is_first { 0 } else { PageId::MAX.get() };
        let mut checkpoint = self.store.checkpoint.clone();
        if self.plan.rule == Some(Rule::Runner(RunnerRule::ReplayFromLater))
            && let Some(c) = &mut checkpoint
        {
            c.replay_from = Stamp(c.applied.0 + 1);
        }
        let wrong = |e: &dyn std::fmt::Display| Failed::Wrong(e.to_string());
        let mut recovery =
            Recovery::new(self.config(), SPACE, checkpoint.as_ref(), stored_end).map_err(|e| wrong(&e))?;
        let from = recovery.replay_from();
        let opened = match Log::open(&mut self.disk, SPACE, from, self.plan.segment_bytes) {
            Ok(opened) => opened,
            Err(why) if self.disk.mend() => {
                self.record.counts.damage_found += 1;
                return Err(Failed::Again(why));
            }
            Err(why) => return Err(Failed::Wrong(format!("the log is refused: {why}"))),
        };
        // A bit flipped where nobody needs it any more is not noticed, and must not be.
        self.disk.mend();
        let local_end = self.truth.recovered(from, opened.begins, &opened.records).map_err(Failed::Wrong)?;
        self.record.counts.torn += opened.is_torn as u64;
        self.truth.cut(local_end).map_err(Failed::Wrong)?;
        for e in &opened.records {
            recovery.replay(e.view, e.stamp, e.kind, &e.payload).map_err(|e| wrong(&e))?;
        }
        let mut out = Effects::default();
        let now = self.server.clock.now(self.time);
        let incarnation = self.random.next_u64() as u32;
        let mut machine = recovery.finish(now, incarnation, local_end, &mut out).map_err(|e| wrong(&e))?;
        let mut log = opened.log;
        let (mut bytes, mut last) = (Vec::new(), log.last());
        for effect in out.list.drain(..) {
            let Effect::Append(position, _, entry) = effect else {
                return Err(Failed::Wrong(format!("{effect:?} before the first sync")));
            };
            self.truth.append(position, &entry).map_err(Failed::Wrong)?;
            encode(&mut bytes, &mut last, &entry);
        }
        let appended = log.append(&mut self.disk, &bytes);
        let is_unlucky = !is_first && self.phase == Phase::Safety && self.random.below(16) == 0;
        if let Err(why) = appended {
            return Err(Failed::Again(why));
        }
        if is_unlucky {
            self.disk.lose(&mut self.random);
            return Err(Failed::Again("the power is lost again".into()));
        }
        log.sync(&mut self.disk);
        self.truth.promised = last.stamp;
        let written = last.written();
        machine.handle(now, Input::Written(written.view, written.position), &mut out);
        self.say(format_args!(
            "s       life {} begins at {}, {} entries replayed from {from}{}",
            machine.view().number,
            last.stamp,
            opened.records.len(),
            if opened.is_torn { ", a torn write cut off" } else { "" }
        ));
        let running = Running {
            machine,
            log,
            last,
            records: Vec::new(),
            is_syncing: false,
            truncate: None,
            conns: BTreeMap::new(),
            timer: None,
            knows_full: false,
            knows_room: LogRoom::Free,
        };
        Ok((running, out))
    }

    pub(super) fn restart_soon(&mut self) {
        if !self.server.is_restarting && self.phase != Phase::Closing {
            self.server.is_restarting = true;
            let us = 1_000 + self.random.below(RESTART_US_MAX);
            self.at(self.time + us, Event::Restart);
        }
    }
}

/// Why a server did not start.
enum Failed {
    /// As it must, for now.
    Again(String),
    /// Though nothing excuses it.
    Wrong(String),
}

/// How long a process is gone at most.
const RESTART_US_MAX: u64 = 200_000;
