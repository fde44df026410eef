//! The null round trip: an echo over loopback TCP through the queue, against the same echo by blocking calls.
//!
//! All servers run in one process, asleep but for the one under test; blocks of round trips alternate between
//! them in changing order, so that the machine's moods fall on all alike. Reported is the median over blocks,
//! and the ratio to the raw server of the same round with the 95 % interval of its median.
//!
//! `cargo bench -p tercel-events --bench echo`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use tercel_events::{Backend, Config, EventQueue, Kind};

const BLOCKS: usize = 150;
const TRIPS: usize = 200;

fn main() {
    for bytes in [64, 4_096, 65_536] {
        report("echo", bytes, &mut echo_variants(bytes));
    }
    report("echo by way of another thread", 64, &mut posted_variants(64));
}

/// One contender: its name and what runs one round trip.
type Variant = (String, Box<dyn FnMut()>);

fn report(title: &str, bytes: usize, variants: &mut [Variant]) {
    let mut blocks: Vec<Vec<f64>> = vec![Vec::new(); variants.len()];
    for block in 0..BLOCKS + 5 {
        let mut block_us = vec![0.0; variants.len()];
        for turn in 0..variants.len() {
            // Each block begins with another variant, and every other block runs backwards.
            let turn = if block % 2 == 0 { turn } else { variants.len() - 1 - turn };
            let number = (turn + block / 2) % variants.len();
            let begin = Instant::now();
            (0..TRIPS).for_each(|_| variants[number].1());
            block_us[number] = begin.elapsed().as_secs_f64() * 1e6 / TRIPS as f64;
        }
        // The first blocks warm up.
        if block >= 5 {
            blocks.iter_mut().zip(block_us).for_each(|(all, us)| all.push(us));
        }
    }
    println!("{title}, {bytes} bytes, {BLOCKS} blocks of {TRIPS}");
    for (number, (name, _)) in variants.iter().enumerate() {
        let mut us = blocks[number].clone();
        let mut ratios: Vec<f64> =
            blocks[number].iter().zip(&blocks[0]).map(|(ours, raw)| ours / raw).collect();
        us.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        // Ranks of a median's 95 % interval: half the count, give or take its square root.
        let (middle, spread) = (BLOCKS / 2, (BLOCKS as f64).sqrt() as usize);
        println!(
            "  {name:<28} {:8.2} us   ratio {:.3} [{:.3}, {:.3}]",
            us[middle],
            ratios[middle],
            ratios[middle - spread],
            ratios[middle + spread],
        );
    }
}

fn echo_variants(bytes: usize) -> Vec<Variant> {
    let mut variants = vec![blocking_client("raw, blocking calls".into(), serve(raw_echo), bytes)];
    for backend in [Backend::Uring, Backend::Epoll] {
        let Some(queue) = config(backend) else {
            continue;
        };
        let address = serve(move |listener| queue_echo(&queue, listener));
        variants.push(blocking_client(format!("{backend} server"), address, bytes));
    }
    for backend in [Backend::Uring, Backend::Epoll] {
        let Some(queue) = config(backend) else {
            continue;
        };
        let theirs = queue.clone();
        let address = serve(move |listener| queue_echo(&theirs, listener));
        variants.push(queue_client(format!("{backend} server and client"), &queue, address, bytes));
    }
    variants
}

fn posted_variants(bytes: usize) -> Vec<Variant> {
    let mut variants = vec![blocking_client("raw, blocking channels".into(), serve(raw_by_thread), bytes)];
    for backend in [Backend::Uring, Backend::Epoll] {
        let Some(queue) = config(backend) else {
            continue;
        };
        let address = serve(move |listener| queue_by_thread(&queue, listener));
        variants.push(blocking_client(format!("{backend} server"), address, bytes));
    }
    variants
}

/// The configuration of a contender, if this kernel has the backend.
fn config(backend: Backend) -> Option<Config> {
    let config = Config { backend: Some(backend), ..Config::small() };
    match EventQueue::<()>::open(config.clone()) {
        Ok(_) => Some(config),
        Err(error) => {
            println!("{backend} is left out: {error}");
            None
        }
    }
}

fn serve(server: impl FnOnce(TcpListener) + Send + 'static) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || server(listener));
    address
}

fn blocking_client(name: String, address: std::net::SocketAddr, bytes: usize) -> Variant {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let (request, mut answer) = (vec![7; bytes], vec![0; bytes]);
    let trip = move || {
        stream.write_all(&request).unwrap();
        stream.read_exact(&mut answer).unwrap();
    };
    (name, Box::new(trip))
}

fn queue_client(name: String, config: &Config, address: std::net::SocketAddr, bytes: usize) -> Variant {
    let mut queue = EventQueue::<()>::open(config.clone()).unwrap();
    let token = queue.declare_stream(TcpStream::connect(address).unwrap(), 0).unwrap();
    let mut batch = Vec::new();
    let trip = move || {
        let mut request = queue.spare_buffer();
        request.resize(bytes, 7);
        queue.send(token, request).unwrap();
        let mut received = 0;
        while received < bytes {
            queue.get_next_events(&mut batch, 8, None).unwrap();
            for event in batch.drain(..) {
                if let Kind::Received(answer) = event.kind {
                    received += answer.len();
                }
            }
        }
    };
    (name, Box::new(trip))
}

fn raw_echo(listener: TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut room = vec![0; 65_536];
    while let Ok(received @ 1..) = stream.read(&mut room) {
        stream.write_all(&room[..received]).unwrap();
    }
}

fn queue_echo(config: &Config, listener: TcpListener) {
    let mut queue = EventQueue::<()>::open(config.clone()).unwrap();
    queue.declare_listener(listener, 0).unwrap();
    let mut batch = Vec::new();
    loop {
        queue.get_next_events(&mut batch, 64, None).unwrap();
        for event in batch.drain(..) {
            if let Kind::Received(bytes) = event.kind {
                let mut reply = queue.spare_buffer();
                reply.extend_from_slice(&bytes);
                queue.send(event.token, reply).unwrap();
            }
        }
    }
}

fn raw_by_thread(listener: TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let (ask, asked) = mpsc::sync_channel::<usize>(64);
    let (answer, answered) = mpsc::sync_channel::<usize>(64);
    thread::spawn(move || asked.iter().try_for_each(|received| answer.send(received)));
    let mut room = vec![0; 65_536];
    while let Ok(received @ 1..) = stream.read(&mut room) {
        ask.send(received).unwrap();
        let received = answered.recv().unwrap();
        stream.write_all(&room[..received]).unwrap();
    }
}

fn queue_by_thread(config: &Config, listener: TcpListener) {
    let mut queue = EventQueue::open(config.clone()).unwrap();
    queue.declare_listener(listener, 0).unwrap();
    let handle = queue.handle();
    let (ask, asked) = mpsc::sync_channel(64);
    thread::spawn(move || asked.iter().try_for_each(|reply| handle.post(reply)));
    let mut batch = Vec::new();
    loop {
        queue.get_next_events(&mut batch, 64, None).unwrap();
        for event in batch.drain(..) {
            match event.kind {
                Kind::Received(bytes) => {
                    let mut reply = queue.spare_buffer();
                    reply.extend_from_slice(&bytes);
                    ask.send((event.token, reply)).unwrap();
                }
                Kind::Posted((token, reply)) => queue.send(token, reply).unwrap(),
                _ => {}
            }
        }
    }
}
