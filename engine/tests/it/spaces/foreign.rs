//! The histories of worlds before a judge of another house: the program `adya`, which finds the anomalies of
//! Adya's graphs in histories of lists that are appended to.
//!
//! Version n of an object is the list of 1 to n. Causal consistency of transactions forbids the cycles of
//! reads, writes and sessions with at most one edge from a read to the next version. Two of them, as in a
//! long fork, are allowed.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

use super::groups;
use super::judged::{Done, Guarantee};
use super::{Played, play, worlds};

const FORBIDDEN: &str = "G0-process,G1c-process,G-single-process";

/// A history, each transaction as a line that it begins and one that it ends.
fn encode(history: &[Done]) -> String {
    let events = || history.iter().flat_map(|done| &done.events);
    let written: BTreeSet<_> = events().filter(|e| e.2).map(|e| (e.0, e.1)).collect();
    let newest = events().map(|(object, version, _)| (*object, *version));
    // Versions of unknown outcome that were read, or whose successor was.
    let unheard: BTreeSet<_> =
        newest.flat_map(|(object, version)| (1..=version).map(move |n| (object, n))).collect();
    let unheard = unheard.difference(&written).map(|(object, n)| vec![(*object, *n, true)]);
    let unheard = unheard.enumerate().map(|(i, events)| ("info", 1_000 + i, events));
    // Between two transactions of a session stands one that reads nothing which is written: an edge that
    // goes from a read to a write, and from a session's transaction to its next, would count as the first.
    let heard = history.iter().flat_map(|done| {
        [done.events.clone(), vec![((9, 9), 0, false)]].map(|events| ("ok", done.session, events))
    });
    let (mut text, mut index) = (String::new(), 0);
    for (end, process, events) in unheard.chain(heard) {
        for (kind, is_known) in [("invoke", false), (end, true)] {
            let said = |((space, number), version, is_write): &((usize, usize), u64, bool)| {
                let key = 10 * space + number;
                match (is_write, is_known) {
                    (true, _) => format!(r#"["append",{key},{version}]"#),
                    (false, false) => format!(r#"["r",{key},null]"#),
                    (false, true) => format!(r#"["r",{key},{:?}]"#, (1..=*version).collect::<Vec<_>>()),
                }
            };
            let value: Vec<_> = events.iter().map(said).collect();
            writeln!(
                text,
                r#"{{"type":"{kind}","f":"txn","process":{process},"index":{index},"value":[{}]}}"#,
                value.join(",")
            )
            .unwrap();
            index += 1;
        }
    }
    text
}

/// Says of each world whether its history is causally consistent; none if the judge is not here.
fn judge(played: &[Played]) -> Option<Vec<bool>> {
    let dir = std::env::temp_dir().join(format!("tercel-histories-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let files: Vec<_> = (0..played.len()).map(|i| dir.join(format!("{i}.jsonl"))).collect();
    files.iter().zip(played).for_each(|(file, played)| {
        std::fs::write(file, encode(&played.history)).unwrap();
    });
    let mut command = Command::new("adya");
    command.args(["check", "--consistency-models", "read-committed", "--anomalies", FORBIDDEN]);
    let judged = command.args(&files).output();
    std::fs::remove_dir_all(&dir).unwrap();
    let judged = match judged {
        Ok(judged) => String::from_utf8(judged.stdout).unwrap(),
        Err(e) => {
            println!("left out: adya cannot be run ({e}): cargo install adya --no-default-features");
            return None;
        }
    };
    let of = |file: &std::path::PathBuf| {
        let verdict = |is| judged.contains(&format!("{}\t{is}\n", file.display()));
        assert!(verdict(true) != verdict(false), "no verdict on {}: {judged}", file.display());
        verdict(true)
    };
    Some(files.iter().map(of).collect())
}

fn is_judged_alike(play: fn(u64, bool) -> Played) {
    let played: Vec<_> = (0..worlds(50)).map(|seed| play(seed, true)).collect();
    let Some(verdicts) = judge(&played) else { return };
    assert_eq!(verdicts.iter().position(|is| !is), None, "a world with sessions");
    // It finds what this crate's judge finds where there are none.
    let played: Vec<_> = (0..worlds(50)).map(|seed| play(seed, false)).collect();
    let verdicts = judge(&played).unwrap();
    let mut found = 0;
    for (seed, (played, is_causal)) in played.iter().zip(verdicts).enumerate() {
        let lacks = played.violations.iter().any(|lacks| *lacks != Guarantee::Exported);
        assert_eq!(lacks, !is_causal, "world {seed}: the judges differ on {:?}", played.violations);
        found += u32::from(lacks);
    }
    println!("without sessions {found} of {} worlds lack causes, by both judges", played.len());
    assert!(found > 0);
}

#[test]
fn foreign_judge_finds_worlds_with_sessions_causal() {
    is_judged_alike(play);
    is_judged_alike(groups::play);
}
