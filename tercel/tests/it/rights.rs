//! Rights by the transports of one server: who is whom, what is refused by name, and what a restore keeps.

use std::time::{Duration, Instant};

use tercel::access::{Principal, Rights, Role, grant, list, revoke, whoami};
use tercel::backup::{Source, backup, restore};
use tercel::{
    Address, Addresses, Called, Client, ClientConfig, Context, Error, Obj, Object, Server, SharedMemory,
    Text, Transport, interface, service,
};

use crate::common::counter;

#[service]
trait Asked {
    fn who(&self) -> Text;
    #[slow]
    fn who_slowly(&self) -> Text;
}

struct Here;

impl Asked for Here {
    fn who(&self, cx: &Context<'_>) -> Called<Text> {
        Ok(cx.principal().to_string().into())
    }

    fn who_slowly(&self, cx: &Context<'_>) -> Called<Text> {
        self.who(cx)
    }
}

#[interface]
trait Asking {
    /// The one who asks, or a dash.
    #[read]
    fn asked_by(&self) -> Text;
    /// Notes who asks.
    fn note(&mut self) -> Text;
}

#[derive(Object)]
struct Book {
    last: Text,
}

impl Asking for Book {
    fn asked_by(this: &Obj<Book>) -> Called<Text> {
        Ok(Obj::tx(this).caller().map_or("-".into(), |who| who.to_string().into()))
    }

    fn note(this: &Obj<Book>) -> Called<Text> {
        let who = Book::asked_by(this)?;
        this.edit()?.set_last(who.clone())?;
        Ok(who)
    }
}

/// A server at a Unix socket, by TCP and by datagrams, and this process's principal.
struct Served {
    server: Server,
    unix: Address,
    me: Principal,
}

impl Served {
    fn at(dir: &std::path::Path, name: &str) -> Served {
        let unix = Address::Unix(dir.join("socket"));
        let builder = Server::builder(dir.join(name)).listen(unix.clone()).listen("127.0.0.1:0");
        let builder = builder.listen("udp:127.0.0.1:0").keepalive(Duration::from_millis(200));
        let server = builder.service(Asked::serve(Here)).methods(Book::METHODS).start().unwrap();
        Served { server, unix, me: Principal::Uid(rustix::process::geteuid().as_raw()) }
    }

    fn servers(&self) -> Addresses {
        self.unix.clone().into()
    }

    fn grant(&self, who: &Principal, role: &str) -> Rights {
        grant(&self.servers(), None, who, &role.parse::<Role>().unwrap()).unwrap()
    }

    /// A client by each transport.
    fn clients(&self) -> [Client; 4] {
        let by_memory = |shared_memory| {
            let config = ClientConfig { shared_memory, ..ClientConfig::default() };
            Client::connect_with(self.unix.clone(), config).unwrap()
        };
        let [tcp, udp] = [1, 2].map(|i| Client::connect(&self.server.addresses()[i]).unwrap());
        let clients = [by_memory(SharedMemory::SameUser), by_memory(SharedMemory::Off), tcp, udp];
        let transports = [Transport::SharedMemory, Transport::Unix, Transport::Tcp, Transport::Udp];
        for (client, transport) in clients.iter().zip(transports) {
            assert_eq!(client.transport(), Some(transport));
        }
        clients
    }
}

/// Time for clients to come back, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The answer of a call, once the client has come back from the end of a connection.
fn who(client: &Client) -> Result<String, Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        let said = client.service::<dyn Asked>().who();
        match said.map_err(Error::from) {
            Err(Error::Unavailable(_) | Error::Unknown { .. }) if Instant::now() < end => {}
            said => return said.map(|text| text.to_string()),
        }
    }
}

#[test]
fn every_transport_is_judged_by_its_principal() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::at(dir.path(), "space");
    let clients = served.clients();
    let me = served.me.to_string();
    let expected = [&me, &me, "anyone", "anyone"];
    for (client, expected) in clients.iter().zip(expected) {
        assert_eq!(who(client).as_deref(), Ok(expected));
        assert_eq!(client.service::<dyn Asked>().who_slowly().unwrap().to_string(), expected);
        let book = client.handle(client.run(|tx| tx.create(&Book { last: "".into() })).unwrap());
        let there = book.clone().remote();
        assert_eq!((&*there.asked_by().unwrap().0, &*there.note().unwrap().0), (expected, expected));
        // Over its own copy the client is nobody's caller.
        assert_eq!(&*book.local().asked_by().unwrap().0, "-");
    }
    served.grant(&served.me, "call Asked.who");
    let is_denied = |client: &Client| match who(client) {
        Err(Error::Denied(text)) => text.contains(" lacks the role `"),
        _ => false,
    };
    let until = |client: &Client, is: &dyn Fn(&Client) -> bool| {
        let end = Instant::now() + PATIENCE;
        while !is(client) {
            assert!(Instant::now() < end, "{:?} of {:?}", who(client), client.transport());
        }
    };
    for (client, expected) in clients.iter().zip(expected) {
        match expected {
            "anyone" => until(client, &is_denied),
            _ => until(client, &|client| who(client).as_deref() == Ok(expected)),
        }
    }
    // Whom the host knows for the server's own user may greet, and not call. It asks again all the same.
    let is_let_in =
        |client: &Client| matches!(who(client), Err(Error::Denied(text)) if text.contains("`call`"));
    if expected.contains(&"anyone") {
        until(&clients[2], &is_let_in);
    }
    let slowly = clients[0].service::<dyn Asked>().who_slowly().map_err(Error::from).unwrap_err();
    let needs = "lacks the role `call Asked.who_slowly`";
    assert!(matches!(&slowly, Error::Denied(text) if text.contains(needs)), "{slowly:?}");
    served.grant(&Principal::Anyone, "call Asked");
    for (client, expected) in clients.iter().zip(expected) {
        until(client, &|client| who(client).as_deref() == Ok(expected));
    }
    for (who, role) in [(&Principal::Anyone, "call Asked"), (&served.me, "call Asked.who")] {
        revoke(&served.servers(), None, who, &role.parse().unwrap()).unwrap();
    }
    clients.iter().for_each(|client| until(client, &is_denied));
}

#[test]
fn restored_space_has_the_rights_of_its_backup() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::at(dir.path(), "space");
    let [client, ..] = served.clients();
    counter(&client, "n");
    client.close().unwrap();
    assert!(!whoami(&served.servers(), None).unwrap().is_judged);
    let role = |text: &str| text.parse::<Role>().unwrap();
    served.grant(&served.me, "backup");
    let till = Principal::client("till").unwrap();
    let granted = served.grant(&till, "write Account");
    assert!(granted.has(&till, &role("write Account")) && !granted.has(&till, &role("write")));
    let copy = dir.path().join("copy");
    backup(&Source::Server(served.unix.clone().into()), &copy, |_| ()).unwrap();
    served.server.stop().unwrap();
    restore(&copy, &dir.path().join("restored"), |_| ()).unwrap();
    let restored = Served::at(dir.path(), "restored");
    let rights = list(&restored.servers(), None).unwrap();
    assert_eq!((rights.all, rights.is_judged), (granted.all, true));
    let refused = Client::connect(&restored.server.addresses()[1])
        .and_then(|client| client.run(|tx| tx.roots().map(|_| ())));
    assert!(matches!(&refused, Err(Error::Denied(text)) if text.contains("anyone lacks")), "{refused:?}");
}
