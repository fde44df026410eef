//! Spaces and backups where nothing can be written, or whose lock belongs to another user: they are checked
//! and restored.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::Counter;
use tempfile::TempDir;
use tercel::backup::{self, Source};
use tercel::{Text, check, embedded};

/// A space and a backup of it in `media`, and `out` to restore to.
fn place() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let client = embedded(at("media/space")).unwrap();
    let made = client.run(|tx| {
        let counter = tx.create(&Counter { count: 7, text: Text::from("seven") })?;
        tx.set_root("counter", counter)
    });
    made.unwrap();
    client.close().unwrap();
    backup::backup(&Source::Directory(at("media/space")), &at("media/backup"), |_| ()).unwrap();
    fs::create_dir(at("out")).unwrap();
    for (name, mode) in [("", 0o755), ("out", 0o777)] {
        fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
    }
    // What is made is its user's alone, and its user may let others read it.
    let mut all = vec![at("media")];
    while let Some(path) = all.pop() {
        let is_dir = path.is_dir();
        fs::set_permissions(&path, Permissions::from_mode(if is_dir { 0o755 } else { 0o644 })).unwrap();
        if is_dir {
            all.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    dir
}

const CHILD_PLACE: &str = "TERCEL_TEST_READ_ONLY";
const CHILD: [&str; 4] = ["--ignored", "--exact", "--nocapture", "read_only::child_that_only_reads"];

#[test]
#[ignore = "the child process of other tests"]
fn child_that_only_reads() {
    let dir = PathBuf::from(std::env::var_os(CHILD_PLACE).unwrap());
    let at = |name: &str| dir.join(name);
    assert!(check::check(&at("media/space"), |_, _| {}).unwrap().is_sound());
    assert!(check::check(&at("media/backup"), |_, _| {}).unwrap().is_sound());
    assert!(backup::verify(&at("media/backup"), |_| ()).unwrap().is_sound());
    backup::restore(&at("media/backup"), &at("out/space"), |_| ()).unwrap();
    let restored = embedded(at("out/space")).unwrap();
    assert_eq!(restored.run(|tx| Ok(tx.get_root::<Counter>("counter")?.count())), Ok(7));
    // A server writes where its view begins.
    let refused = embedded(at("media/space")).map(drop).unwrap_err().to_string();
    assert!(refused.contains("mount it") || refused.contains("permissions"), "{refused}");
}

fn assert_reads(command: &mut Command, dir: &Path) {
    let child = command.env(CHILD_PLACE, dir).output().unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    if child.status.code() == Some(CANNOT_MOUNT) {
        return eprintln!("skipped: nothing can be mounted here: {said}");
    }
    assert!(child.status.success(), "{}{said}", String::from_utf8_lossy(&child.stdout));
}

/// The exit code of the script below if it cannot mount.
const CANNOT_MOUNT: i32 = 77;

fn mounted_read_only(dir: &Path) -> Command {
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" || exit 77; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!("unshare -m true || exit 77; exec unshare -m sh -c '{script}' \"$@\""),
        "sh",
    ]);
    command.arg(dir.join("media")).arg(std::env::current_exe().unwrap()).args(CHILD);
    command
}

#[test]
fn read_only_mount_is_checked_and_restored_from() {
    let dir = place();
    assert_reads(&mut mounted_read_only(dir.path()), dir.path());
}

#[test]
fn read_only_mount_without_locks_is_checked_and_restored_from() {
    let dir = place();
    for lock in ["media/space/lock", "media/backup/lock"] {
        fs::remove_file(dir.path().join(lock)).unwrap();
    }
    assert_reads(&mut mounted_read_only(dir.path()), dir.path());
}

#[test]
fn files_of_another_user_are_checked_and_restored_from() {
    let dir = place();
    for lock in ["media/space/lock", "media/backup/lock"] {
        fs::set_permissions(dir.path().join(lock), Permissions::from_mode(0o000)).unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(CHILD);
    if rustix::process::getuid().is_root() {
        // Permissions do not bind root.
        command.uid(NOBODY).gid(NOBODY);
    }
    assert_reads(&mut command, dir.path());
}

const NOBODY: u32 = 65_534;
