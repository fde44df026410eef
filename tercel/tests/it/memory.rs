//! A client's cache has the bytes it was given, and the process around it hardly more, however much passes
//! through.

use std::process::Command;

use crate::common::serve;
use tercel::{Address, Client, ClientConfig, Error, List, Object, Ref, Text};
use tercel_machine::random::Random;

/// The client's budget.
const BUDGET_BYTES: usize = 16 << 20;
/// The data that the client works through.
const DATA_BYTES: usize = 10 * BUDGET_BYTES;
/// The memory of a process beside the cache: buffers of the connection, the private copies of open
/// transactions, threads.
const ALLOWANCE_BYTES: usize = 2 << 20;
/// Tells the child where the server is.
const CHILD: &str = "TERCEL_TEST_ADDRESS";

/// An object of varying size, so that frames of kept objects are of all fillings.
#[derive(Object)]
struct Doc {
    number: u64,
    text: Text,
    others: List<Ref<Doc>>,
}

/// All documents; in chunks, so they are themselves data.
#[derive(Object)]
struct Shelf {
    docs: List<Ref<Doc>>,
}

#[test]
fn a_client_keeps_to_its_budget_while_ten_times_as_much_passes_through() {
    if let Ok(address) = std::env::var(CHILD) {
        return work(&address);
    }
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let address = server.addresses()[0].to_string();
    load(&server.addresses()[0]);
    // In a process of its own, where nothing else takes or gives back memory.
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "memory::a_client_keeps_to_its_budget_while_ten_times_as_much_passes_through",
            "--nocapture",
        ])
        .env(CHILD, address)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains(SAID), "{said}");
    println!("{said}");
    server.stop().unwrap();
}

fn load(address: &Address) {
    let client = Client::connect(address).unwrap();
    let mut random = Random::new(3);
    let (mut docs, mut bytes, mut number) = (Vec::<Ref<Doc>>::new(), 0, 0);
    while bytes < DATA_BYTES {
        let made = client
            .run(|tx| {
                let mut made = Vec::new();
                for i in 0..500 {
                    // Sizes by number, so that a transaction that runs again does the same.
                    let size = (number + i) * 7_919 % TEXT_BYTES;
                    let others = (0..3).filter_map(|_| docs.get(random.index(docs.len().max(1)))).copied();
                    let text = "t".repeat(size).into();
                    made.push(tx.create(&Doc {
                        number: (number + i) as u64,
                        text,
                        others: others.collect(),
                    })?);
                }
                Ok(made)
            })
            .unwrap();
        number += made.len();
        bytes += made.len() * TEXT_BYTES / 2;
        docs.extend(made);
    }
    client.run(|tx| tx.set_root("shelf", tx.create(&Shelf { docs: List(docs.clone()) })?)).unwrap();
    client.close().unwrap();
}

/// The child: connects, works, and looks at its own memory.
fn work(address: &str) {
    let before = anonymous_bytes();
    let config = ClientConfig { cache_bytes: BUDGET_BYTES, ..ClientConfig::default() };
    let client = Client::connect_with(address, config).unwrap();
    let most = std::thread::scope(|scope| {
        let work = |seed| {
            let mut random = Random::new(seed);
            let looks = (0..TRANSACTIONS).map(|i| {
                one(&client, &mut random).unwrap();
                if i % 50 == 0 { anonymous_bytes() } else { 0 }
            });
            looks.max().unwrap()
        };
        let threads = [1, 2].map(|seed| scope.spawn(move || work(seed)));
        threads.into_iter().map(|t| t.join().unwrap()).max().unwrap()
    });
    let stats = client.stats().cache;
    let passed = stats.installs as usize * 8_064;
    let grown = most - before;
    println!(
        "grown by {grown} bytes with a budget of {BUDGET_BYTES}, after {passed} bytes of pages: {stats:?}"
    );
    assert!(passed > DATA_BYTES, "it saw too little to prove anything");
    assert!(grown > BUDGET_BYTES / 2, "the cache was not filled");
    assert!(stats.charged_bytes <= BUDGET_BYTES);
    assert!(grown <= BUDGET_BYTES + ALLOWANCE_BYTES);
    println!("{SAID}");
}

/// One transaction: some documents at random and those they name; every tenth changes what it read last.
fn one(client: &Client, random: &mut Random) -> Result<(), Error> {
    let (seed, writes) = (random.next_u64(), random.index(10) == 0);
    client.run(|tx| {
        let mut random = Random::new(seed);
        let shelf = tx.get_root::<Shelf>("shelf")?;
        let docs = shelf.docs();
        for _ in 0..8 {
            let doc = tx.get(docs.get_ref(random.index(docs.len()))?.expect("below the length"))?;
            for other in doc.others() {
                assert!(other?.text()?.len() < TEXT_BYTES);
            }
            if writes {
                doc.edit()?.set_text("u".repeat(random.index(TEXT_BYTES)))?;
            }
        }
        Ok(())
    })
}

/// Memory of this process that is not of files: program text that is touched belongs to no budget.
fn anonymous_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|l| l.starts_with("Anonymous:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

const TEXT_BYTES: usize = 3_000;
/// Transactions of each of two threads: enough to fetch more pages than there are.
const TRANSACTIONS: usize = 4_000;
const SAID: &str = "it kept to its budget";
