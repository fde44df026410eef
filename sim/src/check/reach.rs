//! When all is quiet and collections have come to their end, what is in the pages is what the roots reach,
//! and ordered state counts it right.

use std::collections::BTreeSet;

use tercel_engine::pages::mob::{Mob, forwarded};
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::Entry;
use tercel_wire::class;
use tercel_wire::cursor::le32;
use tercel_wire::id::{Oref, PageId};
use tercel_wire::page::{Page, class_of};
use tercel_wire::record::HEADER_BYTES;

use crate::world::{SPACE, World};

/// Compares what the log has left with what the roots reach. Gives the flaws.
pub(crate) fn check(world: &World) -> Vec<String> {
    let (mut state, mut mob) = (Replica::new(), Mob::default());
    for e in world.oracle.promised() {
        let applied = Entry::decode(e.kind, &e.payload)
            .and_then(|entry| state.apply(e.stamp, e.view, &entry, &mut mob));
        if let Err(why) = applied {
            return vec![format!("entry {} of the whole log cannot be applied: {why}", e.stamp)];
        }
    }
    compare(&state, &mob, world.excuses_damage() || world.record.excuses_chunks)
}

/// Chunks of a released tree stay where they are if a page of it could not be read when they were to be freed.
fn compare(state: &Replica, mob: &Mob, excuses_chunks: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let Reached { objects, empty } = reach(state, mob);
    let mut all = BTreeSet::new();
    for page in (1..state.places.next_page()).filter_map(PageId::new) {
        let found = objects_of(page, state, mob);
        let filled = state.places.filled(page) as usize;
        if filled != found.len() {
            wrong.push(format!(
                "ordered state counts {filled} objects in page {page}, and there are {}",
                found.len()
            ));
        }
        if !found.is_empty() && state.places.returned_at(page).is_some() {
            wrong.push(format!("page {page} has returned, and there are {} objects in it", found.len()));
        }
        if state.places.is_held_back(page) && !empty.iter().any(|oref| oref.page() == page) {
            wrong.push(format!("page {page} is held back, and no object names an empty place there"));
        }
        all.extend(found);
    }
    let class = |oref: Oref| newest(oref, mob).map_or(class::ROOT, class_of);
    let is_chunk = |oref| matches!(class(oref), class::BYTES_LEAF | class::REFS_LEAF | class::CHUNK_NODE);
    let left: Vec<Oref> =
        all.difference(&objects).copied().filter(|oref| !(excuses_chunks && is_chunk(*oref))).collect();
    if let Some(first) = left.first() {
        let (count, class) = (left.len(), class(*first).0);
        wrong.push(format!(
            "nothing leads to {count} objects that are left, among them {first}, of class {class}"
        ));
    }
    let is_kept = |oref: &&Oref| {
        let (places, page) = (&state.places, oref.page());
        places.is_held_back(page) || places.granted(page).is_some_and(|granted| granted.is_named)
    };
    if let Some(named) = empty.iter().find(|oref| !is_kept(oref)) {
        wrong.push(format!(
            "an object names the empty place {named}, whose page is not kept from being given out again"
        ));
    }
    if let Some(lost) = objects.difference(&all).next() {
        wrong.push(format!("object {lost} is reached, and is not in its page"));
    }
    if state.released.count() > 0 {
        wrong.push(format!("{} trees of chunks that no object owns are left", state.released.count()));
    }
    wrong
}

/// Where the roots lead.
struct Reached {
    objects: BTreeSet<Oref>,
    /// Places in which there is nothing.
    empty: BTreeSet<Oref>,
}

fn reach(state: &Replica, mob: &Mob) -> Reached {
    let mut reached = Reached { objects: BTreeSet::new(), empty: BTreeSet::new() };
    let mut todo = vec![class::ROOT_HEAD];
    while let Some(at) = todo.pop() {
        let Some(object) = newest(at, mob) else {
            reached.empty.insert(at);
            continue;
        };
        if !reached.objects.insert(at) {
            continue;
        }
        if let Some(to) = forwarded(object) {
            todo.push(to);
        } else if let Some(layout) = state.catalogue.class(class_of(object)) {
            let body = &object[HEADER_BYTES..];
            layout.refs(body, |at| todo.extend(Oref::from_raw(le32(body, at)).filter(|to| !to.is_null())));
        }
    }
    reached
}

fn newest(oref: Oref, mob: &Mob) -> Option<&[u8]> {
    mob.patch(oref.page())?.newest(oref.slot()).filter(|object| !object.is_empty())
}

fn objects_of(page: PageId, state: &Replica, mob: &Mob) -> Vec<Oref> {
    let Some(bytes) = mob.merge_page(page, None, state.stamp, SPACE, Vec::new()) else { return Vec::new() };
    let Ok(laid_out) = Page::parse(&bytes, page) else { return Vec::new() };
    laid_out.objects().filter_map(|(slot, _)| Oref::new(page, slot)).collect()
}
