//! Damage: what a repair makes of it, and what it leaves alone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Counter;
use crate::damage::{self, Blob, Known, contents, crashed, crashed_with, files};
use tempfile::TempDir;
use tercel::check::{self, Kind, Repaired};
use tercel::tools::disk::dir::{DataDir, NewSpace};
use tercel::tools::disk::log;
use tercel::tools::wire::id::PageId;
use tercel::tools::wire::page::{PAGE_BYTES, PAGE_MARK, Page};
use tercel::{Bytes, Client, Error, Object, Ref, ServerConfig, Stamp, Text, Tx, embedded};

fn spoil(file: &Path, at: impl IntoIterator<Item = usize>) {
    let mut bytes = fs::read(file).unwrap();
    at.into_iter().for_each(|at| bytes[at] ^= 0x6b);
    fs::write(file, bytes).unwrap();
}

fn repair(dir: &Path) -> Repaired {
    check::repair(dir, |_, _| {}).unwrap()
}

fn assert_whole(dir: &Path, known: &Known) {
    for (object, value) in known.dump(&embedded(dir).unwrap()) {
        assert_eq!(value.as_ref(), known.versions[&object].last(), "{object}");
    }
}

/// Everything where the log has lost commits: what is in the checkpoint was not among them.
fn dump_behind_a_loss(client: &Client, known: &Known) -> Vec<(String, Option<String>)> {
    let all = known.dump_by_roots(client);
    let held = all.iter().filter(|(_, value)| value.is_some()).count();
    assert!(held > known.versions.len() / 2, "{held} held");
    all
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    files(&dir.join("log")).into_iter().filter(|f| f.extension().is_some_and(|e| e == "tlog")).collect()
}

/// Spoils some bytes of the page that has an old node, wherever the store has or had it; gives the node.
fn spoil_page(dir: &Path, known: &Known, by: &[usize]) -> usize {
    let name = format!("node 2 {}", "x".repeat(90));
    let file = dir.join("pages.redb");
    let bytes = fs::read(&file).unwrap();
    let found: Vec<usize> = bytes
        .windows(name.len())
        .enumerate()
        .filter(|(_, w)| *w == name.as_bytes())
        .map(|(at, _)| at)
        .collect();
    assert!(!found.is_empty(), "it is stored");
    spoil(&file, found.iter().flat_map(|at| by.iter().map(move |b| at + b)));
    assert_eq!(known.versions["node 15"].last().map(|v| v.starts_with(&name)), Some(true));
    15
}

#[test]
fn damaged_page_gives_what_the_log_holds() {
    let (dir, known) = crashed();
    let node = spoil_page(dir.path(), &known, &[0, 1, 40, 41]);
    let report = check::check(dir.path(), |_, _| {}).unwrap();
    let page = known.kept.nodes[node].oref().page();
    assert!(report.findings.iter().any(|f| f.kind == Kind::Page && f.page == Some(page)), "{report:?}");
    let repaired = repair(dir.path());
    assert!(repaired.before.findings.iter().any(|f| !f.repairable), "something is lost");
    let client = embedded(dir.path()).unwrap();
    let (mut held, mut lost) = (0, 0);
    for (object, value) in known.dump(&client) {
        match value {
            Some(value) => {
                assert_eq!(Some(&value), known.versions[&object].last(), "{object}");
                held += 1;
            }
            None => lost += 1,
        }
    }
    assert!(held > 100 && lost > 5, "{held} held, {lost} lost");
    let gone = client.run(|tx| Ok(tx.get(known.kept.nodes[node])?.near().len()));
    assert!(matches!(gone, Err(Error::NotFound(_))), "{gone:?}");
    // No new object ever takes the place of a lost one.
    let made: Vec<Ref<Counter>> = client
        .run(|tx| (0..300).map(|n| tx.create(&Counter { count: n, text: Text::from("new") })).collect())
        .unwrap();
    assert!(made.iter().all(|r| r.oref().page() != page));
}

#[test]
fn a_zeroed_sector_never_brings_back_an_older_copy() {
    let (dir, known) = crashed();
    let file = dir.path().join("pages.redb");
    let good = fs::read(&file).unwrap();
    let mut leaves = 0;
    for leaf in (4096..good.len() - 4096).step_by(4096).filter(|at| good[at + 12..].starts_with(&PAGE_MARK)) {
        fs::write(&file, &good).unwrap();
        let mut bad = good.clone();
        bad[leaf..leaf + 512].fill(0);
        fs::write(&file, bad).unwrap();
        let copied = damage::place();
        damage::copy(dir.path(), copied.path());
        let repaired = match check::repair(copied.path(), |_, _| {}) {
            Ok(repaired) => repaired,
            // It was the checkpoint's, in a place where a page was before.
            Err(error) => {
                assert!(error.to_string().contains("tercel restore"), "leaf {leaf}: {error}");
                continue;
            }
        };
        let client = embedded(copied.path()).unwrap();
        let mut lost = 0;
        for (object, value) in known.dump(&client) {
            match value {
                Some(value) => {
                    assert_eq!(Some(&value), known.versions[&object].last(), "leaf {leaf}: {object}")
                }
                None => lost += 1,
            }
        }
        let told = repaired.before.findings.iter().any(|f| !f.repairable);
        assert!(lost == 0 || told, "leaf {leaf}: {:?}", repaired.before.findings);
        leaves += usize::from(told);
    }
    assert!(leaves > 2, "{leaves} pages were in use");
}

type Blobs = Vec<(Ref<Blob>, Vec<u8>)>;

/// A store with some levels of inner nodes, and what is in its objects. Nothing of them is in the log any
/// more.
fn wide() -> (TempDir, Blobs) {
    let dir = damage::place();
    let mut all = Vec::new();
    for round in 0..4 {
        let client = embedded(dir.path()).unwrap();
        let made = client.run(|tx| {
            let datas = (0..150).map(|n| format!("blob {round} {n}, ").repeat(450).into_bytes());
            datas.map(|data| Ok((tx.create(&Blob { data: Bytes::from(data.clone()) })?, data))).collect()
        });
        all.extend::<Vec<_>>(made.unwrap());
        client.close().unwrap();
    }
    let stamp = check::check(dir.path(), |_, _| {}).unwrap().stamp;
    damage::shorten(dir.path(), stamp);
    (dir, all)
}

/// Counts the objects that have changed.
fn lost(dir: &Path, all: &[(Ref<Blob>, Vec<u8>)]) -> usize {
    let client = embedded(dir).unwrap();
    let read = |r: Ref<Blob>| client.run(|tx| Ok(tx.get(r)?.data()?.to_vec())).ok();
    all.iter().filter(|(r, data)| read(*r).as_ref() != Some(data)).count()
}

#[test]
fn losses_of_a_store_are_told_then_and_later() {
    let (dir, all) = wide();
    let bytes = fs::metadata(dir.path().join("pages.redb")).unwrap().len() as usize;
    let mut with_losses = 0;
    for sixteenths in 1..16 {
        let copied = damage::place();
        let path = copied.path();
        damage::copy(dir.path(), path);
        let at = bytes * sixteenths / 16 / 4096 * 4096;
        spoil(&path.join("pages.redb"), at..at + 16384);
        let checked = check::check(path, |_, _| {});
        let Ok(checked) = checked else {
            let error = checked.unwrap_err().to_string();
            assert!(error.contains("tercel restore"), "{error}");
            continue;
        };
        let before = repair(path).before;
        let lost = lost(path, &all);
        let what = format!("{sixteenths} sixteenths, {lost} lost: {before:?}");
        assert_eq!(checked, before, "{what}");
        assert!(lost == 0 || before.beyond_repair > 0, "{what}");
        // A repaired store is sound. Its losses stay known until the operator says that they are dealt with.
        let later = check::check(path, |_, _| {}).unwrap();
        assert!(later.is_sound() && later.is_whole() == checked.is_sound(), "{what}: {later:?}");
        if lost > 0 {
            with_losses += 1;
            fs::remove_file(path.join("lost.txt")).unwrap();
            assert!(check::check(path, |_, _| {}).unwrap().is_whole());
        }
    }
    assert!(with_losses > 1, "{with_losses}");
}

#[test]
fn pages_that_are_gone_without_a_trace_are_counted() {
    let (dir, all) = wide();
    let file = dir.path().join("pages.redb");
    let mut bytes = fs::read(&file).unwrap();
    for (_, data) in &all[200..207] {
        let leaves =
            (4096..bytes.len() - 8192).step_by(4096).filter(|at| bytes[at + 12..].starts_with(&PAGE_MARK));
        let found: Vec<usize> =
            leaves.filter(|at| bytes[*at..at + 8192].windows(100).any(|w| w == &data[..100])).collect();
        assert!(!found.is_empty());
        found.into_iter().for_each(|leaf| bytes[leaf..leaf + 8192].fill(0));
    }
    fs::write(&file, bytes).unwrap();
    let repaired = repair(dir.path());
    let lost = lost(dir.path(), &all);
    assert!(lost >= 7, "{lost}");
    let told = format!("{lost} of the pages that the store had are gone without a trace");
    assert!(
        repaired.before.findings.iter().any(|f| !f.repairable && f.text.starts_with(&told)),
        "{repaired:?}"
    );
    assert!(repaired.after.is_sound() && !repaired.after.is_whole());
}

/// Where whole pages are in a store's file, by number, the newest copy last.
fn leaves(bytes: &[u8]) -> BTreeMap<u32, Vec<(Stamp, usize)>> {
    let mut all: BTreeMap<u32, Vec<(Stamp, usize)>> = BTreeMap::new();
    for leaf in (4096..=bytes.len() - 8192).step_by(4096) {
        let page = &bytes[leaf + 12..leaf + 12 + PAGE_BYTES];
        let id = PageId::new(u32::from_le_bytes(page[4..8].try_into().unwrap()));
        if let Some(page) = id.and_then(|id| Page::parse(page, id).ok()) {
            all.entry(page.id().get()).or_default().push((page.stamp(), leaf));
        }
    }
    all.values_mut().for_each(|copies| copies.sort());
    all
}

#[test]
fn older_copy_of_a_page_is_told_as_doubt() {
    let (dir, known) = crashed();
    let file = dir.path().join("pages.redb");
    let good = fs::read(&file).unwrap();
    let mut told = 0;
    for copies in leaves(&good).values() {
        let newest = copies.last().unwrap();
        let Some(older) = copies.iter().rev().find(|(stamp, _)| *stamp < newest.0) else { continue };
        let copied = damage::place();
        damage::copy(dir.path(), copied.path());
        let mut bad = good.clone();
        bad.copy_within(older.1..older.1 + 8192, newest.1);
        fs::write(copied.path().join("pages.redb"), bad).unwrap();
        let before = repair(copied.path()).before;
        let client = embedded(copied.path()).unwrap();
        let stale = known.dump(&client).into_iter().filter(|(o, v)| v.as_ref() != known.versions[o].last());
        let stale: Vec<_> = stale.collect();
        assert!(stale.is_empty() || before.beyond_repair > 0, "{stale:?}: {before:?}");
        told += usize::from(before.findings.iter().any(|f| f.text.contains("may be an older copy")));
    }
    assert!(told > 2, "{told}");
}

#[test]
fn of_a_server_at_work_what_the_log_holds_is_not_called_lost_and_what_it_does_not_is() {
    let origin = damage::place();
    let config = ServerConfig { mob_bytes: 1 << 20, ..ServerConfig::new(origin.path()) };
    let client = tercel::embedded_with(config, Default::default()).unwrap();
    let mut all = Blobs::new();
    let (mut nothing, mut something) = (0, 0);
    for round in 0..400 {
        for n in 0..23 {
            let data = format!("blob {round} {n}, ").repeat(450).into_bytes();
            all.push((client.run(|tx| tx.create(&Blob { data: Bytes::from(data.clone()) })).unwrap(), data));
        }
        let copied = damage::place();
        let path = copied.path();
        damage::copy(origin.path(), path);
        // It was copied in the middle of a write, or there is nothing in the log alone.
        let Ok(sound) = check::check(path, |_, _| {}) else { continue };
        if !sound.is_sound() || sound.log_records == 0 || sound.log_records + 3 > sound.stamp.0 {
            continue;
        }
        damage::shorten(path, Stamp(sound.stamp.0 + 1 - sound.log_records));
        let file = path.join("pages.redb");
        let mut bytes = fs::read(&file).unwrap();
        let stored = leaves(&bytes);
        let victim = if round % 2 == 0 { stored.values().last() } else { stored.values().nth(20) };
        victim.unwrap().iter().for_each(|(_, leaf)| bytes[*leaf..leaf + 8192].fill(0));
        fs::write(&file, bytes).unwrap();
        let before = repair(path).before;
        let lost = lost(path, &all);
        assert!(lost == 0 || before.beyond_repair > 0, "{round}: {lost} {before:?}");
        // Where it can be told, none is called lost that is not.
        let sure = before.findings.iter().filter(|f| !f.repairable && !f.text.contains("may be")).count();
        assert!(sure <= lost, "{round}: {lost} {before:?}");
        *(if lost == 0 { &mut nothing } else { &mut something }) += 1;
        if nothing > 1 && something > 1 {
            return;
        }
    }
    panic!("{nothing} without a loss, {something} with one");
}

#[test]
fn what_an_interrupted_repair_left_beside_a_log_is_not_taken_for_it_later() {
    let (dir, _) = crashed();
    let space = DataDir::open(dir.path(), &NewSpace { id: None, page_bytes: 8064, segment_bytes: 16384 })
        .unwrap()
        .space()
        .id;
    let made = dir.path().join("log.repaired");
    let report = check::check(dir.path(), |_, _| {}).unwrap();
    log::create(&made, space, Stamp(report.stamp.0 - report.log_records), 16384).unwrap();
    assert!(check::check(dir.path(), |_, _| {}).unwrap().is_sound());
    drop(embedded(dir.path()).unwrap());
    assert!(!made.exists());
    // Of one that does not go on behind the pages nothing is taken either.
    fs::remove_dir_all(dir.path().join("log")).unwrap();
    log::create(&made, space, Stamp(1), 16384).unwrap();
    let repaired = repair(dir.path());
    assert!(repaired.before.findings.iter().any(|f| f.kind == Kind::Commits), "{repaired:?}");
    assert!(!made.exists() && !repaired.after.is_whole());
}

#[test]
fn a_log_that_lost_its_end_is_not_called_sound_and_not_served() {
    // Where a segment ends with a whole record, nothing tells that another one followed: here none does.
    let (dir, known) = damage::crashed_with(7);
    let is_used = |s: &PathBuf| fs::read(s).unwrap().iter().any(|b| *b != 0);
    let used: Vec<String> = segments(dir.path())
        .iter()
        .filter(|s| is_used(s))
        .map(|s| s.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert!(used.len() > 3);
    type Way = Box<dyn Fn(&Path)>;
    let mut ways: Vec<(String, Way)> = Vec::new();
    for first in &used[1..] {
        let gone = first.clone();
        let behind = move |log: &Path| {
            files(log)
                .into_iter()
                .filter(|f| f.file_name().unwrap() >= &*gone)
                .for_each(|f| fs::remove_file(f).unwrap());
        };
        ways.push((format!("removed from {first}"), Box::new(behind)));
    }
    for name in &used {
        for bytes in [300, 4096, 9001] {
            let segment = name.clone();
            let cut = move |log: &Path| {
                File::options().write(true).open(log.join(&segment)).unwrap().set_len(bytes).unwrap();
            };
            ways.push((format!("{name} cut to {bytes}"), Box::new(cut)));
        }
    }
    let mut told = 0;
    for (what, way) in ways {
        let copied = damage::place();
        damage::copy(dir.path(), copied.path());
        way(&copied.path().join("log"));
        let refused = embedded(copied.path()).map(drop).map_err(|e| e.to_string());
        assert!(refused.as_ref().is_err_and(|e| e.contains("check --data")), "{what}: {refused:?}");
        let before = repair(copied.path()).before;
        let is_told = before.findings.iter().any(|f| f.kind == Kind::Commits && !f.repairable);
        let client = embedded(copied.path()).unwrap();
        let all = if is_told { dump_behind_a_loss(&client, &known) } else { known.dump(&client) };
        for (object, value) in all {
            let versions = &known.versions[&object];
            assert!(value.as_ref().is_none_or(|v| versions.contains(v)), "{what}: {object}");
            assert!(is_told || value.as_ref() == versions.last(), "{what}: {object}: {before:?}");
        }
        told += usize::from(is_told);
    }
    assert!(told > 6, "{told}");
}

#[test]
fn pages_younger_than_the_log_tell_that_it_lost_its_end() {
    let origin = damage::place();
    let config = ServerConfig { mob_bytes: 1 << 20, ..ServerConfig::new(origin.path()) };
    let client = tercel::embedded_with(config, Default::default()).unwrap();
    let text = |n: u64| Text::from(format!("{n} ").repeat(300));
    let mut counters: Vec<Ref<Counter>> = Vec::new();
    for _ in 0..20 {
        let made =
            client.run(|tx| (0..100).map(|n| tx.create(&Counter { count: n, text: text(n) })).collect());
        counters.extend::<Vec<_>>(made.unwrap());
    }
    for round in 0..60 {
        for part in counters.chunks(100) {
            let write = |tx: &Tx<'_>| part.iter().try_for_each(|c| tx.get(*c)?.edit()?.set_text(text(round)));
            client.run(write).unwrap();
        }
        let copied = damage::place();
        damage::copy(origin.path(), copied.path());
        let Ok(sound) = check::check(copied.path(), |_, _| {}) else { continue };
        if !sound.is_sound() || sound.log_records < 10 {
            continue;
        }
        // A tail of zeros looks like a log's end; nothing but the pages knows better.
        let segment = segments(copied.path())
            .into_iter()
            .rfind(|s| fs::read(s).unwrap().iter().any(|b| *b != 0))
            .unwrap();
        let mut bytes = fs::read(&segment).unwrap();
        let used = bytes.iter().rposition(|b| *b != 0).unwrap();
        let stamps: Vec<Stamp> = leaves(&fs::read(copied.path().join("pages.redb")).unwrap())
            .values()
            .map(|copies| copies.last().unwrap().0)
            .collect();
        bytes[used / 4..].fill(0);
        fs::write(&segment, bytes).unwrap();
        let Ok(before) = check::check(copied.path(), |_, _| {}) else { continue };
        if stamps.iter().all(|stamp| *stamp <= before.stamp) {
            continue;
        }
        let lost = |f: &check::Finding| f.kind == Kind::Commits && f.text.contains("is as of commit");
        assert!(before.findings.iter().any(lost), "{before:?}");
        let repaired = repair(copied.path());
        assert!(repaired.after.is_sound() && !repaired.after.is_whole(), "{repaired:?}");
        assert!(repaired.after.stamp > *stamps.iter().max().unwrap());
        return;
    }
    panic!("no page was younger than what was left of the log");
}

#[test]
fn files_of_another_space_are_refused_and_nothing_is_touched() {
    let ((dir, _), (other, _)) = (crashed(), crashed());
    for file in ["pages.redb", "log"] {
        let copied = damage::place();
        damage::copy(dir.path(), copied.path());
        let (from, to) = (other.path().join(file), copied.path().join(file));
        match from.is_dir() {
            true => {
                fs::remove_dir_all(&to).unwrap();
                damage::copy(&from, &to);
            }
            false => _ = fs::copy(from, to).unwrap(),
        }
        assert!(embedded(copied.path()).is_err(), "{file}");
        let before = contents(copied.path());
        for error in
            [check::check(copied.path(), |_, _| {}).err(), check::repair(copied.path(), |_, _| {}).err()]
        {
            let error = error.expect(file).to_string();
            assert!(error.contains("of another space"), "{file}: {error}");
        }
        assert!(contents(copied.path()) == before, "{file}");
    }
}

#[test]
fn a_segment_in_the_place_of_a_later_one_costs_nothing() {
    let (dir, known) = crashed();
    let all = segments(dir.path());
    let later = format!("{:010}.tlog", all.len() + 1);
    fs::copy(&all[0], all[0].with_file_name(later)).unwrap();
    assert!(check::check(dir.path(), |_, _| {}).unwrap().is_sound());
    assert_whole(dir.path(), &known);
}

#[test]
fn a_store_that_is_gone_is_made_anew_from_a_log_that_reaches_to_the_beginning() {
    let (dir, known) = crashed_with(u64::MAX);
    fs::remove_file(dir.path().join("pages.redb")).unwrap();
    let repaired = repair(dir.path());
    assert!(repaired.after.is_sound(), "{:?}", repaired.after.findings);
    assert_whole(dir.path(), &known);
}

#[test]
fn without_store_and_beginning_a_backup_is_asked_for_and_nothing_is_touched() {
    let (dir, _) = crashed();
    fs::write(dir.path().join("pages.redb"), vec![7; 100_000]).unwrap();
    let before = contents(dir.path());
    let error = check::repair(dir.path(), |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("pages.redb") && error.contains("tercel restore"), "{error}");
    assert!(contents(dir.path()) == before);
}

#[test]
fn counts_that_cannot_be_read_are_forgotten_and_objects_are_kept() {
    let (dir, known) = crashed();
    let (file, name) = (dir.path().join("pages.redb"), "counts.0000");
    let bytes = fs::read(&file).unwrap();
    let named = |at: &usize| bytes[*at..].starts_with(name.as_bytes());
    let found: Vec<usize> = (0..bytes.len()).filter(named).collect();
    assert!(!found.is_empty(), "a row of counts is stored");
    spoil(&file, found.iter().flat_map(|at| [at + 1, at + 40, at + 80]));
    let repaired = repair(dir.path());
    assert!(repaired.before.findings.iter().any(|f| f.kind == Kind::Checkpoint), "{:?}", repaired.before);
    assert!(check::check(dir.path(), |_, _| {}).unwrap().is_sound());
    assert_whole(dir.path(), &known);
    // It goes on, and its next checkpoint has all rows.
    assert_whole(dir.path(), &known);
    assert!(check::check(dir.path(), |_, _| {}).unwrap().is_sound());
}

#[test]
fn a_segment_that_only_old_records_are_in_costs_nothing() {
    let (dir, known) = crashed_with(u64::MAX);
    spoil(&segments(dir.path())[1], 100..200);
    assert!(!check::check(dir.path(), |_, _| {}).unwrap().is_sound());
    let repaired = repair(dir.path());
    assert!(repaired.before.findings.iter().all(|f| f.repairable), "{:?}", repaired.before.findings);
    assert!(repaired.after.is_sound(), "{:?}", repaired.after.findings);
    assert_whole(dir.path(), &known);
}

#[test]
fn commits_behind_a_lost_segment_are_told_of_and_those_before_are_kept() {
    let (dir, known) = crashed();
    let all = segments(dir.path());
    fs::remove_file(&all[all.len() - 3]).unwrap();
    let repaired = repair(dir.path());
    assert!(
        repaired.before.findings.iter().any(|f| f.kind == Kind::Commits),
        "{:?}",
        repaired.before.findings
    );
    let client = embedded(dir.path()).unwrap();
    for (object, value) in dump_behind_a_loss(&client, &known) {
        assert!(value.is_none_or(|v| known.versions[&object].contains(&v)), "{object}");
    }
    client.run(|tx| tx.create(&Counter { count: 1, text: Text::from("goes on") })).unwrap();
}

#[test]
fn that_nothing_is_known_of_the_logs_commits_is_a_loss_and_said() {
    let in_use = |dir: &Path| {
        let is_used = |s: &PathBuf| fs::read(s).unwrap().iter().any(|b| *b != 0);
        segments(dir).into_iter().filter(is_used).collect::<Vec<_>>()
    };
    // Some of the header; all of it; the file; the file's name; the log.
    let ways: [fn(&Path); 5] = [
        |segment| spoil(segment, [20, 40]),
        |segment| spoil(segment, 0..64),
        |segment| fs::write(segment, b"").unwrap(),
        |segment| fs::remove_file(segment).unwrap(),
        |segment| _ = fs::remove_dir_all(segment.parent().unwrap()),
    ];
    for (i, way) in ways.into_iter().enumerate() {
        let (dir, known) = crashed();
        in_use(dir.path()).iter().for_each(|segment| way(segment));
        let checked = check::check(dir.path(), |_, _| {}).unwrap();
        let lost = |f: &check::Finding| f.kind == Kind::Commits && !f.repairable;
        assert!(checked.findings.iter().any(lost), "{i}: {:?}", checked.findings);
        assert!(repair(dir.path()).before.findings.iter().any(lost), "{i}");
        let client = embedded(dir.path()).unwrap();
        for (object, value) in dump_behind_a_loss(&client, &known) {
            assert!(value.is_none_or(|v| known.versions[&object].contains(&v)), "{i}: {object}");
        }
        client.run(|tx| tx.create(&Counter { count: 1, text: Text::from("goes on") })).unwrap();
    }
}

#[test]
fn a_repair_that_was_interrupted_goes_on() {
    let (dir, known) = crashed();
    let segment = segments(dir.path())[0].clone();
    spoil(&segment, [200, 300]);
    let repaired = repair(dir.path());
    // As if it had ended when the old log had gone and the new one had not come.
    fs::rename(dir.path().join("log"), dir.path().join("log.repaired")).unwrap();
    let error = check::check(dir.path(), |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("--repair"), "{error}");
    assert!(repair(dir.path()).after.is_sound());
    assert!(repaired.kept.iter().all(|kept| kept.exists()));
    drop(known);
}

const CHILD_DIR: &str = "TERCEL_TEST_REPAIR";

#[test]
#[ignore = "the child process of another test"]
fn child_that_repairs() {
    let dir = PathBuf::from(std::env::var_os(CHILD_DIR).unwrap());
    println!("begins");
    assert!(repair(&dir).after.is_sound());
}

/// Repairs in a process of its own that is killed after a time; says how long it lasted and whether it came
/// to an end.
fn repair_killed_after(dir: &Path, time: Duration) -> (Duration, bool) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "repair::child_that_repairs"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("begins") {
        line.clear();
        assert!(says.read_line(&mut line).unwrap() > 0);
    }
    let begun = Instant::now();
    let (gone, is_gone) = mpsc::channel();
    let reads = thread::spawn(move || {
        // Its output ends with it.
        let _ = io::copy(&mut says, &mut io::sink());
        let _ = gone.send(());
    });
    let _ = is_gone.recv_timeout(time);
    let lasted = begun.elapsed();
    let _ = child.kill();
    let ended = child.wait().unwrap().success();
    reads.join().unwrap();
    (lasted, ended)
}

#[test]
fn a_repair_that_is_killed_anywhere_is_finished_by_the_next() {
    let (dir, known) = crashed();
    // The log is damaged where nothing needs it, so what its page had is all that is lost.
    spoil_page(dir.path(), &known, &[0]);
    spoil(&segments(dir.path())[0], [200]);
    spoil(&dir.path().join("space.toml"), [3]);
    let damaged = || {
        let copied = damage::place();
        damage::copy(dir.path(), copied.path());
        copied
    };
    let copied = damaged();
    let (whole, ended) = repair_killed_after(copied.path(), Duration::from_secs(60));
    let is_kept = |name: &str| copied.path().join(name).exists();
    assert!(
        ended && ["pages.redb.damaged-1", "log.damaged-1", "space.toml.damaged-1"].into_iter().all(is_kept)
    );
    let saved = known.dump(&embedded(copied.path()).unwrap());
    let is_right = |(object, value): &(String, Option<String>)| {
        value.is_none() || value.as_ref() == known.versions[object].last()
    };
    assert!(saved.iter().all(is_right) && saved.iter().filter(|(_, value)| value.is_some()).count() > 100);
    let (mut whole, mut killed, mut n) = (whole, 0, 0);
    while n < KILLS || killed < KILLS / 2 {
        assert!(n < 20 * KILLS, "{killed} of {n} were killed");
        let copied = damaged();
        let (lasted, ended) = repair_killed_after(copied.path(), whole * (n % KILLS) / KILLS);
        n += 1;
        killed += u32::from(!ended);
        if ended {
            // As quick as the machine is now.
            whole = whole.min(lasted);
        }
        let repaired = repair(copied.path());
        assert!(repaired.after.is_sound() && !repaired.after.is_whole(), "{n}: {:?}", repaired.after);
        assert_eq!(known.dump(&embedded(copied.path()).unwrap()), saved, "{n}");
    }
}

/// Moments at which a repair is killed, from its beginning to its end.
const KILLS: u32 = 24;

#[test]
fn a_damaged_page_is_an_error_that_names_it_and_others_are_served() {
    let (dir, known) = crashed();
    let node = spoil_page(dir.path(), &known, &[0]);
    let (bad, good) = (known.kept.nodes[node], *known.kept.counters.last().unwrap());
    let client = embedded(dir.path()).unwrap();
    let error = client.run(|tx| Ok(tx.get(bad)?.near().len())).unwrap_err();
    let page = bad.oref().page();
    assert!(
        matches!(error, Error::Corrupt(_)) && error.to_string().contains(&format!("page {page}")),
        "{error}"
    );
    assert!(client.run(|tx| Ok(tx.get(good)?.count())).is_ok());
    assert!(client.run(|tx| tx.create(&Counter { count: 1, text: Text::from("goes on") })).is_ok());
}

#[test]
fn a_server_that_cannot_bring_a_damaged_page_up_to_date_stops_and_names_the_repair() {
    let (dir, known) = crashed();
    spoil_page(dir.path(), &known, &[0]);
    let client = embedded(dir.path()).unwrap();
    // A clean stop installs what the log has for the page.
    let stopped = client.close().unwrap_err().to_string();
    assert!(stopped.contains("page") && stopped.contains("tercel check --repair"), "{stopped}");
    repair(dir.path());
    embedded(dir.path()).unwrap().close().unwrap();
}

#[test]
fn nothing_is_repaired_where_nothing_is_wrong() {
    let (dir, known) = crashed();
    let before = contents(dir.path());
    let repaired = repair(dir.path());
    assert!(repaired.done.is_empty() && repaired.kept.is_empty() && repaired.after.is_sound());
    assert!(contents(dir.path()) == before);
    assert_whole(dir.path(), &known);
}

#[test]
fn a_reference_into_a_page_that_was_never_given_out_is_found() {
    let dir = damage::place();
    let client = tercel::embedded(dir.path()).unwrap();
    let all =
        client.run(|tx| (0..2).map(|_| tx.create(&Pair { other: Ref::NULL })).collect::<Result<Vec<_>, _>>());
    let [a, b] = all.unwrap()[..] else { unreachable!() };
    client.run(|tx| tx.edit(a)?.set_other(b)).unwrap();
    client.close().unwrap();
    assert!(check::check(dir.path(), |_, _| ()).unwrap().findings.is_empty());
    // No server logs this, for none lets it be committed.
    damage::again(dir.path(), b.oref().raw().to_le_bytes(), (1u32 << 24).to_le_bytes());
    let report = check::check(dir.path(), |_, _| ()).unwrap();
    assert!(report.findings[0].text.contains("does not exist"), "{:?}", report.findings);
}

#[derive(Object)]
struct Pair {
    other: Ref<Pair>,
}
