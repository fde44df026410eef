//! The files of an import.

use std::path::{Path, PathBuf};

use tercel_term::fail::Failure;

use crate::sample;

/// Where models come from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The path that was named, or the sample in words.
    pub name: String,
    /// The files, in the order of their names.
    pub files: Vec<File>,
    /// Set if a directory was named: a file that cannot be read then costs itself alone.
    pub is_directory: bool,
}

/// A file and the name of its model.
#[derive(Debug, Clone)]
pub struct File {
    /// The path below the directory that was named, or the name of the file alone.
    pub model: String,
    /// Where its text is.
    pub text: Text,
    /// Bytes of it, as far as they are known.
    pub bytes: u64,
}

/// Where the text of a file is.
#[derive(Debug, Clone)]
pub enum Text {
    /// On a disk.
    At(PathBuf),
    /// In this program.
    Here(String),
}

impl File {
    /// Describes the file, for people.
    pub fn describe(&self) -> String {
        match &self.text {
            Text::At(path) => printable(&path.display().to_string()),
            Text::Here(_) => self.model.clone(),
        }
    }

    /// A model that the program has written.
    pub fn written(model: impl Into<String>, text: String) -> File {
        File { model: model.into(), bytes: text.len() as u64, text: Text::Here(text) }
    }
}

impl Source {
    /// The sample that comes with the program.
    pub fn sample() -> Source {
        let file = File::written(sample::NAME, sample::bundled());
        Source { name: "the bundled sample".into(), files: vec![file], is_directory: false }
    }

    /// The file of a path, or the STEP files of a directory and of those in it. Links to directories are not
    /// followed, so that no circle is.
    ///
    /// # Errors
    /// If the path cannot be read, or no STEP file is in it.
    pub fn at(path: &Path) -> Result<Source, Failure> {
        let name = printable(&path.display().to_string());
        let unread = |path: &Path, e| {
            Failure::new(format!("cannot read {}: {e}", path.display()))
                .next("name a STEP file, or a directory that has some")
        };
        let meta = path.metadata().map_err(|e| unread(path, e))?;
        if !meta.is_dir() {
            let model =
                path.file_name().map_or_else(|| name.clone(), |name| name.to_string_lossy().into_owned());
            let file = File { model, text: Text::At(path.into()), bytes: meta.len() };
            return Ok(Source { name, files: vec![file], is_directory: false });
        }
        let (mut files, mut directories) = (Vec::new(), vec![path.to_path_buf()]);
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(&directory).map_err(|e| unread(&directory, e))? {
                let entry = entry.map_err(|e| unread(&directory, e))?;
                let (at, kind) = (entry.path(), entry.file_type().map_err(|e| unread(&entry.path(), e))?);
                if kind.is_dir() {
                    directories.push(at);
                } else if is_step(&at) && at.is_file() {
                    let below = at.strip_prefix(path).unwrap_or(&at).to_string_lossy().into_owned();
                    let bytes = at.metadata().map_or(0, |meta| meta.len());
                    files.push(File { model: below, text: Text::At(at), bytes });
                }
            }
        }
        files.sort_unstable_by(|a, b| a.model.cmp(&b.model));
        if files.is_empty() {
            return Err(Failure::new(format!("{name} has no STEP files in it"))
                .next("name a directory with files whose names end in .step, .stp or .p21"));
        }
        Ok(Source { name, files, is_directory: true })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// The text without control characters, which a terminal would obey: names in files are their authors'.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn is_step(path: &Path) -> bool {
    let end = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
    end.is_some_and(|end| matches!(&*end, "step" | "stp" | "p21"))
}
