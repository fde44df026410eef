//! A file that was read: its instances by number, with references as numbers.
//!
//! A file may refer to instances that come later, so it is read whole before any of it is written. All
//! parts of its instances stand in a few large vectors: the draft of a usual file takes somewhat less
//! memory than it, and a list of short references up to four times as much. The invariant: each reference
//! is the number of an instance of the draft, and no id is there twice.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};

use tercel_step::{Body, Decoder, Instance, Limits, ParseError, Record, Step, Value};

use crate::source::{File, Text};
use crate::values::{Parts, encode};

/// Everything that was read of a file.
#[derive(Debug, Default)]
pub struct Draft {
    /// The name of its model.
    pub name: String,
    pub(crate) schemas: Vec<String>,
    pub(crate) entities: Vec<EntityDraft>,
    instances: Vec<Entry>,
    refs: Vec<u32>,
    parts: Parts,
    /// Instances in the order of their ids; empty if they came in that order.
    pub(crate) by_id: Vec<u32>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// An entity, the types at its positions, and its instances.
#[derive(Debug)]
pub(crate) struct EntityDraft {
    pub(crate) name: String,
    types: Vec<Types>,
    pub(crate) instances: Vec<u32>,
}

/// An instance, by where its parts end; they begin where those of the one before it end.
#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u64,
    line: u64,
    entity: u32,
    refs: u32,
    reals: usize,
    values: usize,
}

/// An instance of a draft.
#[derive(Debug, Clone, Copy)]
pub struct Drafted<'a> {
    /// The number behind `#`.
    pub id: u64,
    /// The place of its entity.
    pub entity: u32,
    /// The numbers of the instances that it refers to.
    pub refs: &'a [u32],
    /// Its reals, 8 bytes each.
    pub reals: &'a [u8],
    /// Its parameters, encoded.
    pub values: &'a [u8],
}

impl Draft {
    /// Counts its instances.
    pub fn len(&self) -> usize {
        self.instances.len()
    }

    /// Bytes that an instance takes in a transaction, or somewhat less.
    pub fn weight(&self, number: usize) -> usize {
        let Drafted { refs, reals, values, .. } = self.instance(number);
        size_of_val(refs) + reals.len() + values.len()
    }

    /// Says whether it has none.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }

    /// Counts its references.
    pub fn references(&self) -> u64 {
        self.refs.len() as u64
    }

    /// The instance of a number below [`Draft::len`].
    pub fn instance(&self, number: usize) -> Drafted<'_> {
        let to = self.instances[number];
        let from = match number.checked_sub(1) {
            Some(before) => self.instances[before],
            None => Entry { refs: 0, reals: 0, values: 0, ..to },
        };
        Drafted {
            id: to.id,
            entity: to.entity,
            refs: &self.refs[from.refs as usize..to.refs as usize],
            reals: &self.parts.reals[from.reals..to.reals],
            values: &self.parts.values[from.values..to.values],
        }
    }

    /// The entities and how many instances each has.
    pub fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.entities.iter().map(|entity| (&*entity.name, entity.instances.len() as u64))
    }

    /// The instances of the entity with this name.
    pub fn of_entity(&self, name: &str) -> &[u32] {
        self.entities.iter().find(|entity| entity.name == name).map_or(&[], |entity| &entity.instances)
    }

    /// Makes references of ids into numbers, and refuses those to nothing, and ids that come twice.
    fn resolve(&mut self) -> Result<(), ParseError> {
        if !self.instances.is_sorted_by(|a, b| a.id < b.id) {
            let mut by_id: Vec<u32> = (0..self.instances.len() as u32).collect();
            by_id.sort_unstable_by_key(|n| (self.instances[*n as usize].id, *n));
            let entry = |n: &u32| self.instances[*n as usize];
            if let Some(pair) = by_id.windows(2).find(|pair| entry(&pair[0]).id == entry(&pair[1]).id) {
                let (first, second) = (entry(&pair[0]), entry(&pair[1]));
                let reason = format!("#{} was defined before, on line {}", second.id, first.line);
                return Err(ParseError { line: second.line, reason });
            }
            self.by_id = by_id;
        }
        let numbers = Numbers::new(&self.instances, &self.by_id);
        let mut next = 0;
        for entry in &self.instances {
            while next < entry.refs as usize {
                let id = self.parts.refs[next];
                let Some(number) = numbers.get(id) else {
                    let reason = format!("#{} refers to #{id}, which the file does not define", entry.id);
                    return Err(ParseError { line: entry.line, reason });
                };
                self.refs.push(number);
                next += 1;
            }
        }
        self.parts.refs = Vec::new();
        Ok(())
    }
}

/// The numbers of ids: a table where ids are dense, as writers number from 1, else a search.
struct Numbers<'a> {
    instances: &'a [Entry],
    by_id: &'a [u32],
    /// By id less the first: the number and 1, or 0 for none.
    table: Vec<u32>,
}

/// Ids for each instance up to which a table is made.
const IDS_PER_INSTANCE_MAX: u64 = 4;

impl<'a> Numbers<'a> {
    fn new(instances: &'a [Entry], by_id: &'a [u32]) -> Numbers<'a> {
        let mut numbers = Numbers { instances, by_id, table: Vec::new() };
        let (Some(first), Some(last)) =
            (numbers.in_order(0), numbers.in_order(instances.len().saturating_sub(1)))
        else {
            return numbers;
        };
        let span = last.id - first.id;
        if span / IDS_PER_INSTANCE_MAX <= instances.len() as u64 {
            numbers.table = vec![0; span as usize + 1];
            for (n, entry) in instances.iter().enumerate() {
                numbers.table[(entry.id - first.id) as usize] = n as u32 + 1;
            }
        }
        numbers
    }

    /// The instance at a place in the order of ids.
    fn in_order(&self, place: usize) -> Option<Entry> {
        let number = if self.by_id.is_empty() { place } else { *self.by_id.get(place)? as usize };
        self.instances.get(number).copied()
    }

    fn get(&self, id: u64) -> Option<u32> {
        if !self.table.is_empty() {
            let place = id.checked_sub(self.in_order(0)?.id)?;
            return self.table.get(usize::try_from(place).ok()?)?.checked_sub(1);
        }
        match self.by_id.is_empty() {
            true => self.instances.binary_search_by_key(&id, |entry| entry.id).ok().map(|n| n as u32),
            false => {
                let place = self.by_id.binary_search_by_key(&id, |n| self.instances[*n as usize].id).ok()?;
                self.by_id.get(place).copied()
            }
        }
    }
}

/// The types that were met at a position, as bits: its own, and those of the elements of its lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Types {
    own: u16,
    elements: u16,
}

/// The types in the order of their bits.
const TYPES: [&str; 10] =
    ["omitted", "derived", "integer", "real", "text", "enumeration", "binary", "reference", "list", "typed"];

impl Types {
    fn add(&mut self, value: &Value<'_>) {
        self.own |= bit(value);
        if let Value::List(values) = value {
            values.iter().for_each(|value| self.add_element(value));
        }
    }

    fn add_element(&mut self, value: &Value<'_>) {
        self.elements |= bit(value);
        if let Value::List(values) = value {
            values.iter().for_each(|value| self.add_element(value));
        }
    }

    /// The types in words, such as `reference or omitted`, or `list of real`.
    fn words(self) -> String {
        let named = |bits: u16| {
            let such = TYPES.iter().enumerate().filter(move |(i, _)| bits >> i & 1 != 0);
            such.map(|(_, name)| *name).collect::<Vec<_>>()
        };
        let elements = named(self.elements).join(", ");
        let own = named(self.own).into_iter().map(|name| match name {
            "list" if !elements.is_empty() => format!("list of {elements}"),
            name => name.to_owned(),
        });
        own.collect::<Vec<_>>().join(" or ")
    }
}

fn bit(value: &Value<'_>) -> u16 {
    1 << match value {
        Value::Omitted => 0,
        Value::Derived => 1,
        Value::Integer(_) => 2,
        Value::Real(_) => 3,
        Value::Text(_) => 4,
        Value::Enumeration(_) => 5,
        Value::Binary(_) => 6,
        Value::Reference(_) => 7,
        Value::List(_) => 8,
        Value::Typed(..) => 9,
    }
}

impl EntityDraft {
    /// The types at each position, in words.
    pub(crate) fn types(&self) -> impl Iterator<Item = String> {
        self.types.iter().map(|types| types.words())
    }
}

/// A draft that is being made.
#[derive(Default)]
struct Maker {
    draft: Draft,
    names: HashMap<String, u32>,
    name: String,
}

impl Maker {
    fn header(&mut self, record: &Record<'_>) {
        if let ("FILE_SCHEMA", [Value::List(names), ..]) = (record.keyword, &record.parameters[..]) {
            let texts = names.iter().filter_map(|name| match name {
                Value::Text(text) => Some(text.clone().into_owned()),
                _ => None,
            });
            self.draft.schemas.extend(texts);
        }
    }

    /// Takes an instance. Fails where a model has no room for it.
    fn instance(&mut self, instance: &Instance<'_>) -> Result<(), ParseError> {
        let draft = &mut self.draft;
        let keyword = match &instance.body {
            Body::Simple(record) => record.keyword,
            Body::Complex(records) => {
                self.name.clear();
                for (i, record) in records.iter().enumerate() {
                    self.name.push(if i == 0 { '(' } else { ' ' });
                    self.name.push_str(record.keyword);
                }
                self.name.push(')');
                &self.name
            }
        };
        let entity = match self.names.get(keyword) {
            Some(entity) => *entity,
            None => {
                let entity = draft.entities.len() as u32;
                self.names.insert(keyword.to_owned(), entity);
                draft.entities.push(EntityDraft {
                    name: keyword.to_owned(),
                    types: Vec::new(),
                    instances: Vec::new(),
                });
                entity
            }
        };
        let of = &mut draft.entities[entity as usize];
        of.instances.push(draft.instances.len() as u32);
        let values = instance.body.records().iter().flat_map(|record| &record.parameters);
        for (i, value) in values.enumerate() {
            if i == of.types.len() {
                of.types.push(Types::default());
            }
            of.types[i].add(value);
        }
        encode(&instance.body, &mut draft.parts);
        let Ok(refs) = u32::try_from(draft.parts.refs.len()) else {
            let reason = format!("the file has more than {} references", u32::MAX);
            return Err(ParseError { line: instance.line, reason });
        };
        draft.instances.push(Entry {
            id: instance.id,
            line: instance.line,
            entity,
            refs,
            reals: draft.parts.reals.len(),
            values: draft.parts.values.len(),
        });
        Ok(())
    }
}

/// Reads a file whole.
///
/// # Errors
/// The file, the line and the reason, in a sentence.
pub fn read(file: &File, limits: Limits) -> Result<Draft, String> {
    let drafted = match &file.text {
        Text::Here(text) => make(text.as_bytes(), limits),
        Text::At(path) => match fs::File::open(path) {
            Ok(opened) => make(opened, limits),
            Err(e) => Err(e.to_string()),
        },
    };
    let mut draft = drafted.map_err(|reason| format!("{}: {reason}", file.describe()))?;
    file.model.clone_into(&mut draft.name);
    Ok(draft)
}

/// Bytes read at once: a few hundred statements.
const PIECE_BYTES: usize = 256 << 10;

fn make(mut input: impl Read, limits: Limits) -> Result<Draft, String> {
    let mut decoder = Decoder::new(limits);
    let mut maker = Maker::default();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match decoder.step().map_err(|e| e.to_string())? {
            Step::More => match input.read(&mut piece) {
                Ok(0) => decoder.end(),
                Ok(bytes) => {
                    decoder.feed(&piece[..bytes]);
                    maker.draft.bytes += bytes as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            },
            Step::Header(record) => maker.header(&record),
            Step::Data(_) => {}
            Step::Instance(instance) => maker.instance(&instance).map_err(|e| e.to_string())?,
            Step::End => break,
        }
    }
    let mut draft = maker.draft;
    draft.resolve().map_err(|e| e.to_string())?;
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(instances: &str) -> Result<Draft, String> {
        let text = tercel_step::write_file("t", "X", instances);
        read(&File::written("t.step", text), Limits::default())
    }

    #[test]
    fn references_lead_forward_back_and_in_circles() {
        for scale in [1, 1_000_000_000_000] {
            for ids in [[1u64, 2, 3], [3, 1, 2]] {
                let [a, b, c] = ids.map(|id| id * scale);
                let draft =
                    drafted(&format!("#{a}=A((#{b},#{c}),#{a});#{b}=B('x',1.5,#{a});#{c}=(A()B(2.5));"))
                        .unwrap();
                assert_eq!((draft.len(), draft.references()), (3, 4));
                let refs = |n| draft.instance(n).refs.to_vec();
                assert_eq!([refs(0), refs(1), refs(2)], [vec![1, 2, 0], vec![0], vec![]], "{ids:?}");
                assert_eq!(draft.instance(2).reals, 2.5f64.to_le_bytes());
                assert_eq!(draft.counts().collect::<Vec<_>>(), [("A", 1), ("B", 1), ("(A B)", 1)]);
                assert_eq!(draft.by_id, if ids[0] == 1 { vec![] } else { vec![1, 2, 0] });
            }
        }
    }

    #[test]
    fn references_to_nothing_and_second_ids_are_refused() {
        let said = |instances: &str| drafted(instances).unwrap_err();
        let (line, reason) = ("t.step: line 9: ", "#1 refers to #3, which the file does not define");
        assert_eq!(said("#2=A();\n#1=A(#2,#3);"), format!("{line}{reason}"));
        assert_eq!(said("#1=A();\n#1=B();"), "t.step: line 9: #1 was defined before, on line 8");
        assert_eq!(said("#2=A();#1=A();\n\n#2=B();"), "t.step: line 10: #2 was defined before, on line 8");
    }

    #[test]
    fn types_are_told_by_position() {
        let draft = drafted("#1=A('',(1.,2),$);#2=A('',(#1),.T.);#3=A(LENGTH(1.));").unwrap();
        let types: Vec<String> = draft.entities[0].types().collect();
        assert_eq!(types, ["text or typed", "list of integer, real, reference", "omitted or enumeration"]);
    }
}
