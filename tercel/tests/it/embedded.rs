//! A space inside the process: the same calls, no socket.

use tercel::{ClientConfig, Error, List, Object, Ref, ServerConfig, Text, Tx};

#[derive(Object, Debug, PartialEq)]
struct Person {
    age: u32,
    name: Text,
    friends: List<Ref<Person>>,
    boss: Ref<Person>,
    note: Option<Text>,
}

/// Names the trait, in code generic over classes, by the same `use` as the derive.
fn only<T: Object>(space: &tercel::Client, root: &str) -> Result<Option<T>, Error> {
    space.run(|tx| tx.get_root_ref::<T>(root)?.map(|r| tx.get(r)?.to_value()).transpose())
}

fn person(name: &str, age: u32) -> Person {
    Person { age, name: name.into(), friends: List::default(), boss: Ref::NULL, note: None }
}

#[test]
fn objects_are_made_read_changed_and_found_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    space
        .run(|tx| {
            let bob = tx.create(&person("Bob", 30))?;
            let ann = tx.create(&Person { friends: List(vec![bob, bob]), boss: bob, ..person("Ann", 41) })?;
            tx.set_root("ann", ann)
        })
        .unwrap();
    for turn in 0..2 {
        space
            .run(|tx| {
                let ann = tx.get_root::<Person>("ann")?;
                assert_eq!(ann.name()?, "Ann");
                assert_eq!(ann.age(), 41 + turn);
                assert_eq!(ann.boss().get()?.name()?, "Bob");
                let names: Vec<String> = ann
                    .friends()
                    .into_iter()
                    .map(|f| Ok(f?.name()?.into_owned()))
                    .collect::<Result<_, Error>>()?;
                assert_eq!(names, ["Bob", "Bob"]);
                let edit = ann.edit()?;
                edit.set_age(ann.age() + 1)?;
                edit.set_note(Some("older".into()))?;
                assert_eq!(tx.get(ann.reference())?.age(), 42 + turn);
                assert_eq!(tx.get(ann.reference())?.note().unwrap()?, "older");
                Ok(())
            })
            .unwrap();
    }
    space.close().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    space
        .run(|tx| {
            let ann = tx.get_root::<Person>("ann")?;
            assert_eq!((ann.age(), ann.name()?.as_ref()), (43, "Ann"));
            Ok(())
        })
        .unwrap();
    space.close().unwrap();
}

#[test]
fn a_function_can_be_generic_over_classes() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    let ann = person("Ann", 41);
    space.run(|tx| tx.set_root("ann", tx.create(&ann)?)).unwrap();
    assert_eq!(only::<Person>(&space, "ann"), Ok(Some(ann)));
    assert_eq!(only::<Person>(&space, "bob"), Ok(None));
    space.close().unwrap();
}

#[test]
fn root_is_got_found_replaced_and_removed_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    let roots = ["ann", "bob", "cleo"];
    for name in roots {
        space.run(|tx| tx.set_root(name, tx.create(&person(name, 40))?)).unwrap();
    }
    let found = |name: &str| {
        space.run(|tx| Ok(tx.find_root::<Person>(name)?.map(|p| p.name().unwrap().into_owned()))).unwrap()
    };
    assert_eq!(found("bob").as_deref(), Some("bob"));
    assert_eq!(space.run(|tx| tx.remove_root("bob")), Ok(true));
    assert_eq!(space.run(|tx| tx.remove_root("bob")), Ok(false));
    assert_eq!(found("bob"), None);
    let got = space.run(|tx| tx.get_root::<Person>("bob").map(drop));
    assert!(matches!(&got, Err(Error::NotFound(what)) if what.contains("`bob`")), "{got:?}");
    // A null reference removes as well, and the others stay.
    space.run(|tx| tx.set_root("ann", Ref::<Person>::NULL)).unwrap();
    assert_eq!((found("ann"), found("cleo").as_deref()), (None, Some("cleo")));
    space.run(|tx| tx.set_root("bob", tx.get_root_ref::<Person>("cleo")?.unwrap())).unwrap();
    let names =
        space.run(|tx| Ok(tx.roots()?.into_iter().map(|(name, _)| name).collect::<Vec<_>>())).unwrap();
    assert_eq!(names, ["bob", "cleo"]);
    let longest = "x".repeat(255);
    space.run(|tx| tx.set_root(&longest, tx.get_root_ref::<Person>("cleo")?.unwrap())).unwrap();
    // Some read as references, which would be taken for other objects.
    for wrong in ["", &"x".repeat(256), "2.0", "0.0", "4194304.0", "+2.0", "2.600"] {
        let refused = space.run(|tx| tx.set_root(wrong, tx.create(&person("dora", 1))?));
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    space.close().unwrap();
}

#[test]
fn clone_is_the_same_client_and_the_last_one_stops_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    let clone = space.clone();
    let ann = clone.run(|tx| tx.create(&person("Ann", 40))).unwrap();
    space.close().unwrap();
    let edited = clone.run(|tx| {
        let edit = tx.edit(ann)?;
        edit.set_age(41)?;
        edit.set_friends([ann])?;
        Ok(tx.get(ann)?.friends().get(0)?.age())
    });
    assert_eq!(edited, Ok(41));
    assert!(
        tercel::embedded(dir.path()).is_err(),
        "the server has the directory as long as there is a client"
    );
    clone.close().unwrap();
    tercel::embedded(dir.path()).unwrap().close().unwrap();
}

#[test]
fn address_may_be_a_text_and_a_wrong_one_is_told() {
    let wrong = tercel::Client::connect("nowhere").err().unwrap();
    assert!(
        matches!(&wrong, Error::Invalid(why) if why.contains("`nowhere` is not an address")),
        "{wrong:?}"
    );
    let dir = tempfile::tempdir().unwrap();
    let server = tercel::Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let client = tercel::Client::connect(server.addresses()[0].to_string()).unwrap();
    client.run(|tx| tx.set_root("ann", tx.create(&person("Ann", 40))?)).unwrap();
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_server_with_which_nothing_could_be_done_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let config = || ServerConfig::new(dir.path());
    for (name, config) in [
        ("mob_bytes", ServerConfig { mob_bytes: 0, ..config() }),
        ("cache_bytes", ServerConfig { cache_bytes: 8 << 10, ..config() }),
        ("subscriptions_max", ServerConfig { subscriptions_max: 0, ..config() }),
    ] {
        let refused = tercel::embedded_with(config, ClientConfig::default()).err().unwrap().to_string();
        assert!(refused.contains(name) && refused.contains("at least"), "{refused}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_place_that_was_never_filled_is_no_damage_and_what_was_never_promised_is() {
    let dir = tempfile::tempdir().unwrap();
    let (space, copy, restored) =
        (dir.path().join("space"), dir.path().join("copy"), dir.path().join("restored"));
    let client = tercel::embedded(&space).unwrap();
    let hermit =
        || Person { age: 40, name: "Ann".into(), friends: List::default(), boss: Ref::NULL, note: None };
    client
        .run(|tx| {
            let boss = tx.reserve(&hermit())?;
            let ann = tx.create(&Person { boss, ..hermit() })?;
            tx.set_root("ann", ann)?;
            tx.set_root("boss", boss)
        })
        .unwrap();
    assert!(matches!(only::<Person>(&client, "boss"), Err(Error::NotFound(_))));
    client.close().unwrap();
    tercel::backup::backup(&tercel::backup::Source::Directory(space.clone()), &copy, |_| ()).unwrap();
    let report = tercel::check::check(&space, |_, _| ()).unwrap();
    assert_eq!((report.findings.as_slice(), report.unfilled), (&[][..], 2));
    tercel::backup::restore(&copy, &restored, |_| ()).unwrap();
    assert_eq!(tercel::check::check(&restored, |_, _| ()).unwrap().unfilled, 2);

    let client = tercel::embedded(&space).unwrap();
    let nowhere = Ref::new(tercel::Oref::from_raw(1 << 24).unwrap());
    let made = client.run(|tx| tx.create(&Person { boss: nowhere, ..hermit() }));
    assert!(matches!(made, Err(Error::NotFound(_))), "{made:?}");
    // Of another space: as if this transaction had read it, in the state that it has now.
    let read = |tx: &Tx<'_>| {
        // A place for a first object may be in a newer state than the one that the transaction began with.
        tx.create(&hermit())?;
        Ok::<_, Error>(nowhere.read_at(tx.snapshot()))
    };
    let made = client.run(|tx| tx.create(&Person { boss: read(tx)?, ..hermit() }));
    assert!(matches!(&made, Err(Error::Invalid(why)) if why.contains("never had")), "{made:?}");
    let named = client.run(|tx| tx.set_root("nowhere", read(tx)?));
    // Where a root finds its place in a newer state, the client itself has looked.
    assert!(matches!(named, Err(Error::Invalid(_) | Error::NotFound(_))), "{named:?}");
    client.close().unwrap();
    let report = tercel::check::check(&space, |_, _| ()).unwrap();
    assert_eq!((report.wrong, report.unfilled), (0, 2));
}

#[test]
fn files_of_a_space_are_its_users_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("above").join("data");
    let space = tercel::embedded(&data).unwrap();
    crate::common::counter(&space, "count");
    space.close().unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut all = vec![data];
    let mut files = 0;
    while let Some(path) = all.pop() {
        let is_dir = path.is_dir();
        assert_eq!(mode(&path), if is_dir { 0o700 } else { 0o600 }, "{}", path.display());
        match is_dir {
            true => all.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path())),
            false => files += 1,
        }
    }
    assert!(files >= 3, "{files}");
}
