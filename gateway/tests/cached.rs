//! `gateway.get.cached`: objects of the cache by HTTP, beside the same bytes from a bare handler of hyper. It
//! stands apart, for its figures are of a process to itself.

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tercel::{Object, Server, Text};
use tercel_gateway::{Config, Gateway};

#[derive(Object)]
struct Person {
    name: Text,
    born: u16,
}

/// A server that answers everything with these bytes.
fn bare(body: String) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
        runtime.unwrap().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let body = body.clone();
                let service = service_fn(move |_: Request<_>| {
                    let body = body.clone();
                    async move { Ok::<_, Infallible>(Response::new(body)) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
    });
    at
}

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Sends requests on kept connections, and gives the body of the last answer.
fn asked(at: SocketAddr) -> String {
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            std::thread::spawn(move || {
                let mut stream = BufReader::new(TcpStream::connect(at).unwrap());
                stream.get_ref().set_nodelay(true).unwrap();
                let (mut line, mut body) = (String::new(), Vec::new());
                for _ in 0..REQUESTS {
                    let request = b"GET /v1/objects/ann HTTP/1.1\r\nHost: localhost\r\n\r\n";
                    stream.get_mut().write_all(request).unwrap();
                    loop {
                        line.clear();
                        stream.read_line(&mut line).unwrap();
                        if let Some((_, bytes)) = line.split_once("content-length: ") {
                            body.resize(bytes.trim().parse().unwrap(), 0);
                        }
                        if line == "\r\n" {
                            break;
                        }
                    }
                    stream.read_exact(&mut body).unwrap();
                }
                String::from_utf8(body).unwrap()
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).last().unwrap()
}

const CONNECTIONS: usize = 4;
const REQUESTS: usize = 1_000;
const ROUNDS: usize = 15;

#[test]
#[cfg_attr(debug_assertions, ignore = "measured with optimizations: `cargo test --release --test cached`")]
fn cached_get_with_client_costs_twice_bare() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let at = server.addresses()[0].clone();
    let client = tercel::Client::connect(&at).unwrap();
    let ann = Person { name: "Ann Example of Somewhere".into(), born: 1969 };
    client.run(|tx| tx.set_root("ann", tx.create(&ann)?)).unwrap();
    let gateway = Gateway::start(Config::new(at.into(), "127.0.0.1:0")).unwrap();
    let body = asked(gateway.address());
    assert!(body.contains("1969"), "{body}");
    let bare = bare(body.clone());
    // Processor time, that of these clients included: what else runs here hardly changes it.
    let (mut spent, mut spent_bare, mut shares) = (0f64, 0f64, Vec::new());
    for _ in 0..ROUNDS {
        let before = cpu_seconds();
        assert_eq!(asked(bare), body);
        let between = cpu_seconds();
        asked(gateway.address());
        let (of_bare, of_gateway) = (between - before, cpu_seconds() - between);
        (spent_bare, spent) = (spent_bare + of_bare, spent + of_gateway);
        shares.push(of_bare / of_gateway);
    }
    // The median: one round that something else disturbs says nothing.
    shares.sort_by(f64::total_cmp);
    let share = shares[ROUNDS / 2];
    let us = |spent: f64| spent * 1e6 / (ROUNDS * CONNECTIONS * REQUESTS) as f64;
    println!(
        "gateway.get.cached: {:.1} us of processors, clients included, beside {:.1} of a bare handler: {share:.2}",
        us(spent),
        us(spent_bare)
    );
    assert!(share >= 0.5, "{share:.2} of a bare handler, clients included");
}
