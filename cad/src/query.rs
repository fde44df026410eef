//! Look-ups, closures and bounds over models.

use std::collections::BTreeMap;

use tercel::{Client, Error, Obj, Ref, Tx};
use tercel_step::write_instance;
use tercel_term::fail::Failure;

use crate::import::EntityCount;
use crate::model::{Instance, LIBRARY, Library, Model};
use crate::source::printable;
use crate::values::{decode, reals_of};

/// The names of all models, with their references.
///
/// # Errors
/// If nothing was imported, and those of reading.
pub fn models(client: &Client) -> Result<Vec<(String, Ref<Model>)>, Failure> {
    let found = client.run(|tx| {
        let Some(library) = tx.get_root_ref::<Library>(LIBRARY)? else { return Ok(Vec::new()) };
        let models = tx.get(library)?.models();
        models.iter(tx).map(|entry| entry.map(|(name, model)| (name.0, model))).collect()
    })?;
    match found.is_empty() {
        true => Err(Failure::new("no model was imported into this space yet")
            .next("run `tercel import step` with the same --data or --server")),
        false => Ok(found),
    }
}

/// The model of a name; without one the only model.
///
/// # Errors
/// If there is no such model, or more than one and none is named.
pub fn model(client: &Client, name: Option<&str>) -> Result<Ref<Model>, Failure> {
    let all = models(client)?;
    let some = || {
        let named: Vec<String> = all.iter().take(NAMES_TOLD).map(|(name, _)| printable(name)).collect();
        let more = if all.len() > NAMES_TOLD { ", .." } else { "" };
        format!("name one with --model: {}{more}", named.join(", "))
    };
    match (name, &all[..]) {
        (Some(name), all) => match all.iter().find(|(of, _)| of == name) {
            Some((_, model)) => Ok(*model),
            None => Err(Failure::new(format!("there is no model `{name}`")).next(some())),
        },
        (None, [(_, model)]) => Ok(*model),
        (None, all) => Err(Failure::new(format!("the space has {} models", all.len())).next(some())),
    }
}

/// Models that a failure names.
const NAMES_TOLD: usize = 8;

/// The instance of an id; none if the model has none.
///
/// # Errors
/// Those of reading.
pub fn by_id(tx: &Tx<'_>, model: Ref<Model>, id: u64) -> Result<Option<Ref<Instance>>, Error> {
    let model = tx.get(model)?;
    let list = if model.by_id().is_empty() { model.instances() } else { model.by_id() };
    let (mut low, mut high) = (0, list.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let found = list.get(middle)?;
        match found.id().cmp(&id) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
            std::cmp::Ordering::Equal => return Ok(Some(found.reference())),
        }
    }
    Ok(None)
}

/// The names of a model's entities, by their place.
///
/// # Errors
/// Those of reading.
pub fn entity_names(tx: &Tx<'_>, model: Ref<Model>) -> Result<Vec<String>, Error> {
    tx.get(model)?.entities().iter().map(|entity| Ok(entity?.name()?.into_owned())).collect()
}

/// The instances of an entity, in the file's order; none if the model has no such entity.
///
/// # Errors
/// Those of reading.
pub fn of_entity(tx: &Tx<'_>, model: Ref<Model>, name: &str) -> Result<Vec<Ref<Instance>>, Error> {
    for entity in tx.get(model)?.entities().iter() {
        let entity = entity?;
        if entity.name()? == name {
            return entity.instances().references();
        }
    }
    Ok(Vec::new())
}

/// An instance as the file has it.
///
/// # Errors
/// Those of reading; `Corrupt` if its parameters are none.
pub fn text(tx: &Tx<'_>, names: &[String], instance: Ref<Instance>) -> Result<String, Error> {
    let instance = tx.get(instance)?;
    let ids = instance.refs().iter().map(|r| Ok(r?.id())).collect::<Result<Vec<u64>, Error>>()?;
    let (reals, values) = (instance.reals()?, instance.values()?);
    let name = names.get(instance.entity() as usize).map_or("", String::as_str);
    let body = decode(name, ids, &reals, &values).ok_or_else(|| {
        Error::Corrupt(format!("the parameters of #{} are not what they should be", instance.id()))
    })?;
    let mut out = String::new();
    write_instance(instance.id(), &body, &mut out);
    Ok(out)
}

/// A traversal along references, which visits each instance of a model once.
#[derive(Debug, Default)]
pub struct Walk {
    seen: Bits,
    /// Where the traversal goes on once it has come back from its depth.
    todo: Vec<Ref<Instance>>,
    /// Entities whose instances are visited and not left by their references.
    closed: Bits,
    /// The instances visited, and the references followed.
    pub visited: Visited,
}

/// The counts of a traversal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Visited {
    pub instances: u64,
    pub references: u64,
}

/// The depth to which a traversal goes by calling itself. It holds a view of each instance on its way, and
/// geometry is some fifteen references deep; deeper chains go on from a list of references.
pub const DEPTH_MAX: usize = 64;

impl Walk {
    /// A traversal that does not go on from instances of these entities.
    pub fn around(closed: Bits) -> Walk {
        Walk { closed, ..Walk::default() }
    }

    /// Visits an instance, unless it was visited before, and all that can be reached from there, depth first.
    ///
    /// # Errors
    /// Those of reading, and what `each` gives.
    pub fn from<'t>(
        &mut self,
        tx: &'t Tx<'_>,
        start: Ref<Instance>,
        each: &mut impl FnMut(&Obj<'t, Instance>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let first = tx.get(start)?;
        if !self.enter(&first, each)? {
            return Ok(());
        }
        self.descend(&first, 0, each)?;
        while let Some(next) = self.todo.pop() {
            self.descend(&tx.get(next)?, 0, each)?;
        }
        Ok(())
    }

    fn enter<'t>(
        &mut self,
        instance: &Obj<'t, Instance>,
        each: &mut impl FnMut(&Obj<'t, Instance>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let is_new = self.seen.insert(instance.number());
        if is_new {
            self.visited.instances += 1;
            each(instance)?;
        }
        Ok(is_new)
    }

    fn descend<'t>(
        &mut self,
        instance: &Obj<'t, Instance>,
        depth: usize,
        each: &mut impl FnMut(&Obj<'t, Instance>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for next in instance.refs().iter() {
            let next = next?;
            self.visited.references += 1;
            if self.enter(&next, each)? && !self.closed.has(next.entity()) {
                match depth < DEPTH_MAX {
                    true => self.descend(&next, depth + 1, each)?,
                    false => self.todo.push(next.reference()),
                }
            }
        }
        Ok(())
    }
}

/// The least box around some points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The points.
    pub points: u64,
    /// The least of each coordinate.
    pub min: [f64; 3],
    /// The greatest.
    pub max: [f64; 3],
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { points: 0, min: [f64::INFINITY; 3], max: [f64::NEG_INFINITY; 3] }
    }
}

impl Bounds {
    /// Takes in a point; the coordinates that it does not have are 0.
    #[inline]
    pub fn add(&mut self, coordinates: impl Iterator<Item = f64>) {
        let mut at = [0.0; 3];
        at.iter_mut().zip(coordinates).for_each(|(to, from)| *to = from);
        self.points += 1;
        self.min = std::array::from_fn(|i| self.min[i].min(at[i]));
        self.max = std::array::from_fn(|i| self.max[i].max(at[i]));
    }

    /// Takes in an instance if it is of the entity of points.
    ///
    /// # Errors
    /// Those of reading.
    #[inline]
    pub fn take(&mut self, instance: &Obj<'_, Instance>, points: u32) -> Result<(), Error> {
        if instance.entity() == points {
            self.add(reals_of(&instance.reals()?));
        }
        Ok(())
    }
}

/// The entities of placements, whose points lie where a shape is put, and not on it.
const PLACEMENTS: [&str; 3] = ["AXIS1_PLACEMENT", "AXIS2_PLACEMENT_2D", "AXIS2_PLACEMENT_3D"];

/// The places of the entities of placements in a model.
///
/// # Errors
/// Those of reading.
pub fn placements_of(tx: &Tx<'_>, model: Ref<Model>) -> Result<Bits, Error> {
    let mut places = Bits::default();
    for (place, name) in entity_names(tx, model)?.iter().enumerate() {
        if PLACEMENTS.contains(&name.as_str()) {
            places.insert(place as u32);
        }
    }
    Ok(places)
}

/// The entity of points.
pub const POINT: &str = "CARTESIAN_POINT";

/// The place of the entity of points in a model; of a model without points a place that no instance has.
///
/// # Errors
/// Those of reading.
pub fn points_of(tx: &Tx<'_>, model: Ref<Model>) -> Result<u32, Error> {
    let place = entity_names(tx, model)?.iter().position(|name| name == POINT);
    Ok(place.map_or(u32::MAX, |place| place as u32))
}

/// The instances to which no other one refers.
///
/// # Errors
/// Those of reading.
pub fn unused(tx: &Tx<'_>, model: Ref<Model>) -> Result<Vec<Ref<Instance>>, Error> {
    let model = tx.get(model)?;
    let mut named = Bits::default();
    for instance in model.instances().iter() {
        let instance = instance?;
        for next in instance.refs().iter() {
            let next = next?;
            if next.number() != instance.number() {
                named.insert(next.number());
            }
        }
    }
    let mut unused = Vec::new();
    for instance in model.instances().iter() {
        let instance = instance?;
        if !named.has(instance.number()) {
            unused.push(instance.reference());
        }
    }
    Ok(unused)
}

/// Counts by entity, the greatest first.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<u32, u64>);

impl Tally {
    /// Counts an instance.
    pub fn add(&mut self, instance: &Obj<'_, Instance>) {
        *self.0.entry(instance.entity()).or_default() += 1;
    }

    /// The counts by name.
    pub fn named(&self, names: &[String]) -> Vec<EntityCount> {
        let name = |place: &u32| names.get(*place as usize).cloned().unwrap_or_default();
        let mut all: Vec<EntityCount> =
            self.0.iter().map(|(place, n)| EntityCount { entity: name(place), instances: *n }).collect();
        all.sort_by(|a, b| b.instances.cmp(&a.instances).then_with(|| a.entity.cmp(&b.entity)));
        all
    }
}

/// A set of small numbers.
#[derive(Debug, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Inserts a number; says whether it is new.
    #[inline]
    pub fn insert(&mut self, n: u32) -> bool {
        let (word, bit) = (n as usize / 64, 1u64 << (n % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    /// Says whether a number is in it.
    #[inline]
    pub fn has(&self, n: u32) -> bool {
        self.0.get(n as usize / 64).is_some_and(|word| word >> (n % 64) & 1 != 0)
    }
}
