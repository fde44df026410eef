//! What a check says.

use std::path::PathBuf;

use tercel_wire::id::{Oref, PageId, Stamp};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Pages that exist.
    pub pages: u64,
    /// Objects in them.
    pub objects: u64,
    /// References that name an object.
    pub references: u64,
    /// References to places that were promised for objects and are empty. Either a program was interrupted between the
    /// commits of the reference and of the object, or an earlier repair could not save the object. In the latter case
    /// the loss is in `lost`. Nothing is damaged; a read of such a place is answered `NotFound`.
    pub unfilled: u64,
    /// Log records that are not in the pages yet.
    pub log_records: u64,
    /// Whether the log ends in an unfinished write, which the next opening cuts. No client had been told of that write.
    pub torn: bool,
    /// The last commit.
    pub stamp: Stamp,
    /// What is wrong, at most [`FINDINGS_MAX`] of it; what cannot be repaired is left out last.
    pub findings: Vec<Finding>,
    /// How much is wrong altogether.
    pub wrong: u64,
    /// How much of that a repair cannot put right without losing something.
    pub beyond_repair: u64,
    /// What earlier repairs could not save, a sentence each, as the directory's `lost.txt` has it.
    pub lost: Vec<String>,
    /// How much of what is beyond repair will not be found any more once the files are repaired.
    pub(super) passing: u64,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// With what.
    pub kind: Kind,
    /// In which file.
    pub file: Option<PathBuf>,
    /// At which byte of it.
    pub offset: Option<u64>,
    /// With which page.
    pub page: Option<PageId>,
    /// With which object.
    pub object: Option<Oref>,
    /// The object's class, if it is known.
    pub class: Option<String>,
    /// A repair puts it right without losing anything.
    pub repairable: bool,
    /// A sentence.
    pub text: String,
}

/// What findings are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The directory's version.
    Format,
    /// What is fixed for the space.
    Space,
    /// What holds the page store together.
    Store,
    /// A page.
    Page,
    /// The checkpoint in the page store.
    Checkpoint,
    /// An object.
    Object,
    /// A reference to what does not exist.
    Reference,
    /// The log.
    Log,
    /// Commits that were durable and are not any more.
    Commits,
}

impl Kind {
    /// As programs read it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Format => "format",
            Kind::Space => "space",
            Kind::Store => "store",
            Kind::Page => "page",
            Kind::Checkpoint => "checkpoint",
            Kind::Object => "object",
            Kind::Reference => "reference",
            Kind::Log => "log",
            Kind::Commits => "commits",
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

    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.wrong == 0
    }

    /// Whether nothing is wrong, and every loss of an earlier repair has been dealt with.
    pub fn is_whole(&self) -> bool {
        self.is_sound() && self.lost.is_empty()
    }
}

/// What is rather left out than the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    Repairable,
    /// Wrong in objects that a repair leaves as they are.
    Staying,
    /// Lost: when the files are repaired nothing tells of it.
    Passing,
}

impl Finding {
    pub(super) fn weight(&self) -> Weight {
        match (self.repairable, self.kind) {
            (true, _) => Weight::Repairable,
            (false, Kind::Object | Kind::Reference) => Weight::Staying,
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
