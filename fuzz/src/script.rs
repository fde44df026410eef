//! Two clients with overlapping transactions, one server, and everything that befalls them, against a list
//! of states.
//!
//! Every committed state is kept, and every value that is written is a new one. A transaction must see one
//! of these states, not older than its client knew when it began. A transaction that commits an update must
//! have seen the last state. Acknowledged updates stay, and a timed-out update was executed once or never.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use tercel_derive::{Object, Record};
use tercel_engine::error::{Bound, Error};
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::message::Refusal;
use tercel_wire::record::{List, Ref, Text};

use tercel_testkit::{Hold, Thread, World};

/// The object that the transactions read and write.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Cell {
    value: u64,
    padding: Text,
    /// Written together with this one and says the same.
    twin: Ref<Cell>,
    parts: List<Part>,
}

#[derive(Record, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Part {
    value: u64,
    odd: Option<bool>,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Op {
    Begin { client: u8 },
    Read { tx: u8, cell: u8 },
    ReadAll { tx: u8 },
    Write { tx: u8, cell: u8, size: u8 },
    Replace { tx: u8, cell: u8, size: u8 },
    Twin { tx: u8, cell: u8 },
    Parts { tx: u8, cell: u8, count: u8 },
    Commit { tx: u8 },
    Abort { tx: u8 },
    RunUntilIdle,
    Pass { ms: u8 },
    Cut { client: u8 },
    Crash { kept: u8 },
    Restart,
    Hold { what: u8 },
    Disorder { on: bool },
}

const CLIENTS: usize = 2;
const CELLS: usize = 5;
/// Enough for anything that a person could still follow.
const OPS_MAX: usize = 80;
const OPEN_MAX: usize = 4;
/// Steps of the world that a transaction waits: enough if nothing is held or down.
const PATIENCE: usize = 600;

/// The values of all cells.
type State = [u64; CELLS];

/// The model that the engine is compared with.
struct Model {
    states: Vec<State>,
    /// The state that each client has seen at least.
    floors: [usize; CLIENTS],
    value_last: u64,
}

struct Open<'w> {
    client: usize,
    tx: Tx<'w>,
    floor: usize,
    seen: BTreeMap<usize, u64>,
    wrote: BTreeMap<usize, u64>,
}

/// Plays the operations that the bytes describe, and checks every transaction against the list of states.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(seed) = u.arbitrary::<u8>() else { return };
    let ops: Vec<Op> = u.arbitrary_iter().into_iter().flatten().map_while(Result::ok).take(OPS_MAX).collect();
    play(u64::from(seed), &ops);
}

fn play(seed: u64, ops: &[Op]) {
    // Small enough that modified objects are installed and pages read back.
    let config = ServerConfig { mob_bytes: 48 << 10, cache_bytes: 32 << 10, ..ServerConfig::default() };
    let w = World::new(seed, CLIENTS, config);
    let threads: Vec<Thread<'_>> = (0..CLIENTS).map(|c| w.thread(c)).collect();
    let blank = Cell { value: 0, padding: "".into(), twin: Ref::NULL, parts: List::default() };
    let cells: Vec<Ref<Cell>> =
        w.run(0, |tx| (0..CELLS).map(|_| tx.create(&blank)).collect()).expect("a fresh space has room");
    w.lock().patience = PATIENCE;
    let mut model = Model { states: vec![[0; CELLS]], floors: [0; CLIENTS], value_last: 0 };
    let mut open: Vec<Open<'_>> = Vec::new();
    for op in ops {
        match *op {
            Op::Begin { client } => {
                let client = usize::from(client) % CLIENTS;
                if open.len() < OPEN_MAX {
                    match Tx::begin(&threads[client], Isolation::Serializable) {
                        Ok(tx) => open.push(Open {
                            client,
                            tx,
                            floor: model.floors[client],
                            seen: BTreeMap::new(),
                            wrote: BTreeMap::new(),
                        }),
                        Err(e) => assert!(passes(&e), "to begin: {e}"),
                    }
                }
            }
            Op::Commit { tx } => {
                if let Some(at) = pick(&open, tx) {
                    commit(&w, &mut model, open.remove(at));
                }
            }
            Op::Abort { tx } => {
                if let Some(at) = pick(&open, tx) {
                    open.remove(at);
                }
            }
            Op::Read { tx, .. }
            | Op::ReadAll { tx }
            | Op::Write { tx, .. }
            | Op::Replace { tx, .. }
            | Op::Twin { tx, .. }
            | Op::Parts { tx, .. } => {
                if let Some(at) = pick(&open, tx)
                    && let Err(e) = within(&mut open[at], &mut model, &cells, *op)
                {
                    assert!(passes(&e), "{op:?}: {e}");
                    open.remove(at);
                }
            }
            Op::RunUntilIdle => w.run_until_idle(),
            Op::Pass { ms } => w.pass_ms(u64::from(ms) * 20),
            Op::Cut { client } => {
                let client = usize::from(client) % CLIENTS;
                if w.lock().clients[client].availability().is_some() {
                    w.cut(client);
                }
            }
            Op::Crash { kept } => {
                let mut inner = w.lock();
                if inner.node.is_up() {
                    inner.crash(usize::from(kept % 3));
                }
            }
            Op::Restart => {
                let mut inner = w.lock();
                if !inner.node.is_up() {
                    inner.start();
                }
            }
            Op::Hold { what } => hold(&mut w.lock().hold, what),
            // Steps of the world come in any order; nothing else of its chaos can happen.
            Op::Disorder { on } => w.lock().chaos.meanwhile = if on { u64::MAX } else { 0 },
        }
    }
    drop(open);
    heal(&w);
    // Far from the seeds, and thereby the names, of the others.
    let fresh = w.add_client(seed + (1 << 40), 512 << 10);
    let last = *model.states.last().expect("the first state");
    for client in (0..CLIENTS).chain([fresh]) {
        let read =
            w.run(client, |tx| cells.iter().map(|r| Ok(tx.get(*r)?.value())).collect::<Result<Vec<_>, _>>());
        assert_eq!(read, Ok(last.to_vec()), "client {client} in the end");
    }
}

fn pick(open: &[Open<'_>], tx: u8) -> Option<usize> {
    (!open.is_empty()).then(|| usize::from(tx) % open.len())
}

/// Says whether a transaction may fail with this error, so that its program must handle it.
fn passes(e: &Error) -> bool {
    matches!(e, Error::Conflict(_) | Error::Unavailable(_) | Error::Timeout | Error::Full(Bound::Buffer))
}

fn hold(hold: &mut Hold, what: u8) {
    match what % 7 {
        0 => hold.syncs = !hold.syncs,
        1 => hold.reads = !hold.reads,
        2 => hold.read_words = !hold.read_words,
        3 => hold.installs = !hold.installs,
        4 => hold.connects = !hold.connects,
        5 => hold.down = if hold.down.is_some() { None } else { Some(usize::from(what / 7) % CLIENTS) },
        _ => hold.up = if hold.up.is_some() { None } else { Some(usize::from(what / 7) % CLIENTS) },
    }
}

fn within(o: &mut Open<'_>, model: &mut Model, cells: &[Ref<Cell>], op: Op) -> Result<(), Error> {
    match op {
        Op::Read { cell, .. } => read(o, model, cells, usize::from(cell) % CELLS),
        Op::ReadAll { .. } => (0..CELLS).try_for_each(|cell| read(o, model, cells, cell)),
        Op::Write { cell, size, .. } => write(o, model, cells, cell, |_, edit, value| {
            edit.set_twin(Ref::NULL)?;
            edit.set_parts(vec![])?;
            if size > 0 {
                edit.set_padding("x".repeat(usize::from(size) * 14))?;
            }
            edit.set_value(value)
        }),
        Op::Replace { cell, size, .. } => {
            let cell = usize::from(cell) % CELLS;
            model.value_last += 1;
            let value = model.value_last;
            let padding = "y".repeat(usize::from(size) * 3).into();
            o.tx.replace(cells[cell], &Cell { value, padding, twin: Ref::NULL, parts: List::default() })?;
            o.wrote.insert(cell, value);
            Ok(())
        }
        Op::Twin { cell, .. } => write(o, model, cells, cell, |tx, edit, value| {
            let twin = Cell { value, padding: "".into(), twin: Ref::NULL, parts: List::default() };
            edit.set_parts(vec![])?;
            edit.set_twin(tx.create(&twin)?)?;
            edit.set_value(value)
        }),
        Op::Parts { cell, count, .. } => write(o, model, cells, cell, |_, edit, value| {
            let part = |i: u8| Part { value, odd: Some(i % 2 == 1) };
            edit.set_twin(Ref::NULL)?;
            edit.set_parts((0..count).map(part).collect::<Vec<_>>())?;
            edit.set_value(value)
        }),
        _ => Ok(()),
    }
}

fn write<'w>(
    o: &mut Open<'w>,
    model: &mut Model,
    cells: &[Ref<Cell>],
    cell: u8,
    body: impl FnOnce(&Tx<'w>, CellMut<'_>, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let cell = usize::from(cell) % CELLS;
    model.value_last += 1;
    let value = model.value_last;
    body(&o.tx, o.tx.edit(cells[cell])?, value)?;
    o.wrote.insert(cell, value);
    Ok(())
}

fn read(o: &mut Open<'_>, model: &mut Model, cells: &[Ref<Cell>], cell: usize) -> Result<(), Error> {
    let found = o.tx.get(cells[cell])?;
    let value = found.value();
    if let Some(own) = o.wrote.get(&cell) {
        assert_eq!(value, *own, "a transaction reads what it wrote");
    } else if let Some(before) = o.seen.insert(cell, value) {
        assert_eq!(value, before, "a transaction reads the same twice");
    }
    if let Some(twin) = found.twin().find()? {
        assert_eq!(twin.value(), value, "what was written together is seen together");
    }
    for (i, part) in found.parts().to_vec()?.into_iter().enumerate() {
        assert_eq!(part, Part { value, odd: Some(i % 2 == 1) });
    }
    let state = (o.floor..model.states.len())
        .rev()
        .find(|&i| o.seen.iter().all(|(cell, value)| model.states[i][*cell] == *value));
    assert!(state.is_some(), "client {} sees {:?}, which was never so since {}", o.client, o.seen, o.floor);
    Ok(())
}

fn commit(w: &World, model: &mut Model, o: Open<'_>) {
    let Open { client, tx, seen, wrote, .. } = o;
    let executed = match tx.commit() {
        Ok(_) => true,
        Err(Error::Unknown { op: Some(op), .. }) => {
            heal(w);
            match w.resolve(client, *op) {
                Ok(_) => true,
                Err(Refusal::NotExecuted) => false,
                other => panic!("an operation of a living client: {other:?}"),
            }
        }
        Err(e) => {
            assert!(passes(&e), "to commit: {e}");
            false
        }
    };
    if !executed || wrote.is_empty() {
        return;
    }
    let mut state = *model.states.last().expect("the first state");
    for (cell, value) in seen {
        assert_eq!(state[cell], value, "client {client} committed on what was no longer so");
    }
    for (cell, value) in wrote {
        state[cell] = value;
    }
    model.states.push(state);
    model.floors[client] = model.states.len() - 1;
}

/// Everything works again.
fn heal(w: &World) {
    {
        let mut inner = w.lock();
        inner.hold = Hold::default();
        inner.chaos.meanwhile = 0;
        if !inner.node.is_up() {
            inner.start();
        }
    }
    w.run_until_idle();
    w.pass_ms(100);
}
