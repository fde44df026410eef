//! Paths that lead elsewhere while a server uses them: its directory's, and its socket's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tercel::{Address, Bytes, Client, Error, Object, Server, ServerConfig, SharedMemory, Transport};

use crate::common::{counter, serve};

#[derive(Object)]
struct Large {
    bytes: Bytes,
}

/// A copy of a data directory.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { _ = fs::copy(from, to).unwrap() }
    }
}

/// The files of a data directory, with what is in them.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            all.extend(files(&entry))
        } else {
            all.push((entry.clone(), fs::read(entry).unwrap()))
        }
    }
    all.sort();
    all
}

/// Commits until the server refuses; how many commits it acknowledged.
fn commit_to_the_end(client: &Client) -> u64 {
    let end = Instant::now() + Duration::from_secs(60);
    for acknowledged in 0.. {
        let bytes = vec![7; 700_000];
        let committed = client.transaction().timeout(Duration::from_secs(3)).run(|tx| {
            let large = tx.create(&Large { bytes: Bytes(bytes.clone()) })?;
            tx.set_root(&format!("large {acknowledged}"), large)
        });
        match committed {
            Ok(()) => assert!(Instant::now() < end, "the server goes on"),
            Err(Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. }) => return acknowledged,
            Err(e) => panic!("{e}"),
        }
    }
    unreachable!()
}

#[test]
fn replaced_directory_stops_server_and_stays_untouched() {
    for is_copy in [true, false] {
        let parent = tempfile::tempdir().unwrap();
        let [path, moved, other] = ["data", "moved", "other"].map(|name| parent.path().join(name));
        let before = serve(&path);
        counter(&Client::connect(&before.addresses()[0]).unwrap(), "n");
        before.stop().unwrap();
        match is_copy {
            true => copy(&path, &other),
            false => serve(&other).stop().unwrap(),
        }
        let server = serve(&path);
        let client = Client::connect(&server.addresses()[0]).unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::rename(&other, &path).unwrap();
        let before = files(&path);
        let acknowledged = commit_to_the_end(&client);
        let why = server.wait().unwrap_err().to_string();
        let said = [&*path.display().to_string(), "not the directory that was opened there"];
        assert!(said.iter().all(|part| why.contains(part)), "{why}");
        assert!(files(&path) == before, "the other directory was changed");
        // What was acknowledged is in the directory that the server had opened.
        let server = serve(&moved);
        let client = Client::connect(&server.addresses()[0]).unwrap();
        let stored =
            |n: u64| client.run(|tx| tx.get_root_ref::<Large>(&format!("large {n}"))).unwrap().is_some();
        assert!((0..acknowledged).all(stored), "of {acknowledged} commits some are lost");
        server.stop().unwrap();
    }
}

#[test]
fn idle_server_stops_when_its_directory_is_gone() {
    let parent = tempfile::tempdir().unwrap();
    let [path, moved] = ["data", "moved"].map(|name| parent.path().join(name));
    let server = serve(&path);
    fs::rename(&path, &moved).unwrap();
    let why = server.wait().unwrap_err().to_string();
    assert!(why.contains("put it back"), "{why}");
    // Put back, it is served again.
    fs::rename(&moved, &path).unwrap();
    serve(&path).stop().unwrap();
}

/// A server at a Unix socket.
fn serve_at(socket: &Path, dir: &Path, shared_memory: SharedMemory) -> Server {
    let listen = vec![Address::Unix(socket.into())];
    Server::start(ServerConfig { listen, shared_memory, ..ServerConfig::new(dir) }).unwrap()
}

#[test]
fn clients_reach_the_server_that_holds_the_path() {
    let parent = tempfile::tempdir().unwrap();
    let [socket, one, two] = ["socket", "one", "two"].map(|name| parent.path().join(name));
    let first = serve_at(&socket, &one, SharedMemory::SameUser);
    fs::remove_file(&socket).unwrap();
    let second = serve_at(&socket, &two, SharedMemory::Off);
    second.run(|tx| tx.set_root("second", tx.create(&Large { bytes: Bytes(vec![2]) })?)).unwrap();
    let client = Client::connect(Address::Unix(socket.clone())).unwrap();
    assert_eq!(client.transport(), Some(Transport::Unix));
    assert!(client.run(|tx| tx.get_root_ref::<Large>("second")).unwrap().is_some());
    // The first one leaves the second one's socket alone.
    first.stop().unwrap();
    assert!(Client::connect(Address::Unix(socket.clone())).is_ok());
    second.stop().unwrap();
    assert!(!socket.exists());
}

#[test]
fn start_that_fails_leaves_no_socket() {
    let parent = tempfile::tempdir().unwrap();
    let [socket, dir, file] = ["socket", "data", "file"].map(|name| parent.path().join(name));
    fs::write(&file, "a user's own").unwrap();
    let start = |listen: &[&PathBuf], dir: &Path| {
        let listen = listen.iter().map(|path| Address::Unix(path.to_path_buf())).collect();
        Server::start(ServerConfig { listen, ..ServerConfig::new(dir) }).map(drop)
    };
    // The second address is taken; then the directory cannot be made; then it is in use.
    assert!(start(&[&socket, &file], &dir).is_err());
    assert!(start(&[&socket], &file.join("data")).is_err());
    let other = serve(&dir);
    assert!(start(&[&socket], &dir).is_err());
    other.stop().unwrap();
    let left: Vec<_> = fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "data" || name == "file"), "{left:?}");
}
