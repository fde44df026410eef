//! The container file that is shipped: built and run where a program for that can be had, else its steps, in
//! a directory that is the root of what they run.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Serving, free, tercel, until};

const FILE: &str = include_str!("../../../contrib/Containerfile");

/// The arguments of the steps of a kind.
fn steps(kind: &str) -> impl Iterator<Item = &str> {
    FILE.lines().filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(' '))
}

/// A step's list of words.
fn words(kind: &str) -> Vec<String> {
    let list = steps(kind).next().unwrap_or_else(|| panic!("there is no {kind}"));
    serde_json::from_str(list.trim_start_matches("CMD ")).unwrap()
}

/// A directory from which the image is made.
fn context(dir: &Path) {
    for file in ["Containerfile", "tercel.toml"] {
        let of = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib").join(file);
        std::fs::copy(of, dir.join(file)).unwrap();
    }
    std::fs::copy(env!("CARGO_BIN_EXE_tercel"), dir.join("tercel")).unwrap();
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    let ended = command.output().map_err(|e| e.to_string())?;
    let said = || String::from_utf8_lossy(&ended.stderr).trim().to_string();
    if ended.status.success() { Ok(()) } else { Err(said()) }
}

#[test]
fn image_is_built_and_serves() {
    let builder = ["podman", "docker"].into_iter().find(|it| succeeds(Command::new(it).arg("info")).is_ok());
    let Some(builder) = builder else {
        return println!("left out: neither podman nor docker can be used here");
    };
    let dir = tempfile::tempdir().unwrap();
    context(dir.path());
    let image = format!("tercel-test-{}", std::process::id());
    let file = dir.path().join("Containerfile");
    let build = ["build", "-q", "-t", &image, "-f", file.to_str().unwrap(), dir.path().to_str().unwrap()];
    if let Err(why) = succeeds(Command::new(builder).args(build)) {
        // Its base comes over a network.
        return println!("left out: the image is not built: {why}");
    }
    let at = free();
    let publish = format!("{at}:7117");
    let run = ["run", "-d", "--rm", "--name", &image, "-p", &publish, &image];
    succeeds(Command::new(builder).args(run)).unwrap();
    until(|| tercel(&["health", "--server", &at]).status.success().then_some(()));
    succeeds(Command::new(builder).args(["stop", &image])).unwrap();
    succeeds(Command::new(builder).args(["rmi", &image])).unwrap();
}

/// Copies a program and the libraries that it is linked with to their places below a root.
fn install(program: &str, root: &Path) {
    let linked = Command::new("ldd").arg(program).output().unwrap();
    let linked = String::from_utf8(linked.stdout).unwrap();
    let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.chain([program]) {
        let place = root.join(&file[1..]);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::copy(file, place).unwrap();
    }
}

#[test]
fn steps_of_image_make_a_root_that_serves() {
    let dir = tempfile::tempdir().unwrap();
    let (from, root) = (dir.path().join("from"), dir.path().join("root"));
    [&from, &root].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    // Another user is to pass.
    let everybody = std::fs::Permissions::from_mode(0o755);
    [dir.path(), &root].into_iter().for_each(|of| std::fs::set_permissions(of, everybody.clone()).unwrap());
    context(&from);
    // The base has these.
    ["/bin/sh", "/bin/mkdir", "/bin/chown"].into_iter().for_each(|program| install(program, &root));
    install(env!("CARGO_BIN_EXE_tercel"), &root);
    let inside = |as_user: Option<&str>, words: &[String]| {
        let mut command = Command::new("chroot");
        command.args(as_user.map(|user| format!("--userspec={user}"))).arg(&root).args(words);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    };
    let shell = |line: &str| ["/bin/sh", "-c", line].map(String::from);
    if let Err(why) = succeeds(&mut inside(None, &shell("chown 7117:7117 /bin"))) {
        return println!("left out: no root can be made here: {why}");
    }
    for copy in steps("COPY") {
        let (of, to) = copy.split_once(' ').unwrap();
        let to = root.join(&to[1..]);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from.join(of), to).unwrap();
    }
    steps("RUN").for_each(|line| succeeds(&mut inside(None, &shell(line))).unwrap());
    let user = steps("USER").next();
    let (at, metrics) = (free(), free());
    let here = |word: String| match word.rsplit_once(':') {
        Some((_, "7117")) => at.clone(),
        Some((_, "9117")) => metrics.clone(),
        _ => word,
    };
    let serve: Vec<String> = words("ENTRYPOINT").into_iter().chain(words("CMD")).map(here).collect();
    let health: Vec<String> = words("HEALTHCHECK").into_iter().map(here).collect();
    let mut server = Serving::of(inside(user, &serve), 0);
    until(|| succeeds(&mut inside(user, &health)).is_ok().then_some(()));
    let signal = steps("STOPSIGNAL").next().unwrap();
    succeeds(Command::new("kill").args(["-s", signal.trim_start_matches("SIG"), &server.0.id().to_string()]))
        .unwrap();
    assert!(server.0.wait().unwrap().success());
    assert!(root.join("var/lib/tercel/space").is_dir(), "what it keeps is in the volume");
}
