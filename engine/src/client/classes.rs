//! Classes: what the space has, what the program has, and how the two are brought together.

use std::sync::Arc;

use tercel_heap::{TypeKey, Writer};
use tercel_wire::class;
use tercel_wire::id::ClassId;
use tercel_wire::layout::Layout;
use tercel_wire::message::Classes as ClassesMessage;

use super::pending::{Asked, Single};
use super::{Client, LinkState};
use crate::error::Error;
use crate::table::{Map, Set};
use crate::time::Now;
use crate::txn::object::{BytesLeaf, ChunkNode, RefsLeaf, Root};

/// Classes by id.
pub type Catalogue = Vec<(ClassId, Arc<Layout>)>;

/// The catalogue as this client knows it.
pub(super) struct Classes {
    layouts: Map<ClassId, Arc<Layout>>,
    /// The youngest version of each name.
    newest: Map<String, ClassId>,
    /// By name, the type of the program that reads and writes a class as it is stored.
    bound: Map<&'static str, Bound>,
    /// Set if the catalogue was read since the connection was made.
    fresh: bool,
    /// The number of reads of the catalogue.
    reads: u32,
    /// Definitions under way, by name, and those that the server refused.
    defining: Set<&'static str>,
    /// The refusal of the catalogue, until one that waits for it is told.
    denied: Option<Error>,
    failed: Map<&'static str, Error>,
    is_foreign: bool,
}

struct Bound {
    key: TypeKey,
    id: ClassId,
    layout: Arc<Layout>,
}

impl Classes {
    pub(super) fn new(writer: &mut Writer) -> Classes {
        let mut c = Classes {
            layouts: Map::default(),
            newest: Map::default(),
            bound: Map::default(),
            fresh: false,
            reads: 0,
            defining: Set::default(),
            denied: None,
            failed: Map::default(),
            is_foreign: false,
        };
        for (id, layout) in class::built_in() {
            c.add(id, layout, writer);
        }
        // These are written without asking what they are called in the space: their ids are fixed.
        let own = [
            (TypeKey::of::<Root>(), class::ROOT),
            (TypeKey::of::<BytesLeaf>(), class::BYTES_LEAF),
            (TypeKey::of::<RefsLeaf>(), class::REFS_LEAF),
            (TypeKey::of::<ChunkNode>(), class::CHUNK_NODE),
        ];
        for (key, id) in own {
            if writer.bind(key, id).is_ok() {
                c.bound.insert(key.schema().name, Bound { key, id, layout: c.layouts[&id].clone() });
            }
        }
        c
    }

    fn add(&mut self, id: ClassId, layout: Layout, writer: &mut Writer) {
        if self.layouts.contains_key(&id) {
            return;
        }
        let layout = Arc::new(layout);
        let newest = self.newest.entry(layout.name().to_owned()).or_insert(id);
        *newest = (*newest).max(id);
        writer.define(id, layout.clone());
        self.layouts.insert(id, layout);
    }

    fn learned(&mut self, m: ClassesMessage, writer: &mut Writer) -> Result<(), Error> {
        self.fresh = true;
        self.reads += 1;
        if std::mem::take(&mut self.is_foreign) {
            self.agree(&m.classes)?;
        }
        for (id, layout) in m.classes {
            self.add(id, layout, writer);
        }
        Ok(())
    }

    /// Types are bound to numbers of classes for as long as the cache is there.
    fn agree(&self, theirs: &[(ClassId, Layout)]) -> Result<(), Error> {
        let theirs: Map<ClassId, &Layout> = theirs.iter().map(|(id, layout)| (*id, layout)).collect();
        let ours = self.layouts.iter().filter(|(id, _)| **id >= ClassId::FIRST_USER);
        match ours.into_iter().find(|(id, layout)| theirs.get(*id).is_none_or(|l| **l != ***layout)) {
            None => Ok(()),
            Some((id, layout)) => Err(Error::Schema(format!(
                "class {} was number {} of the space, which goes on from an older state without it: connect with a \
                 new client",
                layout.name(),
                id.0
            ))),
        }
    }

    /// A class was defined: its id is in the catalogue, which is read again.
    pub(super) fn defined(&mut self, name: &'static str) {
        self.defining.remove(name);
        self.fresh = false;
    }

    pub(super) fn refused(&mut self, name: &'static str, error: Error) {
        self.defining.remove(name);
        self.failed.insert(name, error);
    }

    /// Why a definition was refused.
    #[cfg(test)]
    pub(super) fn take_refused_for_test(&mut self, name: &'static str) -> Option<Error> {
        self.failed.remove(name)
    }

    /// A definition will not be answered.
    pub(super) fn lost(&mut self, name: &'static str) {
        self.defining.remove(name);
    }

    /// Marks the known classes as those of another history of the space: the catalogue is read again, and
    /// must agree.
    pub(super) fn forget(&mut self) {
        self.is_foreign = true;
        self.failed.clear();
    }

    /// The catalogue that was read is of another connection, or another history.
    pub(super) fn read_again(&mut self) {
        self.fresh = false;
    }

    /// Says whether another history's catalogue must still agree with the bound types of this client.
    pub(super) fn is_foreign(&self) -> bool {
        self.is_foreign
    }
}

impl Client {
    /// Reads the catalogue; whether that is done.
    pub(super) fn catalogue(&mut self) -> bool {
        // What is asked for without a connection would be forgotten when one is made, and waited for in vain.
        if !self.classes.fresh
            && !self.peer.pending.has(Single::Catalogue)
            && matches!(self.peer.link, LinkState::Up | LinkState::Checking)
        {
            self.request(Asked::Single(Single::Catalogue), &[]);
        }
        self.classes.fresh
    }

    /// The catalogue is here. One that does not agree with what this client has bound its types to ends its
    /// use of the server; one that does ends the check.
    pub(super) fn catalogue_came(&mut self, classes: ClassesMessage) {
        match self.classes.learned(classes, &mut self.writer) {
            Err(e) => self.peer.link = LinkState::Refused(e),
            Ok(()) if self.peer.link == LinkState::Checking => self.peer.link = LinkState::Up,
            Ok(()) => {}
        }
    }

    /// The server does not show its classes to this principal: to ask again would not help.
    pub(super) fn catalogue_refused(&mut self, error: Error) {
        match error {
            Error::Denied(_) if self.peer.link == LinkState::Checking => {
                self.peer.link = LinkState::Refused(error)
            }
            Error::Denied(_) => self.classes.denied = Some(error),
            // Asked for again, as long as there is one that waits.
            _ => {}
        }
    }

    /// The class that a type of the program is written as, defined in the space if need be.
    pub(crate) fn class_for(
        &mut self,
        _now: Now,
        key: TypeKey,
    ) -> Option<Result<(ClassId, Arc<Layout>), Error>> {
        if let Some(bound) = self.classes.bound.get(key.schema().name) {
            return Some(if bound.key == key {
                Ok((bound.id, bound.layout.clone()))
            } else {
                Err(taken(key))
            });
        }
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        let failed = self.classes.failed.remove(key.schema().name);
        if let Some(e) = failed.or_else(|| self.classes.denied.take()) {
            return Some(Err(e));
        }
        if !self.catalogue() {
            return None;
        }
        let layout = Layout::of(key.schema());
        let same = self.classes.layouts.iter().filter(|(_, l)| ***l == layout).map(|(id, _)| *id).max();
        if let Some(id) = same {
            return Some(self.bind(key, id).map(|layout| (id, layout)));
        }
        if self.classes.defining.insert(key.schema().name) {
            let mut body = Vec::new();
            layout.encode(&mut body);
            self.request(Asked::Define(key.schema().name), &body);
        }
        None
    }

    fn bind(&mut self, key: TypeKey, id: ClassId) -> Result<Arc<Layout>, Error> {
        let layout = self.classes.layouts[&id].clone();
        self.writer.bind(key, id).map_err(|e| Error::Schema(e.to_string()))?;
        self.classes.bound.insert(key.schema().name, Bound { key, id, layout: layout.clone() });
        Ok(layout)
    }

    /// Lets a type of the program read objects of a stored class; `None` while the catalogue is being read.
    /// `missing` is how often the catalogue had been read when this search first found the class missing.
    pub(super) fn bind_for_reading(
        &mut self,
        now: Now,
        key: TypeKey,
        id: ClassId,
        missing: &mut Option<u32>,
    ) -> Option<Result<(), Error>> {
        let stored = match self.layout_of(id, missing)? {
            Ok(stored) => stored,
            Err(e) => return Some(Err(e)),
        };
        if stored.name() != key.schema().name {
            let what = format!("an object of class {} was read as {}", stored.name(), key.schema().name);
            return Some(Err(Error::Schema(what)));
        }
        let layout = Layout::of(key.schema());
        if layout == *stored {
            return Some(self.bind(key, id).map(|_| ()));
        }
        if let Err(e) = layout.reads(&stored) {
            let what = format!("{e} (this program's class against class {} of the space)", id.0);
            return Some(Err(Error::Schema(what)));
        }
        // The program writes its own version, so that one must exist too.
        match self.class_for(now, key)? {
            Err(e) => Some(Err(e)),
            Ok(_) => Some(self.writer.bind_converted(key, id).map_err(|e| Error::Schema(e.to_string()))),
        }
    }

    /// The name of a class, for messages to people.
    pub(super) fn class_name(&self, id: ClassId) -> String {
        self.classes.layouts.get(&id).map_or_else(|| format!("number {}", id.0), |l| l.name().to_owned())
    }

    /// The layout of a class that an object has.
    pub(super) fn layout_of(
        &mut self,
        id: ClassId,
        missing: &mut Option<u32>,
    ) -> Option<Result<Arc<Layout>, Error>> {
        if let Some(layout) = self.classes.layouts.get(&id) {
            return Some(Ok(layout.clone()));
        }
        // It may have been defined after the catalogue was read, so it is read again, once.
        let reads = *missing.get_or_insert_with(|| {
            self.classes.fresh = false;
            self.classes.reads
        });
        let is_read_again = self.catalogue() && self.classes.reads != reads;
        is_read_again.then(|| {
            Err(Error::Corrupt(format!("an object of class {}, which the space does not have", id.0)))
        })
    }

    /// Has the catalogue read again before it is asked for next: classes may have come since.
    pub fn look_at_classes_again(&mut self) {
        self.classes.read_again();
    }

    /// The layouts of all classes, once the catalogue is read.
    pub fn all_classes(&mut self) -> Option<Result<Catalogue, Error>> {
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        if let Some(e) = self.classes.denied.take() {
            return Some(Err(e));
        }
        if !self.catalogue() {
            return None;
        }
        let mut all: Vec<_> = self.classes.layouts.iter().map(|(id, l)| (*id, l.clone())).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        Some(Ok(all))
    }
}

/// One client has one type for a class: objects are in the cache as that type reads them.
pub(super) fn taken(key: TypeKey) -> Error {
    Error::Schema(format!(
        "this client uses the class {} with another type of the program: use one type for it in a \
         client, or give this one's class another name with #[object(name = \"...\")]",
        key.schema().name
    ))
}
