//! A permission service over two spaces: who may read is in one, what is read in the other, and each document
//! names the account of its reader by a far reference.
//!
//! A writer takes the access away, and only then writes the document: what is new there was never meant for
//! that reader. A server that checks reads by caches of values sees the new document with the old access,
//! again and again; one that reads in a causal session never does. `cargo run -p tercel --example
//! permissions`.

mod anomalies;

use std::time::Duration;

use anomalies::Least;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-permissions-{}", std::process::id()));
    let found =
        anomalies::measure(&dir, Least { reads: 1_000, within: Duration::from_millis(300), rounds: 0 });
    std::fs::remove_dir_all(&dir)?;
    let found = found?;
    println!(
        "{} times access was taken away, and then the document written; meanwhile the reader saw",
        found.written
    );
    for (way, counts) in [
        ("values of at most 5 ms", found.ttl),
        ("each space as it is cached", found.stale),
        ("a session", found.session),
    ] {
        println!("by {way}: {} new documents with the old access, of {}", counts.anomalies, counts.reads);
    }
    assert!(found.ttl.anomalies > 0 && found.session.anomalies == 0);
    Ok(())
}
