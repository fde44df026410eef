//! The rows `rows.hot.*`: eight clients that change the same object, objects of one page, or take the first
//! row of an index that is free, over one client that does the same in the same run.
//!
//! Transactions run at their clients and are judged against each other. Methods run at the server, over what
//! it has ordered, and wait for the disk together.

use std::thread;
use std::time::{Duration, Instant};

use tercel::collections::Table;
use tercel::{Called, Client, Error, Obj, Object, Ref, Server, interface};

use super::Options;
use super::blocks::alternate;
use super::report::Row;
use super::scratch::Scratch;

#[interface]
trait Selling {
    /// Sells one more, and gives how many were.
    fn sell(&mut self) -> u64;
    /// Sells the cheapest seat that is free, and gives its number.
    fn sell_cheapest(&mut self) -> Option<u64>;
}

#[derive(Object)]
struct Hall {
    sold: u64,
    seats: Table<Seat>,
}

#[derive(Object)]
#[table(key = id, index(is_free, price))]
struct Seat {
    id: u64,
    is_free: bool,
    price: u64,
}

impl Selling for Hall {
    fn sell(this: &Obj<Hall>) -> Called<u64> {
        let sold = this.sold() + 1;
        this.edit()?.set_sold(sold)?;
        Ok(sold)
    }

    fn sell_cheapest(this: &Obj<Hall>) -> Called<Option<u64>> {
        let (tx, seats) = (Obj::tx(this), this.seats());
        let Some(seat) = seats.by(Seat::BY_IS_FREE_PRICE).prefix(tx, (true,)).next().transpose()? else {
            return Ok(None);
        };
        let id = seat.id();
        seats.edit(tx, id)?.set_is_free(false)?;
        Ok(Some(id))
    }
}

/// Clients of a block of ours.
const CLIENTS: usize = 8;

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let server = Server::builder(scratch.join("hot")).listen("127.0.0.1:0").methods(Hall::METHODS).start();
    let server = server.map_err(failed)?;
    let connect = |_| Client::connect(&server.addresses()[0]).map_err(failed);
    let clients = (0..CLIENTS).map(connect).collect::<Result<Vec<_>, _>>()?;
    let halls = fill(&clients[0], options)?;
    let hall = halls[0];

    let sold = |client: &Client, hall: Ref<Hall>| {
        client.run(|tx| tx.get(hall).and_then(|hall| hall.edit()?.set_sold(hall.sold() + 1))).map_err(failed)
    };
    let one = |client: &Client, _| sold(client, hall);
    let adjacent = |client: &Client, i: usize| sold(client, halls[i]);
    let call = |client: &Client, _| client.handle(hall).remote().sell().map(drop).map_err(failed);
    let first = |client: &Client, _| match client.handle(hall).remote().sell_cheapest().map_err(failed)? {
        Some(_) => Ok(()),
        None => Err("all seats are sold: this run was too long".to_string()),
    };
    let rows = vec![
        row("rows.hot.8clients", &clients, options, one)?.note("transactions that change one object"),
        row("rows.hot.8clients.adjacent", &clients, options, adjacent)?
            .note("transactions that change an object each, all of one page"),
        row("rows.hot.8clients.calls", &clients, options, call)?.note("methods that change one object"),
        row("rows.hot.8clients.first", &clients, options, first)?
            .note("methods that take the first row of an index that is free"),
    ];
    drop(clients);
    server.stop().map_err(failed)?;
    Ok(rows)
}

/// Makes a hall for each client, all on one page, and the seats of the first.
fn fill(client: &Client, options: &Options) -> Result<Vec<Ref<Hall>>, String> {
    let halls = client.run(|tx| {
        let seats = Table::create(tx)?;
        (0..CLIENTS).map(|_| tx.create(&Hall { sold: 0, seats })).collect::<Result<Vec<_>, Error>>()
    });
    let halls = halls.map_err(failed)?;
    let seats = if options.quick { 50_000 } else { 400_000 };
    for from in (0..seats).step_by(TOGETHER) {
        let rows = (from..from + TOGETHER as u64).map(|id| Seat { id, is_free: true, price: id % 100 });
        let insert = |tx: &tercel::Tx<'_>| tx.get(halls[0])?.seats().insert_all(tx, rows.clone());
        client.run(insert).map_err(failed)?;
    }
    Ok(halls)
}

/// Seats of one commit.
const TOGETHER: usize = 1_000;

/// Compares all clients with the first.
fn row(
    id: &str,
    clients: &[Client],
    options: &Options,
    change: impl Fn(&Client, usize) -> Result<(), String> + Sync,
) -> Result<Row, String> {
    options.say(id);
    let mut n = 0;
    let rounds = if options.quick { 5 } else { 9 };
    let pairs = alternate(
        rounds,
        || at_work(&clients[..1], &change),
        || {
            let rate = at_work(clients, &change)?;
            n += (rate * BLOCK.as_secs_f64()) as u64;
            Ok::<_, String>(rate)
        },
    )?;
    Ok(Row::compared(id, "commits/s", &pairs, "one client", n))
}

/// Changes of a second, of all of these clients.
fn at_work(
    clients: &[Client],
    change: &(impl Fn(&Client, usize) -> Result<(), String> + Sync),
) -> Result<f64, String> {
    let begin = Instant::now();
    let work = |i: usize| {
        let mut changes = 0;
        while begin.elapsed() < BLOCK {
            change(&clients[i], i)?;
            changes += 1;
        }
        Ok::<u64, String>(changes)
    };
    let changes = thread::scope(|scope| {
        let threads: Vec<_> = (0..clients.len()).map(|i| scope.spawn(move || work(i))).collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread has panicked".into())));
        ended.sum::<Result<u64, String>>()
    })?;
    Ok(changes as f64 / begin.elapsed().as_secs_f64())
}

/// Time of a block.
const BLOCK: Duration = Duration::from_millis(400);

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
