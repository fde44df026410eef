//! Files that only their owner should be able to read: keys and secrets.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Warns if other users of this host can read a key or a secret.
pub(crate) fn see_private(file: &Path) {
    let mode = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.permissions().mode());
    let dir = match file.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => return,
    };
    if is_open(mode(file), mode(dir)) {
        let file = file.display();
        tracing::warn!("other users of this host can read the key in {file}: `chmod 600 {file}`");
    }
}

/// Says whether users of the group, or all, can enter the directory and read the file in it.
fn is_open(file: u32, dir: u32) -> bool {
    [3, 0].iter().any(|class| file >> class & 0o4 != 0 && dir >> class & 0o1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_private_by_mode_or_directory() {
        assert!(is_open(0o644, 0o755) && is_open(0o640, 0o750) && is_open(0o604, 0o701));
        assert!(!is_open(0o600, 0o755) && !is_open(0o644, 0o700) && !is_open(0o640, 0o701));
    }
}
