//! Members that are told to stop.

use std::thread;

use super::*;

#[test]
fn follower_stops_while_commits_go_on() {
    let mut group = Groups::of(3);
    let clients: Vec<Client> = (0..4).map(|_| group.client()).collect();
    add(&clients[0]);
    let follower = (group.leader() + 1) % 3;
    let server = group.servers[follower].take().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // There is always a commit on its way to the follower.
        for client in &clients {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    client.run(|tx| tx.create(&Counter { count: 1 })).unwrap();
                }
            });
        }
        let begun = Instant::now();
        server.stop().unwrap();
        is_over.store(true, Ordering::SeqCst);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    });
}

#[test]
fn member_without_a_quorum_stops() {
    let mut group = Groups::of(3);
    let client = group.client();
    add(&client);
    let leader = group.leader();
    let commits = thread::spawn(move || {
        // It is never acknowledged.
        let patient = client.transaction().timeout(Duration::from_secs(5));
        let _ = patient.run(|tx| tx.create(&Counter { count: 1 }));
    });
    let alone = group.servers[leader].take().unwrap();
    group.servers.clear();
    let begun = Instant::now();
    alone.stop().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(group);
    let _ = commits.join();
}

#[test]
fn loop_says_that_it_turns() {
    let group = Groups::of(1);
    let stopper = group.servers[0].as_ref().unwrap().stopper();
    assert!(stopper.turns(Duration::from_secs(30)));
    drop(group);
    // It is over, and not stuck.
    assert!(stopper.turns(Duration::from_secs(30)));
}
