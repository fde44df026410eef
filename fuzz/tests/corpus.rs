//! Every input that was ever kept, once more, by any compiler.

use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(&dir).expect("a corpus").map(|e| e.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    for file in files {
        let told = Told(file.display().to_string());
        run(&std::fs::read(&file).expect("a file of the corpus"));
        std::mem::forget(told);
    }
}

/// Says which file it was when one of them panics.
struct Told(String);

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!("this was {}", self.0);
    }
}

macro_rules! targets {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            replay(stringify!($name), tercel_fuzz::$name::run);
        }
    )*};
}
targets!(
    frame, record, page, log, catalogue, recovery, datagram, group, keys, ring, packages, papers, step,
    versions, server, script
);

/// Bytes of all lengths by a seed: more than the corpus has, and the same each time.
#[test]
fn versions_by_a_seed_are_converted_whole() {
    let mut state = 46_u64;
    for len in (0..2_000).map(|n| 1 + n * 7 % 400) {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        let told = Told(format!("{bytes:?}"));
        tercel_fuzz::versions::run(&bytes);
        std::mem::forget(told);
    }
}
