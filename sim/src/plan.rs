//! The plan that one seed draws: the size of the world, its faults and their times.
//!
//! Swarm testing (Groce, Zhang, Eide, Chen, Regehr, ISSTA 2012): each seed leaves most kinds of fault out and
//! makes the others frequent, since faults also hide each other. The faults are a list that is drawn before
//! the run, so a shorter script is a part of the list.

use std::fmt;

use tercel_engine::random::Random;
use tercel_engine::server::CollectConfig;

use crate::port::Site;
use crate::rule::Rule;
use crate::scheduler::Actor;

/// The size, the faults and the settings of one world.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Everything that happens is drawn from it.
    pub seed: u64,
    /// Client processes.
    pub clients: usize,
    /// Threads of each.
    pub threads: usize,
    /// Threads of a program inside of the server.
    pub inside: usize,
    /// Threads that watch objects, each at another client.
    pub watchers: usize,
    /// Commits after which the faults end.
    pub commits: u64,
    /// The faults, in the order of their times.
    pub faults: Vec<Fault>,
    /// The places of `faults` in the seed's list; `None` if all of the list is kept.
    pub kept: Option<Vec<usize>>,
    /// Objects that all clients read and write.
    pub cells: usize,
    /// Cells that a transaction of kind 0 reads at most.
    pub reads_max: u64,
    /// Bytes of a client's cache.
    pub cache_bytes: usize,
    /// Bytes of the server's buffer of modified objects.
    pub mob_bytes: usize,
    /// The choices of the server's process.
    pub server: ServerPlan,
    /// The bounds of the log.
    pub log: LogBounds,
    /// Silence after which a side asks the other.
    pub keepalive_ms: u32,
    /// Time that a client waits for an answer, in microseconds.
    pub patience_us: u64,
    /// A message's time on its way, at least; now and then it takes much longer.
    pub latency_us: u64,
    /// A sync's time.
    pub sync_us: u64,
    /// Time that a thread thinks between two steps, in microseconds.
    pub think_us: u64,
    /// The weights of the kinds of transaction: see [`crate::workload`].
    pub mix: [u64; MIX],
    /// The group of servers; without one there is a server alone, which always leads.
    pub group: Option<GroupPlan>,
    /// Set if the space is put back from a copy in the end, and goes on from there.
    pub put_back: bool,
    /// The pace of the server's loop; none if it takes no time, and no connection waits.
    pub pace: Option<Pace>,
    /// Bounds of the engine, where the build lets them be made small.
    pub small: bool,
    /// A rule that is dropped on purpose.
    pub rule: Option<Rule>,
}

/// The choices of a server's process beside its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerPlan {
    /// Bytes of its page cache.
    pub images_bytes: usize,
    /// Pages that a session may be subscribed to.
    pub subscriptions: usize,
    /// When it collects what no root reaches.
    pub collect: CollectConfig,
}

/// A group of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its first members: they are the first nodes of the world, and all of them vote.
    pub members: usize,
    /// Nodes that may become members later. Without any, the list of members does not change.
    pub spares: usize,
    /// Silence after which a leader is suspected, in microseconds.
    pub deadline_us: u64,
    /// Bytes of entries on their way to a member.
    pub window_bytes: usize,
    /// Bytes of stable entries that a member keeps in memory.
    pub kept_bytes: usize,
    /// One in how many packets is lost, comes twice or comes very late; 0 is none.
    pub strays_one_in: u64,
}

/// The bounds of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes before it must become shorter.
    pub bytes_max: u64,
}

/// The pace at which the server's loop handles frames, and its clients read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Microseconds that a frame takes, on average.
    pub frame_us: u64,
    /// Unsent bytes above which a connection is not read.
    pub unsent_ask_max: usize,
    /// Unsent bytes of all connections.
    pub unsent_bytes_max: usize,
    /// Bytes that kernels keep for a client; more is unsent.
    pub window_bytes: usize,
    /// Microseconds that the first client takes for 1024 bytes.
    pub slow_us: u64,
}

impl Pace {
    fn draw(r: &mut Random) -> Pace {
        Pace {
            frame_us: pick(r, &[1, 5, 25, 100]),
            unsent_ask_max: pick(r, &[512, 4 << 10, 32 << 10, 1 << 20]),
            window_bytes: pick(r, &[512, 4 << 10, 32 << 10]),
            slow_us: pick(r, &[0, 0, 20, 200]),
            unsent_bytes_max: pick(r, &[64 << 10, 256 << 10, 1 << 30]),
        }
    }

    /// Unsent bytes below which the kernel says that there is room again.
    pub(crate) fn mark_bytes(&self) -> usize {
        self.unsent_ask_max / 4
    }
}

/// Kinds of transactions.
pub const MIX: usize = 13;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// After so many events.
    pub at: u64,
    /// Its kind.
    pub kind: FaultKind,
    /// Random bits from which the kind draws its target, its duration and its amount.
    pub dice: u64,
}

/// The kinds of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    Cut,
    HalfOpen,
    Silence,
    Garble,
    Repeat,
    ServerKill,
    PowerLoss,
    ServerPause,
    ServerStop,
    ClientPause,
    ClientCrash,
    ClockJump,
    SyncFails,
    WriteFails,
    InstallFails,
    ReadFails,
    ReadFlips,
    DiskFull,
    LogFlips,
    SlowDisk,
    MemberCut,
    MemberClog,
    MoveLead,
    GroupEnds,
    DiskHangs,
    MemberComes,
    MemberGoes,
    MemberWiped,
    TailRots,
}

impl FaultKind {
    /// Those of any world.
    pub const ALL: [FaultKind; 20] = [
        FaultKind::Cut,
        FaultKind::HalfOpen,
        FaultKind::Silence,
        FaultKind::Garble,
        FaultKind::Repeat,
        FaultKind::ServerKill,
        FaultKind::PowerLoss,
        FaultKind::ServerPause,
        FaultKind::ServerStop,
        FaultKind::ClientPause,
        FaultKind::ClientCrash,
        FaultKind::ClockJump,
        FaultKind::SyncFails,
        FaultKind::WriteFails,
        FaultKind::InstallFails,
        FaultKind::ReadFails,
        FaultKind::ReadFlips,
        FaultKind::DiskFull,
        FaultKind::LogFlips,
        FaultKind::SlowDisk,
    ];

    /// Those of a group.
    pub const OF_GROUPS: [FaultKind; 5] = [
        FaultKind::MemberCut,
        FaultKind::MemberClog,
        FaultKind::MoveLead,
        FaultKind::GroupEnds,
        FaultKind::DiskHangs,
    ];

    /// Those of a group whose members change.
    pub const OF_CHANGES: [FaultKind; 4] =
        [FaultKind::MemberComes, FaultKind::MemberGoes, FaultKind::MemberWiped, FaultKind::TailRots];

    /// In words.
    pub fn says(self) -> &'static str {
        match self {
            FaultKind::Cut => "a connection is cut, each end learns of it in its time",
            FaultKind::HalfOpen => "a connection is gone, and one end is never told",
            FaultKind::Silence => "nothing of a connection arrives for a while",
            FaultKind::Garble => "a bit of a message flips",
            FaultKind::Repeat => "requests are sent once more, behind later ones",
            FaultKind::ServerKill => "the server's process is killed",
            FaultKind::PowerLoss => {
                "the server's machine loses its power and what was not synced, or pieces of it"
            }
            FaultKind::ServerPause => "the server's process stands still for a while",
            FaultKind::ServerStop => "the server is stopped cleanly and started again",
            FaultKind::ClientPause => "a client's process stands still for a while",
            FaultKind::ClientCrash => "a client's process ends and another begins",
            FaultKind::ClockJump => "a clock jumps ahead",
            FaultKind::SyncFails => "a sync fails and what it was for may be gone",
            FaultKind::WriteFails => "a write to the log fails",
            FaultKind::InstallFails => "the page store fails, with the pages or without them",
            FaultKind::ReadFails => "a page cannot be read",
            FaultKind::ReadFlips => "a page is read with a flipped bit",
            FaultKind::DiskFull => "the log's disk is full for a while",
            FaultKind::LogFlips => "a bit of the log flips and the power is lost",
            FaultKind::SlowDisk => "the disk takes its time for a while",
            FaultKind::MemberCut => "members do not reach others for a while",
            FaultKind::MemberClog => "packets between members wait, and then come in any order",
            FaultKind::MoveLead => "the leader is told to hand the lead over",
            FaultKind::GroupEnds => "all servers end at the same moment",
            FaultKind::DiskHangs => "a disk does nothing for a while",
            FaultKind::MemberComes => "a node is to become a member",
            FaultKind::MemberGoes => "a member is to go",
            FaultKind::MemberWiped => "a member loses its disk, and its node becomes another member",
            FaultKind::TailRots => "a member loses its power and the end of its log",
        }
    }

    fn weight(self) -> u64 {
        match self {
            FaultKind::Cut => 6,
            FaultKind::ServerKill | FaultKind::PowerLoss | FaultKind::MemberCut => 4,
            FaultKind::HalfOpen | FaultKind::Silence | FaultKind::ReadFlips => 2,
            FaultKind::ClientPause | FaultKind::ClientCrash | FaultKind::SyncFails | FaultKind::MoveLead => 2,
            _ => 1,
        }
    }
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut r = Random::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(7));
        let r = &mut r;
        let commits = 600 + r.below(950);
        let mut mix = [6, 2, 2, 3, 3, 2, 2, 1, 1, 0, 0, 0, 0];
        for m in &mut mix[..10] {
            // A third of the kinds is left out, another third is frequent.
            *m = match r.below(3) {
                0 => 0,
                1 => *m,
                _ => *m * 4,
            };
        }
        mix[0] = mix[0].max(4);
        mix[9] = r.below(8) / 7;
        // Drawn apart, so that what else a seed draws stays what it was.
        mix[10] = 1 + Random::new(seed ^ 0x6a2b_0f00).below(4);
        mix[11] = Random::new(seed ^ 0xca11_0000).below(6);
        mix[12] = Random::new(seed ^ 0x5e41_0000).below(5);
        // Large transactions need large buffers.
        let mob_bytes = pick(r, &[32 << 10, 96 << 10, 512 << 10, 4 << 20]).max(mix[9] as usize * (4 << 20));
        let images_bytes = pick(r, &[1, 128 << 10, 1 << 20]).max(mix[9] as usize * (2 << 20));
        let cache_bytes = pick(r, &[288 << 10, 384 << 10, 512 << 10]).max(mix[9] as usize * (1 << 20));
        let clients = 3 + r.below(3) as usize;
        let threads = 1 + r.below(3) as usize;
        let mut faults = draw_faults(r, commits);
        let mut plan = Plan {
            seed,
            clients,
            threads,
            // Drawn apart, so that what else a seed draws stays what it was.
            inside: Random::new(seed ^ 0x1951_de00).below(3) as usize,
            // In two worlds of nine, for they take events from the faults.
            watchers: Random::new(seed ^ 0x3a7c_4e00).below(9).saturating_sub(6) as usize,
            commits,
            faults: Vec::new(),
            kept: None,
            cells: 4 + (r.below(8) * r.below(8)) as usize,
            reads_max: 4,
            cache_bytes,
            mob_bytes,
            server: ServerPlan {
                images_bytes,
                subscriptions: pick(r, &[8, 16, 1 << 20, 1 << 20]),
                collect: draw_collect(seed),
            },
            log: LogBounds { segment_bytes: pick(r, &[1_024, 4_096, 16_384, 65_536]), bytes_max: 0 },
            keepalive_ms: pick(r, &[100, 300, 2_000]),
            patience_us: pick(r, &[20_000, 200_000, 2_000_000]),
            latency_us: pick(r, &[20, 200, 2_000]),
            sync_us: pick(r, &[50, 500, 4_000]),
            think_us: pick(r, &[20, 200, 1_000]),
            mix,
            put_back: seed % WORLDS_PER_PUT_BACK == WORLDS_PER_PUT_BACK - 1,
            small: r.below(2) == 0,
            rule: None,
            // Drawn apart, as threads inside of the server are.
            pace: draw_pace(seed),
            group: None,
        };
        plan.log.bytes_max = pick(r, &[32 << 10, 128 << 10, u64::MAX, u64::MAX]);
        plan.group = (r.below(2) == 0).then(|| draw_group(seed, &plan));
        if plan.group.is_some() {
            // What is put back is refused by the others.
            plan.put_back = false;
            faults.extend(draw_group_faults(seed, commits));
            if plan.spares() > 0 {
                // A program inside of a server would end with a node that is no member.
                plan.inside = 0;
                let r = &mut Random::new(seed ^ 0x6709_0000_0000_0003);
                let every = pick(r, &[100, 300, 1_000]);
                faults.extend(draw_of(r, commits, &FaultKind::OF_CHANGES, every));
            }
            faults.sort_by_key(|fault| fault.at);
        }
        plan.faults = faults;
        // What the largest transactions need, and a few segments, since a log becomes shorter by whole ones.
        let least = (mix[9] * (4 << 20)).max(4 * u64::from(plan.log.segment_bytes));
        plan.log.bytes_max = plan.log.bytes_max.max(least);
        plan
    }

    /// Servers.
    pub(crate) fn nodes(&self) -> usize {
        self.group.map_or(1, |group| group.members + group.spares)
    }

    /// Those of them that are no members yet.
    pub(crate) fn spares(&self) -> usize {
        self.group.map_or(0, |group| group.spares)
    }

    /// Threads that run transactions.
    pub(crate) fn actors(&self) -> usize {
        self.clients * self.threads + self.inside + self.watchers
    }

    /// Which process a thread belongs to; none for the first, which directs.
    pub(crate) fn site_of(&self, actor: Actor) -> Option<Site> {
        let number = actor.0.checked_sub(1)?;
        let workers = self.clients * self.threads;
        Some(match number {
            n if n < workers => Site::Client(n / self.threads),
            n if n < workers + self.inside => Site::Server(n % self.nodes()),
            n => Site::Client((n - workers - self.inside) % self.clients),
        })
    }

    /// Says whether the thread is one that watches.
    pub(crate) fn is_watcher(&self, actor: Actor) -> bool {
        actor.0 > self.clients * self.threads + self.inside
    }

    /// The same with so many members of a group; none is a server alone.
    pub fn with_members(self, members: usize) -> Plan {
        let spares = self.spares();
        let group = (members > 0).then(|| GroupPlan { members, spares, ..draw_group(self.seed, &self) });
        Plan { group, put_back: self.put_back && members == 0, ..self }
    }

    /// The same with only some of the faults of the seed's list.
    pub fn keep(&self, kept: &[usize]) -> Plan {
        let all = Plan::of(self.seed).faults;
        let faults = kept.iter().filter_map(|i| all.get(*i).copied()).collect();
        Plan { faults, kept: Some(kept.to_vec()), ..self.clone() }
    }

    /// The places of its faults in the seed's list.
    pub fn kept(&self) -> Vec<usize> {
        self.kept.clone().unwrap_or_else(|| (0..self.faults.len()).collect())
    }
}

/// The command line that makes this world again.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Plan::of(self.seed);
        write!(f, "--seed {}", self.seed)?;
        let sizes = |plan: &Plan| {
            let Plan { clients, threads, inside, watchers, commits, .. } = plan;
            let members = plan.group.map_or(0, |group| group.members);
            let sizes = [*clients, *threads, *inside, *watchers, *commits as usize, members];
            ["clients", "threads", "inside", "watchers", "commits", "members"].into_iter().zip(sizes)
        };
        for ((name, chosen), (_, drawn)) in sizes(self).zip(sizes(&all)) {
            if chosen != drawn {
                write!(f, " --{name} {chosen}")?;
            }
        }
        if let Some(kept) = &self.kept {
            let kept: Vec<String> = kept.iter().map(|i| i.to_string()).collect();
            write!(f, " --faults {}", if kept.is_empty() { "none".into() } else { kept.join(",") })?;
        }
        if let Some(rule) = self.rule {
            write!(f, " --drop {}", rule.name())?;
        }
        Ok(())
    }
}

/// In one world of four the loop takes no time.
fn draw_pace(seed: u64) -> Option<Pace> {
    let r = &mut Random::new(seed ^ 0x9ace_0000_0000_0001);
    (r.below(4) != 0).then(|| Pace::draw(r))
}

/// Collections all the time: as soon as some tens of objects were made.
fn draw_collect(seed: u64) -> CollectConfig {
    let r = &mut Random::new(seed ^ 0x00c0_11ec_7000_0001);
    CollectConfig {
        is_automatic: true,
        grace_ms: pick(r, &[0, 0, 1, 5, 20, 50]),
        made_min: 1 + r.below(30),
        made_percent: r.below(3) as u8,
    }
}

/// Drawn apart, as threads inside of the server are.
fn draw_group(seed: u64, plan: &Plan) -> GroupPlan {
    let r = &mut Random::new(seed ^ 0x6709_0000_0000_0001);
    let deadline_us = pick(r, &[20_000, 150_000]);
    GroupPlan {
        members: pick(r, &[1, 2, 3, 3, 3, 4, 5]),
        spares: 2 * Random::new(seed ^ 0x5a7e_0000_0000_0001).below(2) as usize,
        // Below some round trips and syncs nobody is ever elected.
        deadline_us: deadline_us.max(10 * plan.latency_us + 10 * plan.sync_us),
        window_bytes: pick(r, &[1 << 10, 16 << 10, 8 << 20]),
        kept_bytes: pick(r, &[1 << 10, 64 << 10, 8 << 20]),
        strays_one_in: pick(r, &[0, 20, 200, 2_000]),
    }
}

fn draw_group_faults(seed: u64, commits: u64) -> Vec<Fault> {
    let r = &mut Random::new(seed ^ 0x6709_0000_0000_0002);
    let kinds: Vec<FaultKind> = FaultKind::OF_GROUPS.into_iter().filter(|_| r.below(3) != 0).collect();
    let every = pick(r, &[100, 300, 1_000]);
    draw_of(r, commits, &kinds, every)
}

fn draw_faults(r: &mut Random, commits: u64) -> Vec<Fault> {
    let mut kinds: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|_| r.below(2) == 0).collect();
    // A world whose server never crashes is worth little: one in sixteen.
    if r.below(16) != 0 {
        kinds.push(if r.below(2) == 0 { FaultKind::ServerKill } else { FaultKind::PowerLoss });
    }
    if kinds.is_empty() || r.below(64) == 0 {
        return Vec::new();
    }
    let every = 150 + r.below(500);
    draw_of(r, commits, &kinds, every)
}

/// Faults of these kinds by their weights, one in so many events.
fn draw_of(r: &mut Random, commits: u64, kinds: &[FaultKind], every: u64) -> Vec<Fault> {
    let total: u64 = kinds.iter().map(|k| k.weight()).sum();
    let mut faults = Vec::new();
    let mut at = 500;
    while at < commits * EVENTS_PER_COMMIT && !kinds.is_empty() && faults.len() < FAULTS_MAX {
        at += 1 + r.below(2 * every);
        let mut left = r.below(total);
        let kind = kinds.iter().find(|k| {
            let found = left < k.weight();
            left = left.saturating_sub(k.weight());
            found
        });
        faults.push(Fault { at, kind: *kind.unwrap_or(&kinds[0]), dice: r.next_u64() });
    }
    faults
}

fn pick<T: Copy>(r: &mut Random, of: &[T]) -> T {
    of[r.below(of.len() as u64) as usize]
}

/// About how many events a commit takes: so that the faults last as long as the commits do.
const EVENTS_PER_COMMIT: u64 = 20;

/// Enough to break anything; a world in which everything always fails does nothing.
const FAULTS_MAX: usize = 120;

/// A space is put back in one world of so many.
const WORLDS_PER_PUT_BACK: u64 = 8;
