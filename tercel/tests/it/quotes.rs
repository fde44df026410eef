//! Errors that quote what they were given: however long that is, the caller is told of it, and the server
//! goes on.

use tercel::{
    Address, Called, Client, ClientConfig, Context, Error, Failure, Obj, Object, Server, Transport,
    interface, service,
};

#[derive(Object)]
pub struct Book {
    page: u64,
}

#[interface]
trait Reads {
    /// Reads, and refuses a name.
    #[read]
    fn look(&self, name: &str) -> u64;
    /// Writes, and refuses a name.
    fn write(&mut self, name: &str) -> u64;
}

fn refused(name: &str) -> Error {
    Error::Denied(format!("there is no {name}"))
}

impl Reads for Book {
    fn look(_: &Obj<Book>, name: &str) -> Called<u64> {
        Err(refused(name).into())
    }

    fn write(this: &Obj<Book>, name: &str) -> Called<u64> {
        this.edit()?.set_page(1)?;
        Err(refused(name).into())
    }
}

#[service]
trait Quotes {
    fn quote(&self, name: &str) -> u64;
    #[slow]
    fn quote_slowly(&self, name: &str) -> u64;
}

struct MyQuotes;

impl Quotes for MyQuotes {
    fn quote(&self, _: &Context<'_>, name: &str) -> Called<u64> {
        Err(refused(&name.repeat(3)).into())
    }

    fn quote_slowly(&self, _: &Context<'_>, name: &str) -> Called<u64> {
        Err(refused(&name.repeat(3)).into())
    }
}

/// The words of an error, of which the name is as much as there was room for.
fn words<T>(called: Called<T>) -> String {
    match called {
        Err(Failure::Space(Error::Denied(text) | Error::Failed(text))) => text,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("nothing was refused"),
    }
}

#[test]
fn error_that_quotes_much_reaches_its_caller_and_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let socket = Address::Unix(dir.path().join("socket"));
    let builder = Server::builder(dir.path().join("space")).listen(socket.clone()).listen("127.0.0.1:0");
    let server = builder.methods(Book::METHODS).service(Quotes::serve(MyQuotes)).start().unwrap();
    for (address, shared_memory, transport) in [
        (&server.addresses()[1], true, Transport::Tcp),
        (&socket, true, Transport::SharedMemory),
        (&socket, false, Transport::Unix),
    ] {
        let config = ClientConfig {
            shared_memory: crate::common::by_memory(shared_memory),
            ..ClientConfig::default()
        };
        let client = Client::connect_with(address, config).unwrap();
        assert_eq!(client.transport(), Some(transport));
        let book = client.run(|tx| tx.create(&Book { page: 0 })).unwrap();
        let (book, quotes) = (client.handle(book).remote(), client.service::<dyn Quotes>());
        // Of letters of three bytes, so that a cut can be amid one; the first call goes by another way than
        // those behind it.
        for letters in [1, 5_460, 5_461, 5_462, 300_000] {
            let name = "\u{20ac}".repeat(letters);
            for text in [quotes.quote(&name), quotes.quote_slowly(&name), book.look(&name), book.write(&name)]
                .map(words)
            {
                assert!(text.contains("there is no \u{20ac}"), "{}", &text[..100]);
                assert!(letters > 1 || text.contains(&name));
                assert!(text.len() < 20_000, "{transport:?}: {} bytes", text.len());
            }
        }
    }
    server.stop().unwrap();
}
