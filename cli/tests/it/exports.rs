//! Objects that an export keeps, as the commands show them, and in a backup.

use serde_json::Value;
use tercel::{Error, Far, Object, SessionToken, Spaces};

use crate::common::{out, tercel};

#[derive(Object)]
struct Account {
    number: u64,
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&out(&tercel(args))).unwrap()
}

#[test]
fn exported_objects_are_listed_counted_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let [space, backup, restored] =
        ["space", "backup", "restored"].map(|name| dir.path().join(name).display().to_string());
    let client = tercel::embedded(&space).unwrap();
    let made = client.run(|tx| {
        tx.create(&Account { number: 1 })?;
        tx.export(tx.create(&Account { number: 7 })?)
    });
    let far: Far<Account> = made.unwrap();
    client.close().unwrap();

    let listed = json(&["inspect", "--exports", "--json", "--data", &space]);
    assert_eq!(listed["exports"][0]["far"], far.to_string());
    assert!(out(&tercel(&["inspect", "--exports", "--data", &space])).contains(&far.to_string()));
    let object = json(&["inspect", &far.oref().to_string(), "--data", &space]);
    assert_eq!(
        (&object["kept_by_export"], &object["fields"]["number"]),
        (&far.to_string().into(), &7.into())
    );
    let dry = out(&tercel(&["gc", "--dry-run", "--data", &space]));
    assert!(dry.contains("1 object kept by an export") && dry.contains("1 object that no root"), "{dry}");
    let went = json(&["gc", "--json", "--data", &space]);
    assert_eq!((&went["objects"], &went["exports"]), (&1.into(), &1.into()), "{went}");
    let checked = out(&tercel(&["check", "--data", &space]));
    assert!(checked.contains("sound") && checked.contains("1 object kept by an export"), "{checked}");

    out(&tercel(&["backup", "--data", &space, &backup]));
    assert_eq!(json(&["check", "--json", "--data", &backup])["exports"], 1);
    // After the backup: the space that is restored has never had it.
    let client = tercel::embedded(&space).unwrap();
    let later = client.run(|tx| tx.export(tx.create(&Account { number: 8 })?)).unwrap();
    client.close().unwrap();
    out(&tercel(&["restore", &backup, "--data", &restored]));
    let client = tercel::embedded(&restored).unwrap();
    assert_eq!(client.run(|tx| Ok(tx.get_far(far)?.number())), Ok(7));
    let lost = client.run(|tx| Ok(tx.get_far(later)?.number()));
    assert!(matches!(lost, Err(Error::OtherHistory(_))), "{lost:?}");
    client.close().unwrap();
}

#[test]
fn invented_space_is_forgotten_by_command() {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("space").display().to_string();
    let spaces = Spaces::new().with("here", tercel::embedded(&space).unwrap());
    let session = spaces.session();
    // The text of a space that never was.
    session.absorb(&"beef.1.7.9".parse::<SessionToken>().unwrap()).unwrap();
    session.space("here").unwrap().run(|tx| tx.create(&Account { number: 1 }).map(|_| ())).unwrap();
    drop(session);
    drop(spaces);
    let rests_on = || json(&["stat", "--json", "--data", &space])["rests_on"].clone();
    assert_eq!(rests_on(), serde_json::json!(["beef:9"]));
    assert!(out(&tercel(&["forget", "beef", "--data", &space])).contains("no longer"));
    assert_eq!(rests_on(), serde_json::json!([]));
    let again = tercel(&["forget", "beef", "--data", &space]);
    let text = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(1) && text.contains("does not rest on beef"), "{again:?}");
    let wrong = tercel(&["forget", "the first", "--data", &space]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("rests_on"), "{wrong:?}");
}
