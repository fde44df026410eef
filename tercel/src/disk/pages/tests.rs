//! The page store: whole batches or nothing, whatever happens to the process.

use super::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use tercel_wire::id::SpaceId;
use tercel_wire::page::{PAGE_MARK, Page, PageBuilder};

const PAGE_BYTES: u32 = 8064;
const PAGES: u32 = 300;

fn new_store() -> (TempDir, RedbPages) {
    let dir = tempfile::tempdir().unwrap();
    RedbPages::create(&dir.path().join("pages"), PAGE_BYTES).unwrap();
    let store = open(dir.path());
    (dir, store)
}

fn open(dir: &Path) -> RedbPages {
    RedbPages::open(&dir.join("pages"), PAGE_BYTES).unwrap()
}

fn id(page: u32) -> PageId {
    PageId::new(page).unwrap()
}

fn contents(page: u32, stamp: u64) -> Vec<u8> {
    (0..PAGE_BYTES).map(|i| (i as u64 + page as u64 + stamp * 3) as u8).collect()
}

/// The pages that the commit of `stamp` writes.
fn pages_of(stamp: u64) -> impl Iterator<Item = u32> {
    (0..10).map(move |i| 1 + (stamp as u32 * 7 + i * i * 3) % PAGES)
}

fn commit(store: &mut RedbPages, stamp: u64) {
    let pages: BTreeMap<u32, Vec<u8>> = pages_of(stamp).map(|page| (page, contents(page, stamp))).collect();
    let pages: Vec<(PageId, &[u8])> =
        pages.iter().map(|(&page, bytes)| (id(page), bytes.as_slice())).collect();
    let meta = [("floor", &stamp.to_le_bytes()[..])];
    store.commit(&PageBatch { pages: &pages, gone: &[], meta: &meta, applied_stamp: Stamp(stamp) }).unwrap();
}

/// The store holds exactly what the commits from 1 to `stamp` wrote.
fn assert_state(store: &dyn PageRead, stamp: u64) {
    let mut expected = BTreeMap::new();
    (1..=stamp).for_each(|stamp| expected.extend(pages_of(stamp).map(|page| (page, stamp))));
    let mut found = 0;
    store
        .for_each_page(&mut |page, bytes| {
            assert!(bytes == contents(page.get(), expected[&page.get()]), "page {page} at {stamp}");
            found += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(found, expected.len());
    assert_eq!(store.page_count().unwrap(), expected.len() as u64);
    assert_eq!(store.applied_stamp().unwrap(), Stamp(stamp));
    let floor = (stamp > 0).then(|| stamp.to_le_bytes().to_vec());
    assert_eq!(store.meta("floor").unwrap(), floor);
}

#[test]
fn a_new_store_is_empty_at_stamp_zero() {
    let (_dir, store) = new_store();
    assert_state(&store, 0);
    let mut buf = vec![1; 10];
    assert!(!store.read(id(5), &mut buf).unwrap());
    assert!(buf.is_empty());
}

#[test]
fn commits_are_there_after_reopening() {
    let (dir, mut store) = new_store();
    (1..=20).for_each(|stamp| commit(&mut store, stamp));
    drop(store);
    let store = open(dir.path());
    assert_state(&store, 20);
    let page = pages_of(20).next().unwrap();
    let mut buf = Vec::new();
    assert!(store.read(id(page), &mut buf).unwrap());
    assert!(buf == contents(page, 20));
}

#[test]
fn a_pinned_reader_stays_where_it_is_and_another_follows() {
    let (_dir, mut store) = new_store();
    commit(&mut store, 1);
    let (pinned, following) = (store.pin().unwrap(), store.reader());
    (2..=30).for_each(|stamp| commit(&mut store, stamp));
    assert_state(&*pinned, 1);
    assert_state(&*following, 30);
}

#[test]
fn a_reader_on_another_thread_sees_whole_pages_that_never_go_back() {
    let (_dir, mut store) = new_store();
    commit(&mut store, 1);
    let reader = store.reader();
    let page = pages_of(1).next().unwrap();
    let last =
        (2..=60).rfind(|&stamp| pages_of(stamp).any(|p| p == page)).expect("the page is written again");
    let thread = std::thread::spawn(move || {
        let (mut buf, mut seen) = (Vec::new(), 1);
        while seen < last {
            assert!(reader.read(id(page), &mut buf).unwrap());
            seen =
                (seen..=last).find(|&stamp| buf == contents(page, stamp)).expect("a whole page, not older");
        }
    });
    (2..=60).for_each(|stamp| commit(&mut store, stamp));
    thread.join().unwrap();
}

#[test]
fn a_store_for_pages_of_another_size_is_refused() {
    let (dir, store) = new_store();
    drop(store);
    let opened = RedbPages::open(&dir.path().join("pages"), 4032);
    assert!(matches!(opened, Err(DiskError::Damaged { .. })));
}

#[test]
fn a_missing_or_foreign_file_is_damage_and_not_a_new_store() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pages");
    assert!(matches!(RedbPages::open(&file, PAGE_BYTES), Err(DiskError::Damaged { .. })));
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    assert!(RedbPages::open(&file, PAGE_BYTES).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), vec![7; 100_000]);
}

#[test]
fn a_store_that_is_open_elsewhere_is_locked() {
    let (dir, _store) = new_store();
    let second = RedbPages::open(&dir.path().join("pages"), PAGE_BYTES);
    assert!(matches!(second, Err(DiskError::Locked { .. })));
}

/// A store of real pages, in a tree with inner nodes.
fn store_of_pages() -> (TempDir, PathBuf) {
    let (dir, mut store) = new_store();
    let page = |n: u32| PageBuilder::new(Vec::new(), id(n), SpaceId(1)).finish(Stamp(n as u64));
    for from in (1..PAGES).step_by(50) {
        let pages: Vec<(u32, Vec<u8>)> = (from..from + 50).map(|n| (n, page(n))).collect();
        let pages: Vec<(PageId, &[u8])> = pages.iter().map(|(n, b)| (id(*n), b.as_slice())).collect();
        let meta = [("floor", &[from as u8; 40][..])];
        store
            .commit(&PageBatch { pages: &pages, gone: &[], meta: &meta, applied_stamp: Stamp(from as u64) })
            .unwrap();
    }
    let file = dir.path().join("pages");
    (dir, file)
}

#[test]
fn verify_writes_nothing_and_finds_damage() {
    let (_dir, file) = store_of_pages();
    let good = std::fs::read(&file).unwrap();
    assert_eq!(copy_on_write::verify(&file).unwrap(), None);
    // All copies of a page, of which one is in use.
    let mut bad = good.clone();
    let pages =
        (0..good.len() - 8).filter(|at| good[*at..].starts_with(&[&PAGE_MARK[..], &[7, 0, 0, 0]].concat()));
    pages.for_each(|at| bad[at + 20] ^= 1);
    std::fs::write(&file, &bad).unwrap();
    assert!(copy_on_write::verify(&file).unwrap().is_some());
    assert!(std::fs::read(&file).unwrap() == bad);
}

#[test]
fn damaged_page_or_node_spoils_no_other_page() {
    let (_dir, file) = store_of_pages();
    let good = std::fs::read(&file).unwrap();
    // Leaves and inner nodes begin with a 1 and a 2 at a multiple of 4,096.
    let nodes = (1..good.len() / 4096).map(|n| n * 4096).filter(|at| matches!(good[*at], 1 | 2));
    let mut least = PAGES;
    for at in nodes.step_by(3) {
        for offset in [0, 2, 9, 40] {
            let mut bad = good.clone();
            bad[at + offset..at + offset + 2].fill(0x52);
            std::fs::write(&file, bad).unwrap();
            let Ok(store) = RedbPages::look_damaged(&file, PAGE_BYTES) else { continue };
            let (mut read, mut bytes) = (0, Vec::new());
            for page in (1..=PAGES).map(id) {
                if store.read(page, &mut bytes).is_ok_and(|is_there| is_there)
                    && Page::parse(&bytes, page).is_ok()
                {
                    assert!(
                        bytes
                            == PageBuilder::new(Vec::new(), page, SpaceId(1))
                                .finish(Stamp(page.get().into()))
                    );
                    read += 1;
                }
            }
            least = least.min(read);
        }
    }
    assert!(least < PAGES, "a page in use was damaged");
}

#[test]
fn named_value_with_wrong_byte_is_damage() {
    let (dir, mut store) = new_store();
    let meta = [("floor", &b"a value that nothing else looks like"[..])];
    store.commit(&PageBatch { pages: &[], gone: &[], meta: &meta, applied_stamp: Stamp(3) }).unwrap();
    drop(store);
    let file = dir.path().join("pages");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(meta[0].1.len()).position(|w| w == meta[0].1).unwrap();
    bytes[at + 3] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    assert!(matches!(open(dir.path()).meta("floor"), Err(DiskError::Damaged { .. })));
}

const CHILD_DIR: &str = "TERCEL_TEST_PAGES_DIR";

#[test]
#[ignore = "the child process of another test"]
fn child_that_installs_until_it_is_killed() {
    let mut store = open(Path::new(&std::env::var_os(CHILD_DIR).unwrap()));
    for stamp in store.applied_stamp().unwrap().0 + 1.. {
        commit(&mut store, stamp);
        println!("installed {stamp}");
    }
}

#[test]
fn commits_survive_kill_9_whole() {
    let (dir, store) = new_store();
    drop(store);
    let mut before = 0;
    for round in 0..4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--nocapture", "child_that_installs_until_it_is_killed"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut reported = lines.filter_map(|line| line.strip_prefix("installed ")?.parse::<u64>().ok());
        let last = reported.nth(5 + round * 3).expect("the child commits");
        child.kill().unwrap();
        child.wait().unwrap();
        let last = reported.last().unwrap_or(last);

        let store = open(dir.path());
        let stamp = store.applied_stamp().unwrap().0;
        assert!(last > before && stamp >= last, "{stamp} of {last}");
        assert_state(&store, stamp);
        before = stamp;
    }
}
