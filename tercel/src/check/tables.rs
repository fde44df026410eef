//! Comparing the indexes of tables with their rows.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use tercel_collections::table::audit::{Found, audit};
use tercel_engine::Error;
use tercel_engine::pages::mob::forwarded;
use tercel_wire::id::{ClassId, Oref, PageId};
use tercel_wire::layout::Layout;
use tercel_wire::page::{Page, class_of};
use tercel_wire::record::HEADER_BYTES;

use super::CheckError;
use super::recovered::RecoveredImage;
use super::report::{Finding, Kind, Report};
use super::walk::flaw_of;
use crate::disk::DiskError;

/// Pages that are held while tables are looked at: 8 MiB. Rows that were inserted together stand together.
const PAGES_MAX: usize = 1_024;

/// The objects of a space, by their pages.
struct Objects<'a> {
    recovered: &'a RecoveredImage,
    classes: HashMap<ClassId, Arc<Layout>>,
    pages: HashMap<PageId, Option<Vec<u8>>>,
    /// The reason why a page could not be read, which ends the check.
    failed: &'a RefCell<Option<DiskError>>,
}

impl Objects<'_> {
    fn page(&mut self, id: PageId) -> Result<Option<&[u8]>, Error> {
        if !self.pages.contains_key(&id) {
            if self.pages.len() == PAGES_MAX {
                self.pages.clear();
            }
            let base = self.recovered.page(id).map_err(|e| {
                let told = Error::Corrupt(e.to_string());
                self.failed.replace(Some(e));
                told
            })?;
            let base = base.as_deref().and_then(|bytes| Page::parse(bytes, id).ok());
            let (mob, stamp) = (&self.recovered.mob, self.recovered.state.stamp);
            let merged = mob.merge_page(id, base, stamp, self.recovered.space, Vec::new());
            self.pages.insert(id, merged);
        }
        Ok(self.pages.get(&id).and_then(|page| page.as_deref()))
    }

    /// The body of an object, wherever it went; none if there is none, or it is damaged, which is told of
    /// it elsewhere.
    fn get(&mut self, oref: Oref) -> Result<Found, Error> {
        let mut at = oref;
        for _ in 0..2 {
            let Some(bytes) = self.page(at.page())? else { return Ok(None) };
            let Ok(page) = Page::parse(bytes, at.page()) else { return Ok(None) };
            let Some(object) = page.object(at.slot()) else { return Ok(None) };
            if let Some(to) = forwarded(object) {
                at = to;
                continue;
            }
            let object = object.to_vec();
            let layout = self.classes.get(&class_of(&object));
            return Ok(match flaw_of(&self.recovered.state, &object) {
                None => layout.map(|layout| (layout.clone(), object[HEADER_BYTES..].to_vec())),
                Some(_) => None,
            });
        }
        Ok(None)
    }
}

/// Compares the indexes of these tables with their rows; adds the differences to the report.
pub(super) fn compare(
    recovered: &RecoveredImage,
    tables: &[Oref],
    report: &mut Report,
) -> Result<(), CheckError> {
    let failed = RefCell::new(None);
    let catalogue = &recovered.state.catalogue;
    let classes = catalogue.all().into_iter().map(|(id, layout)| (id, Arc::new(layout.clone()))).collect();
    let mut objects = Objects { recovered, classes, pages: HashMap::new(), failed: &failed };
    let class = |name: &str| catalogue.newest(name).map(|(_, layout)| Arc::new(layout.clone()));
    for table in tables {
        let mut find = |text: String| report.find(Finding::new(Kind::Index, text).object(*table));
        let done = audit(*table, &class, &mut |oref| objects.get(oref), &mut find);
        if let Some(e) = failed.take() {
            return Err(e.into());
        }
        if let Err(e) = done {
            find(format!("the table {table} cannot be compared with its indexes: {e}"));
        }
    }
    Ok(())
}
