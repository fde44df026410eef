//! Tasks and threads that change one object all the time: nobody starves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tercel::Client;
use tercel_testkit::ends::Ends;

use crate::common::{counter, serve};

const TASKS: u64 = 16;
const EACH: u64 = 60;

#[test]
fn tasks_beside_a_thread_all_commit() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = Arc::new(Client::connect(&server.addresses()[0]).unwrap());
    let of = counter(&client, "count");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let is_over = AtomicBool::new(false);
    let by_thread = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                client
                    .run(|tx| {
                        let next = tx.get(of)?.count() + 1;
                        tx.edit(of)?.set_count(next)
                    })
                    .unwrap();
                count += 1;
            }
            count
        });
        let _ends = Ends(&is_over);
        runtime.block_on(async {
            let tasks = (0..TASKS).map(|_| {
                let client = client.clone();
                tokio::spawn(async move {
                    for _ in 0..EACH {
                        let added = client.run_async(|tx| {
                            let next = tx.get(of)?.count() + 1;
                            tx.edit(of)?.set_count(next)
                        });
                        assert_eq!(added.await, Ok(()));
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
        is_over.store(true, Ordering::Relaxed);
        beside.join().unwrap()
    });
    assert_eq!(client.run(|tx| Ok(tx.get(of)?.count())), Ok(TASKS * EACH + by_thread));
}

#[test]
fn status_names_what_is_contended() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let connect = || Client::connect(&server.addresses()[0]).unwrap();
    let (first, second) = (connect(), connect());
    let (hot, cold) = (counter(&first, "hot"), counter(&first, "cold"));
    let both = [hot, cold, hot, hot];
    for of in both {
        // The other client reads it before, and commits after.
        let late = second.transaction().begin().unwrap();
        let count = late.get(of).unwrap().count();
        late.edit(of).unwrap().set_count(count + 1).unwrap();
        first.run(|tx| tx.edit(of)?.set_count(count + 7)).unwrap();
        late.commit().unwrap_err();
    }
    let contended = first.server_status().unwrap().leading.unwrap().contended;
    let told: Vec<_> =
        contended.iter().map(|of| (of.object.as_str(), of.class.as_str(), of.conflicts)).collect();
    let place = |of: tercel::Ref<crate::common::Counter>| of.oref().to_string();
    assert_eq!(told, [(place(hot).as_str(), "Counter", 3), (place(cold).as_str(), "Counter", 1)]);
}
