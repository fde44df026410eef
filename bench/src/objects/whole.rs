//! The rest of OO7: its other traversals, its queries by index, and its structural changes, each as a
//! transaction of an ordinary program.
//!
//! Every operation gives a count, and the count is known beforehand: [`Census`] takes it from the generator,
//! without us. Operations that change something are their own opposites, so that twice of each leaves the
//! database as it was.

use std::collections::BTreeSet;
use std::convert::Infallible;

use tercel::collections::Map;
use tercel::{Client, Error, List, Obj, Object, Ref, Text, Tx};

use super::super::native::Visited;
use super::super::oo7::{self, Components, Sink, Spec};
use super::build::ROOT;
use super::classes::{Assembly, Composite, Connection, Document, Module, Part};
use super::traverse::{design_root, each_private, number};

/// The indexes of the paper that the operations use.
#[derive(Object)]
pub struct Indexes {
    parts: Map<u32, Part>,
    /// By date and number.
    dates: Map<(u32, u32), Part>,
    documents: Map<u32, Document>,
    titles: Map<Text, Document>,
    /// The composite parts that an insertion has made, until the next one takes them away.
    inserted: List<Ref<Composite>>,
}

/// The root of the indexes.
const INDEXES: &str = "oo7.indexes";

/// Makes the indexes of a database.
///
/// # Errors
/// The errors of transactions.
pub fn index(client: &Client) -> Result<(), Error> {
    client.run(|tx| {
        let (mut parts, mut documents) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        each_base(&design_root(tx)?, &mut |base| {
            for composite in base.private().into_iter().chain(base.shared()) {
                let composite = composite?;
                if !seen.insert(composite.reference().oref()) {
                    continue;
                }
                let document = composite.documentation().get()?;
                documents.push((document.id(), document.title()?.into_owned(), document.reference()));
                for part in composite.parts() {
                    let part = part?;
                    parts.push((part.id(), part.build_date(), part.reference()));
                }
            }
            Ok(())
        })?;
        parts.sort_unstable_by_key(|(id, ..)| *id);
        documents.sort_unstable_by_key(|(id, ..)| *id);
        let mut dates: Vec<_> = parts.iter().map(|(id, date, part)| ((*date, *id), *part)).collect();
        dates.sort_unstable_by_key(|(key, _)| *key);
        let indexes = Indexes {
            parts: Map::build_sorted(tx, parts.iter().map(|(id, _, part)| (*id, *part)))?,
            dates: Map::build_sorted(tx, dates)?,
            documents: Map::build_sorted(tx, documents.iter().map(|(id, _, document)| (*id, *document)))?,
            titles: Map::build_sorted(
                tx,
                documents.iter().map(|(_, title, document)| (Text::from(title.as_str()), *document)),
            )?,
            inserted: List::new(),
        };
        let indexes = tx.create(&indexes)?;
        tx.set_root(INDEXES, indexes)
    })
}

/// An operation: its name in the paper, and the count that it must give.
pub struct Operation {
    pub name: &'static str,
    /// The noun of the count.
    pub unit: &'static str,
    pub expected: u64,
    pub run: fn(&Tx<'_>, &mut Work) -> Result<u64, Error>,
}

/// The memory of an operation, and the numbers that it was given.
pub struct Work {
    visited: Visited,
    /// Parts, for T7 and Q1.
    parts: Vec<u32>,
    /// Documents, for Q4.
    documents: Vec<u32>,
    spec: Spec,
}

impl Work {
    pub fn new(census: &Census) -> Work {
        let spec = census.spec;
        let reached: Vec<u32> = (0..spec.composites).filter(|c| census.is_reached(*c)).collect();
        let of_composite = |n: u32| reached[n as usize % reached.len()];
        Work {
            visited: Visited::new(spec.parts()),
            parts: (0..10)
                .map(|n| of_composite(n * 37) * spec.parts_per_composite + n % spec.parts_per_composite)
                .collect(),
            documents: (0..100).map(|n| of_composite(n * 7)).collect(),
            spec,
        }
    }
}

/// The objects of a database as the generator makes them, as far as counts depend on them.
pub struct Census {
    spec: Spec,
    /// By place: date, parent, composite parts of its own.
    assemblies: Vec<(u32, Option<u32>, Vec<u32>)>,
    /// By place: date, and the base assemblies that have it as their own, and that share it.
    composites: Vec<(u32, Vec<u32>, Vec<u32>)>,
    /// By place.
    part_dates: Vec<u32>,
    /// By place: letters `I` in the text, and times that it says `I am`.
    documents: Vec<(u64, u64)>,
    /// Letters `I` in the manual, and whether its first letter is its last one, too.
    manual: (u64, bool),
}

impl Census {
    pub fn new(spec: Spec, seed: u64) -> Census {
        let mut census = Census {
            spec,
            assemblies: Vec::new(),
            composites: Vec::new(),
            part_dates: Vec::new(),
            documents: Vec::new(),
            manual: (0, false),
        };
        let Ok(()) = oo7::generate(spec, seed, &mut census);
        census
    }

    /// Says whether an assembly leads to a composite part. Nobody finds the others.
    fn is_reached(&self, composite: u32) -> bool {
        let (_, private, shared) = &self.composites[composite as usize];
        !private.is_empty() || !shared.is_empty()
    }

    /// All operations, in the order in which they are run.
    pub fn operations(&self, work: &Work) -> Vec<Operation> {
        let spec = self.spec;
        let (t1, t6) = (spec.t1_visits(), spec.t6_visits());
        let objects = u64::from(1 + 1 + spec.parts_per_composite * (1 + spec.connections_per_part));
        let visits = || self.assemblies.iter().flat_map(|(.., private)| private);
        let of_documents =
            |f: fn(&(u64, u64)) -> u64| visits().map(|c| f(&self.documents[*c as usize])).sum();
        let reached = || {
            self.part_dates.iter().enumerate().filter(|(i, _)| self.is_reached(self.composite_of(*i as u32)))
        };
        let newest = |from: u32| reached().filter(|(_, date)| **date >= from).count() as u64;
        let used = |c: &u32| self.composites[*c as usize].1.len() as u64;
        let op = |name, unit, expected, run| Operation { name, unit, expected, run };
        vec![
            op("t1", "parts", t1, |tx, work| super::t1(tx, &mut work.visited).map(|tally| tally.visits)),
            op("t1plus", "objects", t6 * objects, t1_plus),
            op("t2a", "updates", t6, |tx, work| changed(tx, work, Update::Root, 1, swap)),
            op("t2b", "updates", t1, |tx, work| changed(tx, work, Update::All, 1, swap)),
            op("t2c", "updates", 4 * t1, |tx, work| changed(tx, work, Update::All, 4, swap)),
            op("t3a", "updates", t6, |tx, work| changed(tx, work, Update::Root, 1, redate)),
            op("t3b", "updates", t1, |tx, work| changed(tx, work, Update::All, 1, redate)),
            op("t3c", "updates", 4 * t1, |tx, work| changed(tx, work, Update::All, 4, redate)),
            op("t4", "letters", of_documents(|of| of.0), t4),
            // Twice, for T4 counts letters that it replaces.
            op("t5", "replaced", of_documents(|of| of.1), t5),
            op("t5undo", "replaced", of_documents(|of| of.1), t5),
            op("t6", "parts", t6, |tx, _| super::t6(tx).map(|tally| tally.visits)),
            op("t7", "assemblies", work.parts.iter().map(|part| self.above(*part)).sum(), t7),
            op("t8", "letters", self.manual.0, |tx, _| Ok(manual(tx)?.matches('I').count() as u64)),
            op("t9", "times", self.manual.1.into(), |tx, _| {
                let text = manual(tx)?;
                Ok(u64::from(text.chars().next() == text.chars().next_back()))
            }),
            op("q1", "parts", work.parts.len() as u64, q1),
            op("q2", "parts", newest(DATE_END - DATES / 100), |tx, _| newer(tx, DATE_END - DATES / 100)),
            op("q3", "parts", newest(DATE_END - DATES / 10), |tx, _| newer(tx, DATE_END - DATES / 10)),
            op("q4", "assemblies", work.documents.iter().map(used).sum(), q4),
            op("q5", "assemblies", self.older_than_a_part(false), q5),
            op("q6", "assemblies", self.older_than_a_part(true), |tx, _| Ok(q6(&design_root(tx)?)?.1)),
            op("q7", "parts", newest(0), |tx, _| newer(tx, 0)),
            op("q8", "pairs", newest(0), q8),
            op("insert", "objects", u64::from(NEW) * objects, insert),
            op("delete", "objects", u64::from(NEW) * objects, delete),
        ]
    }

    fn composite_of(&self, part: u32) -> u32 {
        part / self.spec.parts_per_composite
    }

    /// Assemblies above a part, each counted once.
    fn above(&self, part: u32) -> u64 {
        let mut above = BTreeSet::new();
        for base in &self.composites[self.composite_of(part) as usize].1 {
            let mut next = Some(*base);
            while let Some(assembly) = next.filter(|assembly| above.insert(*assembly)) {
                next = self.assemblies[assembly as usize].1;
            }
        }
        above.len() as u64
    }

    /// Assemblies that are older than a composite part at or below them: base assemblies alone, or all.
    fn older_than_a_part(&self, is_all: bool) -> u64 {
        let mut newest = vec![0; self.assemblies.len()];
        // Assemblies stand behind the one that holds them.
        for (i, (_, parent, private)) in self.assemblies.iter().enumerate().rev() {
            let own = private.iter().map(|c| self.composites[*c as usize].0).max();
            newest[i] = newest[i].max(own.unwrap_or(0));
            if let Some(parent) = parent {
                newest[*parent as usize] = newest[*parent as usize].max(newest[i]);
            }
        }
        let counted = self
            .assemblies
            .iter()
            .zip(&newest)
            .filter(|((date, _, private), newest)| (is_all || !private.is_empty()) && **newest > *date);
        counted.count() as u64
    }
}

impl Sink for Census {
    type Error = Infallible;

    fn module(&mut self, _: &oo7::Module) -> Result<(), Infallible> {
        Ok(())
    }

    fn manual(&mut self, manual: &oo7::Manual<'_>) -> Result<(), Infallible> {
        let text = manual.text;
        self.manual = (text.matches('I').count() as u64, text.chars().next() == text.chars().next_back());
        Ok(())
    }

    fn assembly(&mut self, assembly: &oo7::Assembly<'_>) -> Result<(), Infallible> {
        let private = match assembly.components {
            Components::Complex(_) => Vec::new(),
            Components::Base { private, .. } => private.to_vec(),
        };
        self.assemblies.push((assembly.design.build_date, assembly.parent, private));
        Ok(())
    }

    fn composite(&mut self, composite: &oo7::Composite<'_>) -> Result<(), Infallible> {
        let (private, shared) = (composite.used_in_private.to_vec(), composite.used_in_shared.to_vec());
        self.composites.push((composite.design.build_date, private, shared));
        Ok(())
    }

    fn document(&mut self, document: &oo7::Document<'_>) -> Result<(), Infallible> {
        let count = |what: &str| document.text.matches(what).count() as u64;
        self.documents.push((count("I"), count(SAYS)));
        Ok(())
    }

    fn part(&mut self, part: &oo7::Part<'_>) -> Result<(), Infallible> {
        self.part_dates.push(part.design.build_date);
        Ok(())
    }

    fn connection(&mut self, _: &oo7::Connection) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The words that T5 replaces, and those in their place.
const SAYS: &str = "I am";
const SAID: &str = "This is";

/// The end of the dates of atomic parts, and how many there are.
const DATE_END: u32 = 2_000;
const DATES: u32 = 1_000;

/// Composite parts that an insertion makes, and base assemblies that each is put into.
const NEW: u32 = 5;
const USERS: usize = 10;

fn indexes<'t>(tx: &'t Tx<'_>) -> Result<Obj<'t, Indexes>, Error> {
    tx.get_root::<Indexes>(INDEXES)
}

fn manual(tx: &Tx<'_>) -> Result<String, Error> {
    Ok(tx.get_root::<Module>(ROOT)?.manual().get()?.text()?.into_owned())
}

/// Calls `f` with each base assembly at or below an assembly.
fn each_base(
    assembly: &Obj<'_, Assembly>,
    f: &mut impl FnMut(&Obj<'_, Assembly>) -> Result<(), Error>,
) -> Result<(), Error> {
    if !assembly.private().is_empty() {
        f(assembly)?;
    }
    for below in assembly.assemblies() {
        each_base(&below?, f)?;
    }
    Ok(())
}

/// T1 with all that belongs to what it visits: each composite part's document, each part's connections.
fn t1_plus(tx: &Tx<'_>, _: &mut Work) -> Result<u64, Error> {
    let mut objects = 0;
    each_private(&design_root(tx)?, &mut |composite| {
        objects += 1 + u64::from(!composite.documentation().get()?.text()?.is_empty());
        for part in composite.parts() {
            objects += 1;
            for connection in part?.to() {
                objects += u64::from(connection?.length() < u32::MAX);
            }
        }
        Ok(())
    })?;
    Ok(objects)
}

/// The parts of a composite part that an operation changes.
#[derive(Clone, Copy, PartialEq)]
enum Update {
    Root,
    All,
}

type Change = fn(&Tx<'_>, &Map<(u32, u32), Part>, &Obj<'_, Part>) -> Result<(), Error>;

/// T2 and T3: T1, and some of the parts are changed so many times.
fn changed(tx: &Tx<'_>, work: &mut Work, which: Update, times: u64, change: Change) -> Result<u64, Error> {
    let (dates, visited) = (indexes(tx)?.dates(), &mut work.visited);
    let mut updates = 0;
    each_private(&design_root(tx)?, &mut |composite| {
        let root = composite.root_part().get()?;
        visited.begin();
        visited.first(number(&root));
        each_part(&root, visited, &mut |part| {
            if which == Update::All || part.reference() == root.reference() {
                for _ in 0..times {
                    change(tx, &dates, part)?;
                }
                updates += times;
            }
            Ok(())
        })
    })?;
    Ok(updates)
}

fn each_part(
    part: &Obj<'_, Part>,
    visited: &mut Visited,
    f: &mut impl FnMut(&Obj<'_, Part>) -> Result<(), Error>,
) -> Result<(), Error> {
    f(part)?;
    for connection in part.to() {
        let to = connection?.to().get()?;
        if visited.first(number(&to)) {
            each_part(&to, visited, f)?;
        }
    }
    Ok(())
}

fn swap(tx: &Tx<'_>, _: &Map<(u32, u32), Part>, part: &Obj<'_, Part>) -> Result<(), Error> {
    let now = tx.get(part.reference())?;
    let (x, y, edit) = (now.x(), now.y(), part.edit()?);
    edit.set_x(y)?;
    edit.set_y(x)
}

/// The date is that of an index.
fn redate(tx: &Tx<'_>, dates: &Map<(u32, u32), Part>, part: &Obj<'_, Part>) -> Result<(), Error> {
    let (date, id) = (tx.get(part.reference())?.build_date(), part.id());
    dates.remove(tx, (date, id))?;
    dates.insert(tx, (date ^ 1, id), part.reference())?;
    part.edit()?.set_build_date(date ^ 1)
}

fn t4(tx: &Tx<'_>, _: &mut Work) -> Result<u64, Error> {
    let mut letters = 0;
    each_private(&design_root(tx)?, &mut |composite| {
        letters += composite.documentation().get()?.text()?.matches('I').count() as u64;
        Ok(())
    })?;
    Ok(letters)
}

fn t5(tx: &Tx<'_>, _: &mut Work) -> Result<u64, Error> {
    let mut replaced = 0;
    each_private(&design_root(tx)?, &mut |composite| {
        let document = composite.documentation().get()?;
        let text = document.text()?.into_owned();
        let (from, to) = if text.starts_with(SAID) { (SAID, SAYS) } else { (SAYS, SAID) };
        replaced += text.matches(from).count() as u64;
        document.edit()?.set_text(text.replace(from, to).as_str())
    })?;
    Ok(replaced)
}

fn t7(tx: &Tx<'_>, work: &mut Work) -> Result<u64, Error> {
    let parts = indexes(tx)?.parts();
    let mut assemblies = 0;
    for part in &work.parts {
        let mut above = BTreeSet::new();
        for base in parts.get(tx, part + 1)?.part_of().get()?.used_in_private() {
            let mut next = Some(base?);
            while let Some(assembly) = next.filter(|assembly| above.insert(assembly.reference().oref())) {
                next = assembly.parent().find()?;
            }
        }
        assemblies += above.len() as u64;
    }
    Ok(assemblies)
}

fn q1(tx: &Tx<'_>, work: &mut Work) -> Result<u64, Error> {
    let parts = indexes(tx)?.parts();
    let found = work.parts.iter().map(|part| Ok(u64::from(parts.get(tx, part + 1)?.id() == part + 1)));
    found.sum()
}

/// Q2, Q3 and Q7: the parts of a date and later, by the index.
fn newer(tx: &Tx<'_>, from: u32) -> Result<u64, Error> {
    let mut found = 0;
    for entry in indexes(tx)?.dates().range(tx, (from, 0)..) {
        let ((date, _), part) = entry?;
        found += u64::from(tx.get(part)?.build_date() == date);
    }
    Ok(found)
}

fn q4(tx: &Tx<'_>, work: &mut Work) -> Result<u64, Error> {
    let titles = indexes(tx)?.titles();
    let mut users = 0;
    for document in &work.documents {
        let title = format!("Composite Part {:08}", document + 1);
        for base in titles.get(tx, &title)?.part().get()?.used_in_private() {
            users += u64::from(base?.id() > 0);
        }
    }
    Ok(users)
}

fn q5(tx: &Tx<'_>, _: &mut Work) -> Result<u64, Error> {
    let mut older = 0;
    each_base(&design_root(tx)?, &mut |base| {
        for composite in base.private() {
            if composite?.build_date() > base.build_date() {
                older += 1;
                break;
            }
        }
        Ok(())
    })?;
    Ok(older)
}

/// The newest date of a composite part at or below an assembly, and the assemblies there that are older than
/// one of theirs.
fn q6(assembly: &Obj<'_, Assembly>) -> Result<(u32, u64), Error> {
    let (mut newest, mut older) = (0, 0);
    for composite in assembly.private() {
        newest = newest.max(composite?.build_date());
    }
    for below in assembly.assemblies() {
        let (date, count) = q6(&below?)?;
        (newest, older) = (newest.max(date), older + count);
    }
    Ok((newest, older + u64::from(newest > assembly.build_date())))
}

fn q8(tx: &Tx<'_>, _: &mut Work) -> Result<u64, Error> {
    let indexes = indexes(tx)?;
    let (parts, documents) = (indexes.parts(), indexes.documents());
    let mut pairs = 0;
    for entry in parts.iter(tx) {
        let id = tx.get(entry?.1)?.doc_id();
        pairs += u64::from(documents.get(tx, id)?.id() == id);
    }
    Ok(pairs)
}

/// Makes composite parts, each with a document, parts and connections, and puts each into base assemblies.
fn insert(tx: &Tx<'_>, work: &mut Work) -> Result<u64, Error> {
    let (spec, indexes) = (work.spec, indexes(tx)?);
    let mut bases = Vec::new();
    each_base(&design_root(tx)?, &mut |base| {
        bases.push(base.reference());
        Ok(())
    })?;
    let mut made = 0;
    for n in 0..NEW {
        let id = spec.composites + n + 1;
        let users: Vec<_> = (0..USERS).map(|i| bases[(n as usize * 131 + i * 17) % bases.len()]).collect();
        let first = (id - 1) * spec.parts_per_composite + 1;
        let title = format!("Composite Part {id:08}");
        let composite = tx.create(&Composite {
            id,
            kind: *b"type #0000",
            build_date: DATE_END,
            documentation: Ref::NULL,
            used_in_private: List(users.clone()),
            used_in_shared: List::new(),
            parts: List::new(),
            root_part: Ref::NULL,
        })?;
        let document =
            tx.create(&Document { id, title: title.as_str().into(), text: SAYS.into(), part: composite })?;
        let parts: Vec<Ref<Part>> = (0..spec.parts_per_composite)
            .map(|i| {
                tx.create(&Part {
                    id: first + i,
                    kind: *b"type #0000",
                    build_date: DATE_END - 1,
                    x: i,
                    y: i,
                    doc_id: id,
                    to: List::new(),
                    from: List::new(),
                    part_of: composite,
                })
            })
            .collect::<Result<_, _>>()?;
        for (i, from) in parts.iter().enumerate() {
            for k in 0..spec.connections_per_part as usize {
                let to = parts[(i + 1 + k) % parts.len()];
                let connection =
                    tx.create(&Connection { kind: *b"type #0000", length: 1, from: *from, to })?;
                tx.edit(*from)?.push_to(connection)?;
                tx.edit(to)?.push_from(connection)?;
                made += 1;
            }
            indexes.parts().insert(tx, first + i as u32, *from)?;
            indexes.dates().insert(tx, (DATE_END - 1, first + i as u32), *from)?;
            made += 1;
        }
        let edit = tx.edit(composite)?;
        edit.set_documentation(document)?;
        edit.set_root_part(parts[0])?;
        edit.set_parts(parts)?;
        for base in users {
            tx.edit(base)?.push_private(composite)?;
        }
        indexes.documents().insert(tx, id, document)?;
        indexes.titles().insert(tx, &title, document)?;
        indexes.edit()?.push_inserted(composite)?;
        made += 2;
    }
    Ok(made)
}

/// Takes away what the last insertion has made.
fn delete(tx: &Tx<'_>, _: &mut Work) -> Result<u64, Error> {
    let indexes = indexes(tx)?;
    let mut gone = 0;
    for composite in indexes.inserted() {
        let composite = composite?;
        for base in composite.used_in_private() {
            let base = base?;
            let left = base.private().references()?;
            let left: Vec<_> = left.into_iter().filter(|of| *of != composite.reference()).collect();
            base.edit()?.set_private(left)?;
        }
        let document = composite.documentation().get()?;
        indexes.documents().remove(tx, document.id())?;
        indexes.titles().remove(tx, &document.title()?)?;
        for part in composite.parts() {
            let part = part?;
            indexes.parts().remove(tx, part.id())?;
            indexes.dates().remove(tx, (part.build_date(), part.id()))?;
            gone += 1 + part.to().len() as u64;
        }
        gone += 2;
    }
    indexes.edit()?.set_inserted(Vec::new())?;
    Ok(gone)
}
