//! Looking at every object and reference of a space.

use std::collections::{BTreeMap, HashMap};

use tercel_engine::replica::Replica;
use tercel_engine::txn::export::TABLE;
use tercel_wire::class::{FORWARD, ROOT_HEAD};
use tercel_wire::cursor::le32;
use tercel_wire::id::{Oref, PageId, SLOTS_MAX};
use tercel_wire::layout::{Var, var};
use tercel_wire::page::{Page, class_of};
use tercel_wire::record::HEADER_BYTES;

use super::CheckError;
use super::recovered::RecoveredImage;
use super::report::{Finding, Kind, Report};
use super::tables;
use crate::disk::dir::PAGES_NAME;

/// The targets of references: the highest page that any reference names, and for damaged pages the slots
/// below which some are named.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub page_max: u32,
    pub slots: BTreeMap<PageId, u16>,
}

/// Looks at everything; adds the findings to the report.
pub(super) fn walk(
    recovered: &RecoveredImage,
    report: &mut Report,
    progress: &mut impl FnMut(u64, u64),
) -> Result<Named, CheckError> {
    let mut walk = Walk {
        recovered,
        report,
        slots: HashMap::new(),
        named: Vec::new(),
        moved: Vec::new(),
        tables: Vec::new(),
    };
    let ids = recovered.ids();
    for (done, id) in ids.iter().enumerate() {
        walk.page(*id)?;
        if done % PROGRESS_PAGES == 0 {
            progress(done as u64, ids.len() as u64);
        }
    }
    let tables = std::mem::take(&mut walk.tables);
    let named = walk.finish();
    tables::compare(recovered, &tables, report)?;
    Ok(named)
}

/// Describes the flaw of an object, whose bytes include the header; none if the object is sound.
pub(super) fn flaw_of(state: &Replica, object: &[u8]) -> Option<String> {
    let class = class_of(object);
    let Some(layout) = state.catalogue.class(class) else {
        return Some(format!("the space has no class {}", class.0));
    };
    layout.check(&object[HEADER_BYTES..]).err().map(|e| e.to_string())
}

const PROGRESS_PAGES: usize = 256;

type Slots = [u64; SLOTS_MAX as usize / 64];

struct Walk<'a> {
    recovered: &'a RecoveredImage,
    report: &'a mut Report,
    /// Slots with objects, a bit each.
    slots: HashMap<PageId, Slots>,
    /// References, each with the object that holds it; looked up at the end.
    named: Vec<(Oref, Oref)>,
    /// Tables, whose indexes are compared at the end.
    tables: Vec<Oref>,
    /// Objects that outgrew their pages, and the new places that they name; looked up at the end.
    moved: Vec<(Oref, Oref)>,
}

impl Walk<'_> {
    fn page(&mut self, id: PageId) -> Result<(), CheckError> {
        let recovered = self.recovered;
        if let Some(restored) = recovered.restored.get(&id)
            && let Some(what) = &restored.what
        {
            let file = recovered.path.join(PAGES_NAME);
            let held = restored.bytes.as_deref().and_then(|b| Page::trusted(b, id).ok());
            let slots: Vec<u16> = held.iter().flat_map(|p| p.objects()).map(|(slot, _)| slot).collect();
            let held = match (restored.full, slots.len()) {
                (true, n) => format!("all of its {n} objects"),
                (false, 0) => "nothing of it".into(),
                (false, n) => format!("{n} of its objects: {}", names(id, &slots)),
            };
            let text = format!("{what}; the log holds {held}");
            let finding = Finding::new(Kind::Page, text).page(id).file(file);
            self.report.find(if restored.full { finding.repairable() } else { finding });
            if !restored.full {
                // Its objects count as there, so that one damaged page is not reported for every reference to
                // it.
                self.slots.insert(id, [u64::MAX; SLOTS_MAX as usize / 64]);
            }
        }
        let base = recovered.page(id)?;
        let base = match base.as_deref().map(|bytes| Page::parse(bytes, id)) {
            Some(Err(e)) => {
                self.slots.insert(id, [u64::MAX; SLOTS_MAX as usize / 64]);
                self.report.find(Finding::new(Kind::Page, e.to_string()).page(id));
                return Ok(());
            }
            Some(Ok(page)) => Some(page),
            None => None,
        };
        let Some(bytes) =
            recovered.mob.merge_page(id, base, recovered.state.stamp, recovered.space, Vec::new())
        else {
            let text = format!("page {id}: the log's objects do not fit into it");
            self.report.find(Finding::new(Kind::Page, text).page(id));
            return Ok(());
        };
        let Ok(page) = Page::parse(&bytes, id) else { return Ok(()) };
        self.report.pages += 1;
        let mut bits: Slots = [0; SLOTS_MAX as usize / 64];
        for (slot, object) in page.objects() {
            bits[slot as usize / 64] |= 1 << (slot % 64);
            self.report.objects += 1;
            if let Some(oref) = Oref::new(id, slot) {
                self.object(oref, object);
            }
        }
        self.slots.entry(id).or_insert(bits);
        Ok(())
    }

    fn object(&mut self, oref: Oref, object: &[u8]) {
        let class = class_of(object);
        let layout = self.recovered.state.catalogue.class(class);
        if let Some(flaw) = flaw_of(&self.recovered.state, object) {
            let name = layout.map(|l| l.name());
            let of = name.map_or_else(String::new, |name| format!(" of class {name}"));
            let text = format!("object {oref}{of}: {flaw}");
            return self.report.find(Finding::new(Kind::Object, text).object(oref).class(name));
        }
        let Some(layout) = layout else { return };
        let body = &object[HEADER_BYTES..];
        if layout.name() == TABLE
            && let Some(stamps) = layout.field("stamps")
            && let Var::Here { len, .. } = var(body, stamps.at)
        {
            self.report.exports += len as u64;
        }
        if layout.name() == tercel_collections::table::audit::TABLE {
            self.tables.push(oref);
        }
        let held = if class == FORWARD { &mut self.moved } else { &mut self.named };
        layout.refs(body, |at| {
            if let Some(to) = Oref::from_raw(le32(body, at)).filter(|to| !to.is_null()) {
                held.push((to, oref));
            }
        });
        if class == FORWARD && self.moved.last().is_none_or(|(_, by)| *by != oref) {
            let text = format!("object {oref} points on to nowhere");
            self.report.find(Finding::new(Kind::Object, text).object(oref).class(Some(layout.name())));
        }
    }

    fn finish(self) -> Named {
        let Walk { recovered, report, slots, named, moved, tables: _ } = self;
        let exists = |o: Oref| {
            slots.get(&o.page()).is_some_and(|b| b[o.slot() as usize / 64] & (1 << (o.slot() % 64)) != 0)
        };
        let mut out = Named::default();
        // A client may refer to any place that was promised, made or not. Every other place that is referred
        // to must be there.
        let promised = |to: Oref| to.page().get() < recovered.state.places.next_page();
        let all = named.into_iter().map(|(to, by)| (to, by, promised(to)));
        for (to, by, may_be_empty) in all.chain(moved.into_iter().map(|(to, by)| (to, by, false))) {
            out.page_max = out.page_max.max(to.page().get());
            if recovered.restored.contains_key(&to.page()) || recovered.doubtful.contains(&to.page()) {
                let slots = out.slots.entry(to.page()).or_default();
                *slots = (*slots).max(to.slot() + 1);
            }
            if exists(to) {
                report.references += 1;
            } else if may_be_empty {
                report.unfilled += 1;
            } else {
                let text = format!("object {by} refers to {to}, which does not exist");
                report.find(Finding::new(Kind::Reference, text).object(by));
            }
        }
        if !exists(ROOT_HEAD) {
            let text = "the head of the list of roots is missing".into();
            report.find(Finding::new(Kind::Reference, text).object(ROOT_HEAD));
        }
        out
    }
}

/// Some objects' names, not too many.
fn names(page: PageId, slots: &[u16]) -> String {
    let mut names: Vec<String> = slots.iter().take(NAMES_MAX).map(|slot| format!("{page}.{slot}")).collect();
    if slots.len() > NAMES_MAX {
        names.push("...".into());
    }
    names.join(" ")
}

/// Objects of a damaged page that are named in one line.
const NAMES_MAX: usize = 16;
