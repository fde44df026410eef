//! Classes inside of a server: what the space has, and which type of the program reads and writes it.

use std::sync::Arc;

use tercel_heap::{BindError, Copier, TypeKey};
use tercel_wire::class;
use tercel_wire::id::{ClassId, Oref};
use tercel_wire::layout::Layout;

use super::{Inside, Local};
use crate::error::Error;
use crate::table::Map;
use crate::txn::object::{BytesLeaf, ChunkNode, RefsLeaf, Root};

/// By name, the type that writes a class.
pub(super) struct Classes(Map<&'static str, Bound>);

struct Bound {
    key: TypeKey,
    id: ClassId,
    layout: Arc<Layout>,
}

impl Classes {
    /// Tercel's own, whose ids are fixed.
    pub(super) fn new(copier: &mut Copier) -> Classes {
        let own = [
            (TypeKey::of::<Root>(), class::ROOT),
            (TypeKey::of::<BytesLeaf>(), class::BYTES_LEAF),
            (TypeKey::of::<RefsLeaf>(), class::REFS_LEAF),
            (TypeKey::of::<ChunkNode>(), class::CHUNK_NODE),
        ];
        let mut classes = Classes(Map::default());
        for (key, id) in own {
            // Only a process with too many types can fail here; it receives the error when it uses one.
            let _ = classes.bind(key, id, Arc::new(Layout::of(key.schema())), copier);
        }
        classes
    }

    fn bind(
        &mut self,
        key: TypeKey,
        id: ClassId,
        layout: Arc<Layout>,
        copier: &mut Copier,
    ) -> Result<Arc<Layout>, Error> {
        copier.define(id, layout.clone());
        copier.bind(key, id).map_err(schema)?;
        Ok(self.0.entry(key.schema().name).or_insert(Bound { key, id, layout }).layout.clone())
    }

    /// The class that a type is written as, once it is bound.
    fn bound(&self, key: TypeKey) -> Option<Result<(ClassId, Arc<Layout>), Error>> {
        let bound = self.0.get(key.schema().name)?;
        Some(match bound.key == key {
            true => Ok((bound.id, bound.layout.clone())),
            false => Err(taken(key)),
        })
    }
}

impl Inside<'_> {
    /// The class that a type is written as, defined in the space if need be; `None` while it is.
    pub(super) fn class_of_type(&mut self, key: TypeKey) -> Option<Result<(ClassId, Arc<Layout>), Error>> {
        if let Some(bound) = self.local.classes.bound(key) {
            return Some(bound);
        }
        if let Err(e) = self.session() {
            return Some(Err(e));
        }
        let layout = Layout::of(key.schema());
        let id = match self.server.sessions(|s, cx| s.inside_define(&layout, cx))? {
            Ok(id) => id,
            Err(e) => return Some(Err(e)),
        };
        let Local { classes, copier, .. } = &mut *self.local;
        Some(classes.bind(key, id, Arc::new(layout), copier).map(|layout| (id, layout)))
    }

    /// Lets a type read objects of a stored class; `None` while the class that the type writes is being
    /// defined.
    pub(super) fn bind_for_reading(&mut self, key: TypeKey, id: ClassId) -> Option<Result<(), Error>> {
        let Some(stored) = self.class(id) else {
            let what = format!("an object of class {}, which the space does not have", id.0);
            return Some(Err(Error::Corrupt(what)));
        };
        if stored.name() != key.schema().name {
            let what = format!("an object of class {} was read as {}", stored.name(), key.schema().name);
            return Some(Err(Error::Schema(what)));
        }
        let (stored, layout) = (Arc::new(stored.clone()), Layout::of(key.schema()));
        if let Err(e) = layout.reads(&stored) {
            let what = format!("{e} (this program's class against class {} of the space)", id.0);
            return Some(Err(Error::Schema(what)));
        }
        // The program writes its own version, so that one must exist too.
        if let Err(e) = self.class_of_type(key)? {
            return Some(Err(e));
        }
        let copier = &mut self.local.copier;
        copier.define(id, stored.clone());
        Some(match layout == *stored {
            true => copier.bind(key, id).map_err(schema),
            false => copier.bind_converted(key, id).map_err(schema),
        })
    }

    /// The reason why an object cannot be read as a type.
    pub(super) fn wrong_class(&self, oref: Oref, found: ClassId, key: TypeKey) -> Error {
        let name = self.class(found).map_or_else(|| format!("number {}", found.0), |l| l.name().to_owned());
        match name == key.schema().name {
            true => taken(key),
            false => Error::Schema(format!("object {oref} is of class {name}, not {}", key.schema().name)),
        }
    }

    fn class(&self, id: ClassId) -> Option<&Layout> {
        self.server.cx.work.replica.catalogue.class(id)
    }
}

fn schema(e: BindError) -> Error {
    Error::Schema(e.to_string())
}

/// One program has one type for a class: objects are copied as that type reads them.
fn taken(key: TypeKey) -> Error {
    Error::Schema(format!(
        "the program of this server uses the class {} with another type: use one type for it, or name this one's class \
         with #[object(name = \"...\")]",
        key.schema().name
    ))
}
