//! The question whether what a method takes or gives at one end of a connection can become what it is at
//! the other end, which was built at another time.
//!
//! The rules are those by which a program reads objects of another version of its class
//! ([`Layout::reads`]). A record inside of another evolves by them, too: no stored object has to hold its
//! bytes, because each message is converted as a whole ([`Payload::convert`](crate::payload::Payload)).

use std::fmt;

use super::shape::widens;
use super::{Layout, Shape};

/// A part that cannot become what the other end reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Where it stands, such as `receipt.lines.cents`.
    pub at: String,
    /// The rule that the change breaks.
    pub what: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.at, self.what)
    }
}

impl Misfit {
    fn new(what: String) -> Misfit {
        Misfit { at: String::new(), what }
    }

    /// The same, as that of a part of the field with this name.
    fn within(self, name: &str) -> Misfit {
        let at = if self.at.is_empty() { name.into() } else { format!("{name}.{}", self.at) };
        Misfit { at, ..self }
    }
}

impl Layout {
    /// Checks that every record of `from` can become one of this layout, but for values of variants that
    /// this layout does not have. Fields may be added, dropped, reordered and widened, enums may have more
    /// variants behind those of the other, and records inside may differ by the same rules.
    ///
    /// # Errors
    /// The first part that cannot.
    pub fn fits(&self, from: &Layout) -> Result<(), Misfit> {
        self.fields.iter().try_for_each(|p| match from.field(&p.name) {
            Some(q) => p.shape.fits(&q.shape).map_err(|misfit| misfit.within(&p.name)),
            None => Ok(()),
        })
    }
}

impl Shape {
    fn fits(&self, from: &Shape) -> Result<(), Misfit> {
        match (self, from) {
            (Shape::Scalar(to), Shape::Scalar(from)) if widens(*from, *to) => Ok(()),
            (Shape::Ref(to), Shape::Ref(_)) | (Shape::Far(to), Shape::Far(_)) if to.is_empty() => Ok(()),
            (Shape::Option(to), Shape::Option(from)) | (Shape::List(to), Shape::List(from)) => to.fits(from),
            (Shape::Record(to), Shape::Record(from)) if to.name == from.name => to.fits(from),
            (Shape::Enum(to), Shape::Enum(from)) if to.name == from.name => to.fits_variants(from),
            (to, from) if to == from => Ok(()),
            (to, from) => Err(Misfit::new(format!("`{from}` cannot become `{to}`"))),
        }
    }
}

impl Layout {
    /// Compares enums: a value names its variant by position, so the variants that both have are the same
    /// ones, with fields of the same names.
    fn fits_variants(&self, from: &Layout) -> Result<(), Misfit> {
        // The first field of both is the tag.
        self.fields.iter().zip(&from.fields).skip(1).try_for_each(|(p, q)| {
            let (Shape::Record(to), Shape::Record(of)) = (&p.shape, &q.shape) else { return Ok(()) };
            let names = |l: &Layout| l.fields.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
            if p.name != q.name || names(to) != names(of) {
                return Err(Misfit::new(format!(
                    "variant `{}` of `{}` is gone, elsewhere or of other fields, and an enum only gains variants behind \
                     those that it has",
                    q.name, from.name
                )));
            }
            to.fits(of).map_err(|misfit| misfit.within(&p.name))
        })
    }
}
