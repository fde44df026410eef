//! Files become objects.
//!
//! One thread reads files ahead while others write. Of each file, first every instance gets its place, in the
//! file's order, so that what belongs together lies together; then instances are written, and its entities
//! and its model behind them. Most models are one transaction. A larger one is several of some megabytes.
//! Nothing can be reached until the last transaction enters all models into the library: an import that ends
//! midway shows nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Instant;

use serde::Serialize;
use tercel::collections::Map;
use tercel::{Client, Error, List, Ref, Text, Tx};
use tercel_lock::unpoison;
use tercel_step::Limits;
use tercel_term::fail::Failure;
use tercel_term::importing::Importing;
use tercel_term::{ProgressBar, Term, count, thousands};

use crate::draft::{self, Draft};
use crate::model::{Entity, Instance, LIBRARY, Library, Model};
use crate::source::{File, Source};

/// The counts of an import.
#[derive(Debug, Clone, Serialize)]
pub struct Imported {
    /// The file or directory, or `the bundled sample`.
    pub source: String,
    /// Models that are in the library now.
    pub models: u64,
    /// Models of them that were there before under the same names.
    pub replaced: u64,
    /// Instances.
    pub instances: u64,
    /// References between them.
    pub references: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Instances by entity, those of which there are most first.
    pub entities: Vec<EntityCount>,
    /// Files that were left out, each with its line and the reason.
    pub failed: Vec<String>,
    /// From the first byte read to the last durable acknowledgement.
    pub seconds: f64,
    pub instances_per_second: f64,
}

/// The instances of an entity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EntityCount {
    pub entity: String,
    pub instances: u64,
}

/// Choices of the user.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// A file that cannot be read costs the import.
    pub strict: bool,
    /// The bounds of a file.
    pub limits: Limits,
    /// Instances of a model that is one transaction. A larger model is transactions of a quarter of that.
    /// References within a transaction need no look at the places that they lead to, and the server has room
    /// for all of a transaction.
    pub together_max: usize,
}

impl Default for Choice {
    fn default() -> Choice {
        // Some ten megabytes.
        Choice { strict: false, limits: Limits::default(), together_max: 1 << 17 }
    }
}

/// The words of the import of models.
const MODELS: Importing = Importing {
    kept: "the models that were there before are kept",
    whole: "all of its models are there or none",
    again: "models come all at once",
};

/// Threads that write: one makes a transaction while the server works on that of the other.
const WRITERS: usize = 2;

/// Files that are read ahead.
const AHEAD: usize = 2;

/// Entities that the summary names.
const ENTITIES_TOLD: usize = 12;

/// The message for an import that a signal ended.
pub fn interrupted() -> String {
    MODELS.interrupted()
}

/// An import in words.
pub fn summary(i: &Imported) -> String {
    let most: Vec<String> = i
        .entities
        .iter()
        .take(ENTITIES_TOLD)
        .map(|of| format!("{} {}", thousands(of.instances), of.entity))
        .collect();
    let others = match i.entities.len().saturating_sub(ENTITIES_TOLD) {
        0 => String::new(),
        n => format!(", and those of {} more", count(n as u64, "entity", "entities")),
    };
    format!(
        "{} and {} of {} from {} in {:.2} s, {} a second{}{}: {}{others}",
        count(i.instances, "instance", "instances"),
        count(i.references, "reference", "references"),
        count(i.models, "model", "models"),
        i.source,
        i.seconds,
        thousands(i.instances_per_second as u64),
        match i.failed.len() {
            0 => String::new(),
            n => format!("; left out: {} that cannot be read", count(n as u64, "file", "files")),
        },
        match i.replaced {
            0 => String::new(),
            n => format!(
                "; {} replaced, whose objects stay until garbage is collected",
                count(n, "model was", "models were")
            ),
        },
        most.join(", "),
    )
}

/// Reads the files of a source and writes them as objects.
///
/// # Errors
/// If no file can be read, or where the choice is strict, one of them; if the server was lost, stays full, or
/// another import ran meanwhile. The models that were there before are then kept.
pub fn import(client: &Client, source: &Source, choice: &Choice, term: &Term) -> Result<Imported, Failure> {
    let begun = Instant::now();
    let bar =
        term.bar(source.bytes(), "{msg:<22} {wide_bar:.cyan/dim} {bytes}/{total_bytes} {eta}", "importing");
    let written: Result<Written, Failure> = MODELS.watched(client, &bar, || {
        let (send, drafts) = sync_channel(AHEAD);
        let course = Course {
            client,
            source,
            choice,
            bar: &bar,
            drafts: Mutex::new(Some(drafts)),
            placing: Mutex::new(()),
        };
        thread::scope(|scope| {
            scope.spawn(move || {
                for file in &source.files {
                    // The writers have ended if nobody receives.
                    if send.send(read(file, choice.limits)).is_err() {
                        break;
                    }
                }
            });
            let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(|| course.write_all())).collect();
            let mut all = Written::default();
            for writer in writers {
                match writer.join() {
                    Ok(written) => all.add(written?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(all)
        })
    });
    bar.finish_and_clear();
    let mut imported = publish_all(client, source, written?)?;
    imported.seconds = begun.elapsed().as_secs_f64();
    imported.instances_per_second = imported.instances as f64 / imported.seconds;
    Ok(imported)
}

/// Reads a file whose name can be that of a model.
fn read(file: &File, limits: Limits) -> Result<Draft, String> {
    Map::<Text, Model>::check_key(&file.model).map_err(|e| format!("{}: its name: {e}", file.describe()))?;
    draft::read(file, limits)
}

/// An import in its course, as its writers share it.
struct Course<'a> {
    client: &'a Client,
    source: &'a Source,
    choice: &'a Choice,
    bar: &'a ProgressBar,
    /// None once a writer has failed: then the others end, and the reader.
    drafts: Mutex<Option<Receiver<Result<Draft, String>>>>,
    /// Held while a model gets its places.
    placing: Mutex<()>,
}

/// The models that were written, and the files that were not.
#[derive(Default)]
struct Written {
    models: Vec<(String, Ref<Model>)>,
    failed: Vec<String>,
    counts: BTreeMap<String, u64>,
    instances: u64,
    references: u64,
    bytes: u64,
}

impl Course<'_> {
    /// Writes models as long as there are files.
    fn write_all(&self) -> Result<Written, Failure> {
        let written = self.try_write_all();
        if written.is_err() {
            unpoison(self.drafts.lock()).take();
        }
        written
    }

    fn try_write_all(&self) -> Result<Written, Failure> {
        let mut written = Written::default();
        loop {
            let next = unpoison(self.drafts.lock()).as_ref().and_then(|drafts| drafts.recv().ok());
            match next {
                None => return Ok(written),
                Some(Ok(draft)) => {
                    written.models.push((draft.name.clone(), self.write(&draft)?));
                    draft
                        .counts()
                        .for_each(|(name, n)| *written.counts.entry(name.to_owned()).or_default() += n);
                    written.instances += draft.len() as u64;
                    written.references += draft.references();
                    written.bytes += draft.bytes;
                    self.bar.inc(draft.bytes);
                }
                Some(Err(reason)) if self.choice.strict || !self.source.is_directory => {
                    return Err(refused(&reason, self.source));
                }
                Some(Err(reason)) => {
                    self.bar.suspend(|| eprintln!("{reason}; the file is left out"));
                    written.failed.push(reason);
                }
            }
        }
    }
}

/// Bytes of instances in a transaction, unless one has more: far below what a server takes.
const BATCH_BYTES: usize = 16 << 20;

impl Course<'_> {
    /// Writes a model, which nothing reaches yet.
    fn write(&self, draft: &Draft) -> Result<Ref<Model>, Failure> {
        let (client, all) = (self.client, 0..draft.len());
        let mut places = Vec::new();
        let weight: usize = all.clone().map(|number| draft.weight(number)).sum();
        if all.len() <= self.choice.together_max && weight <= BATCH_BYTES {
            return MODELS.patiently(client, |tx| {
                // Places outlive an attempt that found the server full, and the next one fills them.
                if places.len() < all.len() {
                    places.clear();
                    // Else two models would share pages.
                    let _one = unpoison(self.placing.lock());
                    reserve(tx, draft, all.clone(), &mut places)?;
                }
                fill(tx, draft, all.clone(), &places)?;
                finish(tx, draft, &places)
            });
        }
        {
            let _one = unpoison(self.placing.lock());
            for batch in self.batches(draft) {
                let tx = client.transaction().begin().map_err(|e| MODELS.lost(e))?;
                reserve(&tx, draft, batch, &mut places).map_err(|e| MODELS.lost(e))?;
            }
        }
        for batch in self.batches(draft) {
            MODELS.patiently(client, |tx| fill(tx, draft, batch.clone(), &places))?;
        }
        MODELS.patiently(client, |tx| finish(tx, draft, &places))
    }

    /// The instances of a draft in transactions: bounded by their number and by their bytes.
    fn batches(&self, draft: &Draft) -> Vec<Range<usize>> {
        let most = (self.choice.together_max / 4).max(1);
        let (mut batches, mut from, mut weight) = (Vec::new(), 0, 0);
        for number in 0..draft.len() {
            let more = draft.weight(number);
            if number > from && (number - from == most || weight + more > BATCH_BYTES) {
                batches.push(from..number);
                (from, weight) = (number, 0);
            }
            weight += more;
        }
        batches.push(from..draft.len());
        batches
    }
}

impl Written {
    fn add(&mut self, other: Written) {
        self.models.extend(other.models);
        self.failed.extend(other.failed);
        other.counts.into_iter().for_each(|(name, n)| *self.counts.entry(name).or_default() += n);
        self.instances += other.instances;
        self.references += other.references;
        self.bytes += other.bytes;
    }
}

/// Enters what was written into the library.
fn publish_all(client: &Client, source: &Source, mut written: Written) -> Result<Imported, Failure> {
    if written.models.is_empty() {
        let what = format!("{} has no STEP file that can be read: nothing was changed", source.name);
        return Err(Failure::new(what).next("mend the files, or name others"));
    }
    written.models.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    written.failed.sort_unstable();
    MODELS.publishing();
    let replaced = MODELS.patiently(client, |tx| publish(tx, &written.models))?;
    let counts = written.counts.into_iter();
    let mut entities: Vec<EntityCount> =
        counts.map(|(entity, instances)| EntityCount { entity, instances }).collect();
    entities.sort_by_key(|of| Reverse(of.instances));
    Ok(Imported {
        source: source.name.clone(),
        models: written.models.len() as u64,
        replaced,
        instances: written.instances,
        references: written.references,
        bytes: written.bytes,
        entities,
        failed: written.failed,
        seconds: 0.0,
        instances_per_second: 0.0,
    })
}

fn refused(reason: &str, source: &Source) -> Failure {
    let failure = Failure::new(format!("{reason}: nothing was changed"));
    match source.is_directory {
        true => failure.next("mend the file, or leave such files out: import the directory without --strict"),
        false => failure.next("mend the file, or write it again with the program that made it"),
    }
}

/// Gives instances their places, in order, before any of them is written.
fn reserve(
    tx: &Tx<'_>,
    draft: &Draft,
    numbers: Range<usize>,
    places: &mut Vec<Ref<Instance>>,
) -> Result<(), Error> {
    let mut instance = Instance::default();
    for n in numbers {
        set(&mut instance, draft, n, |_| Ref::NULL);
        places.push(tx.reserve(&instance)?);
    }
    Ok(())
}

fn fill(tx: &Tx<'_>, draft: &Draft, numbers: Range<usize>, places: &[Ref<Instance>]) -> Result<(), Error> {
    let mut instance = Instance::default();
    for n in numbers {
        set(&mut instance, draft, n, |r| places[r as usize]);
        tx.fill(places[n], &instance)?;
    }
    Ok(())
}

/// Makes a value that of an instance; it is used again and again, as it has three vectors.
fn set(value: &mut Instance, draft: &Draft, number: usize, place: impl Fn(u32) -> Ref<Instance>) {
    let drafted = draft.instance(number);
    (value.id, value.number, value.entity) = (drafted.id, number as u32, drafted.entity);
    value.refs.0.clear();
    value.refs.0.extend(drafted.refs.iter().map(|r| place(*r)));
    value.reals.0.clear();
    value.reals.0.extend_from_slice(drafted.reals);
    value.values.0.clear();
    value.values.0.extend_from_slice(drafted.values);
}

/// Writes the entities and the model.
fn finish(tx: &Tx<'_>, draft: &Draft, places: &[Ref<Instance>]) -> Result<Ref<Model>, Error> {
    let refs = |numbers: &[u32]| numbers.iter().map(|n| places[*n as usize]).collect::<List<_>>();
    let mut entities = Vec::new();
    for entity in &draft.entities {
        entities.push(tx.create(&Entity {
            name: entity.name.as_str().into(),
            types: entity.types().map(|types| types.into()).collect(),
            instances: refs(&entity.instances),
        })?);
    }
    tx.create(&Model {
        name: draft.name.as_str().into(),
        schemas: draft.schemas.iter().map(|schema| schema.as_str().into()).collect(),
        entities: List(entities),
        instances: List(places.to_vec()),
        by_id: refs(&draft.by_id),
        references: draft.references(),
    })
}

/// Enters all models into the library, at once; counts those that they replace.
fn publish(tx: &Tx<'_>, models: &[(String, Ref<Model>)]) -> Result<u64, Error> {
    let library = match tx.get_root_ref::<Library>(LIBRARY)? {
        Some(library) => tx.get(library)?.models(),
        None => {
            let models = Map::create(tx)?;
            let library = tx.create(&Library { models })?;
            tx.set_root(LIBRARY, library)?;
            models
        }
    };
    let mut replaced = 0;
    for (name, model) in models {
        replaced += u64::from(library.insert(tx, name.as_str(), *model)?.is_some());
    }
    Ok(replaced)
}
