//! Suite `proxy`: an HTTP proxy on the event queue (`events/examples/proxy`) beside silent connections, after
//! the measurements of Banga, Mogul and Druschel (1999, section 6).
//!
//! Two proxies of one kind run, each a process of its own: one has silent connections, the other none.
//! Both stay on one processor; the origin, the clients and the silent ones' other ends share another.

mod load;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use tercel_term::process::{OwnProcess, beside, raise_descriptors};

use super::blocks::{Pairs, alternate, median, percentile};
use super::report::{Machine, Report, Row};
use super::rpc::cost;
use super::scratch::Scratch;
use super::{COMMIT, Options, events, placed};
use load::Load;

/// The environment variable that makes this program the origin.
pub const ROLE: &str = "TERCEL_BENCH_PROXY";

/// The kinds of proxy: the events of a batch, or another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Make {
    Batches(usize),
    Nginx,
}

/// The work of a run.
struct Effort {
    rounds: usize,
    block: Duration,
    cold: &'static [usize],
    /// The processors of both ends.
    note: &'static str,
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    raise_descriptors();
    let scratch = Scratch::new(options.dir.as_deref(), "proxy")?;
    let note = placed::note();
    let effort = match options.quick {
        true => Effort { rounds: 4, block: Duration::from_millis(100), cold: &COLD[..2], note },
        false => Effort { rounds: 20, block: Duration::from_millis(500), cold: &COLD, note },
    };
    let (clients, proxies) = placed::ends();
    let mut rows = Vec::new();
    placed::on(clients, || {
        let origin = OwnProcess::role(&["bench", "proxy"], ROLE, "origin")?;
        for make in [Make::Batches(64), Make::Batches(1), Make::Nginx] {
            if make == Make::Nginx && Command::new(nginx()).arg("-v").output().is_err() {
                eprintln!("proxy.nginx.* is left out: nginx is not installed");
                continue;
            }
            measure(options, &effort, make, proxies, &origin, &scratch, &mut rows)?;
            if make == Make::Nginx {
                options.say("proxy.cpu");
                rows.extend(beside_nginx(&effort, proxies, &origin, &scratch)?);
            }
        }
        Ok(())
    })?;
    Ok(Report { suite: "proxy", commit: COMMIT, machine: Machine::here(events::backend()?), rows })
}

/// Rows of one kind of proxy.
fn measure(
    options: &Options,
    effort: &Effort,
    make: Make,
    processor: usize,
    origin: &OwnProcess,
    scratch: &Scratch,
    rows: &mut Vec<Row>,
) -> Result<(), String> {
    let name = match make {
        Make::Batches(64) => String::new(),
        Make::Batches(array_max) => format!("array{array_max}."),
        Make::Nginx => "nginx.".into(),
    };
    let start = |number| placed::on(processor, || start(make, scratch, number, origin));
    let ((lonely, lonely_at), (crowded, crowded_at)) = (start(0)?, start(1)?);
    let connect = |at: &str| Load::connect(at, origin.listens_on(), HOT).map(RefCell::new);
    let (without, with) = (connect(&lonely_at)?, connect(&crowded_at)?);
    let mut peers = OwnProcess::role(&["bench", "events"], events::ROLE, &crowded_at)?;
    let mut count = 0;
    for &cold in effort.cold {
        options.say(&format!("proxy.{name}cold{cold}"));
        peers.ask(&(cold - count).to_string())?;
        count = cold;
        descriptors(crowded.id(), cold)?;
        let times = RefCell::new([Vec::new(), Vec::new()]);
        let cpu = RefCell::new([Vec::new(), Vec::new()]);
        let block = |side: usize, load: &RefCell<Load>, proxy: &OwnProcess| {
            let before = cost::of(proxy.id());
            let done = load.borrow_mut().run(effort.block, None)?;
            let cost = cost::since(before, cost::of(proxy.id()), done.times.len());
            cpu.borrow_mut()[side].extend(cost.map(|cost| cost.cpu_server_us));
            times.borrow_mut()[side].extend(done.times);
            Ok::<_, String>(done.rate)
        };
        let pairs = alternate(effort.rounds, || block(0, &without, &lonely), || block(1, &with, &crowded))?;
        // None may have been closed meanwhile.
        descriptors(crowded.id(), cold)?;
        let [mut lonely_us, mut crowded_us] = times.into_inner();
        let n = crowded_us.len() as u64;
        let limit = format!("proxy.{name}cold0");
        let row = Row::compared(format!("proxy.{name}cold{cold}"), "1/s", &pairs, limit.clone(), n);
        let wanted = WANTED.iter().find(|wanted| wanted.0 == cold).map_or("", |wanted| wanted.1);
        rows.push(row.note(format!(
            "requests a second of {HOT} clients that ask all the time, beside silent ones, by none{wanted}; {}",
            effort.note
        )));
        let [lonely_cpu, crowded_cpu] = cpu.into_inner();
        let cpu = Pairs { pairs: lonely_cpu.into_iter().zip(crowded_cpu).collect() };
        if !cpu.pairs.is_empty() {
            let id = format!("proxy.{name}cold{cold}.cpu");
            let row = Row::compared(id, "us", &cpu, format!("{limit}.cpu"), n);
            rows.push(
                row.note("processor time of the proxy that a request takes: other load leaves it alone"),
            );
        }
        let value = median(&mut crowded_us);
        rows.push(Row {
            p99: Some(percentile(&crowded_us, 0.99)),
            limit: Some(format!("{limit}.latency")),
            limit_value: Some(median(&mut lonely_us)),
            ..Row::new(format!("proxy.{name}cold{cold}.latency"), value, "us", n)
        });
        if make == Make::Batches(64) && cold == COLD[0] {
            for percent in if options.quick { &RATES[..2] } else { &RATES[..] } {
                let rate = pairs.ours() * f64::from(*percent) / 100.0;
                let mut times = with.borrow_mut().run(effort.block * 4, Some(rate))?.times;
                let (value, n) = (median(&mut times), times.len() as u64);
                let row = Row::new(format!("proxy.rate{percent}.latency"), value, "us", n);
                let note = format!("at {rate:.0} requests a second beside {cold} silent clients");
                rows.push(Row { p99: Some(percentile(&times, 0.99)), ..row }.note(note));
            }
        }
    }
    Ok(())
}

/// The row of a request's processor time by nginx's, in alternating blocks of both without silent clients;
/// none where the kernel does not tell the times.
fn beside_nginx(
    effort: &Effort,
    processor: usize,
    origin: &OwnProcess,
    scratch: &Scratch,
) -> Result<Option<Row>, String> {
    let start = |make, number| placed::on(processor, || start(make, scratch, number, origin));
    let ((ours, ours_at), (nginx, nginx_at)) = (start(Make::Batches(64), 2)?, start(Make::Nginx, 3)?);
    let connect = |at: &str| Load::connect(at, origin.listens_on(), HOT).map(RefCell::new);
    let (by_ours, by_nginx) = (connect(&ours_at)?, connect(&nginx_at)?);
    let requests = RefCell::new(0);
    let block = |load: &RefCell<Load>, proxy: &OwnProcess| {
        let before = cost::of(proxy.id());
        let done = load.borrow_mut().run(effort.block, None)?.times.len();
        *requests.borrow_mut() += done as u64;
        let cost = cost::since(before, cost::of(proxy.id()), done);
        Ok::<_, String>(cost.map_or(f64::NAN, |cost| cost.cpu_server_us))
    };
    let pairs = alternate(effort.rounds, || block(&by_nginx, &nginx), || block(&by_ours, &ours))?;
    if pairs.pairs.iter().any(|(nginx, ours)| nginx.is_nan() || ours.is_nan()) {
        return Ok(None);
    }
    let row = Row::compared("proxy.cpu", "us", &pairs, "nginx", requests.into_inner());
    Ok(Some(row.note("processor time of a request, by that of nginx with one worker and no log")))
}

/// Starts a proxy. Gives its address too.
fn start(
    make: Make,
    scratch: &Scratch,
    number: usize,
    origin: &OwnProcess,
) -> Result<(OwnProcess, String), String> {
    if let Make::Batches(array_max) = make {
        let mut command = Command::new(beside("examples/proxy", "tercel-events --example proxy")?);
        command.args(["127.0.0.1:0", &array_max.to_string(), IDLE_SECONDS]);
        let proxy = OwnProcess::start(command)?;
        let address = proxy.listens_on().to_string();
        return Ok((proxy, address));
    }
    // It takes no port 0.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(failed)?;
    let (dir, file) = (scratch.join(""), scratch.join(&format!("nginx{number}.conf")));
    let (dir, origin) = (dir.display(), origin.listens_on());
    let text = format!(
        "daemon off; master_process off; worker_processes 1; pid {dir}/nginx{number}.pid; error_log {dir}/nginx.log;\n\
         events {{ worker_connections 16384; }}\n\
         http {{ access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;\n\
         uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s; keepalive_timeout {IDLE_SECONDS}; keepalive_requests 1000000000;\n\
         client_header_timeout {IDLE_SECONDS}; upstream origin {{ server {origin}; keepalive 64; }}\n\
         server {{ listen {free} backlog=4096; location / {{ proxy_pass http://origin; proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\"; }} }} }}\n"
    );
    std::fs::write(&file, text).map_err(failed)?;
    let mut command = Command::new("sh");
    // The line by which a process of this program says that it is ready.
    command.args(["-c", "echo listening on $1; exec $2 -c $0"]).arg(file).arg(free.to_string()).arg(nginx());
    let nginx = OwnProcess::start(command)?;
    let deadline = Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(free).is_err() {
        if Instant::now() > deadline {
            return Err("nginx does not take connections".into());
        }
        std::thread::yield_now();
    }
    Ok((nginx, free.to_string()))
}

/// The program nginx. Debian has it where only the superuser looks.
fn nginx() -> &'static str {
    let debian = "/usr/sbin/nginx";
    if std::path::Path::new(debian).exists() { debian } else { "nginx" }
}

/// Waits until a process has as many descriptors as it has silent clients.
fn descriptors(process: u32, cold: usize) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).map_err(failed)?.count();
        if open >= cold + HOT {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("the proxy has {open} descriptors open, and {cold} silent clients"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Serves as the origin.
///
/// # Errors
/// A sentence: what failed.
pub fn child(_: &OsStr) -> Result<(), String> {
    load::serve_origin()
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Clients that ask, as in the paper.
const HOT: usize = 32;

/// Silent clients, in steps.
const COLD: [usize; 3] = [750, 2_000, 5_000];
const WANTED: [(usize, &str); 2] = [(2_000, "; wanted: 0.98"), (5_000, "; wanted: 0.97")];

/// Rates of the paced clients, as shares of the rate that unpaced clients reach.
const RATES: [u32; 6] = [25, 50, 70, 80, 90, 100];

/// Silent clients stay for the whole of a run.
const IDLE_SECONDS: &str = "7200";

const PATIENCE: Duration = Duration::from_secs(30);
