//! Instructions of user space, counted by valgrind's callgrind in a process of this program.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Says whether valgrind is installed.
pub fn is_here() -> bool {
    Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_ok()
}

/// Runs this program under valgrind, as a process of a suite by its variable, and gives all that callgrind
/// has written. `dir` is for that.
///
/// # Errors
/// A sentence: it could not be run, or did not end well.
pub fn run(suite: &str, variable: &str, role: impl AsRef<OsStr>, dir: &Path) -> Result<String, String> {
    let failed = |e: std::io::Error| e.to_string();
    let out = dir.join("counted");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(std::env::current_exe().map_err(failed)?).args(["bench", suite]);
    let ran = valgrind.env(variable, role).stdin(Stdio::null()).output().map_err(failed)?;
    if !ran.status.success() {
        return Err(format!("valgrind: {}", String::from_utf8_lossy(&ran.stderr).trim()));
    }
    std::fs::read_to_string(out).map_err(failed)
}

/// The instructions of a function and all that it calls, in what callgrind has written: there each call of
/// one function by another is a line `cfn=` and behind it `calls=` and its cost. A name stands behind its
/// number where it is met first.
pub fn instructions_of(counted: &str, function: &str) -> u64 {
    let mut is_it = std::collections::HashMap::new();
    let (mut in_it, mut calls_it, mut sum) = (false, false, 0);
    let mut lines = counted.lines();
    while let Some(line) = lines.next() {
        let mut is = |name: &str| {
            let (number, name) = name.split_once(' ').unwrap_or((name, ""));
            *is_it.entry(number.to_string()).or_insert_with(|| name.ends_with(function))
        };
        if let Some(name) = line.strip_prefix("fn=") {
            in_it = is(name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            calls_it = is(name);
        } else if line.starts_with("calls=") {
            let cost = lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            // One that goes on in the text of another file, which was inlined, is written as if it called
            // itself.
            if calls_it && !in_it {
                sum += cost.unwrap_or(0);
            }
        }
    }
    sum
}
