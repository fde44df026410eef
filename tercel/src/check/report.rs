//! The report of a check.

use std::path::PathBuf;

use tercel_wire::id::{Oref, PageId, Stamp};

/// The findings of a check, and the counts of what it has read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Pages that exist.
    pub pages: u64,
    /// Objects in them.
    pub objects: u64,
    /// References that name an object.
    pub references: u64,
    /// References to places that were promised for objects and are empty. Either a program was interrupted
    /// between the commits of the reference and of the object, or an earlier repair could not save the
    /// object. In the latter case the loss is in `lost`. Nothing is damaged; a read of such a place is
    /// answered `NotFound`.
    pub unfilled: u64,
    /// Objects that the space keeps for far references of other spaces.
    pub exports: u64,
    /// Log records that are not in the pages yet.
    pub log_records: u64,
    /// Set if the log ends in an unfinished write, which the next opening cuts. The server had confirmed that
    /// write to no client.
    pub torn: bool,
    /// The last commit.
    pub stamp: Stamp,
    /// The findings, at most [`FINDINGS_MAX`]. Findings beyond repair are the last to be left out.
    pub findings: Vec<Finding>,
    /// The number of all findings.
    pub wrong: u64,
    /// The number of findings that a repair cannot correct without a loss.
    pub beyond_repair: u64,
    /// The losses of earlier repairs, a sentence each, as in the directory's `lost.txt`.
    pub lost: Vec<String>,
    /// The number of findings beyond repair that a check will no longer show after a repair of the files.
    pub(super) passing: u64,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of thing that is wrong.
    pub kind: Kind,
    /// The file that has it.
    pub file: Option<PathBuf>,
    /// The byte of the file at which it begins.
    pub offset: Option<u64>,
    /// The page that is wrong.
    pub page: Option<PageId>,
    /// The object that is wrong.
    pub object: Option<Oref>,
    /// The object's class, if it is known.
    pub class: Option<String>,
    /// A repair puts it right without losing anything.
    pub repairable: bool,
    /// A sentence.
    pub text: String,
}

/// The subjects of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The directory's version.
    Format,
    /// The fixed properties of the space.
    Space,
    /// The structure of the page store.
    Store,
    /// A page.
    Page,
    /// The checkpoint in the page store.
    Checkpoint,
    /// An object.
    Object,
    /// A reference to what does not exist.
    Reference,
    /// A table whose index is not as its rows are.
    Index,
    /// The log.
    Log,
    /// Commits that were durable and are not any more.
    Commits,
    /// The place in a group.
    Member,
}

impl Kind {
    /// The name that programs read.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Format => "format",
            Kind::Space => "space",
            Kind::Store => "store",
            Kind::Page => "page",
            Kind::Checkpoint => "checkpoint",
            Kind::Object => "object",
            Kind::Reference => "reference",
            Kind::Index => "index",
            Kind::Log => "log",
            Kind::Commits => "commits",
            Kind::Member => "member",
        }
    }
}

/// Findings that are kept with their text.
pub const FINDINGS_MAX: usize = 100;

impl Report {
    pub(super) fn find(&mut self, what: Finding) {
        self.wrong += 1;
        self.beyond_repair += u64::from(!what.repairable);
        self.passing += u64::from(what.weight() == Weight::Passing);
        if self.findings.len() == FINDINGS_MAX {
            let least = (0..FINDINGS_MAX).rev().min_by_key(|i| self.findings[*i].weight());
            let Some(least) = least.filter(|i| self.findings[*i].weight() < what.weight()) else { return };
            self.findings.remove(least);
        }
        self.findings.push(what);
    }

    /// Says whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.wrong == 0
    }

    /// Says whether nothing is wrong and every loss of an earlier repair has been dealt with.
    pub fn is_whole(&self) -> bool {
        self.is_sound() && self.lost.is_empty()
    }
}

/// The weight of a finding. In a full report the lightest findings are left out first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    Repairable,
    /// Wrong in objects that a repair leaves as they are.
    Staying,
    /// Lost: once the files are repaired, no check shows it.
    Passing,
}

impl Finding {
    pub(super) fn weight(&self) -> Weight {
        match (self.repairable, self.kind) {
            (true, _) => Weight::Repairable,
            (false, Kind::Object | Kind::Reference | Kind::Index) => Weight::Staying,
            (false, _) => Weight::Passing,
        }
    }

    pub(super) fn new(kind: Kind, text: String) -> Finding {
        Finding {
            kind,
            file: None,
            offset: None,
            page: None,
            object: None,
            class: None,
            repairable: false,
            text,
        }
    }

    pub(super) fn file(self, file: impl Into<PathBuf>) -> Finding {
        Finding { file: Some(file.into()), ..self }
    }

    pub(super) fn offset(self, offset: u64) -> Finding {
        Finding { offset: Some(offset), ..self }
    }

    pub(super) fn page(self, page: PageId) -> Finding {
        Finding { page: Some(page), ..self }
    }

    pub(super) fn object(self, object: Oref) -> Finding {
        Finding { object: Some(object), page: Some(object.page()), ..self }
    }

    pub(super) fn class(self, class: Option<&str>) -> Finding {
        Finding { class: class.map(str::to_owned), ..self }
    }

    pub(super) fn repairable(self) -> Finding {
        Finding { repairable: true, ..self }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.file, self.offset) {
            (Some(file), Some(at)) => write!(f, "{}, byte {at}: {}", file.display(), self.text),
            (Some(file), None) => write!(f, "{}: {}", file.display(), self.text),
            _ => f.write_str(&self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_named_beside_other_damage() {
        let mut report = Report::default();
        for n in 0..FINDINGS_MAX {
            report.find(Finding::new(Kind::Store, format!("repairable {n}")).repairable());
        }
        for n in 0..FINDINGS_MAX {
            report.find(Finding::new(Kind::Object, format!("staying {n}")));
        }
        assert!(report.findings.iter().all(|f| f.text.starts_with("staying")));
        report.find(Finding::new(Kind::Commits, "lost".into()));
        report.find(Finding::new(Kind::Store, "one more".into()).repairable());
        assert_eq!((report.findings.len(), report.wrong), (FINDINGS_MAX, 202));
        assert_eq!((report.beyond_repair, report.passing), (101, 1));
        assert!(report.findings.iter().any(|f| f.text == "lost"));
        assert!(report.findings.iter().any(|f| f.text == "staying 0"));
    }
}
