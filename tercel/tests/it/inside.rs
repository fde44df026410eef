//! Transactions inside of a real server, beside clients of the same one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::program::program;
use tempfile::TempDir;
use tercel::{Address, Client, Error, Object, Ref, Server, ServerConfig, Text};
use tercel_testkit::ends::Ends;

#[derive(Object)]
struct Account {
    balance: i64,
    note: Text,
}

fn serve(dir: &TempDir, cache_bytes: usize) -> Server {
    let listen = vec!["127.0.0.1:0".parse::<Address>().unwrap()];
    Server::start(ServerConfig { listen, cache_bytes, ..ServerConfig::new(dir.path()) }).unwrap()
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.addresses()[0]).unwrap()
}

#[test]
fn one_program_sees_the_same_at_a_client_and_inside_the_server() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = serve(&there, 64 << 20);
    let client = connect(&server);
    let remote = program(&|body| client.run(body)).unwrap();
    client.close().unwrap();
    server.stop().unwrap();
    let server = serve(&here, 128 << 10);
    assert_eq!(program(&|body| server.run(body)).unwrap(), remote);
    server.stop().unwrap();
}

/// Accounts whose pages are many more than the server keeps in memory.
fn accounts(server: &Server, count: usize) -> Vec<Ref<Account>> {
    let make = |from: usize, to: usize| {
        server.run(|tx| {
            let note = "x".repeat(2_000);
            (from..to).map(|_| tx.create(&Account { balance: 100, note: note.clone().into() })).collect()
        })
    };
    (0..count).step_by(100).flat_map(|from: usize| -> Vec<_> { make(from, from + 100).unwrap() }).collect()
}

/// Moves something from one account to another.
fn transfer(tx: &tercel::Tx<'_>, from: Ref<Account>, to: Ref<Account>) -> Result<(), Error> {
    let (a, b) = (tx.get(from)?.balance(), tx.get(to)?.balance());
    tx.edit(from)?.set_balance(a - 1)?;
    tx.edit(to)?.set_balance(b + 1)
}

#[test]
fn money_moved_by_clients_and_inside_the_server_stays_the_same_sum() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&dir, 64 << 20);
    let all = accounts(&server, 400);
    server.stop().unwrap();
    // Begun anew it has no page in memory, and room for a few.
    let server = serve(&dir, 128 << 10);
    let clients = [connect(&server), connect(&server)];
    let stop = AtomicBool::new(false);
    let sum =
        |tx: &tercel::Tx<'_>| all.iter().try_fold(0, |sum, a| Ok::<_, Error>(sum + tx.get(*a)?.balance()));
    std::thread::scope(|scope| {
        let ends = Ends(&stop);
        for thread in 0..3 {
            let (server, all) = (&server, &all);
            scope.spawn(move || {
                for i in 0..150 {
                    let (from, to) = (all[(i * 7 + thread) % 400], all[(i * 13 + 5 * thread + 1) % 400]);
                    if from != to {
                        server.run(|tx| transfer(tx, from, to)).unwrap();
                    }
                }
            });
        }
        let movers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(n, client)| {
                let all = &all;
                scope.spawn(move || {
                    for i in 0..150 {
                        let (from, to) = (all[(i * 11 + n) % 400], all[(i * 3 + 7 * n + 2) % 400]);
                        if from != to {
                            client.run(|tx| transfer(tx, from, to)).unwrap();
                        }
                    }
                })
            })
            .collect();
        // A reader beside the movers sees all accounts at one moment.
        let looker = scope.spawn(|| {
            let mut looks = 0;
            while !stop.load(Ordering::Relaxed) || looks == 0 {
                assert_eq!(server.run(sum).unwrap(), 40_000);
                looks += 1;
            }
        });
        movers.into_iter().for_each(|m| m.join().unwrap());
        drop(ends);
        looker.join().unwrap();
    });
    assert_eq!(clients[0].run(sum).unwrap(), 40_000);
    assert_eq!(server.run(sum).unwrap(), 40_000);
    clients.into_iter().for_each(|c| c.close().unwrap());
    server.stop().unwrap();
}

#[test]
fn what_was_committed_inside_is_there_after_the_server_was_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&dir, 64 << 20);
    let made = server
        .run(|tx| {
            let made = tx.create(&Account { balance: 7, note: "kept".into() })?;
            tx.set_root("account", made)?;
            Ok(made)
        })
        .unwrap();
    server.stop().unwrap();
    let server = serve(&dir, 64 << 20);
    let note: String = server.run(|tx| Ok(tx.get(made)?.note()?.into_owned())).unwrap();
    assert_eq!(
        (note.as_str(), server.run(|tx| tx.get_root_ref::<Account>("account")).unwrap()),
        ("kept", Some(made))
    );
    server.stop().unwrap();
}

#[test]
fn a_server_that_stops_ends_what_runs_inside_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&dir, 64 << 20);
    let account = accounts(&server, 100)[0];
    let (stopper, (tell, told)) = (server.stopper(), channel());
    let ended = std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            loop {
                let run = server.run(|tx| {
                    let balance = tx.get(account)?.balance();
                    tx.edit(account)?.set_balance(balance + 1)
                });
                tell.send(()).unwrap();
                if let Err(e) = run {
                    return e;
                }
            }
        });
        told.recv_timeout(Duration::from_secs(30)).unwrap();
        stopper.stop();
        runs.join().unwrap()
    });
    assert!(matches!(ended, Error::Unavailable(_)), "{ended:?}");
    server.wait().unwrap();
}
