//! A shop for seats: two tables with three indexes, and a method that buys the cheapest seat that is free, at
//! the server or on cached copies. Many customers buy until nothing is left: no seat is sold twice, and no
//! index is ever stale. `cargo run -p tercel --example shop`.

use std::sync::atomic::{AtomicU64, Ordering};

use tercel::collections::{Map, Table};
use tercel::{Called, Client, Error, Failure, Obj, Object, Record, Server, Text, interface};

/// A seat of an event. Those that are free come first, the cheapest of them first of all.
#[derive(Object)]
#[table(key = id, index(event, is_sold, cents), unique(event, row, number))]
struct Seat {
    id: u64,
    event: u32,
    row: Text,
    number: u16,
    cents: u32,
    is_sold: bool,
}

/// A seat that was bought.
#[derive(Object)]
#[table(key = seat, index(buyer))]
struct Order {
    seat: u64,
    buyer: Text,
    cents: u32,
}

/// The object that the root leads to.
#[derive(Object)]
struct Shop {
    /// The names of events, which stand in the map itself.
    events: Map<u32, Text>,
    seats: Table<Seat>,
    orders: Table<Order>,
}

/// The methods of the shop.
#[interface]
trait Selling {
    /// Buys the cheapest seat of an event that is free.
    fn buy(&mut self, event: u32, buyer: &str) -> Result<Bought, SoldOut>;
    /// The cents that somebody has spent.
    #[read]
    fn spent(&self, buyer: &str) -> u64;
}

#[derive(Record, Debug, PartialEq)]
struct Bought {
    seat: u64,
    cents: u32,
}

#[derive(Record, Debug, PartialEq)]
struct SoldOut {
    event: u32,
}

impl Selling for Shop {
    fn buy(this: &Obj<Shop>, event: u32, buyer: &str) -> Called<Bought, SoldOut> {
        let tx = Obj::tx(this);
        let mut free = this.seats().by(Seat::BY_EVENT_IS_SOLD_CENTS).prefix(tx, (event, false));
        let Some(seat) = free.next().transpose()? else { return Err(SoldOut { event }.into()) };
        let bought = Bought { seat: seat.id(), cents: seat.cents() };
        // The setter moves the seat in the index. There is none on the object itself.
        this.seats().edit(tx, bought.seat)?.set_is_sold(true)?;
        let order = Order { seat: bought.seat, buyer: buyer.into(), cents: bought.cents };
        this.orders().insert(tx, &order)?;
        Ok(bought)
    }

    fn spent(this: &Obj<Shop>, buyer: &str) -> Called<u64> {
        let orders = this.orders().by(Order::BY_BUYER).at(Obj::tx(this), buyer);
        let cents = orders.map(|order| Ok(u64::from(order?.cents())));
        Ok(cents.sum::<Result<u64, Error>>()?)
    }
}

const SEATS: u64 = 240;
const CUSTOMERS: usize = 4;

/// Makes a shop with one event.
fn open(client: &Client) -> Result<(), Error> {
    client.run(|tx| {
        let shop = Shop { events: Map::create(tx)?, seats: Table::create(tx)?, orders: Table::create(tx)? };
        shop.events.insert(tx, 5, "Fidelio".into())?;
        for id in 0..SEATS {
            let (row, number) = (["A", "B", "C"][id as usize % 3].into(), (id / 3) as u16);
            let cents = 2_000 + 1_500 * (2 - id as u32 % 3);
            shop.seats.insert(tx, &Seat { id, event: 5, row, number, cents, is_sold: false })?;
        }
        tx.set_root("shop", tx.create(&shop)?)
    })
}

/// Customers buy until nothing is left; gives the number of seats that were sold.
fn sell_out(client: &Client) -> Result<u64, Failure<SoldOut>> {
    let shop = client.run(|tx| Ok(tx.get_root::<Shop>("shop")?.reference()))?;
    let sold = AtomicU64::new(0);
    let buy = |customer: usize| {
        loop {
            match client.handle(shop).remote().buy(5, &format!("customer {customer}")) {
                Ok(_) => _ = sold.fetch_add(1, Ordering::Relaxed),
                Err(Failure::Method(SoldOut { .. })) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    };
    let buy = &buy;
    std::thread::scope(|scope| {
        let customers: Vec<_> = (0..CUSTOMERS).map(|n| scope.spawn(move || buy(n))).collect();
        customers.into_iter().try_for_each(|customer| customer.join().expect("a customer does not panic"))
    })?;
    Ok(sold.into_inner())
}

/// The program.
pub fn run() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-shop-{}", std::process::id()));
    let server = Server::builder(&dir).listen("127.0.0.1:0").methods(Shop::METHODS).start()?;
    let client = Client::connect(&server.addresses()[0])?;
    open(&client)?;

    let shop = client.handle(client.run(|tx| Ok(tx.get_root::<Shop>("shop")?.reference()))?);
    let first = shop.buy(5, "ann")?;
    println!("ann bought seat {} for {} cents", first.seat, first.cents);
    client.run(|tx| {
        let shop = tx.get_root::<Shop>("shop")?.to_value()?;
        let name = shop.events.get_value(tx, 5)?.expect("it is sold");
        let by_price = shop.seats.by(Seat::BY_EVENT_IS_SOLD_CENTS);
        let dear = by_price.range(tx, (5, false, 4_000)..(5, true, 0)).count_keys()?;
        println!("{name}: {dear} of the free seats cost 40 or more");
        // Page by page, as a web site shows them: a cursor survives what is sold meanwhile.
        let page = by_price.prefix(tx, (5, false)).page(3)?;
        for seat in &page.rows {
            println!("  {}{} {}", seat.row()?, seat.number(), seat.cents());
        }
        let more = page.next.expect("there are more");
        assert_eq!(by_price.prefix(tx, (5, false)).after(&more).page(3)?.rows.len(), 3);
        let twice = Seat { id: SEATS, event: 5, row: "A".into(), number: 0, cents: 1, is_sold: false };
        println!("refused: {}", shop.seats.insert(tx, &twice).expect_err("there is such a seat"));
        Ok(())
    })?;

    println!("{} seats were sold to others, ann spent {}", sell_out(&client)?, shop.spent("ann")?);
    client.run(|tx| {
        let shop = tx.get_root::<Shop>("shop")?.to_value()?;
        assert_eq!(shop.orders.count(tx)?, SEATS as usize);
        assert!(shop.seats.check(tx)?.is_empty() && shop.orders.check(tx)?.is_empty());
        Ok(())
    })?;
    drop(shop);
    client.close()?;
    server.stop()?;
    Ok(std::fs::remove_dir_all(&dir)?)
}

/// An error that `main` returns is printed for programmers, as `Timeout(None)`; this prints its sentence.
fn main() {
    if let Err(e) = run() {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
