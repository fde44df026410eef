//! A client that does what no program can do with this engine: it sends an object that has the large value of
//! another.
//!
//! Bytes of this type know the word of the tree of chunks in which they were found. Written into another
//! object they do not make a tree of their own, but bring that word along. The server refuses that, for a
//! tree of chunks has one owner.

use tercel_engine::error::Error;
use tercel_engine::object::{Field, Object, RawObj, Stored};
use tercel_wire::id::Oref;
use tercel_wire::layout::SPILLED;
use tercel_wire::record::{Bytes, Encoder, Value};
use tercel_wire::schema::Type;

/// Stored as [`Bytes`] are.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// All of them.
    pub bytes: Bytes,
    /// The root of the tree in which they were found, and the length that stands beside it.
    tree: Option<(Oref, u32)>,
}

impl Load {
    /// Says whether the bytes were found in a tree.
    pub(super) fn is_in_tree(&self) -> bool {
        self.tree.is_some()
    }
}

impl From<Vec<u8>> for Load {
    fn from(bytes: Vec<u8>) -> Load {
        Load { bytes: bytes.into(), tree: None }
    }
}

impl Value for Load {
    const TYPE: Type = Type::Bytes;

    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        match self.tree {
            Some((root, len)) => e.put_tree(at, root, len),
            None => self.bytes.put(e, at),
        }
    }
}

impl Field for Load {
    type Got<'a, 't, T: Object>
        = Result<Load, Error>
    where
        't: 'a;

    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Result<Load, Error> {
        Load::load(&obj.stored(), at)
    }

    fn load(stored: &Stored<'_>, at: usize) -> Result<Load, Error> {
        let (from, len) = (u16::load(stored, at)?, u16::load(stored, at + 2)?);
        let tree = match len == SPILLED && from != SPILLED {
            true => {
                let from = usize::from(from);
                let root = Oref::from_raw(u32::load(stored, from)?);
                let len = u32::load(stored, from + 4)?;
                root.map(|root| (root, len))
            }
            false => None,
        };
        Ok(Load { bytes: Bytes::load(stored, at)?, tree })
    }
}
