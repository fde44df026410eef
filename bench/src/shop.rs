//! The rows `shop.*`: sales a second of a shop for seats, of one client and of eight, beside the same shop in
//! PostgreSQL.
//!
//! A sale finds the cheapest seat of an event that is free, marks it as sold, inserts an order and adds to
//! what the customer has spent, and is durable when it returns. Ours is a method at the server. PostgreSQL's
//! is a function at its server, which is one round trip too, and in the rows `shop.*.statements` what most
//! programs do: a transaction of five statements. All clients are threads of this process, and each server a
//! process of its own behind a Unix socket.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tercel::collections::Table;
use tercel::{Called, Client, Obj, Object, Record, Ref, Server, Text, Tx, interface};
use tercel_term::process::OwnProcess;

use super::Options;
use super::blocks::alternate;
use super::commit::rate;
use super::postgres::{Connection, Postgres};
use super::report::Row;
use super::scratch::Scratch;

/// The environment variable that makes this program the shop's server: its directory.
pub const ROLE: &str = "TERCEL_BENCH_SHOP";

#[derive(Object)]
#[table(key = id)]
struct Event {
    id: u32,
    name: Text,
}

#[derive(Object)]
#[table(key = id, index(event, is_sold, cents))]
struct Seat {
    id: u64,
    event: u32,
    cents: u32,
    is_sold: bool,
}

#[derive(Object)]
#[table(key = seat, index(buyer))]
struct Order {
    seat: u64,
    buyer: u32,
    cents: u32,
}

#[derive(Object)]
#[table(key = id)]
struct Customer {
    id: u32,
    spent: u64,
}

#[derive(Object)]
struct Shop {
    events: Table<Event>,
    seats: Table<Seat>,
    orders: Table<Order>,
    customers: Table<Customer>,
}

#[interface]
trait Selling {
    /// Sells the cheapest seat of an event that is free, and gives its number.
    fn sell(&mut self, event: u32, buyer: u32) -> Result<u64, SoldOut>;
}

#[derive(Record, Debug)]
struct SoldOut {
    event: u32,
}

impl Selling for Shop {
    fn sell(this: &Obj<Shop>, event: u32, buyer: u32) -> Called<u64, SoldOut> {
        let tx = Obj::tx(this);
        let mut free = this.seats().by(Seat::BY_EVENT_IS_SOLD_CENTS).prefix(tx, (event, false));
        let Some(seat) = free.next().transpose()? else { return Err(SoldOut { event }.into()) };
        let (seat, cents) = (seat.id(), seat.cents());
        this.seats().edit(tx, seat)?.set_is_sold(true)?;
        this.orders().insert(tx, &Order { seat, buyer, cents })?;
        let spent = this.customers().get(tx, buyer)?.spent() + u64::from(cents);
        this.customers().edit(tx, buyer)?.set_spent(spent)?;
        Ok(seat)
    }
}

const EVENTS: u64 = 10;
const CUSTOMERS: u64 = 1_000;

/// The price of a seat.
fn cents(seat: u64) -> u64 {
    1_000 + seat / EVENTS % 100 * 50
}

/// The event and the customer of a sale.
fn chosen(sale: u64) -> (u32, u32) {
    let any = sale.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((any % EVENTS) as u32, (any / EVENTS % CUSTOMERS) as u32)
}

/// Runs as the shop's server until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let dir = Path::new(role);
    let socket = format!("unix:{}", dir.join("sock").display());
    let builder = Server::builder(dir.join("data")).listen(socket).methods(Shop::METHODS);
    let server = builder.start().map_err(failed)?;
    println!("listening on {} ({})", server.addresses()[0], server.backend());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    server.stop().map_err(failed)
}

/// Measures.
///
/// # Errors
/// A sentence: what failed. Without PostgreSQL there are no rows.
pub fn run(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    options.say("a shop");
    let theirs = match Postgres::start(&scratch.join("postgres")) {
        Ok(theirs) => theirs,
        Err(reason) => {
            eprintln!("shop.* are left out: {reason}");
            return Ok(Vec::new());
        }
    };
    let seats = if options.quick { 120_000 } else { 400_000 };
    fill_theirs(&mut theirs.connect()?, seats)?;
    let (dir, version) = (scratch.join("shop"), theirs.version()?);
    std::fs::create_dir(&dir).map_err(failed)?;
    let server = OwnProcess::role(&["bench", "rows"], ROLE, &dir)?;
    let first = Client::connect(&server.address()?).map_err(failed)?;
    let shop = fill(&first, seats)?;

    let sales = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut rows = Vec::new();
    for clients in [1, 8] {
        let ours: Vec<Client> = (0..clients)
            .map(|_| Client::connect(&server.address()?).map_err(failed))
            .collect::<Result<_, String>>()?;
        for (name, way) in [("", Way::Function), (".statements", Way::Statements)] {
            let id = format!("shop.{clients}{name}");
            options.say(&id);
            let mut connections: Vec<Connection> =
                (0..clients).map(|_| way.connect(&theirs)).collect::<Result<_, _>>()?;
            let mut n = 0.0;
            let pairs = alternate(
                if options.quick { 12 } else { 30 },
                || rate(BLOCK, connections.iter_mut().map(|one| || way.sell(one, next(&sales[0])))),
                || {
                    let rate = rate(BLOCK, ours.iter().map(|client| || sell(client, shop, next(&sales[1]))))?;
                    n += rate * BLOCK.as_secs_f64();
                    Ok::<_, String>(rate)
                },
            )?;
            let limit = format!("PostgreSQL {version}");
            rows.push(Row::compared(id, "sales/s", &pairs, limit, n as u64).note(way.note()));
        }
    }
    let [of_theirs, of_ours] = sales.map(AtomicU64::into_inner);
    let sold = theirs.connect()?.one("SELECT count(*) FROM orders")?;
    let check = |tx: &Tx<'_>| {
        let shop = tx.get(shop)?;
        let wrong = [shop.seats().check(tx)?, shop.orders().check(tx)?, shop.customers().check(tx)?].concat();
        Ok((shop.orders().count(tx)?, wrong.len()))
    };
    let (orders, wrong) = first.run(check).map_err(failed)?;
    if sold != of_theirs.to_string() || orders as u64 != of_ours || wrong > 0 {
        return Err(format!(
            "of {of_theirs} sales of PostgreSQL {sold} are there, of {of_ours} of ours {orders}, and {wrong} indexes are wrong"
        ));
    }
    drop((first, server));
    Ok(rows)
}

/// The number of the next sale.
fn next(sales: &AtomicU64) -> u64 {
    sales.fetch_add(1, Ordering::Relaxed)
}

fn sell(client: &Client, shop: Ref<Shop>, sale: u64) -> Result<(), String> {
    let (event, buyer) = chosen(sale);
    client.handle(shop).remote().sell(event, buyer).map(drop).map_err(failed)
}

/// Makes the shop and its seats.
fn fill(client: &Client, seats: u64) -> Result<Ref<Shop>, String> {
    let shop = client.run(|tx| {
        let (events, seats) = (Table::create(tx)?, Table::create(tx)?);
        let (orders, customers) = (Table::create(tx)?, Table::create(tx)?);
        events
            .insert_all(tx, (0..EVENTS as u32).map(|id| Event { id, name: format!("event {id}").into() }))?;
        customers.insert_all(tx, (0..CUSTOMERS as u32).map(|id| Customer { id, spent: 0 }))?;
        tx.create(&Shop { events, seats, orders, customers })
    });
    let shop = shop.map_err(failed)?;
    for from in (0..seats).step_by(TOGETHER) {
        let rows = (from..seats.min(from + TOGETHER as u64)).map(|id| Seat {
            id,
            event: (id % EVENTS) as u32,
            cents: cents(id) as u32,
            is_sold: false,
        });
        client.run(|tx| tx.get(shop)?.seats().insert_all(tx, rows.clone())).map_err(failed)?;
    }
    Ok(shop)
}

/// Seats of one commit.
const TOGETHER: usize = 1_000;

fn fill_theirs(connection: &mut Connection, seats: u64) -> Result<(), String> {
    connection.query(&format!(
        "CREATE TABLE events (id int PRIMARY KEY, name text NOT NULL);
         CREATE TABLE seats (id bigint PRIMARY KEY, event int NOT NULL, cents int NOT NULL, is_sold bool NOT NULL);
         CREATE TABLE orders (seat bigint PRIMARY KEY, buyer int NOT NULL, cents int NOT NULL);
         CREATE TABLE customers (id int PRIMARY KEY, spent bigint NOT NULL);
         INSERT INTO events SELECT n, 'event ' || n FROM generate_series(0, {EVENTS} - 1) n;
         INSERT INTO customers SELECT n, 0 FROM generate_series(0, {CUSTOMERS} - 1) n;
         INSERT INTO seats SELECT n, n % {EVENTS}, 1000 + n / {EVENTS} % 100 * 50, false
             FROM generate_series(0, {seats} - 1) n;
         CREATE INDEX ON seats (event, cents) WHERE NOT is_sold;
         CREATE INDEX ON orders (buyer);
         CREATE FUNCTION sell(of_event int, by_buyer int) RETURNS bigint LANGUAGE plpgsql AS $$
         DECLARE seat bigint; price int;
         BEGIN
             SELECT s.id, s.cents INTO seat, price FROM seats s WHERE s.event = of_event AND NOT s.is_sold
                 ORDER BY s.cents LIMIT 1 FOR UPDATE SKIP LOCKED;
             IF NOT FOUND THEN RETURN NULL; END IF;
             UPDATE seats SET is_sold = true WHERE id = seat;
             INSERT INTO orders VALUES (seat, by_buyer, price);
             UPDATE customers SET spent = spent + price WHERE id = by_buyer;
             RETURN seat;
         END $$"
    ))?;
    connection.query("VACUUM ANALYZE").map(drop)
}

/// The ways of a sale in PostgreSQL. Its statements are prepared once a connection.
#[derive(Clone, Copy)]
enum Way {
    Function,
    Statements,
}

impl Way {
    fn connect(self, server: &Postgres) -> Result<Connection, String> {
        let mut connection = server.connect()?;
        connection.query(match self {
            Way::Function => "PREPARE sell(int, int) AS SELECT sell($1, $2)",
            Way::Statements => {
                "PREPARE free(int) AS SELECT id, cents FROM seats WHERE event = $1 AND NOT is_sold
                     ORDER BY cents LIMIT 1 FOR UPDATE SKIP LOCKED;
                 PREPARE sold(bigint) AS UPDATE seats SET is_sold = true WHERE id = $1;
                 PREPARE ordered(bigint, int, int) AS INSERT INTO orders VALUES ($1, $2, $3);
                 PREPARE spent(int, int) AS UPDATE customers SET spent = spent + $2 WHERE id = $1"
            }
        })?;
        Ok(connection)
    }

    fn sell(self, connection: &mut Connection, sale: u64) -> Result<(), String> {
        let (event, buyer) = chosen(sale);
        match self {
            Way::Function => connection.one(&format!("EXECUTE sell({event}, {buyer})")).map(drop),
            Way::Statements => {
                // Nothing depends on the answer to the beginning.
                let rows = connection.query(&format!("BEGIN; EXECUTE free({event})"))?;
                let [Some(seat), Some(cents)] = rows.first().map_or(&[][..], Vec::as_slice) else {
                    return Err("all seats are sold: this run was too long".into());
                };
                connection.query(&format!("EXECUTE sold({seat})"))?;
                connection.query(&format!("EXECUTE ordered({seat}, {buyer}, {cents})"))?;
                connection.query(&format!("EXECUTE spent({buyer}, {cents})"))?;
                connection.query("COMMIT").map(drop)
            }
        }
    }

    fn note(self) -> &'static str {
        match self {
            Way::Function => {
                "a method at our server by a function of PL/pgSQL, prepared: one round trip over a Unix socket and one \
                 durable commit each; no foreign keys, and no checkpoint amid the blocks"
            }
            Way::Statements => "the same beside five round trips, of prepared statements in a transaction",
        }
    }
}

/// Time of a block.
const BLOCK: Duration = Duration::from_millis(200);

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
