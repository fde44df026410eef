//! Tells the program the revision that it is built from, for the reports of `tercel bench`.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../.git/HEAD");
    println!("cargo:rerun-if-changed=../.git/logs/HEAD");
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    // Built from an archive there is no revision, and no reason to fail.
    if let Some(commit) =
        git.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok())
    {
        println!("cargo:rustc-env=TERCEL_COMMIT={}", commit.trim());
    }
}
