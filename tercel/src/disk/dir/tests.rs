use super::*;
use crate::disk::log::{Log, LogConfig};
use crate::disk::pages::PageRead;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tercel_engine::order::quorum::members::Member;
use tercel_wire::id::LogPosition;

#[test]
fn a_new_history_begins_beyond_all_lives_of_the_old_one() {
    let dir = Path::new("a backup");
    let mut firsts: Vec<u32> = (0..100).map(|_| view_apart(dir, 7).unwrap().unwrap()).collect();
    assert!(firsts.iter().all(|first| *first >= 7 + LIVES_MAX));
    firsts.sort_unstable();
    firsts.dedup();
    assert!(firsts.len() > 90);
    assert_eq!(view_apart(dir, u32::MAX - LIVES_MAX).unwrap(), None);
}

#[test]
fn a_changed_space_file_is_noticed() {
    let space = Space { id: SpaceId(7), page_bytes: 8064, created: today(), view_first: 65_540 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SPACE_NAME);
    space.write(dir.path()).unwrap();
    assert_eq!(Space::read(&HeldDir::open(dir.path()).unwrap()).unwrap(), space);
    for (from, to) in [("65540", "65541"), ("view_first", "view_fjrst"), ("created = \"2", "created = \"3")] {
        fs::write(&path, space.text().replace(from, to)).unwrap();
        assert!(
            matches!(Space::read(&HeldDir::open(dir.path()).unwrap()), Err(DiskError::Damaged { .. })),
            "{from}"
        );
    }
}

const NEW: NewSpace = NewSpace { id: None, page_bytes: 8064, segment_bytes: 4096 };

#[test]
fn a_new_directory_has_a_log_and_a_page_store_and_keeps_its_space() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("a/b");
    let dir = DataDir::open(&path, &NEW).unwrap();
    assert!(dir.is_new());
    let space = dir.space().clone();
    drop(dir);
    let dir = DataDir::open(&path, &NewSpace { page_bytes: 1, ..NEW }).unwrap();
    assert!(!dir.is_new());
    assert_eq!((dir.space(), space.page_bytes), (&space, 8064));
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let (_, opened) =
        Log::open(&dir.log_dir().unwrap(), space.id, LogConfig::default(), Stamp::ZERO, ignore).unwrap();
    assert_eq!((opened.replayed, opened.cut), (0, None));
    let pages = dir.pages().unwrap();
    assert_eq!(pages.applied_stamp().unwrap(), Stamp::ZERO);
}

#[test]
fn two_new_spaces_have_different_ids() {
    let parent = tempfile::tempdir().unwrap();
    let id = |name: &str| DataDir::open(&parent.path().join(name), &NEW).unwrap().space().id;
    assert_ne!(id("a"), id("b"));
}

#[test]
fn second_handle_is_refused_with_owner() {
    let parent = tempfile::tempdir().unwrap();
    let first = DataDir::open(parent.path(), &NEW).unwrap();
    let Err(DiskError::Locked { dir, pid }) = DataDir::open(parent.path(), &NEW) else { panic!() };
    assert_eq!((dir.as_path(), pid), (parent.path(), Some(std::process::id())));
    drop(first);
    DataDir::open(parent.path(), &NEW).unwrap();
}

const CHILD_DIR: &str = "TERCEL_TEST_DATA_DIR";

#[test]
#[ignore = "the child process of another test"]
fn child_that_holds_the_directory_until_it_is_killed() {
    let path = std::env::var_os(CHILD_DIR).unwrap();
    let _dir = DataDir::open(Path::new(&path), &NEW).unwrap();
    println!("holding");
    std::thread::park();
}

#[test]
fn another_process_holds_it_until_it_dies() {
    let parent = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "child_that_holds_the_directory_until_it_is_killed"])
        .env(CHILD_DIR, parent.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("holding")));
    let refused = DataDir::open(parent.path(), &NEW);
    assert!(matches!(refused, Err(DiskError::Locked { pid, .. }) if pid == Some(child.id())), "{refused:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!DataDir::open(parent.path(), &NEW).unwrap().is_new());
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let parent = tempfile::tempdir().unwrap();
    drop(DataDir::open(parent.path(), &NEW).unwrap());
    fs::write(parent.path().join(FORMAT_NAME), "tercel data, format 10\n").unwrap();
    let Err(error) = DataDir::open(parent.path(), &NEW) else { panic!() };
    assert!(matches!(error, DiskError::NewerFormat { found: 10, known: FORMAT_VERSION, .. }));
    assert!(error.to_string().contains(&format!("format 10, this build knows {FORMAT_VERSION}")), "{error}");
}

#[test]
fn older_format_is_refused_with_the_next_step_and_left_alone() {
    let parent = tempfile::tempdir().unwrap();
    drop(DataDir::open(parent.path(), &NEW).unwrap());
    let format = parent.path().join(FORMAT_NAME);
    fs::write(&format, "tercel data, format 1\n").unwrap();
    let error = DataDir::open(parent.path(), &NEW).unwrap_err();
    assert!(matches!(error, DiskError::OlderFormat { found: 1, known: FORMAT_VERSION, .. }));
    assert!(error.to_string().contains("run the build that wrote it"), "{error}");
    assert!(!error.to_string().contains("--repair"), "{error}");
    // A repair would make it say that it is this build's.
    let repaired = crate::check::repair(parent.path(), |_, _| ()).map(drop).unwrap_err();
    assert!(repaired.to_string().contains("run the build that wrote it"), "{repaired}");
    assert_eq!(fs::read_to_string(&format).unwrap(), "tercel data, format 1\n");
    // No build ever wrote a format 0.
    fs::write(&format, "tercel data, format 0\n").unwrap();
    assert!(matches!(DataDir::open(parent.path(), &NEW), Err(DiskError::Damaged { .. })));
}

#[test]
fn damaged_text_files_are_named() {
    for (name, text) in
        [(FORMAT_NAME, "format?"), (SPACE_NAME, "space = 5"), (SPACE_NAME, "page_bytes = 8064")]
    {
        let parent = tempfile::tempdir().unwrap();
        drop(DataDir::open(parent.path(), &NEW).unwrap());
        fs::write(parent.path().join(name), text).unwrap();
        let Err(DiskError::Damaged { file, .. }) = DataDir::open(parent.path(), &NEW) else { panic!() };
        assert_eq!(file, parent.path().join(name));
    }
}

#[test]
fn a_creation_that_was_interrupted_is_begun_again() {
    let parent = tempfile::tempdir().unwrap();
    let before = DataDir::open(parent.path(), &NEW).unwrap().space().id;
    fs::remove_file(parent.path().join(FORMAT_NAME)).unwrap();
    fs::write(parent.path().join(CREATING_NAME), "").unwrap();
    let dir = DataDir::open(parent.path(), &NEW).unwrap();
    assert!(dir.is_new());
    assert_ne!(dir.space().id, before);
}

#[test]
fn an_unfinished_restore_is_begun_again_as_one_and_never_served() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("copy");
    let space = Space { id: SpaceId(7), page_bytes: 8064, created: today(), view_first: 99 };
    let copy = |purpose, fails: bool| {
        DataDir::create_copy(&path, purpose, &space, log::behind(Stamp(5)), 4096, |pages| match fails {
            true => Err(damaged(pages, "it was killed here".into())),
            false => Ok(()),
        })
    };
    assert!(copy(Purpose::Restore, true).is_err());
    let refused = DataDir::open(&path, &NEW).unwrap_err();
    assert!(refused.to_string().contains("`tercel restore`"), "{refused}");
    assert!(matches!(copy(Purpose::Backup, false), Err(DiskError::Unfinished { .. })));
    drop(copy(Purpose::Restore, false).unwrap());
    assert_eq!(DataDir::open(&path, &NEW).unwrap().space(), &space);
    assert!(matches!(copy(Purpose::Restore, false), Err(DiskError::Occupied { .. })));
}

#[test]
fn copy_of_unsure_member_is_unsure() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("member");
    let dir = DataDir::open(&path, &NEW).unwrap();
    let at = (Stamp(9), EntryId { view: ViewId::new(3, 7), position: LogPosition(12) });
    let (copy, whole) = (DataDir::copy_of(&path), |_: &Path| Ok::<_, DiskError>(()));
    drop(DataDir::create_copy(&copy, Purpose::Copy, dir.space(), at, 4096, whole).unwrap());
    fs::write(path.join(LOG_NAME).join("unsure"), "").unwrap();
    dir.adopt_copy().unwrap();
    drop(dir);
    let dir = DataDir::open(&path, &NEW).unwrap();
    let none = |_: tercel_wire::log::Record<'_>, _: bool| Ok::<_, DiskError>(());
    let (log, id) = (dir.log_dir().unwrap(), dir.space().id);
    let (_, opened) = Log::open_member(&log, id, LogConfig::default(), Stamp(10), Stamp(9), none).unwrap();
    assert!(opened.begins == at.1 && !opened.is_sure);
}

#[test]
fn adopted_copy_is_moved_in_after_crash() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("member");
    for done in 0..5 {
        let space = DataDir::open(&path, &NEW).unwrap().space().clone();
        let copy = DataDir::copy_of(&path);
        let whole = |_: &Path| Ok::<_, DiskError>(());
        let at = (Stamp(9), EntryId { view: ViewId::new(3, 7), position: LogPosition(12) });
        drop(DataDir::create_copy(&copy, Purpose::Copy, &space, at, 4096, whole).unwrap());
        // One that is not adopted is as good as none.
        drop(DataDir::open(&path, &NEW).unwrap());
        assert!(!copy.exists());
        drop(DataDir::create_copy(&copy, Purpose::Copy, &space, at, 4096, whole).unwrap());
        fs::rename(&copy, path.join(ADOPTED_NAME)).unwrap();
        let adopted = path.join(ADOPTED_NAME);
        // So far an opening had come.
        if done > 0 {
            fs::rename(adopted.join(PAGES_NAME), path.join(PAGES_NAME)).unwrap();
        }
        if done > 1 {
            fs::remove_dir_all(path.join(LOG_NAME)).unwrap();
        }
        if done > 2 {
            fs::rename(adopted.join(LOG_NAME), path.join(LOG_NAME)).unwrap();
        }
        if done > 3 {
            fs::remove_file(adopted.join(FORMAT_NAME)).unwrap();
        }
        assert!(matches!(Looked::at(&path), Err(DiskError::Unfinished { .. })));
        let dir = DataDir::open(&path, &NEW).unwrap();
        assert!(!adopted.exists());
        let none = |_: tercel_wire::log::Record<'_>, _: bool| Ok::<_, DiskError>(());
        let (config, log_dir) = (LogConfig::default(), dir.log_dir().unwrap());
        let (_, opened) = Log::open_member(&log_dir, space.id, config, Stamp(10), Stamp(9), none).unwrap();
        assert_eq!((opened.begins, opened.after), (at.1, at.0));
    }
}

#[test]
fn member_of_restored_space_begins_behind_its_views() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("restored");
    let space = Space { id: SpaceId(7), page_bytes: 8064, created: today(), view_first: 65_540 };
    let whole = |_: &Path| Ok::<_, DiskError>(());
    let dir =
        DataDir::create_copy(&path, Purpose::Restore, &space, log::behind(Stamp(5)), 4096, whole).unwrap();
    let member = Member { id: MemberId(1), votes: true, address: "a:1".into() };
    dir.become_member(1, MemberId(1), Members::new(vec![member]).unwrap()).unwrap();
    assert_eq!(dir.votes(ViewId::NONE, 7).unwrap().remembered().promised.number, 65_539);
}

#[test]
fn a_directory_that_lost_its_format_is_damaged_and_keeps_the_rest() {
    let parent = tempfile::tempdir().unwrap();
    let log = DataDir::open(parent.path(), &NEW).unwrap().log_dir().unwrap().file("0000000001.tlog");
    let before = fs::read(&log).unwrap();
    fs::remove_file(parent.path().join(FORMAT_NAME)).unwrap();
    assert!(matches!(DataDir::open(parent.path(), &NEW), Err(DiskError::Damaged { .. })));
    assert!(fs::read(&log).unwrap() == before);
}

#[test]
fn a_directory_with_other_files_is_left_alone() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("thesis.tex"), "x").unwrap();
    assert!(matches!(DataDir::open(parent.path(), &NEW), Err(DiskError::NotOurs { .. })));
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
}
