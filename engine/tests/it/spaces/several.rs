//! Transactions that write several spaces: in all of them or in none, whoever ends amid one.

use tercel_engine::error::Error;
use tercel_engine::spaces::Session;

use super::Two;
use crate::world::things::set;

/// Writes both of the objects in one transaction.
fn write_both(two: &Two, session: &Session<'_>, count: u64) -> Result<(), Error> {
    session.run(|tx| {
        set(tx.space("accounts")?, two.access, count)?;
        set(tx.space("documents")?, two.document, count)
    })
}

#[test]
fn transaction_writes_both_spaces() {
    let two = Two::new();
    two.session(0, |session| {
        for count in 5..9 {
            write_both(&two, session, count).unwrap();
            assert_eq!(two.cut(session, true), Ok((count, count)));
        }
    });
    two.session(1, |reader| {
        assert_eq!(two.read(reader, "accounts", two.access), Ok(8));
        assert_eq!(two.read(reader, "documents", two.document), Ok(8));
    });
}
