//! The classes of a space.

use tercel_wire::class;
use tercel_wire::id::ClassId;
use tercel_wire::layout::Layout;

use super::digest::RowSum;
use crate::table::Map;

/// The classes by number, and the newest class of each name.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    classes: Map<ClassId, Layout>,
    newest: Map<String, ClassId>,
}

impl Catalogue {
    /// A catalogue with the classes that every space has.
    pub fn new() -> Catalogue {
        let mut catalogue = Catalogue::default();
        for (id, layout) in class::built_in() {
            catalogue.define(id, layout);
        }
        catalogue
    }

    /// A class, or another version of one.
    pub fn define(&mut self, id: ClassId, layout: Layout) {
        let newest = self.newest.entry(layout.name().to_owned()).or_insert(id);
        *newest = (*newest).max(id);
        self.classes.insert(id, layout);
    }

    pub fn class(&self, id: ClassId) -> Option<&Layout> {
        self.classes.get(&id)
    }

    /// The number of classes, Tercel's own included.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// Says whether there is no class, which holds for no space.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// The youngest version of a class.
    pub fn newest(&self, name: &str) -> Option<(ClassId, &Layout)> {
        let id = *self.newest.get(name)?;
        Some((id, self.classes.get(&id)?))
    }

    /// All classes in order of their ids.
    pub fn all(&self) -> Vec<(ClassId, &Layout)> {
        let mut all: Vec<_> = self.classes.iter().map(|(id, l)| (*id, l)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// The users' classes in order of their ids.
    pub fn users(&self) -> impl Iterator<Item = (ClassId, &Layout)> {
        self.all().into_iter().filter(|(id, _)| *id >= ClassId::FIRST_USER)
    }

    /// For [`super::Replica::digest`].
    pub fn digest(&self) -> u64 {
        let mut sum = RowSum::default();
        self.classes.keys().for_each(|id| sum.add(&[id.0.into(), 1]));
        sum.value()
    }
}
