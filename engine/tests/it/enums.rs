//! Enums as fields: every variant comes back, references in them are references, and an enum only gains
//! variants behind.

use crate::world::World;
use tercel_derive::{Object, Record};
use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_wire::record::{List, Ref, Text};

#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct User {
    name: Text,
}

#[derive(Record, Debug, Clone, Copy, PartialEq)]
#[object(crate = "tercel_engine")]
enum Role {
    Reader,
    Writer,
}

#[derive(Record, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
enum Subject {
    Nobody,
    User(Ref<User>),
    Group { of: List<Ref<User>>, since: u64, role: Option<Role> },
    Named(Text, Option<Text>),
}

#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Grant {
    role: Role,
    maybe: Option<Role>,
    to: Subject,
    others: List<Subject>,
    roles: List<Role>,
}

fn world(clients: usize) -> World {
    World::new(1, clients, ServerConfig::default())
}

fn grant(user: Ref<User>, roles: usize) -> Grant {
    let group = |role| Subject::Group { of: [user, Ref::NULL, user].into(), since: 1 << 40, role };
    Grant {
        role: Role::Writer,
        maybe: Some(Role::Reader),
        to: Subject::User(user),
        others: [
            Subject::Nobody,
            group(None),
            Subject::Named("".into(), None),
            group(Some(Role::Writer)),
            Subject::Named("Ann".into(), Some("Annie".into())),
            Subject::User(user),
        ]
        .into(),
        roles: (0..roles).map(|i| if i % 3 == 0 { Role::Writer } else { Role::Reader }).collect(),
    }
}

#[test]
fn values_of_all_variants_come_back() {
    // Of plain variants a list leaves its record as one of numbers does.
    for roles in [0, 7, 5_000] {
        let w = world(2);
        let (user, made) = w
            .run(0, |tx| {
                let user = tx.create(&User { name: "Ann".into() })?;
                Ok((user, tx.create(&grant(user, roles))?))
            })
            .unwrap();
        w.run_until_idle();
        w.run(1, |tx| {
            let read = tx.get(made)?;
            assert_eq!(read.to_value()?, grant(user, roles));
            assert_eq!((read.role()?, read.roles().len()), (Role::Writer, roles));
            assert_eq!(read.maybe().transpose()?, Some(Role::Reader));
            for subject in read.others() {
                if let Subject::Group { of, .. } = subject? {
                    assert_eq!(tx.get(of[2])?.name()?, "Ann");
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn another_variant_replaces_all_of_the_one_before() {
    let w = world(2);
    let user = w.run(0, |tx| tx.create(&User { name: "Ann".into() })).unwrap();
    let made = w.run(0, |tx| tx.create(&grant(user, 3))).unwrap();
    for to in [Subject::Named("Bob".into(), None), Subject::User(user), Subject::Nobody] {
        w.run(0, |tx| {
            let edit = tx.edit(made)?;
            edit.set_to(to.clone())?;
            edit.set_maybe(None)?;
            edit.set_role(Role::Reader)
        })
        .unwrap();
        w.run_until_idle();
        let read = w.run(1, |tx| tx.get(made)?.to_value()).unwrap();
        assert_eq!(read, Grant { to, maybe: None, role: Role::Reader, ..grant(user, 3) });
    }
}

/// Versions of one class, as programs of different ages have them.
mod versions {
    use super::*;

    macro_rules! version {
        ($name:ident, { $($variants:tt)* }, { $($more:tt)* }) => {
            pub mod $name {
                use super::*;

                #[derive(Record, Debug, Clone, PartialEq)]
                #[object(crate = "tercel_engine")]
                pub enum Level {
                    $($variants)*
                }

                #[derive(Object, Debug, Clone, PartialEq)]
                #[object(crate = "tercel_engine")]
                pub struct Door {
                    pub number: u16,
                    pub level: Level,
                    pub levels: List<Option<Level>>,
                    $($more)*
                }
            }
        };
    }
    version!(first, { Open, Locked { by: Text } }, {});
    version!(second, { Open, Locked { by: Text }, Walled(Ref<User>) }, { pub note: Text });
    version!(added, { Open, Locked { by: Text } }, { pub extra: Level });
    version!(gone, { Open }, {});
    version!(moved, { Locked { by: Text }, Open }, {});
    version!(renamed, { Open, Shut { by: Text } }, {});
    version!(other, { Open, Locked { by: Ref<User> } }, {});
}

#[test]
fn an_added_variant_is_read_beside_the_older_ones() {
    use versions::{first, second};
    let w = world(2);
    let locked = || first::Level::Locked { by: "Ann".into() };
    let levels = List(vec![Some(locked()), None, Some(first::Level::Open)]);
    let door = first::Door { number: 7, level: locked(), levels };
    let r = w.run(0, |tx| tx.create(&door)).unwrap().cast::<second::Door>();
    w.run_until_idle();
    let locked = || second::Level::Locked { by: "Ann".into() };
    let levels = List(vec![Some(locked()), None, Some(second::Level::Open)]);
    let door = second::Door { number: 7, level: locked(), levels, note: "".into() };
    assert_eq!(w.run(1, |tx| tx.get(r)?.to_value()), Ok(door.clone()));

    let user = w.run(1, |tx| tx.create(&User { name: "Bob".into() })).unwrap();
    let walled = second::Level::Walled(user);
    w.run(1, |tx| {
        let edit = tx.edit(r)?;
        edit.set_level(walled.clone())?;
        edit.push_levels(Some(walled.clone()))
    })
    .unwrap();
    w.run_until_idle();
    let fresh = w.add_client(9, 512 << 10);
    let read = w.run(fresh, |tx| tx.get(r)?.to_value()).unwrap();
    assert_eq!((read.level, read.levels[3].clone()), (walled.clone(), Some(walled)));
}

#[test]
fn an_older_program_reads_and_writes_the_variants_it_knows_and_is_told_of_others() {
    use versions::{first, second};
    let w = world(2);
    let old = first::Door { number: 1, level: first::Level::Open, levels: List::new() };
    w.run(1, |tx| tx.create(&old)).unwrap();
    let door = |level| second::Door { number: 7, level, levels: List::new(), note: "new".into() };
    let (known, unknown) = w
        .run(0, |tx| {
            let user = tx.create(&User { name: "Bob".into() })?;
            let known = tx.create(&door(second::Level::Locked { by: "Ann".into() }))?;
            Ok((known, tx.create(&door(second::Level::Walled(user)))?))
        })
        .unwrap();
    w.run_until_idle();
    w.run(1, |tx| {
        let door = tx.get(known.cast::<first::Door>())?;
        assert_eq!(door.level()?, first::Level::Locked { by: "Ann".into() });
        door.edit()?.set_level(first::Level::Open)
    })
    .unwrap();
    w.run_until_idle();
    // What the older program does not know kept its value.
    assert_eq!(w.run(0, |tx| tx.get(known)?.to_value()), Ok(door(second::Level::Open)));

    let told = w.run(1, |tx| tx.get(unknown.cast::<first::Door>())?.to_value());
    assert!(matches!(&told, Err(Error::Schema(why)) if why.contains("`Walled` of `Level`")), "{told:?}");
}

#[test]
fn an_added_enum_reads_as_its_first_variant() {
    use versions::{added, first};
    let w = world(2);
    let door = first::Door { number: 7, level: first::Level::Open, levels: List::new() };
    let r = w.run(0, |tx| tx.create(&door)).unwrap();
    w.run_until_idle();
    let read = w.run(1, |tx| tx.get(r.cast::<added::Door>())?.to_value()).unwrap();
    assert_eq!(read.extra, added::Level::Open);
}

#[test]
fn a_variant_that_is_gone_moved_or_changed_is_refused_by_its_name() {
    use versions::{first, gone, moved, other, renamed, second};
    let w = world(1);
    let open = second::Door { number: 7, level: second::Level::Open, levels: List::new(), note: "".into() };
    w.run(0, |tx| tx.create(&open)).unwrap();
    w.run_until_idle();
    macro_rules! refused {
        ($version:ident, $variant:literal, $seed:literal) => {
            let fresh = w.add_client($seed, 512 << 10);
            let door = $version::Door { number: 7, level: $version::Level::Open, levels: List::new() };
            let refused = w.run(fresh, |tx| tx.create(&door));
            let named = |why: &str| why.contains("field `level`") && why.contains($variant);
            assert!(matches!(&refused, Err(Error::Schema(why)) if named(why)), "{refused:?}");
        };
    }
    refused!(first, "`Walled`", 91);
    refused!(gone, "`Locked`", 92);
    refused!(moved, "`Open`", 93);
    refused!(renamed, "`Locked`", 94);
    refused!(other, "`Locked`", 95);
}
