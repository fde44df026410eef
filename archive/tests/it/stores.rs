//! The contract of a store, which every kind keeps.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::place::{Place, in_each_store};

fn object_is_written_once(place: &dyn Place) {
    let store = place.store("a");
    assert!(store.put("log/1/a", b"one").unwrap());
    assert!(!store.put("log/1/a", b"two").unwrap());
    assert!(!store.put("log/1/a", b"one").unwrap(), "the same bytes are there already, too");
    assert_eq!(store.get("log/1/a").unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(store.get("log/1/b").unwrap(), None);
    store.remove("log/1/a").unwrap();
    store.remove("log/1/a").unwrap();
    assert_eq!(store.list("").unwrap(), Vec::<String>::new());
}

fn lists_are_whole_and_in_order(place: &dyn Place) {
    let (store, other) = (place.store("a"), place.store("ab"));
    let name = |n: u64| format!("log/{:03}/{n}", n * 7 % 23);
    let mut names: Vec<String> = (0..23).map(name).collect();
    for name in names.iter().rev() {
        assert!(store.put(name, name.as_bytes()).unwrap());
    }
    store.put("base/1", b"").unwrap();
    other.put("log/999/0", b"").unwrap();
    names.sort_unstable();
    assert_eq!(store.list("log/").unwrap(), names);
    assert_eq!(store.list("log/00").unwrap(), names[..10]);
    assert_eq!(store.list("").unwrap().len(), 24);
    assert_eq!(store.list("no").unwrap(), Vec::<String>::new());
}

fn objects_of_all_sizes_come_back(place: &dyn Place) {
    let store = place.store("a");
    for size in [0, 1, 70_000, 9 << 20] {
        let bytes: Vec<u8> = (0..size).map(|n: usize| (n * 31 % 251) as u8).collect();
        assert!(store.put(&format!("base/{size}"), &bytes).unwrap());
        assert!(store.get(&format!("base/{size}")).unwrap() == Some(bytes), "{size}");
    }
}

fn swap_compares_the_bytes_before(place: &dyn Place) {
    let store = place.store("a");
    assert!(!store.swap("head", Some(b"0"), b"1").unwrap(), "nothing is there");
    assert!(store.swap("head", None, b"0").unwrap());
    assert!(!store.swap("head", None, b"1").unwrap());
    assert!(!store.swap("head", Some(b"1"), b"2").unwrap());
    assert!(store.swap("head", Some(b"0"), b"1").unwrap());
    assert_eq!(store.get("head").unwrap().as_deref(), Some(&b"1"[..]));
}

fn one_of_many_swaps_wins(place: &dyn Place) {
    let store = place.store("a");
    assert!(store.swap("head", None, b"0").unwrap());
    let won = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for n in 1..9u8 {
            // Each has a store of its own, as servers have.
            let (store, won) = (place.store("a"), &won);
            scope.spawn(move || {
                let is_mine = store.swap("head", Some(b"0"), &[n]).unwrap();
                won.fetch_add(is_mine.into(), SeqCst);
            });
        }
    });
    assert_eq!(won.into_inner(), 1);
}

in_each_store!(
    object_is_written_once,
    lists_are_whole_and_in_order,
    objects_of_all_sizes_come_back,
    swap_compares_the_bytes_before,
    one_of_many_swaps_wins,
);
