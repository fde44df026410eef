//! Transactions inside of a server in any order against a model that remembers every state: what each read is
//! of one state, what commits is as if one ran after the other, and no conflict is made up.

use std::collections::BTreeMap;

use crate::world::{Indoors, World};
use proptest::prelude::*;
use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::id::Stamp;
use tercel_wire::record::{List, Ref, Text};

#[derive(Object, Debug)]
#[object(crate = "tercel_engine")]
struct Cell {
    value: u64,
    text: Text,
    others: List<Ref<Cell>>,
}

/// Objects, and transactions open at once.
const CELLS: usize = 12;
const ACTORS: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    Begin(usize, bool),
    /// By reference, or along the list of another.
    Read(usize, usize, bool),
    Write(usize, usize),
    /// Makes the object larger or smaller.
    Grow(usize, usize, u16),
    Commit(usize),
    Abort(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (actor, cell) = (0..ACTORS, 0..CELLS);
    prop_oneof![
        3 => (actor.clone(), any::<bool>()).prop_map(|(a, s)| Step::Begin(a, s)),
        10 => (actor.clone(), cell.clone(), any::<bool>()).prop_map(|(a, c, l)| Step::Read(a, c, l)),
        4 => (actor.clone(), cell.clone()).prop_map(|(a, c)| Step::Write(a, c)),
        1 => (actor.clone(), cell, 0..900u16).prop_map(|(a, c, n)| Step::Grow(a, c, n)),
        3 => actor.clone().prop_map(Step::Commit),
        1 => actor.prop_map(Step::Abort),
    ]
}

/// An open transaction and what it has done.
struct Open<'p> {
    tx: Tx<'p>,
    serializable: bool,
    reads: BTreeMap<usize, u64>,
    writes: BTreeMap<usize, u64>,
}

struct Model<'p> {
    p: &'p Indoors<'p>,
    cells: Vec<Ref<Cell>>,
    /// The values from each stamp on.
    states: Vec<(Stamp, Vec<u64>)>,
    open: Vec<Option<Open<'p>>>,
    next: u64,
    conflicts: usize,
    commits: usize,
}

/// The last commit that is visible.
fn visible(p: &Indoors<'_>) -> Stamp {
    p.world.lock().node.machine().unwrap().visible()
}

impl<'p> Model<'p> {
    fn new(p: &'p Indoors<'p>) -> Model<'p> {
        let cells: Vec<Ref<Cell>> = p
            .run(|tx| {
                let cell = Cell { value: 0, text: "x".repeat(600).into(), others: List::default() };
                let all: Vec<_> = (0..CELLS).map(|_| tx.reserve(&cell)).collect::<Result<_, _>>()?;
                let others: List<_> = all.iter().copied().collect();
                for r in &all {
                    tx.fill(*r, &Cell { value: 0, text: "y".into(), others: others.clone() })?;
                }
                Ok(all)
            })
            .unwrap();
        let states = vec![(visible(p), vec![0; CELLS])];
        let open = (0..ACTORS).map(|_| None).collect();
        Model { p, cells, states, open, next: 1, conflicts: 0, commits: 0 }
    }

    fn state(&self, at: Stamp) -> &[u64] {
        &self.states.iter().rev().find(|(stamp, _)| *stamp <= at).unwrap().1
    }

    /// Says whether an entry ordered up to `upto` changed, after the transaction's snapshot, an object that
    /// it read.
    fn is_stale(&self, open: &Open<'_>, upto: Stamp) -> bool {
        let since = open.tx.snapshot();
        let (then, now) = (self.state(since), self.state(upto));
        open.reads.keys().chain(open.writes.keys()).any(|c| then[*c] != now[*c])
    }

    /// Everything that was read is of the snapshot.
    fn check(&self, open: &Open<'_>) {
        let state = self.state(open.tx.snapshot());
        for (cell, value) in &open.reads {
            assert_eq!(state[*cell], *value, "cell {cell} at {:?}", open.tx.snapshot());
        }
    }

    fn step(&mut self, step: &Step) {
        let visible = visible(self.p);
        match *step {
            Step::Begin(actor, serializable) => {
                let isolation = if serializable { Isolation::Serializable } else { Isolation::Snapshot };
                let tx = Tx::begin(self.p, isolation).unwrap();
                assert_eq!(tx.snapshot(), visible);
                self.open[actor] =
                    Some(Open { tx, serializable, reads: BTreeMap::new(), writes: BTreeMap::new() });
            }
            Step::Read(actor, cell, along) => self.act(actor, |m, open| m.read(open, cell, along)),
            Step::Write(actor, cell) => self.act(actor, |m, open| {
                m.read(open, cell, false)?;
                open.tx.edit(m.cells[cell])?.set_value(m.next)?;
                open.writes.insert(cell, m.next);
                m.next += 1;
                Ok(())
            }),
            Step::Grow(actor, cell, bytes) => self.act(actor, |m, open| {
                m.read(open, cell, true)?;
                let edit = open.tx.edit(m.cells[cell])?;
                edit.set_text("z".repeat(bytes as usize))?;
                edit.set_value(m.next)?;
                open.writes.insert(cell, m.next);
                m.next += 1;
                Ok(())
            }),
            Step::Commit(actor) => self.commit(actor),
            Step::Abort(actor) => self.open[actor] = None,
        }
    }

    fn act(&mut self, actor: usize, f: impl FnOnce(&mut Self, &mut Open<'p>) -> Result<(), Error>) {
        let Some(mut open) = self.open[actor].take() else { return };
        match f(self, &mut open) {
            Ok(()) => {
                self.check(&open);
                self.open[actor] = Some(open);
            }
            Err(e) => {
                assert!(matches!(e, Error::Conflict(_)), "{e}");
                assert!(self.is_stale(&open, visible(self.p)), "a conflict has a reason");
                self.conflicts += 1;
            }
        }
    }

    fn read(&mut self, open: &mut Open<'_>, cell: usize, along: bool) -> Result<(), Error> {
        let seen = match along {
            true => {
                let from = (cell + 5) % CELLS;
                let holder = open.tx.get(self.cells[from])?;
                if !open.writes.contains_key(&from) {
                    open.reads.insert(from, holder.value());
                }
                holder.others().get(cell)?.value()
            }
            false => open.tx.get(self.cells[cell])?.value(),
        };
        match open.writes.get(&cell) {
            Some(own) => assert_eq!(seen, *own, "own writes are seen at once"),
            None => assert_eq!(*open.reads.entry(cell).or_insert(seen), seen, "a read repeats"),
        }
        Ok(())
    }

    fn commit(&mut self, actor: usize) {
        let Some(open) = self.open[actor].take() else { return };
        self.check(&open);
        let newest = self.states.last().unwrap().0;
        let stale = self.is_stale(&open, newest);
        let Open { tx, serializable, reads, writes } = open;
        let skewed = !writes.keys().any(|c| self.state(newest)[*c] != self.state(tx.snapshot())[*c]);
        let snapshot = tx.snapshot();
        match tx.commit() {
            Ok(commit) if writes.is_empty() => assert_eq!((commit.op, commit.stamp), (None, snapshot)),
            Ok(commit) => {
                self.commits += 1;
                let mut state = self.states.last().unwrap().1.clone();
                for (cell, value) in &reads {
                    assert!(!serializable || state[*cell] == *value, "it ran after all before it");
                }
                writes.iter().for_each(|(cell, value)| state[*cell] = *value);
                assert!(commit.stamp > newest && commit.stamp <= visible(self.p));
                self.states.push((commit.stamp, state));
            }
            Err(e) => {
                assert!(matches!(e, Error::Conflict(_)), "{e}");
                assert!(stale && (serializable || !skewed), "a conflict has a reason");
                self.conflicts += 1;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_transactions_is_serializable(
        seed in 1..1_000u64,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        // Some pages go from memory, some objects outgrow theirs.
        let config = ServerConfig { cache_bytes: 1, mob_bytes: 256 << 10, ..ServerConfig::default() };
        let w = World::new(seed, 0, config);
        let p = w.indoors();
        let mut model = Model::new(&p);
        for step in &steps {
            model.step(step);
        }
    }
}
