//! Objects that no root reaches go, and no others: the package graph before and after, counted independently.
//! The variable `TERCEL_TEST_PACKAGES` names another list of packages than the one made here, such as
//! Debian's.

use std::collections::{BTreeMap, HashSet};
use std::process::{Command, Stdio};

use serde_json::Value;
use tercel::Client;
use tercel::{List, Ref, tools};
use tercel_machine::random::Random;
use tercel_packages::model::{CATALOG, Catalog, Package};
use tercel_wire::class::{FORWARD, ROOT_HEAD};
use tercel_wire::cursor::le32;
use tercel_wire::id::{Oref, PageId};
use tercel_wire::page::{Page, class_of};
use tercel_wire::record::HEADER_BYTES;

use crate::common::{Serving, err, free, out, tercel, until};

/// A space with the packages of a list in it, and the list. Some depend on so many that a list of references
/// is in chunks.
fn imported() -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let (space, list) = (dir.path().join("space"), dir.path().join("Packages"));
    let mut random = Random::new(3);
    let mut stanza = |n: u64| {
        let many = if n.is_multiple_of(400) { 1_500 } else { 4 };
        let depends: Vec<String> = (0..many).map(|_| format!("p{}", random.below(PACKAGES))).collect();
        let words = "words ".repeat(random.below(30) as usize);
        format!(
            "Package: p{n}\nVersion: 1\nSection: s{}\nDepends: {}\nDescription: {words}\n\n",
            n % 7,
            depends.join(", ")
        )
    };
    std::fs::write(&list, (0..PACKAGES).map(&mut stanza).collect::<String>()).unwrap();
    let [space, mut list] = [space, list].map(|path| path.display().to_string());
    if let Ok(named) = std::env::var("TERCEL_TEST_PACKAGES") {
        list = named;
    }
    import(&space, &list);
    (dir, space, list)
}

fn import(space: &str, list: &str) {
    out(&tercel(&["import", "debian", "--input", list, "--data", space]));
}

const PACKAGES: u64 = 3_000;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&out(&tercel(args))).unwrap()
}

/// The number of objects, in whatever form.
fn stored(space: &str) -> u64 {
    let report = json(&["check", "--data", space, "--json"]);
    assert_eq!((&report["sound"], &report["wrong"]), (&true.into(), &0.into()), "{report}");
    report["objects"].as_u64().unwrap()
}

/// The number of them that the roots reach: chunks, and places that objects moved from, count.
fn reached(client: &Client) -> u64 {
    let pages = client.server_status().unwrap().pages.pages;
    let ids = (1..=pages as u32).filter_map(PageId::new);
    let pages: BTreeMap<PageId, Vec<u8>> =
        ids.filter_map(|id| Some((id, tools::page(client, id).unwrap()?))).collect();
    let classes: BTreeMap<_, _> = tools::classes(client).unwrap().into_iter().collect();
    let mut seen = HashSet::from([ROOT_HEAD]);
    let mut next = vec![ROOT_HEAD];
    while let Some(oref) = next.pop() {
        let page = Page::parse(&pages[&oref.page()], oref.page()).unwrap();
        let object = page.object(oref.slot()).unwrap_or_else(|| panic!("nothing is at {oref}"));
        let body = &object[HEADER_BYTES..];
        let mut refs: Vec<Oref> = Vec::new();
        match class_of(object) {
            FORWARD => refs.extend(Oref::from_raw(le32(object, HEADER_BYTES))),
            class => classes[&class].refs(body, |at| refs.extend(Oref::from_raw(le32(body, at)))),
        }
        next.extend(refs.into_iter().filter(|to| !to.is_null() && seen.insert(*to)));
    }
    seen.len() as u64
}

/// Takes half of the names away, and all that leads from package to package; gives how many objects the roots
/// reach after that.
fn unlink_half(space: &str) -> u64 {
    let client = tercel::embedded(space).unwrap();
    let names: Vec<String> = client
        .run(|tx| {
            let catalog = tx.get_root::<Catalog>(CATALOG)?;
            let names = catalog.names().iter(tx).map(|entry| Ok(entry?.0.0));
            names.collect::<Result<Vec<String>, tercel::Error>>()
        })
        .unwrap();
    for some in names.chunks(200) {
        client
            .run(|tx| {
                let catalog = tx.get_root::<Catalog>(CATALOG)?;
                for (i, name) in some.iter().enumerate() {
                    let package: Ref<Package> = catalog.names().get(tx, name)?.reference();
                    let package = tx.edit(package)?;
                    package.set_depends(List::new())?;
                    package.set_rdepends(List::new())?;
                    if i % 2 == 0 {
                        catalog.names().remove(tx, name)?;
                    }
                }
                Ok(())
            })
            .unwrap();
    }
    let sections = client.run(|tx| {
        let sections = tx.get_root::<Catalog>(CATALOG)?.sections();
        let names: Vec<String> =
            sections.iter(tx).map(|entry| Ok(entry?.0.0)).collect::<Result<_, tercel::Error>>()?;
        names.iter().try_for_each(|name| sections.remove(tx, name).map(|_| ()))
    });
    sections.unwrap();
    let reached = reached(&client);
    client.close().unwrap();
    reached
}

#[test]
fn nothing_is_left_of_a_graph_without_its_root() {
    let (_dir, space, list) = imported();
    let all = stored(&space);
    let client = tercel::embedded(&space).unwrap();
    assert_eq!(reached(&client), all);
    client.run(|tx| tx.remove_root(CATALOG)).unwrap();
    client.close().unwrap();
    let dry = json(&["gc", "--dry-run", "--json", "--data", &space]);
    assert_eq!(stored(&space), all);
    let file = || std::fs::metadata(std::path::Path::new(&space).join("pages.redb")).unwrap().len();
    let full = file();
    let went = json(&["gc", "--json", "--data", &space]);
    assert!(file() < full / 2, "the page store's file went from {full} bytes to {}", file());
    assert_eq!((&dry["classes"], &dry["objects"]), (&went["classes"], &went["objects"]));
    // The head of the roots.
    assert_eq!(stored(&space), 1, "{went}");
    let again = out(&tercel(&["gc", "--data", &space]));
    assert!(again.contains("collected: 0 objects that no root reaches went"), "{again}");
    // The room is used again.
    let pages = json(&["stat", "--data", &space, "--json"])["pages"].as_u64().unwrap();
    import(&space, &list);
    let after = json(&["stat", "--data", &space, "--json"])["pages"].as_u64().unwrap();
    assert!(after < pages + pages / 10, "{pages} pages were given out, and then {after}");
    assert_eq!(stored(&space), all);
}

#[test]
fn exactly_the_half_that_is_out_of_reach_goes_whenever_the_server_is_killed() {
    let (dir, space, _) = imported();
    let reached = unlink_half(&space);
    let all = stored(&space);
    assert!(reached < all / 10 * 7, "{reached} of {all}");
    let mut random = Random::new(7);
    let (mut whole, mut longest) = (0, std::time::Duration::from_secs(5));
    for n in 0..24 {
        let copy = dir.path().join(format!("copy{n}"));
        copy_all(space.as_ref(), &copy);
        let copy = copy.display().to_string();
        let mut serving = Serving::start_with(&copy, &["--listen", "127.0.0.1:0", "--gc-grace", "0"]);
        let client = Client::connect(&serving.1).unwrap();
        client.begin_collection(false).unwrap();
        let begun = std::time::Instant::now();
        let until = longest.mul_f64(random.below(1_000) as f64 / 1_000.0);
        loop {
            let status = client.server_status().unwrap();
            let done = status.leading.unwrap().collection.done;
            if done == 1 && status.pages.trees_released == 0 {
                // The others are killed before that.
                longest = longest.min(begun.elapsed().mul_f64(1.2));
                break;
            }
            if begun.elapsed() >= until {
                break;
            }
        }
        serving.0.kill().unwrap();
        serving.0.wait().unwrap();
        drop((client, serving));
        let left = stored(&copy);
        assert!((reached..=all).contains(&left), "{left} of {all} are left, {reached} were reached");
        whole += u32::from(left == all);
        out(&tercel(&["gc", "--data", &copy]));
        assert_eq!(stored(&copy), reached);
        std::fs::remove_dir_all(&copy).unwrap();
    }
    assert!((1..24).contains(&whole), "{whole} of 24 servers were killed before anything was freed");
}

/// A collection ends with its server, and so does the command that waits for it.
#[test]
fn command_ends_when_its_server_was_restarted() {
    let (_dir, space, _) = imported();
    unlink_half(&space);
    let at = free();
    let serve = || Serving::start_with(&space, &["--listen", &at, "--gc-grace", "3600"]);
    let mut serving = serve();
    let mut gc = Command::new(env!("CARGO_BIN_EXE_tercel"));
    let gc = gc.args(["gc", "--server", &at]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let observer = Client::connect(&serving.1).unwrap();
    let phase = || Some(observer.server_status().ok()?.leading?.collection.phase);
    until(|| (phase()? == "grace").then_some(()));
    serving.0.kill().unwrap();
    serving.0.wait().unwrap();
    let _serving = serve();
    let ended = gc.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(75), "{ended:?}");
    let said = err(&ended);
    assert!(said.contains("before the collection was over") && said.contains("same command again"), "{said}");
}

fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &to),
            false => _ = std::fs::copy(entry.path(), to).unwrap(),
        }
    }
}
