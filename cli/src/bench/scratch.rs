//! A directory for the time of a measurement.

use std::path::{Path, PathBuf};

/// A fresh directory, removed with all in it when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one in `parent`, or where the system keeps temporary files.
    ///
    /// # Errors
    /// A sentence, if it cannot be made.
    pub fn new(parent: Option<&Path>, name: &str) -> Result<Scratch, String> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("tercel-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|e| format!("cannot make {}: {e}; name another place with --dir", path.display()))?;
        Ok(Scratch(path))
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind, it is only what the system's cleaning is for.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
