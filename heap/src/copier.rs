//! A heap without frames, for an owner that has the pages itself: each object that a transaction reads is
//! copied into its scope.
//!
//! A [`Copier`] binds types and converts records as a [`crate::Writer`] does. It caches nothing, installs
//! nothing and knows no watermark: its owner says of which state each scope is, and what has changed.
//!
//! Every function is sound whatever its caller does. For the answers to be right the owner keeps this rule:
//! all objects given to [`Copier::keep`] and [`Copier::keep_absent`] are of the state at the scope's
//! snapshot, and a snapshot moves by [`Copier::adopt`] only over commits that wrote nothing of what the scope
//! read ([`Copier::has_read`]).

use std::sync::{Arc, Mutex, OnceLock};

use tercel_wire::id::{ClassId, Oref, Stamp};
use tercel_wire::layout::{Layout, RecordError};
use tercel_wire::record::{EncodeError, HEADER_BYTES};

use crate::arena::Arena;
use crate::bindings::{BindError, Bindings, Unmade, damaged};
use crate::class::{TypeKey, Types};
use crate::config::SCOPES_MAX;
use crate::copies::{Copies, CopiesPool};
use crate::hints::Hints;
use crate::memory::{Boxed, SeqCst};
use crate::page_table::PageTable;
use crate::protocol::at_stamp;
use crate::scope::{Reader, Scope};
use crate::shared::{Ends, Shared};
use crate::sync::{AtomicU64, Ordering};
use crate::table::Table;

/// A heap without frames: it binds types and copies objects into scopes.
pub struct Copier {
    shared: Arc<Shared>,
    bindings: Bindings,
    copies_pool: CopiesPool,
}

/// The result of a request to keep an object in a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copied {
    /// [`Scope::copy`] finds it.
    Ready,
    /// No type of the program reads the class: bind one.
    Unbound { class: ClassId },
    /// Another type of the program reads the class.
    WrongClass {
        /// The class that this type writes.
        found: ClassId,
    },
    /// The record is not what its class says. The owner of the page must act.
    Damaged(RecordError),
    /// The record is of a newer version of the class, with a variant of an enum that the type does not have.
    /// The program must act.
    Newer(EncodeError),
    /// The scope has no room for it: the transaction reads too much.
    Full,
}

impl Copier {
    /// A heap for so many scopes, between 1 and [`SCOPES_MAX`], each of which may copy so many bytes.
    pub fn new(scopes_max: usize, copies_bytes_max: usize) -> Copier {
        let scopes_max = scopes_max.clamp(1, SCOPES_MAX);
        let shared = Arc::new(Shared {
            // No frame and no handle: what a hit looks into is empty, and no hit ends there.
            arena: Arena::new(Box::new(Boxed::new(0)), 0),
            table: Table::new(0, 0),
            hints: Hints::new(0),
            page_table: PageTable::new(0),
            types: Types::new(),
            classes: Mutex::default(),
            frames: Box::default(),
            watermark: AtomicU64::new(0),
            newest_birth: AtomicU64::new(0),
            slots: (0..scopes_max).map(|_| OnceLock::new()).collect(),
            pool: Mutex::new((0..scopes_max as u32).rev().collect()),
            strong: true,
            fence: Box::new(SeqCst),
            ends: Ends::default(),
            recency: None,
        });
        for (id, layout) in tercel_wire::class::built_in() {
            shared.define(id, Arc::new(layout));
        }
        Copier { shared, bindings: Bindings::default(), copies_pool: CopiesPool::new(copies_bytes_max) }
    }

    /// Tells the heap of a class of the catalogue. A class once defined stays what it is.
    pub fn define(&mut self, id: ClassId, layout: Arc<Layout>) {
        self.shared.define(id, layout);
    }

    /// Lets a type read a class as it is stored; see [`crate::Writer::bind`].
    ///
    /// # Errors
    /// If the class is unknown, looks otherwise, or is read by another type.
    pub fn bind(&mut self, key: TypeKey, class: ClassId) -> Result<(), BindError> {
        self.bindings.bind(&self.shared, key, class)
    }

    /// Lets a type read another version of its class; see [`crate::Writer::bind_converted`].
    ///
    /// # Errors
    /// If the class is unknown or cannot be read as the type, or the type has no class of its own.
    pub fn bind_converted(&mut self, key: TypeKey, class: ClassId) -> Result<(), BindError> {
        self.bindings.bind_converted(&self.shared, key, class)
    }

    /// A new transaction's read side, of the state at `at`; `None` while as many as there may be are open.
    pub fn scope(&self, at: Stamp) -> Option<Scope> {
        self.shared.watermark.fetch_max(at.0, Ordering::AcqRel);
        let mut scope = Reader { shared: self.shared.clone() }.scope()?;
        scope.copies = Some(self.copies_pool.lend());
        scope.adopt(at_stamp(scope.moment(), at.0));
        Some(scope)
    }

    /// Copies an object in stored form into a scope, checked, converted if its class wants that, and counts
    /// it as read. One that is there already stays as it is. `birth` is that of its page.
    ///
    /// # Panics
    /// If the scope belongs to another heap.
    pub fn keep(&self, scope: &Scope, oref: Oref, object: &[u8], birth: Stamp, key: TypeKey) -> Copied {
        let copies = self.copies(scope);
        if let Some(number) = copies.number(oref) {
            return self.typed(number, key);
        }
        self.shared.raise_birth(birth);
        if object.len() < HEADER_BYTES || !object.len().is_multiple_of(4) {
            return Copied::Damaged(damaged(key.schema.name, "", "it is not a whole number of words"));
        }
        match self.bindings.make(&self.shared, object) {
            Err(Unmade::Unbound(class)) => Copied::Unbound { class },
            Err(Unmade::Damaged(e)) => Copied::Damaged(e),
            Err(Unmade::Newer(e)) => Copied::Newer(e),
            Ok(made) => match self.typed(made.number, key) {
                Copied::Ready if !copies.keep(oref, &made, birth) => Copied::Full,
                other => other,
            },
        }
    }

    /// Checks that an object of a type's number may be read as another type.
    fn typed(&self, number: u16, key: TypeKey) -> Copied {
        match self.shared.types.get(number) {
            Some(t) if t.key == key => Copied::Ready,
            Some(t) => Copied::WrongClass { found: t.class },
            None => Copied::WrongClass { found: ClassId(number) },
        }
    }

    /// Counts a reference that names nothing as read; `false` if the scope has no room for it.
    ///
    /// # Panics
    /// If the scope belongs to another heap.
    #[must_use = "what is not remembered is not checked when the transaction commits"]
    pub fn keep_absent(&self, scope: &Scope, oref: Oref) -> bool {
        self.copies(scope).keep_absent(oref)
    }

    /// Says whether the scope has read this reference, whatever it named.
    ///
    /// # Panics
    /// If the scope belongs to another heap.
    pub fn has_read(&self, scope: &Scope, oref: Oref) -> bool {
        self.copies(scope).has_read(oref)
    }

    /// Says whether the scope has read nothing: it is then of any state.
    ///
    /// # Panics
    /// If the scope belongs to another heap.
    pub fn has_read_nothing(&self, scope: &Scope) -> bool {
        self.copies(scope).is_empty()
    }

    /// Appends the references of everything that the scope read, each once.
    ///
    /// # Panics
    /// If the scope belongs to another heap.
    pub fn read_set(&self, scope: &Scope, out: &mut Vec<Oref>) {
        self.copies(scope).read_set(out);
    }

    /// The scope's snapshot becomes `to`: nothing that it read was written in between.
    ///
    /// # Panics
    /// If the scope belongs to another heap.
    pub fn adopt(&self, scope: &Scope, to: Stamp) {
        self.copies(scope);
        scope.adopt(at_stamp(scope.moment(), to.0));
    }

    /// Something that the scope read was written since: it is [`Scope::doomed`] from now on.
    ///
    /// # Panics
    /// If the scope belongs to another heap.
    pub fn doom(&self, scope: &Scope) {
        self.copies(scope);
        scope.slot().doomed.store(true, Ordering::Release);
    }

    fn copies<'s>(&self, scope: &'s Scope) -> &'s Copies {
        assert!(Arc::ptr_eq(&self.shared, &scope.shared), "a scope of this heap");
        scope.copies.as_deref().expect("every scope of a heap without frames has copies")
    }
}
