//! The room of a space: its counts, kept counts, and warnings.

use crate::collect::{ask, chain, collect, config, number, report, status};
use crate::places::half_a_page;
use crate::space::verify;
use crate::world::World;
use crate::world::things::{grow, make, set, small, world};
use tercel_engine::server::{ServerConfig, SpaceWarning};
use tercel_wire::record::Ref;

/// The part of the status about the last count.
fn counted(status: &str) -> &str {
    &status[status.find("\"counted\":").unwrap()..]
}

/// Bytes of all objects in pages, and pages with any.
fn stored(w: &World) -> (u64, u64) {
    w.run_until_idle();
    let pages = verify(w).1;
    (pages.values().flatten().map(|bytes| *bytes as u64).sum(), pages.len() as u64)
}

/// Lets seconds pass in steps that no session is too silent for.
fn pass_s(w: &World, seconds: u64) {
    for _ in 0..seconds {
        w.lock().pass(1_000_000);
        w.run_until_idle();
    }
}

#[test]
fn counted_bytes_are_those_in_the_pages() {
    for of in [ServerConfig::default(), small()] {
        let w = World::new(1, 1, config(of));
        for name in ["kept", "old"] {
            w.run(0, |tx| tx.set_root(name, chain(tx, 300, 100)?)).unwrap();
            let large = make(&w, 0, &format!("large {name}"), 1);
            grow(&w, 0, large, 30_000);
        }
        assert!(status(&w).contains("\"counted\":null"), "{}", status(&w));
        w.run(0, |tx| Ok((tx.remove_root("old")?, tx.remove_root("large old")?))).unwrap();
        let dry = report(&w, ask(&w, true));
        let (bytes, pages) = stored(&w);
        let (live, garbage, free) =
            (number(&dry, "live_bytes"), number(&dry, "garbage_bytes"), number(&dry, "free_bytes"));
        assert_eq!((live + garbage, number(&dry, "pages_counted")), (bytes, pages), "{dry}");
        // The value of the object that goes is garbage, too.
        assert!(garbage > 30_000 + 300 * 100, "{dry}");
        assert!(live + garbage + free < pages * 8_024, "{dry}");
        w.pass_ms(3_000);
        let said = status(&w);
        assert_eq!(number(counted(&said), "garbage_bytes"), garbage);
        assert!((3..=5).contains(&number(counted(&said), "seconds_ago")), "{said}");
        // What is freed was the garbage, and nothing else.
        collect(&w);
        w.pass_ms(2_000);
        assert_eq!(stored(&w).0, live);
        for said in [counted(&status(&w)), &report(&w, ask(&w, true))] {
            let (left, pages) = (number(said, "live_bytes"), number(said, "pages_counted"));
            assert_eq!((left, number(said, "garbage_bytes")), (live, 0), "{said}");
            assert_eq!(pages, stored(&w).1, "{said}");
        }
    }
}

#[test]
fn pages_in_use_are_exact_after_frees_and_recovery() {
    let w = World::new(1, 1, config(small()));
    let check = |w: &World| {
        let (_, pages) = stored(w);
        let said = status(w);
        assert_eq!(number(&said, "pages_in_use"), pages, "{said}");
        assert_eq!(number(&said, "bytes_granted"), number(&said, "pages_granted") * 8_064);
        pages
    };
    w.run(0, |tx| tx.set_root("a", chain(tx, 400, 100)?)).unwrap();
    let kept = make(&w, 0, "kept", 1);
    let before = check(&w);
    grow(&w, 0, kept, 30_000);
    assert!(check(&w) > before + 2);
    grow(&w, 0, kept, 10);
    w.run(0, |tx| tx.remove_root("a")).unwrap();
    collect(&w);
    w.pass_ms(2_000);
    assert!(check(&w) < before / 2);
    w.crash();
    w.restart();
    check(&w);
    w.run(0, |tx| tx.edit(kept)?.set_next(Ref::NULL)).unwrap();
    w.run(0, |tx| set(tx, kept, 2)).unwrap();
    check(&w);
}

#[test]
fn space_with_few_pages_warns_in_status_and_at_clients() {
    let w = world(2);
    make(&w, 0, "r", 1);
    assert_eq!(w.lock().node.machine().unwrap().space_warning(), None);
    assert!(status(&w).contains("\"warnings\":[]"));
    w.crash();
    w.lock().leave_pages(400_000);
    w.restart();
    pass_s(&w, 3);
    let said = status(&w);
    assert!(said.contains("\"warnings\":[\"9.5 % of the space's 4,194,303 pages are left; "), "{said}");
    assert_eq!(number(&said, "pages_free"), 400_000);
    assert!(said.contains("\"time_to_full\":\"not known yet\""), "{said}");
    let inner = w.lock();
    let warning = inner.node.machine().unwrap().space_warning();
    assert_eq!(warning, Some(SpaceWarning::FewPages { left: 400_000 }));
    assert!(inner.clients.iter().all(|client| client.stats().nearly_full));
}

#[test]
fn space_that_fills_within_a_week_warns_until_the_rate_falls() {
    let w = world(1);
    make(&w, 0, "r", 1);
    let is_warned = |w: &World| w.lock().clients[0].stats().nearly_full;
    pass_s(&w, 310);
    assert!(!is_warned(&w));
    // 4,194,303 pages in a week are 416 a minute, and these are 750.
    for _ in 0..8 {
        (0..15).for_each(|_| w.run(0, |tx| (0..100).try_for_each(|_| half_a_page(tx).map(|_| ()))).unwrap());
        pass_s(&w, 60);
    }
    let said = status(&w);
    assert!(is_warned(&w) && said.contains("\"time_to_full\":\"about 6 days\""), "{said}");
    assert!(said.contains("pages are used in about 6 days; when none is left"), "{said}");
    pass_s(&w, 3_600);
    assert!(!is_warned(&w) && status(&w).contains("\"warnings\":[]"), "{}", status(&w));
    assert!(status(&w).contains("\"time_to_full\":\"not at the present rate\""));
}
