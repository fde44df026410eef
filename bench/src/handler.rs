//! Row `gateway.get.cached` of suite `async`: what a gateway adds to an HTTP handler where it has the object
//! cached, in processor time.
//!
//! The gateway and the handler are processes, both on one processor. The handler has hyper, tokio, and the
//! very bytes of the gateway's answer at hand. One client on a processor of its own asks both over kept
//! connections, block by block, and the kernel says for how long the threads of each process ran meanwhile.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use hyper::header::{HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tercel::{Address, Client, Object};
use tercel_term::process::{OwnProcess, tercel};
use tercel_term::say;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use super::blocks::{Pairs, alternate};
use super::report::Row;
use super::rpc::cost::run_us;
use super::{Options, placed};

/// An object that a gateway shows in few bytes of JSON.
#[derive(Object)]
struct Small {
    count: u64,
}

/// The environment variable that makes this program the bare handler: its answer.
pub const ROLE: &str = "TERCEL_BENCH_HANDLER";

/// The root that is asked for.
const ROOT: &str = "small";

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn row(options: &Options, server: &Address, rounds: usize) -> Result<Row, String> {
    let client = Client::connect(server).map_err(failed)?;
    client.run(|tx| tx.set_root(ROOT, tx.create(&Small { count: 7 })?)).map_err(failed)?;
    client.close().map_err(failed)?;
    let (clients, servers) = placed::ends();
    let gateway = placed::on(servers, || {
        let mut command = Command::new(tercel().map_err(String::from)?);
        command.args(["gateway", &server.to_string(), "--listen", "127.0.0.1:0"]);
        Ok(OwnProcess::start(command)?)
    })?;
    placed::on(clients, || {
        let mut ours = Asker::connect(gateway.listens_on())?;
        // The first one is fetched.
        ours.ask()?;
        let answer = ours.ask()?;
        let bare =
            placed::on(servers, || Ok(OwnProcess::role(&["bench", "async"], ROLE, OsStr::new(&answer))?))?;
        let mut raw = Asker::connect(bare.listens_on())?;
        if raw.ask()? != answer {
            return Err("the bare handler's answer is not the gateway's".into());
        }
        let asked = if options.quick { 2_000 } else { 10_000 };
        let pairs: Pairs =
            alternate(rounds, || raw.block(bare.id(), asked), || ours.block(gateway.id(), asked))?;
        Ok(Row::compared("gateway.get.cached", "us", &pairs, "bare handler", (asked * rounds) as u64)
            .note("processor time of the process for each GET of a cached object"))
    })
}

/// A connection to a process that answers GET.
struct Asker {
    read: BufReader<TcpStream>,
    request: String,
}

impl Asker {
    fn connect(url: &str) -> Result<Asker, String> {
        let at = url.trim_start_matches("http://");
        let stream = TcpStream::connect(at).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let request = format!("GET /v1/objects/{ROOT} HTTP/1.1\r\nHost: {at}\r\n\r\n");
        Ok(Asker { read: BufReader::new(stream), request })
    }

    /// Asks once: the headers of the answer but its date and length, and its body, a line each.
    fn ask(&mut self) -> Result<String, String> {
        self.read.get_mut().write_all(self.request.as_bytes()).map_err(failed)?;
        let (mut kept, mut line, mut length) = (Vec::new(), String::new(), 0);
        loop {
            line.clear();
            self.read.read_line(&mut line).map_err(failed)?;
            match line.trim_end().split_once(": ") {
                Some(("content-length", n)) => length = n.parse().map_err(failed)?,
                Some(("date", _)) => {}
                Some(_) => kept.push(line.trim_end().to_string()),
                None if line.starts_with("HTTP/1.1 200") => {}
                None if line == "\r\n" => break,
                None => return Err(format!("the answer begins with {line:?}")),
            }
        }
        let mut body = vec![0; length];
        self.read.read_exact(&mut body).map_err(failed)?;
        kept.sort_unstable();
        kept.push(String::from_utf8(body).map_err(failed)?);
        Ok(kept.join("\n"))
    }

    /// Microseconds for which the process runs for each of so many requests.
    fn block(&mut self, process: u32, asked: usize) -> Result<f64, String> {
        let ran =
            || run_us(process).ok_or_else(|| "the kernel does not say how long threads ran".to_string());
        let before = ran()?;
        for _ in 0..asked {
            self.ask()?;
        }
        Ok((ran()? - before) / asked as f64)
    }
}

/// Serves as the bare handler, which gives one answer to all, until its standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(answer: &OsStr) -> Result<(), String> {
    let answer = answer.to_str().ok_or("the answer is no text")?;
    let (headers, body) = answer.rsplit_once('\n').ok_or("the answer has no headers")?;
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").ok_or("a header has no value")?;
        Ok::<_, String>((name.parse().map_err(failed)?, value.parse().map_err(failed)?))
    };
    let headers = headers.lines().map(header).collect::<Result<Vec<(HeaderName, HeaderValue)>, String>>()?;
    // One thread on one processor, as the gateway has.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
    thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        say!("listening on http://{}", listener.local_addr().map_err(failed)?);
        let (stream, _) = listener.accept().await.map_err(failed)?;
        let serve = service_fn(|_: Request<_>| {
            let mut response = Response::new(body.to_string());
            response.headers_mut().extend(headers.iter().cloned());
            async { Ok::<_, Infallible>(response) }
        });
        http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await.map_err(failed)
    })
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
