//! Classes: a new one is ordered, and announced once it is visible.

use tercel_wire::frame::BODY_BYTES_MAX;
use tercel_wire::id::{ClassId, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::message::{Classes, Refusal};

use super::{Asked, Leader, Reply, Work};
use crate::limits;
use crate::replica::entry::Entry;

/// A class that is ordered and not yet visible, and the requests that wait for it.
#[derive(Debug)]
pub(super) struct Defining {
    stamp: Stamp,
    id: ClassId,
    pub asked: Vec<Asked>,
}

impl Leader {
    /// A client wants to know the number of a class.
    pub(crate) fn define(&mut self, asked: Asked, layout: Layout, work: &mut Work) {
        if let Err(lack) = work.may_define(asked, false) {
            return work.refuse(asked, Refusal::Denied, lack.to_string());
        }
        let known = work.replica.catalogue.all().into_iter().find(|(_, l)| **l == layout).map(|(id, _)| id);
        if let Some(id) = known {
            let Some(defining) = self.ordered.classes.iter_mut().find(|d| d.id == id) else {
                return work.replies.push(Reply::Defined(asked, id));
            };
            if defining.asked.len() < limits::SESSIONS_MAX {
                return defining.asked.push(asked);
            }
            return work.refuse(asked, Refusal::FULL, "too many clients define the class at once");
        }
        if let Err(lack) = work.may_define(asked, true) {
            return work.refuse(asked, Refusal::Denied, lack.to_string());
        }
        match next_class(&layout, work) {
            Err((reason, text)) => work.refuse(asked, reason, text),
            Ok(id) => {
                let stamp = self.order(&Entry::Define(id, layout), None, work);
                // The leader announces a number only once it is visible. A lost number could be given to
                // another class, and a client that knew of it would write objects of the wrong class.
                self.ordered.classes.push_back(Defining { stamp, id, asked: vec![asked] });
            }
        }
    }

    /// Tells of the classes that have become visible.
    pub(super) fn defined_upto(&mut self, visible: Stamp, work: &mut Work) {
        while let Some(defining) = self.ordered.classes.pop_front_if(|d| d.stamp <= visible) {
            work.replies.extend(defining.asked.into_iter().map(|asked| Reply::Defined(asked, defining.id)));
        }
    }

    /// The classes that are visible, as a message.
    pub(crate) fn catalogue(&self, work: &Work) -> Classes {
        let is_visible = |id| self.ordered.classes.iter().all(|d| d.id != id);
        let users = work.replica.catalogue.users().filter(|(id, _)| is_visible(*id));
        Classes { classes: users.map(|(id, l)| (id, l.clone())).collect() }
    }
}

/// The number of a class that is not there yet, or why there cannot be one.
fn next_class(layout: &Layout, work: &Work) -> Result<ClassId, (Refusal, String)> {
    let catalogue = &work.replica.catalogue;
    if layout.name().starts_with("tercel.") {
        return Err((Refusal::Schema, "classes named tercel.* are Tercel's own".into()));
    }
    if let Some((id, newest)) = catalogue.newest(layout.name())
        && let Err(e) = layout.accepts(newest)
    {
        return Err((
            Refusal::Schema,
            format!("{e} (the new version against version {} in the space)", id.0),
        ));
    }
    if catalogue.len() >= limits::CLASSES_MAX {
        return Err((Refusal::FULL, "the space has all the classes it can hold".into()));
    }
    let all = catalogue.all();
    let next = all.last().map_or(ClassId::FIRST_USER.0, |(id, _)| id.0 + 1);
    let id = ClassId(next.max(ClassId::FIRST_USER.0));
    // The catalogue must still fit into one message.
    let users = catalogue.users().chain([(id, layout)]).map(|(id, l)| (id, l.clone()));
    let mut body = Vec::new();
    Classes { classes: users.collect() }.encode(&mut body);
    if body.len() > BODY_BYTES_MAX {
        let text =
            "the space's classes would not fit into one message any more: define fewer, or with less text";
        return Err((Refusal::Schema, text.into()));
    }
    if let Some((why, text)) = work.refuses_writes() {
        return Err((why, text.into()));
    }
    Ok(id)
}
