//! Which of apt's lists to take when the user named none.
//!
//! apt keeps each list it fetched under its address, with `/` written as `_`. Only the name and the size of a
//! file are looked at; whether it can be read is for [`open`](super::open) to find out.

use std::path::{Path, PathBuf};

/// The list to use on this machine, or `None` where apt has none.
pub fn default_list() -> Option<PathBuf> {
    best_list(Path::new("/var/lib/apt/lists"))
}

/// The best of the lists in a folder: one of a release rather than of its updates, then the largest, then the
/// first by name.
fn best_list(folder: &Path) -> Option<PathBuf> {
    let mut best: Option<(Rank, PathBuf)> = None;
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let name = entry.file_name();
        let Some(release) = name.to_str().and_then(release_of) else { continue };
        let Ok(found) = std::fs::metadata(entry.path()) else { continue };
        if !found.is_file() {
            continue;
        }
        let rank = Rank { whole_release: is_whole(release), bytes: found.len() };
        let path = entry.path();
        let better = best.as_ref().is_none_or(|(r, p)| rank > *r || (rank == *r && path < *p));
        if better {
            best = Some((rank, path));
        }
    }
    best.map(|(_, path)| path)
}

/// The merit of a list; the first field weighs most.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    whole_release: bool,
    bytes: u64,
}

/// The release part of a file name, if the file is a list of a main section.
fn release_of(file_name: &str) -> Option<&str> {
    let stem = SUFFIXES.iter().find_map(|suffix| file_name.strip_suffix(suffix))?;
    let (address, architecture) = stem.rsplit_once("_main_binary-")?;
    if architecture.is_empty() || architecture.contains('_') {
        return None;
    }
    Some(address.rsplit_once("_dists_").map_or(address, |(_, release)| release))
}

/// Says whether a release stands on its own. Security fixes and updates hold only what changed since.
fn is_whole(release: &str) -> bool {
    !["security", "updates", "backports"].iter().any(|part| release.contains(part))
}

/// The forms in which apt keeps a list and which we can read.
const SUFFIXES: [&str; 4] = ["_Packages", "_Packages.lz4", "_Packages.gz", "_Packages.xz"];

#[cfg(test)]
mod tests {
    use super::*;

    fn best_of(files: &[(&str, usize)]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), vec![b'x'; *bytes]).unwrap();
        }
        best_list(folder.path()).map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
    }

    const MAIN: &str = "deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages.lz4";
    const UPDATES: &str = "deb.debian.org_debian_dists_bookworm-updates_main_binary-amd64_Packages.xz";
    const SECURITY: &str =
        "deb.debian.org_debian-security_dists_bookworm-security_main_binary-amd64_Packages";

    #[test]
    fn a_release_goes_before_larger_updates() {
        assert_eq!(best_of(&[(UPDATES, 900), (MAIN, 10), (SECURITY, 800)]).as_deref(), Some(MAIN));
    }

    #[test]
    fn updates_serve_where_nothing_else_is() {
        assert_eq!(best_of(&[(UPDATES, 5), (SECURITY, 6)]).as_deref(), Some(SECURITY));
    }

    #[test]
    fn the_larger_of_two_releases_is_taken() {
        let foreign = "mirror_debian_dists_bookworm_main_binary-i386_Packages.gz";
        assert_eq!(best_of(&[(MAIN, 20), (foreign, 10)]).as_deref(), Some(MAIN));
    }

    #[test]
    fn other_files_of_apt_are_passed_over() {
        let others = [
            ("deb.debian.org_debian_dists_bookworm_InRelease", 5),
            ("deb.debian.org_debian_dists_bookworm_main_dep11_Components-amd64.yml.gz", 5),
            ("deb.debian.org_debian_dists_bookworm_contrib_binary-amd64_Packages.lz4", 5),
            ("deb.debian.org_debian_dists_bookworm_main_i18n_Translation-en", 5),
        ];
        assert_eq!(best_of(&others), None);
    }

    #[test]
    fn a_folder_that_is_not_there_has_no_list() {
        assert_eq!(best_list(Path::new("/nonexistent/lists")), None);
    }
}
