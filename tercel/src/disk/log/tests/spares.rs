//! Segments that are let go of, and used again.

use std::os::unix::fs::MetadataExt;

use super::*;

/// Spare segments by inode, and how many bytes each has.
fn spares(dir: &Path) -> Vec<(u64, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let is_spare = |e: &fs::DirEntry| e.path().extension().is_some_and(|extension| extension == "tmp");
    let spares = entries.filter(|e| is_spare(e) && e.file_name() != "notes.tmp");
    spares.map(|e| e.metadata().unwrap()).map(|file| (file.ino(), file.len())).collect()
}

#[test]
fn a_segment_that_is_let_go_is_a_later_one_full_of_zeros_again() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    let first = fs::metadata(segment(dir.path(), 1)).unwrap().ino();
    (0..8).for_each(|_| commit(&mut log, &[3000]));
    log.truncate_below(Stamp(3));
    // A wait for segments also waits for what was let go before.
    let mut made = Vec::new();
    while !made.contains(&first) {
        log.files.take_prepared().unwrap();
        let (number, path) = log.files.prepared.back().map(|s| (s.number, s.path.clone())).unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![0; SEGMENT as usize], "segment {number}");
        made.push(fs::metadata(&path).unwrap().ino());
        assert!(made.len() < 10, "{first} is none of {made:?}");
    }
    commit(&mut log, &[20_000]);
    drop(log);
    let (_, opened, stamps) = open(dir.path());
    assert_eq!((opened.cut, stamps.last()), (None, Some(&9)));
}

#[test]
fn what_a_crash_left_of_spares_and_unfinished_segments_is_used_or_removed() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[3000]);
    log.close().unwrap();
    // A segment that was let go, one of another size, one being filled when the end came.
    fs::copy(segment(dir.path(), 1), dir.path().join("0000000000.tmp")).unwrap();
    fs::write(dir.path().join("0000000009.tmp"), b"short").unwrap();
    fs::write(dir.path().join("notes.tmp"), b"a user's own").unwrap();
    fs::write(dir.path().join("prepare.tmp"), vec![0; SEGMENT as usize]).unwrap();
    let spare = fs::metadata(dir.path().join("0000000000.tmp")).unwrap().ino();
    let (mut log, opened, stamps) = open(dir.path());
    assert_eq!((opened.cut, stamps), (None, vec![1]));
    assert_eq!(fs::read(dir.path().join("notes.tmp")).unwrap(), b"a user's own");
    commit(&mut log, &[20_000]);
    let made = |s: &PathBuf| fs::metadata(s).unwrap().ino() == spare;
    assert!((2..8).map(|n| segment(dir.path(), n)).filter(|s| s.exists()).any(|s| made(&s)));
    drop(log);
    let (log, _, stamps) = open(dir.path());
    log.close().unwrap();
    // No segment was let go since.
    assert_eq!((stamps, spares(dir.path())), (vec![1, 2], vec![]));
}

#[test]
fn spare_of_another_log_is_neither_used_nor_removed() {
    let dir = new_log();
    let other = tempfile::tempdir().unwrap();
    create(other.path(), SPACE, Stamp::ZERO, SEGMENT).unwrap();
    let spare = dir.path().join("0000000009.tmp");
    fs::copy(segment(other.path(), 1), &spare).unwrap();
    let before = fs::read(&spare).unwrap();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[20_000]);
    // Spares of its own come and go beside it.
    log.truncate_below(Stamp(2));
    commit(&mut log, &[20_000]);
    log.close().unwrap();
    assert!(fs::read(&spare).unwrap() == before);
}

#[test]
fn no_more_spares_are_kept_than_one_may_have_use_for() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    (0..40).for_each(|_| commit(&mut log, &[3000]));
    log.truncate_below(Stamp(40));
    log.close().unwrap();
    let kept = spares(dir.path());
    assert!(kept.len() <= 8 && kept.len() >= 7, "{kept:?}");
    assert!(kept.iter().all(|(_, bytes)| *bytes == SEGMENT as u64));
    assert!((1..30).all(|number| !segment(dir.path(), number).exists()));
    assert_eq!(open(dir.path()).2.last(), Some(&40));
}
