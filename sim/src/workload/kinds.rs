//! The kinds of transactions.

use tercel_engine::error::Error;
use tercel_engine::random::Random;
use tercel_engine::txn::Tx;
use tercel_verify::{Object, Value};
use tercel_wire::record::Ref;

use super::cell::Cell;
use super::graph::GraphDeed;
use super::memory::Memory;
use super::{
    BULK_BYTES, CRADLE, ELEMENTS_MAX, Ground, KEYS, Notes, bulk_id, cell_id, child_id, element_id, key_id,
};

/// One transaction's body.
pub(super) struct Deed<'a> {
    /// The transaction.
    pub tx: &'a Tx<'a>,
    /// The objects that all clients know.
    pub ground: &'a Ground,
    /// The record of its reads and writes.
    pub notes: &'a mut Notes,
    /// Decides; the same at every attempt.
    pub r: Random,
    /// Lets others go on.
    pub think: &'a dyn Fn(),
    /// The references that the thread keeps.
    pub memory: &'a Memory,
    /// Since when nothing was freed that was made.
    pub graced_from: &'a dyn Fn() -> u64,
}

impl Deed<'_> {
    /// Does a deed of a kind.
    pub fn run(&mut self, kind: usize) -> Result<(), Error> {
        match kind {
            0 => self.change(),
            1 => self.replace(),
            2 => self.grow(),
            3 => self.read(),
            4 => self.put(),
            5 => self.look_up(),
            6 => self.vector(),
            7 => self.cradle(),
            8 => self.twins(),
            9 => self.bulk(),
            _ => self.graph(),
        }
    }

    fn change(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, .. } = self;
        let chosen = some(r, ground.cells.len(), ground.reads_max);
        for i in &chosen {
            notes.see(tx, ground.cells[*i], cell_id(*i))?;
            think();
        }
        let writes = 1 + r.below(chosen.len() as u64) as usize;
        for i in &chosen[..writes] {
            let cell = tx.edit(ground.cells[*i])?;
            cell.set_value(notes.write(cell_id(*i)).0)?;
            if r.below(4) == 0 {
                think();
            }
        }
        // Its own writes are what it then reads.
        notes.see(tx, ground.cells[chosen[0]], cell_id(chosen[0]))
    }

    fn replace(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, .. } = self;
        for i in some(r, ground.cells.len(), 2) {
            let value = notes.write(cell_id(i));
            tx.replace(ground.cells[i], &Cell::small(cell_id(i), value))?;
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, .. } = self;
        let i = r.below(ground.cells.len() as u64) as usize;
        notes.see(tx, ground.cells[i], cell_id(i))?;
        think();
        let bytes = r.below(3_500) as usize;
        let cell = tx.edit(ground.cells[i])?;
        cell.set_padding("g".repeat(bytes))?;
        cell.set_value(notes.write(cell_id(i)).0)
    }

    fn read(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, .. } = self;
        let n = ground.cells.len();
        let first = r.below(n as u64) as usize;
        let count = match r.below(4) {
            0 => n,
            1 => n.min(60),
            _ => n.min(4),
        };
        if r.below(2) == 0 {
            // Along the references that lead from one to the next.
            let (mut i, mut at) = (n - 1, ground.cells[n - 1]);
            for _ in 0..count {
                let cell = tx.get(at)?;
                notes.saw(cell_id(i), Value(cell.value()));
                match (i, cell.next()) {
                    (0, _) => break,
                    (_, next) if next.reference().is_null() => break,
                    (_, next) => at = next.reference(),
                }
                i -= 1;
                think();
            }
            return Ok(());
        }
        for k in 0..count {
            let i = (first + k) % n;
            notes.see(tx, ground.cells[i], cell_id(i))?;
            think();
        }
        Ok(())
    }

    fn put(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, .. } = self;
        let key = r.below(KEYS);
        let object = key_id(key);
        let old = ground.map.get_ref(tx, key)?;
        think();
        match old {
            Some(cell) => {
                notes.see(tx, cell, object)?;
                think();
                if r.below(2) == 0 {
                    return tx.edit(cell)?.set_value(notes.write(object).0);
                }
            }
            None => notes.saw(object, Value::INITIAL),
        }
        let cell = tx.create(&Cell::small(object, notes.write(object)))?;
        think();
        ground.map.insert(tx, key, cell).map(|_| ())
    }

    fn look_up(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, .. } = self;
        if r.below(3) > 0 {
            for _ in 0..1 + r.below(4) {
                let key = r.below(KEYS);
                match ground.map.get_ref(tx, key)? {
                    Some(cell) => notes.see(tx, cell, key_id(key))?,
                    None => notes.saw(key_id(key), Value::INITIAL),
                }
                think();
            }
            return Ok(());
        }
        let (from, to) = (r.below(KEYS), KEYS);
        let mut due = from;
        for entry in ground.map.range(tx, from..to) {
            let (key, cell) = entry?;
            (due..key).for_each(|absent| notes.saw(key_id(absent), Value::INITIAL));
            notes.see(tx, cell, key_id(key))?;
            due = key + 1;
            think();
        }
        (due..to).for_each(|absent| notes.saw(key_id(absent), Value::INITIAL));
        Ok(())
    }

    fn vector(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, .. } = self;
        let len = ground.vector.len(tx)?;
        think();
        if r.below(2) == 0 && len < ELEMENTS_MAX {
            let object = element_id(len);
            notes.saw(object, Value::INITIAL);
            let cell = tx.create(&Cell::small(object, notes.write(object)))?;
            return ground.vector.push_back(tx, cell);
        }
        if len < ELEMENTS_MAX {
            notes.saw(element_id(len), Value::INITIAL);
        }
        for _ in 0..len.min(3) {
            let i = r.below(len);
            match ground.vector.get_ref(tx, i)? {
                Some(cell) => notes.see(tx, cell, element_id(i))?,
                None => notes.wrong = Some(format!("a vector of {len} has no element {i}")),
            }
            think();
        }
        Ok(())
    }

    /// Promises a child, or makes the one that was promised; both note it in the cradle.
    fn cradle(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, memory, .. } = self;
        // One that was promised earlier: that it is not there yet is a read like any other.
        let early = memory.child.get().filter(|_| r.below(2) == 0);
        let mut absent = None;
        if let Some((child, object)) = early {
            let found = tx.find(child)?.map(|c| (c.value(), c.object()));
            notes.found(found, object);
            absent = Some(object).filter(|_| found.is_none());
            think();
            think();
        }
        notes.see(tx, ground.cradle, CRADLE)?;
        let cradle = tx.get(ground.cradle)?;
        let (child, object): (Ref<Cell>, Object) = (cradle.next().reference(), Object(cradle.next_object()));
        memory.child.set(Some((child, object)).filter(|_| !child.is_null()));
        // One that the cradle does not lead to any more may have been made, and be gone again.
        if absent == Some(object) {
            notes.saw(object, Value::INITIAL);
        }
        think();
        if early.is_some() && r.below(2) == 0 {
            return Ok(());
        }
        let is_born = !child.is_null() && notes.look(tx, child, object)?;
        think();
        let cradle = tx.edit(ground.cradle)?;
        if child.is_null() || is_born || r.below(4) == 0 {
            let promised = tx.reserve(&Cell::small(Object(1), Value(0)))?;
            cradle.set_next(promised)?;
            let promise = notes.write(CRADLE);
            cradle.set_next_object(child_id(promise).0)?;
            return cradle.set_value(promise.0);
        }
        cradle.set_value(notes.write(CRADLE).0)?;
        tx.fill(child, &Cell::small(object, notes.write(object)))
    }

    /// Two maps have the same keys at every moment.
    fn twins(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, .. } = self;
        let [a, b] = ground.twins;
        let key = r.below(KEYS);
        let there = a.contains(tx, key)?;
        think();
        if b.contains(tx, key)? != there {
            notes.wrong = Some(format!("key {key} is in one of two maps that are changed together"));
        }
        think();
        match (r.below(4), there) {
            (0, _) => {
                let keys = |m: tercel_collections::Map<u64, Cell>| -> Result<Vec<u64>, Error> {
                    m.iter(tx).map(|entry| Ok(entry?.0)).collect()
                };
                let first = keys(a)?;
                think();
                let second = keys(b)?;
                if first != second {
                    notes.wrong =
                        Some(format!("two maps that are changed together have {first:?} and {second:?}"));
                }
                Ok(())
            }
            (_, true) => {
                a.remove(tx, key)?;
                think();
                b.remove(tx, key).map(|_| ())
            }
            (_, false) => {
                let cell = tx.create(&Cell::small(Object(0), Value(0)))?;
                a.insert(tx, key, cell)?;
                think();
                b.insert(tx, key, cell).map(|_| ())
            }
        }
    }

    fn graph(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, memory, graced_from } = self;
        let r = r.clone();
        GraphDeed { tx, anchors: &ground.anchors, notes, r, think, memory, graced_from }.run()
    }

    fn bulk(&mut self) -> Result<(), Error> {
        let Deed { tx, ground, notes, r, think, .. } = self;
        if r.below(2) == 0 {
            for _ in 0..4 {
                let i = r.below(ground.bulk.len() as u64) as usize;
                notes.see(tx, ground.bulk[i], bulk_id(i))?;
                think();
            }
            return Ok(());
        }
        for (i, cell) in ground.bulk.iter().enumerate() {
            let padding = "B".repeat(BULK_BYTES).into();
            let value = notes.write(bulk_id(i));
            tx.replace(*cell, &Cell { padding, ..Cell::small(bulk_id(i), value) })?;
        }
        Ok(())
    }
}

fn some(r: &mut Random, of: usize, max: u64) -> Vec<usize> {
    (0..1 + r.below(max)).map(|_| r.below(of as u64) as usize).collect()
}
