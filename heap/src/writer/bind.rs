//! Classes and types, as the cache's owner is told of them.

use std::sync::Arc;

use tercel_wire::id::ClassId;
use tercel_wire::layout::Layout;

use super::{Resolved, Writer};
use crate::bindings::{BindError, Made, Unmade};
use crate::class::TypeKey;

impl Writer {
    /// Tells the cache of a class of the catalogue. A class once defined stays what it is.
    pub fn define(&mut self, id: ClassId, layout: Arc<Layout>) {
        self.shared.define(id, layout);
    }

    /// The layout of a defined class.
    pub fn layout(&self, id: ClassId) -> Option<Arc<Layout>> {
        self.shared.layout(id)
    }

    /// Lets a type read a class in place. Both must have the same layout, names of fields included. The first
    /// class that a type is bound to is the one that its new records are written as.
    pub fn bind(&mut self, key: TypeKey, class: ClassId) -> Result<(), BindError> {
        self.bindings.bind(&self.shared, key, class)
    }

    /// Lets a type read another version of its class: each object is converted at its first touch, and its
    /// record is kept behind it.
    pub fn bind_converted(&mut self, key: TypeKey, class: ClassId) -> Result<(), BindError> {
        self.bindings.bind_converted(&self.shared, key, class)
    }

    /// Checks a stored object and converts it if its class wants that.
    pub(super) fn make<'a>(&self, object: &'a [u8]) -> Result<Made<'a>, Resolved> {
        self.bindings.make(&self.shared, object).map_err(|e| match e {
            Unmade::Unbound(class) => Resolved::Unbound { class },
            Unmade::Damaged(e) => Resolved::Damaged(e),
            Unmade::Newer(e) => Resolved::Newer(e),
        })
    }
}
