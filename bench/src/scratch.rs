//! A directory for the time of a measurement.

use std::path::{Path, PathBuf};

use tercel_term::tidy::OwnDir;

/// A fresh directory, removed with all in it when this is dropped, or when a signal ends the measurement.
pub struct Scratch(OwnDir);

impl Scratch {
    /// Makes one in `parent`, or where the system keeps temporary files.
    ///
    /// # Errors
    /// A sentence, if it cannot be made: there is no `parent`, for one.
    pub fn new(parent: Option<&Path>, name: &str) -> Result<Scratch, String> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("tercel-bench-{name}-{}", std::process::id()));
        // The directories above are not made, because nothing would remove them.
        std::fs::create_dir(&path)
            .map_err(|e| format!("cannot make {}: {e}; name another place with --dir", path.display()))?;
        Ok(Scratch(OwnDir::new(path)))
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
