//! Objects read through the cache by the catalogue alone, as tools read them.

use tercel::tools::stored;
use tercel::tools::wire::record::HEADER_BYTES;
use tercel::{Client, Error, Object, Oref, Ref, Server, Text};

#[derive(Object)]
struct Note {
    number: u32,
    text: Text,
    next: Ref<Note>,
}

/// The number and the length of the text, by the layout.
fn read(client: &Client, oref: Oref) -> Result<Option<(u8, Vec<u8>)>, Error> {
    let found = client.run(|tx| stored(tx, oref))?;
    Ok(found.map(|(layout, object)| {
        assert_eq!(layout.name(), "Note");
        (object[HEADER_BYTES + layout.field("number").unwrap().at], object)
    }))
}

#[test]
fn unknown_class_is_read_from_cache_and_current() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let connect = || Client::connect(&server.addresses()[0]).unwrap();
    let (writer, tool) = (connect(), connect());
    // The tool reads the catalogue before the class is there.
    assert!(tercel::tools::classes(&tool).unwrap().iter().all(|(_, layout)| layout.name() != "Note"));
    let note = |number, text: &str| Note { number, text: text.into(), next: Ref::NULL };
    let one = writer.run(|tx| tx.create(&note(1, "short"))).unwrap();
    let more: Vec<_> =
        (0..24).map(|_| writer.run(|tx| tx.create(&note(9, &"filled".repeat(50)))).unwrap()).collect();
    let read = |oref| read(&tool, oref).unwrap();
    let (number, before) = read(one.oref()).expect("it is there");
    assert_eq!(number, 1);
    let fetches = tool.stats().client.fetches;
    (0..50).for_each(|_| assert_eq!(read(one.oref()).expect("it is there").0, 1));
    assert_eq!(tool.stats().client.fetches, fetches, "a read came from elsewhere");

    // It outgrows its page, and is found where it has gone.
    let token = {
        let tx = writer.transaction().begin().unwrap();
        let grown = Note { number: 2, text: "long".repeat(225).into(), next: more[0] };
        tx.replace(one, &grown).unwrap();
        tx.commit().unwrap().token
    };
    let found = tool.transaction().at_least(token).run(|tx| stored(tx, one.oref())).unwrap();
    let (layout, object) = found.expect("it is there");
    assert_eq!(object[HEADER_BYTES + layout.field("number").unwrap().at], 2);
    assert!(object.len() > before.len() + 800);

    // An object that the program also reads by its type, with a swizzled reference in it, reads the same.
    let plain = read(one.oref()).unwrap().1;
    let next = tool.run(|tx| Ok(tx.get(one)?.next().get()?.number())).unwrap();
    assert_eq!((next, read(one.oref()).unwrap().1), (9, plain));
    assert!(read(Oref::NULL).is_none());
    assert!(read(Oref::new(more[19].oref().page(), 500).unwrap_or(Oref::NULL)).is_none());
    server.stop().unwrap();
}
