//! Running the binary, for the tests of it.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

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

pub fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error of a command that must fail.
pub fn err(output: &Output) -> String {
    assert!(!output.status.success(), "it succeeded: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Waits for something to be there.
pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < end, "it did not happen");
        std::thread::yield_now();
    }
}

/// Says whether a process runs; one that has ended and is not yet waited for does not.
pub fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}
