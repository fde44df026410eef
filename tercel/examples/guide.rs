//! docs/guide.md as one program: every snippet there stands here, in its order, and does what is said of it.
//! `cargo run -p tercel --example guide`.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tercel::collections::{Map, Table, Vector};
use tercel::rpc::{Callback, Input, Output};
use tercel::{
    Called, Client, ClientConfig, Context, Error, Failure, Far, Freshness, Isolation, List, Obj, Object,
    Options, Record, Ref, Server, SharedMemory, Spaces, Text, Tx, interface, service,
};

#[derive(Object)]
struct Person {
    name: Text,
    born: u16,
    home: Option<Place>,
    friends: List<Ref<Person>>,
    job: Job,
}

#[derive(Object)]
struct Note {
    text: Text,
}

#[derive(Object)]
struct Addressed {
    to: Far<Note>,
    text: Text,
}

#[derive(Record)]
struct Place {
    street: Text,
    number: u32,
}

#[derive(Record)]
enum Job {
    None,
    At(Place),
    For { whom: Ref<Person>, hours: u8 },
}

#[derive(Object)]
#[object(name = "Person")]
struct PersonOfToday {
    name: Text,
    born: u32,
    nickname: Text,
}

#[derive(Object)]
struct Register {
    by_name: Map<Text, PersonOfToday>,
    arrivals: Vector<PersonOfToday>,
}

#[derive(Debug)]
enum RenameError {
    Taken,
    Space(Error),
}

impl From<Error> for RenameError {
    fn from(e: Error) -> RenameError {
        RenameError::Space(e)
    }
}

#[interface]
trait Named {
    /// Some words to them.
    #[read]
    fn greet(&self, words: &str) -> Text;
    /// Gives them another nickname, and gives back the one before.
    fn call_them(&mut self, nickname: &str) -> Result<Text, TooLong>;
}

#[derive(Record, Debug)]
struct TooLong {
    most: u32,
}

impl Named for PersonOfToday {
    fn greet(this: &Obj<PersonOfToday>, words: &str) -> Called<Text> {
        Ok(format!("{words}, {}!", this.nickname()?).into())
    }

    fn call_them(this: &Obj<PersonOfToday>, nickname: &str) -> Called<Text, TooLong> {
        if nickname.len() > 20 {
            return Err(TooLong { most: 20 }.into());
        }
        let before = this.nickname()?.into_owned();
        this.edit()?.set_nickname(nickname)?;
        Ok(before.into())
    }
}

#[service]
trait Desk {
    /// Counts the letters of a name. It may be run more than once.
    #[read]
    fn letters(&self, name: &str) -> Result<u32, TooLong>;
    /// Gives someone else a nickname, when their turn comes: gives how many had theirs before.
    #[slow]
    fn rename(&self, who: Ref<PersonOfToday>, nickname: &str) -> u64;
    /// Notes a line, and gives nothing.
    #[one_way]
    fn note(&self, line: &str);
}

/// The same service as a program knows it that was built later.
#[service(name = "Desk")]
trait DeskOfTomorrow {
    #[read]
    fn letters(&self, name: &str, spaces: bool) -> Result<u32, TooLong>;
    fn visitors(&self) -> u64;
}

#[derive(Default)]
struct FrontDesk {
    served: AtomicU64,
}

impl Desk for FrontDesk {
    fn letters(&self, _: &Context<'_>, name: &str) -> Called<u32, TooLong> {
        if name.len() > 20 { Err(TooLong { most: 20 }.into()) } else { Ok(name.len() as u32) }
    }

    fn rename(&self, cx: &Context<'_>, who: Ref<PersonOfToday>, nickname: &str) -> Called<u64> {
        // A transaction inside of the server. It may run more than once; what stands around it does not.
        cx.run(|tx| tx.edit(who)?.set_nickname(nickname))?;
        Ok(self.served.fetch_add(1, Ordering::Relaxed))
    }

    fn note(&self, cx: &Context<'_>, line: &str) {
        println!("{:x} says: {line}", cx.client().0);
    }
}

#[service]
trait Archive {
    /// The names that begin so, one after the other; gives how many there are.
    #[slow]
    fn find(&self, start: &str, found: &Output<Text>) -> u64;
    /// Takes names in; gives how many are new.
    #[slow]
    fn add(&self, names: &Input<Text>) -> u64;
    /// Strikes the names that the caller wants to be struck; gives how many.
    #[slow]
    fn strike(&self, wants: &Callback<Text, bool>) -> u64;
}

#[derive(Default)]
struct Shelf(Mutex<BTreeSet<String>>);

impl Archive for Shelf {
    fn find(&self, _: &Context<'_>, start: &str, found: &Output<Text>) -> Called<u64> {
        let all = self.0.lock().unwrap().clone();
        let mut count = 0;
        for name in all.iter().filter(|name| name.starts_with(start)) {
            // Waits while the caller is behind; fails once the caller is gone.
            found.send(&name.as_str().into())?;
            count += 1;
        }
        Ok(count)
    }

    fn add(&self, _: &Context<'_>, names: &Input<Text>) -> Called<u64> {
        let mut count = 0;
        while let Some(name) = names.next()? {
            count += u64::from(self.0.lock().unwrap().insert(name.0));
        }
        Ok(count)
    }

    fn strike(&self, _: &Context<'_>, wants: &Callback<Text, bool>) -> Called<u64> {
        let all = self.0.lock().unwrap().clone();
        let mut count = 0;
        for name in all {
            if wants.ask(&name.as_str().into())? {
                count += u64::from(self.0.lock().unwrap().remove(&name));
            }
        }
        Ok(count)
    }
}

#[derive(Object)]
#[table(key = id, index(event, cents), unique(code))]
struct Seat {
    id: u64,
    event: u32,
    cents: u32,
    code: Text,
    is_sold: bool,
}

#[derive(Object)]
#[object(name = "Seat")]
#[table(key = id, index(event, cents), unique(code), index(is_sold))]
struct SeatOfToday {
    id: u64,
    event: u32,
    cents: u32,
    code: Text,
    is_sold: bool,
}

/// The program.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-guide-{}", std::process::id()));
    objects(&dir)?;
    changed_class(&dir)?;
    registers(&dir)?;
    tables(&dir)?;
    changed_table(&dir)?;
    networked(&dir)?;
    grouped(&dir.join("group"))?;
    several(&dir)?;
    over_a_socket(&dir)?;
    println!("The guide holds.");
    Ok(std::fs::remove_dir_all(&dir)?)
}

fn objects(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let space = tercel::embedded(dir)?;
    space.run(|tx| {
        let bob = Person { name: "Bob".into(), born: 1990, home: None, friends: [].into(), job: Job::None };
        let bob = tx.create(&bob)?;
        let home = Place { street: "Mill Lane".into(), number: 7 };
        let job = Job::For { whom: bob, hours: 20 };
        let ann = Person { name: "Ann".into(), born: 1988, home: Some(home), friends: [bob].into(), job };
        tx.set_root("ann", tx.create(&ann)?)
    })?;

    space.run(|tx| {
        let ann = tx.get_root::<Person>("ann")?;
        for friend in ann.friends() {
            println!("{} is a friend", friend?.name()?);
        }
        if let Job::For { whom, hours } = ann.job()? {
            println!("{hours} hours for {}", tx.get(whom)?.name()?);
        }
        ann.edit()?.set_name("Anne")
    })?;

    let (name, ann) = space.run(|tx| {
        let ann = tx.get_root::<Person>("ann")?;
        Ok((ann.name()?.into_owned(), ann.to_value()?))
    })?;

    assert_eq!((name.as_str(), ann.born, ann.friends.0.len()), ("Anne", 1988, 1));

    space.run(|tx| {
        let ann = tx.get_root::<Person>("ann")?;
        let cleo = Person { name: "Cleo".into(), born: 1991, home: None, friends: [].into(), job: Job::None };
        let ann = ann.edit()?;
        ann.push_friends(tx.create(&cleo)?)?;
        let mill = Place { street: "Mill Lane".into(), number: 9 };
        ann.set_job(Job::At(mill))
    })?;

    let friends = space.run(|tx| {
        let ann = tx.get_root::<Person>("ann")?;
        let names = ann.friends().into_iter().map(|friend| Ok(friend?.name()?.into_owned()));
        names.collect::<Result<Vec<_>, Error>>()
    })?;
    assert_eq!(friends, ["Bob", "Cleo"]);
    let home = ann.home.as_ref().map(|home| (home.street.to_string(), home.number));
    assert_eq!(home, Some(("Mill Lane".into(), 7)));
    let job = space.run(|tx| tx.get_root::<Person>("ann")?.job())?;
    assert!(matches!(job, Job::At(place) if place.number == 9));
    Ok(space.close()?)
}

fn changed_class(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let space = tercel::embedded(dir)?;
    space.run(|tx| {
        let ann = tx.get_root::<PersonOfToday>("ann")?;
        assert_eq!((ann.born(), ann.nickname()?.as_ref()), (1988, ""));
        ann.edit()?.set_nickname("Annie")
    })?;

    Ok(space.close()?)
}

fn registers(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let space = tercel::embedded(dir)?;
    space.run(|tx| {
        let ann = tx.get_root::<PersonOfToday>("ann")?.reference();
        let (by_name, arrivals) = (Map::create(tx)?, Vector::create(tx)?);
        by_name.insert(tx, "Anne", ann)?;
        arrivals.push_back(tx, ann)?;
        tx.set_root("register", tx.create(&Register { by_name, arrivals })?)
    })?;

    let names = space.run(|tx| {
        let register = tx.get_root::<Register>("register")?;
        let Register { by_name, arrivals } = register.to_value()?;
        println!("{} arrived", arrivals.len(tx)?);
        for entry in by_name.range(tx, "A".."B") {
            let (name, person) = entry?;
            println!("{name} is also called {}", tx.get(person)?.nickname()?);
        }
        Ok(by_name)
    })?;

    let arrivals = space.run(|tx| tx.get_root::<Register>("register")?.arrivals().len(tx))?;
    assert_eq!(arrivals, 1);
    assert!(matches!(rename(&space, names, "Anne", "Anne"), Err(RenameError::Taken)));
    rename(&space, names, "Anne", "Anna").map_err(|e| format!("{e:?}"))?;
    match rename(&space, names, "Anne", "Annette") {
        Err(RenameError::Space(Error::NotFound(who))) => println!("there is no {who} any more"),
        other => panic!("Anne was found: {other:?}"),
    }
    Ok(space.close()?)
}

fn rename(space: &Client, names: Map<Text, PersonOfToday>, from: &str, to: &str) -> Result<(), RenameError> {
    space.try_run(|tx| {
        if names.contains(tx, to)? {
            return Err(RenameError::Taken);
        }
        let person = names.remove(tx, from)?.ok_or(Error::NotFound(from.into()))?;
        tx.edit(person)?.set_name(to)?;
        names.insert(tx, to, person)?;
        Ok(())
    })
}

fn tables(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let space = tercel::embedded(dir)?;
    space.run(|tx| {
        let seats = Table::<Seat>::root(tx, "seats")?;
        for (id, cents) in [(1, 900), (2, 4_000), (3, 900)] {
            seats.insert(tx, &Seat { id, event: 5, cents, code: format!("A{id}").into(), is_sold: false })?;
        }
        Ok(())
    })?;

    let cheap = space.run(|tx| {
        let seats = Table::<Seat>::root(tx, "seats")?;
        println!("seat A2 costs {}", seats.by(Seat::BY_CODE).get(tx, "A2")?.cents());
        let by_price = seats.by(Seat::BY_EVENT_CENTS);
        println!("{} are below 10", by_price.range(tx, (5, 0)..(5, 1_000)).count_keys()?);
        let of_event = by_price.prefix(tx, (5,)).map(|seat| Ok(seat?.id()));
        of_event.collect::<Result<Vec<_>, Error>>()
    })?;
    assert_eq!(cheap, [1, 3, 2]);

    space.run(|tx| {
        let seats = Table::<Seat>::root(tx, "seats")?;
        let seat = seats.edit(tx, 2)?;
        seat.set_is_sold(true)?;
        seat.set_cents(4_500)?;
        if let Err(Error::Taken(taken)) = seat.set_code("A1") {
            println!("the {} {} is another's", taken.index, taken.key);
        }
        seats.remove(tx, 3).map(drop)
    })?;

    let page = space.run(|tx| {
        let seats = Table::<Seat>::root(tx, "seats")?;
        let page = seats.by(Seat::BY_EVENT_CENTS).prefix(tx, (5,)).page(1)?;
        Ok(page.next.expect("there is one more").to_string())
    })?;

    let next = space.run(|tx| {
        let seats = Table::<Seat>::root(tx, "seats")?;
        let after = page.parse().expect("a page came with it");
        let rest = seats.by(Seat::BY_EVENT_CENTS).prefix(tx, (5,)).after(&after).page(10)?;
        Ok(rest.rows.iter().map(|seat| seat.id()).collect::<Vec<_>>())
    })?;
    assert_eq!(next, [2]);
    space.run(|tx| {
        let seats = Table::<Seat>::root(tx, "seats")?;
        assert_eq!((seats.check(tx)?.len(), seats.get(tx, 2)?.code()?.as_ref()), (0, "A2"));
        Ok(())
    })?;
    Ok(space.close()?)
}

fn changed_table(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let space = tercel::embedded(dir)?;
    let seats = space.run(|tx| Table::<SeatOfToday>::root(tx, "seats"))?;
    space.migrate(seats, |rows| println!("{rows} rows are indexed"))?;
    let sold = space.run(|tx| seats.by(SeatOfToday::BY_IS_SOLD).at(tx, true).count_keys())?;
    assert_eq!(sold, 1);
    Ok(space.close()?)
}

fn grouped(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let at = |name: &str| format!("unix:{}", dir.join(name).with_extension("socket").display());
    let group = at("first");
    tercel::group::init(&dir.join("first"), &group.parse()?)?;
    let secret = dir.join("first/secret");
    let first = Server::builder(dir.join("first")).listen(&*group).service(Desk::serve(FrontDesk::default()));
    let first = first.start()?;
    let (own, listen) = (dir.join("own"), at("own"));

    let server = Server::builder(&own).service(Desk::serve(FrontDesk::default()));
    let server = server.listen(&*listen).join(&*group, &secret).start()?;

    let client = Client::connect(&*listen)?;
    assert_eq!(client.service::<dyn Desk>().letters("Annie")?, 5);
    drop(client);
    server.stop()?;
    first.stop()?;
    Ok(())
}

fn networked(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder(dir).listen("127.0.0.1:0").methods(PersonOfToday::METHODS);
    let server = server.service(Desk::serve(FrontDesk::default())).service(Archive::serve(Shelf::default()));
    let server = server.start()?;
    let client = Client::connect(&server.addresses()[0])?;

    assert!(client.run(|tx| tx.get_root_ref::<PersonOfToday>("ann"))?.is_some());
    let has_ann = server.run(|tx| Ok(tx.get_root_ref::<PersonOfToday>("ann")?.is_some()))?;
    assert!(has_ann);
    fresh(&client, &Client::connect(&server.addresses()[0])?)?;
    drop(client);
    let all_ended = server.drain(Duration::from_secs(10));
    println!("all calls have ended: {all_ended}");
    server.stop()?;
    Ok(())
}

fn over_a_socket(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let socket = format!("unix:{}", dir.join("socket").display());
    let server = Server::builder(dir).listen(socket.as_str()).shared_memory(SharedMemory::SameUser);
    let server = server.start()?;
    let config = ClientConfig {
        cache_bytes: 16 << 20,
        shared_memory: SharedMemory::SameUser,
        ..ClientConfig::default()
    };
    let client = Client::connect_with(socket.as_str(), config)?;
    println!("messages go by {}", client.transport().ok_or("not connected")?);

    client.close()?;
    Ok(server.stop()?)
}

fn fresh(client: &Client, other: &Client) -> Result<(), Box<dyn std::error::Error>> {
    let ann = client.run(|tx| Ok(tx.get_root::<PersonOfToday>("ann")?.reference()))?;

    // All that was acknowledged to any client before it began: one round trip, which those that begin together share.
    let strict = client.transaction().isolation(Isolation::Strict);
    let nickname = strict.run(|tx| Ok(tx.get(ann)?.nickname()?.into_owned()))?;

    // What another client committed, as soon as this one has it. A token is small, and may be sent as text.
    let tx = client.transaction().begin()?;
    tx.edit(ann)?.set_nickname("Annie")?;
    let token = tx.commit()?.token.to_string();
    let seen = other.transaction().at_least(token.parse()?);
    assert_eq!(seen.run(|tx| Ok(tx.get(ann)?.nickname()?.into_owned()))?, "Annie");

    // At most 50 ms old, by this machine's clock alone. Within the bound nothing is sent.
    let young = other.transaction().bounded(Duration::from_millis(50));
    println!("{:?} old at most", young.run(|tx| Ok(tx.as_of().age))?);

    // Whatever is cached, also while the server is gone.
    other.transaction().stale().run(|tx| Ok(tx.get(ann)?.nickname()?.into_owned()))?;
    let order = || {
        client.once(("order 4711", "a nickname for Ann"), |tx| {
            let person = tx.edit(ann)?;
            person.set_nickname("Annika")?;
            Ok(person.reference())
        })
    };
    assert_eq!(order()?, order()?);
    println!("{nickname} is Annie now, as of commit {}", block_on(self::nickname(client, ann, "Annie"))?);
    methods(client, ann)?;
    services(client, ann)?;
    streams(client)?;
    let health = client.health(Duration::from_secs(1))?;
    println!("{:?} for {} s, {} calls under way", health.state, health.uptime.as_secs(), health.calls);
    watched(client, other, ann)
}

async fn nickname(client: &Client, ann: Ref<PersonOfToday>, to: &str) -> Result<u64, Error> {
    client
        .run_async(|tx| {
            let person = tx.edit(ann)?;
            person.set_nickname(to)?;
            Ok(tx.snapshot().0)
        })
        .await
}

/// Waits for a future on this thread, as a runtime would.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(end) => return end,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

fn several(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let (accounts, letters) =
        (tercel::embedded(dir.join("accounts"))?, tercel::embedded(dir.join("letters"))?);
    let spaces = Spaces::new().with("accounts", accounts).with("letters", letters);

    let session = spaces.session();
    session
        .space("accounts")?
        .run(|tx| tx.set_root("ann", tx.create(&Note { text: "Ann lives in Ulm".into() })?))?;
    // Made by a session that has seen Ann's account: whoever reads the letter in a session has that, too.
    session
        .space("letters")?
        .run(|tx| tx.set_root("to ann", tx.create(&Note { text: "Dear Ann".into() })?))?;

    let reader = spaces.session();
    let letter = |tx: &Tx<'_>| Ok(tx.get_root::<Note>("to ann")?.text()?.into_owned());
    println!("{}", reader.space("letters")?.read(letter)?);
    let account = |tx: &Tx<'_>| Ok(tx.get_root::<Note>("ann")?.text()?.into_owned());
    println!("for {}", reader.space("accounts")?.read(account)?);

    // One cut through both: neither has an effect whose cause is missing in the other.
    let both = reader.read(|cut| Ok((letter(cut.space("letters")?)?, account(cut.space("accounts")?)?)))?;

    // All that this cut reads was current at one moment in it, as if both spaces were one.
    let at_once = reader.read_with(Isolation::Strict, |cut| {
        Ok((letter(cut.space("letters")?)?, account(cut.space("accounts")?)?))
    })?;

    // Written in both, or in neither.
    session.run(|tx| {
        tx.space("accounts")?.get_root::<Note>("ann")?.edit()?.set_text("Ann lives in Bonn")?;
        tx.space("letters")?.get_root::<Note>("to ann")?.edit()?.set_text("Dear Ann, in Bonn")
    })?;

    // What the session has seen, for another process or another session.
    let token = session.token()?.to_string();
    spaces.session().absorb(&token.parse()?)?;

    // As old as the caches are, also while servers are gone; never an effect without its cause all the same.
    reader.space("letters")?.with(Freshness::Stale).read(letter)?;
    let timeout = Some(Duration::from_millis(200));
    let quick = Options { freshness: Freshness::Stale, timeout, ..Options::default() };
    reader.read_with(quick, |cut| account(cut.space("accounts")?))?;

    let ann = session
        .space("accounts")?
        .run(|tx| tx.export(tx.create(&Note { text: "Ann lives in Bonn".into() })?))?;
    let letter = Addressed { to: ann, text: "Dear Ann".into() };
    session.space("letters")?.run(|tx| tx.set_root("newest", tx.create(&letter)?))?;

    let to = reader.space("letters")?.read(|tx| Ok(tx.get_root::<Addressed>("newest")?.to()))?;
    println!("{}", reader.follow(to, |account| Ok(account.text()?.into_owned()))?);
    // To change it, or to take it out of the exports.
    session.space_of(to)?.run(|tx| tx.get_far(to)?.edit()?.set_text("Ann lives in Trier"))?;
    session.space_of(to)?.run(|tx| tx.withdraw(to))?;
    println!("{both:?}, {at_once:?} as of {token}");
    Ok(())
}

fn methods(client: &Client, ann: Ref<PersonOfToday>) -> Result<(), Box<dyn std::error::Error>> {
    let ann = client.handle(ann);
    ann.call_them("Anni")?; // at the server: one message there, one back
    println!("{}", ann.greet("Hello")?); // on the cached copy, where there is one
    println!("{}", ann.clone().remote().greet("Hello from the server")?);
    match ann.clone().local().call_them("a name of more than twenty letters") {
        Err(Failure::Method(TooLong { most })) => println!("at most {most} letters"),
        other => println!("called {} before", other?),
    }
    client.run(|tx| {
        // In an open transaction it runs there, and is committed with it.
        println!("{}", tx.handle(ann.reference()).greet("And again")?);
        Ok(())
    })?;

    match ann.clone().within(Duration::from_secs(1)).call_them("Ani") {
        Err(Failure::Space(Error::Unknown { op: Some(op), .. })) => match client.resolve(*op)? {
            Some(stamp) => println!("it was executed, as commit {stamp}"),
            None => println!("it was not executed, and never will be: it may be called again"),
        },
        other => println!("called {} before", other?),
    }
    Ok(())
}

fn services(client: &Client, ann: Ref<PersonOfToday>) -> Result<(), Box<dyn std::error::Error>> {
    let desk = client.service::<dyn Desk>();
    println!("{} letters", desk.letters("Annie")?);
    match desk.clone().within(Duration::from_secs(1)).rename(ann, "Nan") {
        Ok(before) => println!("{before} were served before"),
        Err(Failure::Space(Error::Unknown { op: None, what: why })) => {
            println!("it may have been executed, once: {why}")
        }
        Err(Failure::Space(Error::Failed(why))) => println!("it has begun, and failed: {why}"),
        Err(e) => println!("it was not executed: {e}"),
    }
    desk.note("thank you")?;

    let tomorrow = client.service::<dyn DeskOfTomorrow>();
    println!("{} letters", tomorrow.letters("Annie", false)?);
    match tomorrow.visitors() {
        Err(Failure::Space(Error::Schema(why))) => println!("the server is older: {why}"),
        other => println!("{} visitors", other?),
    }
    Ok(())
}

fn streams(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    let archive = client.service::<dyn Archive>();
    let adding = archive.add()?;
    for name in ["Ann", "Anton", "Bob"] {
        adding.send(&name.into())?;
    }
    println!("{} are new", adding.finish()?);

    let finding = archive.find("An")?;
    for name in finding.items() {
        println!("found {}", name?);
    }
    println!("{} found", finding.finish()?);

    // Answered here, by this thread, while it waits in the call.
    let struck = archive.strike(|name: Text| name.0 == "Bob")?;
    println!("{struck} struck");
    assert_eq!(struck, 1);
    Ok(())
}

fn watched(
    client: &Client,
    other: &Client,
    ann: Ref<PersonOfToday>,
) -> Result<(), Box<dyn std::error::Error>> {
    let names = client.run(|tx| Ok(tx.get_root::<Register>("register")?.by_name()))?;

    let mut watch = client.watch().object(ann).range(names, "A".."B").start()?;
    other.run(|tx| tx.edit(ann)?.set_nickname("Nan"))?;
    let change = watch.next().expect("it has no end")?;
    // Transactions of this client see the change now; those of others do with the token.
    let seen = other.transaction().at_least(change.token);
    seen.run(|tx| {
        match tx.find(change.reference.cast::<PersonOfToday>())? {
            Some(person) => println!("{} changed, {:?}", person.name()?, names.key_of(&change)?),
            None => println!("the root is gone, or the range must be read again"),
        }
        Ok(())
    })?;

    // Where it stands: kept, so that another process goes on there.
    let stands = watch.token().to_string();
    let again = client.watch().object(ann).range(names, "A".."B").since(stands.parse()?).start()?;
    drop((watch, again));

    if client.stats().client.nearly_full {
        eprintln!("the space is nearly full");
    }
    Ok(())
}
