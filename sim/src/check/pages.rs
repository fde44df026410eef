//! The stored pages are what the log says: redo repeats history (Mohan et al.: *ARIES*, TODS 1992).
//!
//! The whole log is replayed from its first entry into an empty buffer and laid out as pages; each page that
//! a node has stored must have the same objects, and the stamp of its last change.

use tercel_engine::pages::mob::forwarded;
use tercel_engine::server::{Recovery, ServerConfig};
use tercel_verify::{Kind, Read, View};
use tercel_wire::id::{ClassId, Oref, PageId};
use tercel_wire::page::Page;

use crate::workload::{CRADLE, Ground, bulk_id, cell, cell_id};
use crate::world::{SPACE, World, letter};

/// Compares all stored pages with the log. Gives the flaws, and the views of the objects that all clients
/// know.
pub(crate) fn check(world: &World, ground: &Ground) -> (Vec<String>, Vec<View>) {
    let mut wrong = Vec::new();
    let mut recovery = match Recovery::new(ServerConfig::default(), SPACE, None, 0) {
        Ok(recovery) => recovery,
        Err(e) => return (vec![e.to_string()], Vec::new()),
    };
    for e in world.oracle.promised() {
        if let Err(e) = recovery.replay(e.view, e.stamp, e.kind, &e.payload) {
            return (vec![format!("the whole log cannot be replayed: {e}")], Vec::new());
        }
    }
    let (state, mob) = recovery.into_parts();
    // Objects that a large transaction has placed, but that were never ordered, belong to no state.
    for id in mob.page_ids().into_iter().filter(|page| mob.is_installable(*page, state.stamp)) {
        let due = mob.merge_page(id, None, state.stamp, SPACE, Vec::new());
        for n in world.member_nodes() {
            let stored = world.nodes[n].disk.pages.get(&id).map(|bytes| bytes.as_slice());
            let of = letter(n);
            wrong.extend(flaw(id, due.as_deref(), stored).map(|flaw| format!("page {id} of {of} {flaw}")));
        }
    }
    let classes: Vec<ClassId> =
        state.catalogue.all().into_iter().filter(|(_, l)| cell::is_layout(l)).map(|(id, _)| id).collect();
    let by_log = |oref: Oref| mob.patch(oref.page())?.newest(oref.slot()).map(|o| o.to_vec());
    let first = world.member_nodes()[0];
    let by_pages = |oref: Oref| {
        let bytes = world.nodes[first].disk.pages.get(&oref.page())?;
        Some(Page::parse(bytes, oref.page()).ok()?.object(oref.slot())?.to_vec())
    };
    let views = vec![
        view(ground, &classes, "the log", Kind::Log, &by_log),
        view(ground, &classes, "the store of pages", Kind::Pages, &by_pages),
    ];
    (wrong, views)
}

/// Describes the flaw of a stored page, if it has one.
fn flaw(id: PageId, due: Option<&[u8]>, stored: Option<&[u8]>) -> Option<String> {
    let due = match due.map(|due| Page::parse(due, id)) {
        Some(Ok(due)) => due,
        _ => return Some("cannot be laid out from the log".into()),
    };
    let Some(stored) = stored else {
        return due.objects().next().map(|_| "is in the log and not in the store".into());
    };
    let Ok(stored) = Page::parse(stored, id) else { return Some("cannot be read".into()) };
    if stored.objects().next().is_none() {
        return Some("has nothing in it, and is in the store".into());
    }
    if !due.objects().eq(stored.objects()) {
        return Some("has other objects than the log says".into());
    }
    let (due, stored) = (due.stamp(), stored.stamp());
    (due != stored).then(|| format!("says that it last changed at {stored}, the log says {due}"))
}

fn view(
    ground: &Ground,
    classes: &[ClassId],
    viewer: &str,
    kind: Kind,
    object: &dyn Fn(Oref) -> Option<Vec<u8>>,
) -> View {
    let cells = ground.cells.iter().enumerate().map(|(i, c)| (cell_id(i), *c));
    let bulk = ground.bulk.iter().enumerate().map(|(i, c)| (bulk_id(i), *c));
    let all = cells.chain(bulk).chain([(CRADLE, ground.cradle)]);
    let objects = all.filter_map(|(_, cell)| {
        let found = object(cell.oref())?;
        let found = match forwarded(&found) {
            Some(to) => object(to)?,
            None => found,
        };
        let written = cell::written(&found, classes)?;
        Some(Read { object: written.object, value: written.value })
    });
    View { viewer: viewer.into(), kind, objects: objects.collect() }
}
