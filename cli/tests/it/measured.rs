//! The programs of measurements beside the command.

use std::process::Command;

use crate::common::{err, out};

#[test]
fn bench_and_soak_run_program_beside_command() {
    let dir = tempfile::tempdir().unwrap();
    let command = dir.path().join("tercel");
    // A process that other tests start would have a file open that is written here.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_tercel")).arg(&command).status().unwrap().success());
    for name in ["bench", "soak"] {
        let refused = Command::new(&command).args([name, "--help"]).output().unwrap();
        let said = err(&refused);
        assert!(said.contains("`cargo build --release -p tercel-bench`"), "{said}");
    }
    std::os::unix::fs::symlink("/bin/echo", dir.path().join("tercel-bench")).unwrap();
    for args in [&["bench", "oo7", "--quick"][..], &["soak", "--help"]] {
        let run = Command::new(&command).args(args).output().unwrap();
        assert_eq!(out(&run), args.join(" ") + "\n");
    }
}
