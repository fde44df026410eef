//! The rows `flex.replica.*`: a copy of the space on the reader's host, by the leader that it is a copy of.
//!
//! The leader is a group of one, and a member that learns follows it, each in a process of its own. The
//! reader speaks to its copy through shared memory, and to the leader over TCP of this host: between hosts
//! the difference is larger.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use tercel::{Address, Client, ClientConfig, ReadFrom, Ref, Server, Transport};
use tercel_term::process::OwnProcess;

use super::Options;
use super::blocks::{BLOCK, alternate, median, percentile, timed};
use super::flex::{Counter, LargeCounter, ROLE, failed, make, make_large, rounds};
use super::report::Row;

/// Serves a member until standard input ends: the directory, and the addresses, a line each.
///
/// # Errors
/// A sentence: what failed.
pub fn serve(role: &str) -> Result<(), String> {
    let mut lines = role.lines();
    let mut server = Server::builder(lines.next().ok_or("the role names no directory")?);
    for at in lines {
        server = server.listen(at);
    }
    let server = server.start().map_err(failed)?;
    println!("listening on {} ({})", server.addresses()[0], server.backend());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    server.stop().map_err(failed)
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn rows(options: &Options, dir: &Path) -> Result<Vec<Row>, String> {
    std::fs::create_dir_all(dir).map_err(failed)?;
    let begin = |name: &str, listen: &[&Address]| {
        let role = format!("member\n{}\n", dir.join(name).display());
        let listen: Vec<String> = listen.iter().map(|at| at.to_string()).collect();
        OwnProcess::role(&["bench", "flex"], ROLE, role + &listen.join("\n")).map_err(String::from)
    };
    let (leader, near, socket) = (free()?, free()?, Address::Unix(dir.join("sock")));
    tercel::group::init(&dir.join("leader"), &leader).map_err(failed)?;
    let _leading = begin("leader", &[&leader])?;
    tercel::group::join(&dir.join("near"), &leader.clone().into(), &near, Some(&dir.join("leader/secret")))
        .map_err(failed)?;
    let _following = begin("near", &[&near, &socket])?;
    // Less than the ballast, so that it can be fetched again and again.
    let config = ClientConfig { cache_bytes: 1 << 20, ..ClientConfig::default() };
    let far = Client::connect_with(&leader, config.clone()).map_err(failed)?;
    let config = ClientConfig { read_from: ReadFrom::Address(socket), ..config };
    let until = Instant::now() + Duration::from_secs(10);
    // A copy that has nothing yet sends readers on to the leader.
    let near = loop {
        let near = Client::connect_with(&leader, config.clone()).map_err(failed)?;
        match near.transport() {
            Some(Transport::SharedMemory) => break near,
            other if Instant::now() > until => return Err(format!("the copy is read over {other:?}")),
            _ => std::thread::sleep(EVERY),
        }
    };
    let mut rows = vec![fetch(options, &far, &near)?];
    rows.extend(lag(options, &far, &near)?);
    Ok(rows)
}

fn fetch(options: &Options, far: &Client, near: &Client) -> Result<Row, String> {
    let large = make_large(far)?;
    let token = far.transaction().begin().map_err(failed)?.as_of().token;
    near.transaction().at_least(token).run(|_| Ok(())).map_err(failed)?;
    let next = |at: &mut usize, client: &Client, large: &[Ref<LargeCounter>]| {
        // Not the other one of the same page.
        *at = (*at + 2) % large.len();
        client.run(|tx| Ok(tx.get(large[*at])?.count())).map(|_| ()).map_err(failed)
    };
    let (mut of_far, mut of_near) = (0, 0);
    let pairs = alternate(
        rounds(options),
        || timed(|| next(&mut of_far, far, &large)).map(|mut block| median(&mut block)),
        || timed(|| next(&mut of_near, near, &large)).map(|mut block| median(&mut block)),
    )?;
    let n = (rounds(options) * BLOCK) as u64;
    Ok(Row::compared("flex.replica.fetch", "us", &pairs, "the leader over TCP", n)
        .note("a page from the host's own copy through shared memory; must be 0.5 at most"))
}

/// Measures the time from the acknowledgement of a commit at the leader until a client of the copy sees it.
fn lag(options: &Options, far: &Client, near: &Client) -> Result<Vec<Row>, String> {
    let counter: Ref<Counter> = make(far)?;
    let token = far.transaction().begin().map_err(failed)?.as_of().token;
    near.transaction().at_least(token).run(|tx| Ok(tx.get(counter)?.count())).map_err(failed)?;
    let mut watch = near.watch().object(counter).start().map_err(failed)?;
    let commits = if options.quick { 100 } else { 1_000 };
    let mut times = Vec::with_capacity(commits);
    let mut due = Instant::now();
    for n in 0..commits as u64 {
        due += EVERY;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        far.run(|tx| tx.edit(counter)?.set_count(n)).map_err(failed)?;
        let acknowledged = Instant::now();
        watch.next_within(Duration::from_secs(5)).map_err(failed)?.ok_or("a commit was not seen in 5 s")?;
        times.push(acknowledged.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    let row = |name: &str, share, most| {
        let note = format!(
            "from the acknowledgement to the sight at a client of the copy, 50 commits/s; must be {most} us at most"
        );
        Row::new(format!("flex.replica.lag.{name}"), percentile(&times, share), "us", commits as u64)
            .note(note)
    };
    Ok(vec![row("p50", 0.5, 1_000), row("p99", 0.99, 5_000)])
}

/// From one commit to the next.
const EVERY: Duration = Duration::from_millis(20);

/// An address that is free, and is taken a moment later.
fn free() -> Result<Address, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    Ok(Address::from(listener.local_addr().map_err(failed)?))
}
