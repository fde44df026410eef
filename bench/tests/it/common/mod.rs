//! Running the binary, for the tests of it.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

pub use tercel_testkit::process::{err, is_running, out, until};

/// The program, with the server beside it.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<&Path> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_tercel-bench"));
        // The tests of the whole workspace have built it.
        if !program.with_file_name("tercel").exists() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "--bin", "tercel"]);
            if program.parent().unwrap().ends_with("release") {
                build.arg("--release");
            }
            let built = build.status().unwrap();
            assert!(built.success(), "the server cannot be built");
        }
        program
    })
}

pub fn tercel(args: &[&str]) -> Output {
    Command::new(program()).args(args).output().unwrap()
}
