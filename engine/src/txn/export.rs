//! Exports: objects that far references of other spaces may name.
//!
//! The table of exports is made of ordinary objects, and the target of the head of the list of roots leads to
//! it. So an export is a path from a root: it is committed, conflicts, is collected, checked and backed up as
//! any other reference is. The table's node has a node for each part of the places of objects; such a part
//! has the objects, and with each the state in which it was exported.
//!
//! The invariant: a far reference whose state stands beside its place in the table names the object that is
//! there, for the table has kept that object since.

use tercel_wire::class::ROOT_HEAD;
use tercel_wire::far::Far;
use tercel_wire::id::{Oref, SpaceId, Stamp, ViewId};
use tercel_wire::record::{Any, Class, Encoder, List, Ref, Value as _};
use tercel_wire::schema;
use tercel_wire::token::Token;

use super::object::{Field as _, ListField as _, Obj, Object, RawMut, RawObj, Root, Schema, Stored, Type};
use super::{Options, Tx};
use crate::error::{Bound, Error};

/// Parts of the table: a change sends one of them, and meets those of one in so many others.
const PARTS: usize = 256;

/// Objects in a part, so that all of its lists stay in one record.
const PART_MAX: usize = 128;

/// The name of the table's class.
pub const TABLE: &str = "exports.Node";

/// A node of the table of exports: its root, whose objects are the parts, or such a part.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    objects: List<Ref<Any>>,
    /// By object, the stamp of the state that the transaction read which exported it, and the view.
    stamps: List<u64>,
    views: List<u64>,
}

tercel_heap::typed!(Exports);

impl Class for Exports {
    const SCHEMA: Schema = Schema {
        name: TABLE,
        fields: &[
            schema::Field { name: "objects", ty: Type::List(&Type::Ref("")) },
            schema::Field { name: "stamps", ty: Type::List(&Type::Scalar(schema::Scalar::U64)) },
            schema::Field { name: "views", ty: Type::List(&Type::Scalar(schema::Scalar::U64)) },
        ],
    };

    fn encode(&self, e: &mut Encoder<'_>) {
        self.objects.put(e, Self::SCHEMA.offset(0));
        self.stamps.put(e, Self::SCHEMA.offset(1));
        self.views.put(e, Self::SCHEMA.offset(2));
    }
}

impl Object for Exports {
    type View<'t> = RawObj<'t, Exports>;
    type Mut<'t> = RawMut<'t, Exports>;
    fn view<'t>(raw: RawObj<'t, Exports>) -> RawObj<'t, Exports> {
        raw
    }
    fn raw<'a, 't>(view: &'a Self::View<'t>) -> &'a RawObj<'t, Exports> {
        view
    }
    fn edit<'t>(raw: RawMut<'t, Exports>) -> RawMut<'t, Exports> {
        raw
    }
    fn load(stored: &Stored<'_>) -> Result<Exports, Error> {
        Ok(Exports {
            objects: List(Ref::load_items(stored, Self::SCHEMA.offset(0))?),
            stamps: List(u64::load_items(stored, Self::SCHEMA.offset(1))?),
            views: List(u64::load_items(stored, Self::SCHEMA.offset(2))?),
        })
    }
}

impl Exports {
    /// The place of an object among its own, if it is there.
    fn position(&self, oref: Oref) -> Option<usize> {
        self.objects.iter().position(|object| object.oref() == oref)
    }

    /// The far reference of an object of this part.
    fn far<T>(&self, i: usize, space: SpaceId) -> Far<T> {
        let (view, stamp) = (self.views[i], Stamp(self.stamps[i]));
        let view = ViewId::new((view >> 32) as u32, view as u32);
        Far::new(Token { space, view, stamp }, self.objects[i].oref())
    }
}

/// The part that has an object.
fn part_of(oref: Oref) -> usize {
    // Fibonacci hashing (Knuth): neighbours go to parts far from each other.
    (oref.raw().wrapping_mul(0x9e37_79b9) >> 24) as usize % PARTS
}

impl<'c> Tx<'c> {
    /// Exports an object: from this transaction's commit on the space keeps it, and what it leads to, for the
    /// far references of others, until it is [withdrawn](Tx::withdraw). Exported again it keeps the far
    /// reference that it has.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Full` if the space exports as many as it can; as [`Tx::create`].
    pub fn export<T: Object>(&self, object: Ref<T>) -> Result<Far<T>, Error> {
        let oref = self.get(object)?.reference().oref();
        let (part, mut all) = self.part(oref)?;
        let space = self.began.at.space;
        if let Some(i) = all.position(oref) {
            return Ok(all.far(i, space));
        }
        if all.objects.len() >= PART_MAX {
            return Err(Error::Full(Bound::Exports { max: PARTS * PART_MAX }));
        }
        // The transaction may read a state of a later view than it began with.
        let Token { view, stamp, .. } = self.state()?;
        all.objects.0.push(object.cast());
        all.stamps.0.push(stamp.0);
        all.views.0.push(u64::from(view.number) << 32 | u64::from(view.incarnation));
        let far = all.far(all.objects.len() - 1, space);
        match part {
            Some(part) => self.replace(part.reference(), &all)?,
            None => self.add_part(part_of(oref), &all)?,
        }
        Ok(far)
    }

    /// Ends an export: the space keeps the object no longer than its own references do. Says whether there
    /// was that export.
    ///
    /// # Errors
    /// `Invalid` if the far reference leads to another space; as [`Tx::get`] and [`Tx::edit`].
    pub fn withdraw<T>(&self, far: Far<T>) -> Result<bool, Error> {
        self.is_here(far)?;
        let (Some(part), mut all) = self.part(far.oref())? else { return Ok(false) };
        let found = all.position(far.oref()).filter(|i| all.far(*i, far.space()) == far);
        let Some(i) = found else { return Ok(false) };
        all.objects.0.swap_remove(i);
        all.stamps.0.swap_remove(i);
        all.views.0.swap_remove(i);
        self.replace(part.reference(), &all)?;
        Ok(true)
    }

    /// The object that a far reference of this space names.
    ///
    /// # Errors
    /// `Invalid` if it leads to another space; `OtherHistory` if it was exported in a state that the space
    /// was put back from; `NotFound` if it was withdrawn, or its export is not seen yet; `Schema` if the
    /// object is of another class; as [`Tx::get`].
    pub fn get_far<'t, T: Object>(&'t self, far: Far<T>) -> Result<Obj<'t, T>, Error> {
        self.is_here(far)?;
        let (_, all) = self.part(far.oref())?;
        match all.position(far.oref()).filter(|i| all.far(*i, far.space()) == far) {
            Some(i) => self.get(all.objects[i].cast()),
            None => Err(self.why_not(far)?),
        }
    }

    /// All far references of this space, of objects of any class.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub fn exports(&self) -> Result<Vec<Far<Any>>, Error> {
        let mut out = Vec::new();
        let Some(table) = self.table()? else { return Ok(out) };
        for part in table.to_value()?.objects.iter().filter(|part| !part.is_null()) {
            let all = self.load_part(&self.get(part.cast())?)?;
            out.extend((0..all.objects.len()).map(|i| all.far(i, self.began.at.space)));
        }
        out.sort_unstable();
        Ok(out)
    }

    /// The reason why a far reference of this space names no export. If it was exported in another view than
    /// this transaction reads, the server says whether that state is of the history of the space.
    fn why_not<T>(&self, far: Far<T>) -> Result<Error, Error> {
        if far.token().view != self.state()?.view {
            let options = Options { at_least: Some(far.token()), ..Options::default() };
            let _ = Tx::begin_until(self.port, &options, self.until)?;
        }
        Ok(Error::NotFound(format!(
            "the export {far}, which was withdrawn or is newer than this transaction (to rule the latter out, absorb the \
             exporter's token in a session),"
        )))
    }

    fn is_here<T>(&self, far: Far<T>) -> Result<(), Error> {
        let here = self.began.at.space;
        if far.is_null() {
            return Err(Error::NotFound("the object of a null far reference".into()));
        }
        if far.space() != here {
            let text = format!("{far} leads to space {:x}, and this is space {:x}", far.space().0, here.0);
            return Err(Error::Invalid(format!("{text}: follow it in a session, with `Session::follow`")));
        }
        Ok(())
    }

    /// The root of the table, if anything was ever exported.
    fn table<'t>(&'t self) -> Result<Option<Obj<'t, Exports>>, Error> {
        let head = self.get(Ref::<Root>::new(ROOT_HEAD))?;
        let table = <Ref<Exports>>::got(&*head, Root::SCHEMA.offset(1)).reference();
        if table.is_null() { Ok(None) } else { self.get(table).map(Some) }
    }

    /// The part that has an object, or would have it, and its value; the object is none if the part was not
    /// made yet.
    fn part<'t>(&'t self, oref: Oref) -> Result<(Option<Obj<'t, Exports>>, Exports), Error> {
        let Some(table) = self.table()? else { return Ok((None, Exports::default())) };
        let parts = List::<Ref<Any>>::got(&*table, Exports::SCHEMA.offset(0)).cast::<Exports>();
        match parts.find(part_of(oref))? {
            None => Ok((None, Exports::default())),
            Some(part) => self.load_part(&part).map(|all| (Some(part), all)),
        }
    }

    /// The value of a part. Its lists are of one length.
    fn load_part(&self, part: &Obj<'_, Exports>) -> Result<Exports, Error> {
        let all = part.to_value()?;
        match all.objects.len() == all.stamps.len() && all.objects.len() == all.views.len() {
            true => Ok(all),
            false => {
                let oref = part.reference().oref();
                Err(Error::Corrupt(format!(
                    "the node {oref} of the table of exports has lists of several lengths"
                )))
            }
        }
    }

    /// Makes a part, and the table with the first of them.
    fn add_part(&self, at: usize, part: &Exports) -> Result<(), Error> {
        let part = self.create(part)?.cast();
        match self.table()? {
            Some(table) => {
                let mut all = table.to_value()?;
                let slot = all.objects.0.get_mut(at);
                *slot.ok_or_else(|| Error::Corrupt("the table of exports is too short".into()))? = part;
                self.replace(table.reference(), &all)
            }
            None => {
                let mut objects = vec![Ref::NULL; PARTS];
                objects[at] = part;
                let table = self.create(&Exports { objects: List(objects), ..Exports::default() })?;
                let head = self.edit(Ref::<Root>::new(ROOT_HEAD))?;
                head.set(1, Root::SCHEMA.offset(1), table.cast::<Any>())
            }
        }
    }
}

// All lists of a part stand in its record, and the parts in the table's.
const _: () = assert!(PART_MAX * 8 <= tercel_wire::record::SPILL_BYTES);
const _: () = assert!(PARTS * 4 <= tercel_wire::record::SPILL_BYTES);
