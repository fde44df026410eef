//! One set of stories, told on both backends: whatever the kernel interface, the contract of the crate is the
//! same.

mod rig;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rig::{PATIENCE, Rig, pattern, reset, tcp_pair};
use tercel_events::shm::{self, Channel, Spin, Waited};
use tercel_events::{
    CloseReason, Config, DeclareError, Kind, ListenerState, PostError, Readiness, SendError, Token, Watch,
};

/// Makes three tests of each story, one for each backend, and one for a queue that looks before it sleeps.
macro_rules! on_both_backends {
    ($($story:ident),* $(,)?) => {
        mod io_uring {
            $(#[test] fn $story() { super::rig::tell(tercel_events::Backend::Uring, super::config(), super::$story); })*
        }
        mod epoll {
            $(#[test] fn $story() { super::rig::tell(tercel_events::Backend::Epoll, super::config(), super::$story); })*
        }
        mod spinning {
            $(#[test] fn $story() {
                let config = tercel_events::Config { spin_us: 200, ..super::config() };
                super::rig::tell(tercel_events::Backend::Epoll, config, super::$story);
            })*
        }
    };
}

on_both_backends! {
    many_connections_are_accepted_and_echoed,
    unix_sockets_are_accepted_and_echoed,
    held_stream_keeps_its_bytes_in_the_socket,
    what_arrived_before_the_declaration_is_reported,
    state_at_declaration_is_told,
    a_megabyte_goes_both_ways_intact,
    a_slow_reader_gets_every_byte_in_order,
    a_full_stream_gives_the_buffer_back_and_reports_when_it_drained,
    an_empty_stream_takes_one_buffer_above_the_bound,
    a_revoked_token_is_in_no_later_batch,
    a_reused_slot_hears_nothing_of_its_last_tenant,
    a_stale_token_names_nothing,
    slots_come_back_without_a_turn,
    a_batch_is_never_larger_than_asked_and_the_rest_is_kept,
    one_busy_stream_does_not_keep_the_others_out,
    a_post_is_delivered_while_a_stream_is_busy,
    timers_fire_in_order_and_not_before_their_time,
    a_revoked_timer_does_not_fire,
    a_moved_deadline_counts,
    a_stream_reports_its_deadline_and_stays,
    a_deadline_ends_the_wait_and_not_before,
    a_deadline_is_not_rounded_to_a_millisecond,
    posts_of_many_threads_all_arrive_in_their_order,
    a_sleeping_queue_is_woken_each_time,
    a_full_mailbox_refuses,
    the_end_of_a_stream_is_reported_after_its_bytes,
    a_reset_closes_the_stream,
    a_reset_after_the_end_closes_the_stream,
    bytes_before_a_failed_send_are_still_delivered,
    all_leases_out_pauses_receiving_until_one_returns,
    a_paused_stream_is_silent_and_loses_nothing,
    a_paused_listener_accepts_after_its_pause,
    a_listener_rests_while_sources_are_used_up,
    a_finished_stream_sends_its_rest_and_closes,
    a_finished_stream_whose_peer_never_reads_is_cut,
    a_watched_pipe_reports_readiness_and_hangup,
    a_ring_by_socket_is_one_byte,
    a_queue_serves_many_channels_and_sleeps_between,
    an_address_is_free_after_revoke_and_after_drop,
    a_connection_in_progress_can_be_declared,
    a_refused_connection_in_progress_is_closed,
    churn_leaves_nothing_behind,
}

fn many_connections_are_accepted_and_echoed(mut rig: Rig) {
    const CONNECTIONS: usize = 120; // the backlog of a std listener is 128
    let (listener, address) = rig.tcp_listener();
    let mut clients: Vec<TcpStream> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut streams = Vec::new();
    while streams.len() < CONNECTIONS {
        rig.each(64, |_, event| match event.kind {
            Kind::Accepted { stream, peer } => {
                assert_eq!((event.token, event.key), (listener, 7));
                assert!(peer.is_some());
                streams.push(stream);
            }
            other => panic!("{other:?}"),
        });
    }
    for round in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(&pattern(round * 1_000 + number, 64)).unwrap();
        }
        let mut echoed = 0;
        while echoed < CONNECTIONS * 64 {
            echoed += rig.echo_once(64);
        }
        rig.queue.flush();
        for (number, client) in clients.iter_mut().enumerate() {
            let mut answer = [0; 64];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer[..], pattern(round * 1_000 + number, 64));
        }
    }
    assert_eq!(rig.queue.sources(), CONNECTIONS + 1);
    assert_eq!(rig.queue.counters().accepted, CONNECTIONS as u64);
}

fn unix_sockets_are_accepted_and_echoed(mut rig: Rig) {
    let folder = std::env::temp_dir().join(format!("tercel-events-{}-{:p}", std::process::id(), &rig));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("socket");
    rig.queue.declare_listener(UnixListener::bind(&path).unwrap(), 0).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"over a path").unwrap();
    let stream = rig.accept();
    while rig.echo_once(8) == 0 {}
    rig.queue.flush();
    let mut answer = [0; 11];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"over a path");
    drop(client);
    rig.expect_end(stream);
    std::fs::remove_dir_all(&folder).unwrap();
}

fn held_stream_keeps_its_bytes_in_the_socket(mut rig: Rig) {
    let name = format!("tercel-events-{}-{:p}", std::process::id(), &rig);
    let address = SocketAddr::from_abstract_name(name).unwrap();
    rig.queue.declare_holding_listener(UnixListener::bind_addr(&address).unwrap(), 0).unwrap();
    let mut client = UnixStream::connect_addr(&address).unwrap();
    client.write_all(b"first").unwrap();
    let stream = rig.accept();
    let ready = rig.next();
    assert!(matches!(ready.kind, Kind::Ready(ready) if ready.readable));
    assert_eq!(ready.token, stream);
    // The caller takes a part of it.
    let mut part = [0; 2];
    let fd = rig.queue.fd(stream).unwrap();
    rustix::net::recv(fd, &mut part, rustix::net::RecvFlags::DONTWAIT).unwrap();
    assert_eq!(&part, b"fi");
    // More of it is reported once, and what is sent meanwhile leaves.
    client.write_all(b" then").unwrap();
    assert!(matches!(rig.next().kind, Kind::Ready(_)));
    rig.queue.send(stream, b"yes".to_vec()).unwrap();
    rig.queue.flush();
    let mut answer = [0; 3];
    client.read_exact(&mut answer).unwrap();
    assert!(rig.queue.receive_from(stream));
    assert!(matches!(rig.next().kind, Kind::Received(bytes) if &bytes[..] == b"rst then"));
    drop(client);
    rig.expect_end(stream);
}

fn what_arrived_before_the_declaration_is_reported(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    near.write_all(b"early").unwrap();
    let token = rig.queue.declare_stream(far, 5).unwrap();
    let event = rig.next();
    assert_eq!((event.token, event.key), (token, 5));
    assert!(matches!(event.kind, Kind::Received(bytes) if &bytes[..] == b"early"));
}

fn state_at_declaration_is_told(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    let open = rig.queue.declare_stream(far, 1).unwrap();
    let writable = Readiness { writable: true, ..Readiness::default() };
    assert_eq!(rig.queue.readiness(open), Some(writable));
    near.write_all(b"early").unwrap();
    assert_eq!(rig.queue.readiness(open), Some(Readiness { readable: true, ..writable }));
    // Being told takes nothing from the events.
    assert!(matches!(rig.next().kind, Kind::Received(bytes) if &bytes[..] == b"early"));
    assert_eq!(rig.queue.readiness(open), Some(writable));
    drop(near);
    let ended = Readiness { readable: true, writable: true, hung_up: true };
    assert_eq!(rig.queue.readiness(open), Some(ended));
    rig.expect_end(open);
    let timer = rig.queue.declare_timer(Instant::now() + PATIENCE, 0).unwrap();
    rig.queue.revoke(open);
    assert_eq!((rig.queue.readiness(timer), rig.queue.readiness(open)), (None, None));
}

fn a_megabyte_goes_both_ways_intact(mut rig: Rig) {
    const BYTES: usize = 1 << 20;
    let (near, far) = tcp_pair();
    let (unix_near, unix_far) = UnixStream::pair().unwrap();
    rig.queue.declare_stream(far, 0).unwrap();
    rig.queue.declare_stream(unix_far, 0).unwrap();
    let clients = [
        thread::spawn(move || rig::exchange(&near, &near, BYTES)),
        thread::spawn(move || rig::exchange(&unix_near, &unix_near, BYTES)),
    ];
    let mut ends = 0;
    while ends < 2 {
        rig.each(16, |queue, event| match event.kind {
            Kind::Received(bytes) => queue.send(event.token, bytes.to_vec()).unwrap(),
            Kind::EndOfStream => {
                ends += 1;
                assert!(queue.finish(event.token));
            }
            Kind::Drained => {}
            other => panic!("{other:?}"),
        });
    }
    while rig.queue.sources() > 0 {
        rig.turn(Duration::from_millis(10));
    }
    for client in clients {
        client.join().unwrap();
    }
}

fn a_slow_reader_gets_every_byte_in_order(mut rig: Rig) {
    const PARTS: usize = 2_000; // more than sockets and the bound hold together
    const PART_BYTES: usize = 10_000;
    let (mut near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    let (gate, opened) = mpsc::channel::<()>();
    let reader = thread::spawn(move || {
        opened.recv().unwrap();
        let mut received = Vec::new();
        near.read_to_end(&mut received).unwrap();
        received
    });
    let (mut sent, mut gate) = (0, Some(gate));
    while sent < PARTS {
        match rig.queue.send(token, pattern(sent, PART_BYTES)) {
            Ok(()) => sent += 1,
            Err(SendError::Full(bytes)) => {
                assert_eq!(bytes, pattern(sent, PART_BYTES));
                // Only now does the reader begin, so that sends have certainly been cut short.
                if let Some(gate) = gate.take() {
                    gate.send(()).unwrap();
                }
                assert!(matches!(rig.next().kind, Kind::Drained));
            }
            Err(SendError::Gone(_)) => panic!("the stream is there"),
        }
    }
    assert!(gate.is_none(), "the bound was never met");
    assert!(rig.queue.counters().sends_blocked > 0);
    assert!(rig.queue.finish(token));
    while rig.queue.sources() > 0 {
        rig.turn(Duration::from_millis(10));
    }
    let expected: Vec<u8> = (0..PARTS).flat_map(|part| pattern(part, PART_BYTES)).collect();
    assert!(reader.join().unwrap() == expected);
}

fn a_full_stream_gives_the_buffer_back_and_reports_when_it_drained(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    let bytes_max = rig.config.write_bytes_max;
    let mut taken = 0;
    let refused = loop {
        match rig.queue.send(token, vec![1; 50_000]) {
            Ok(()) => taken += 50_000,
            Err(error) => break error,
        }
        assert!(rig.queue.unsent_bytes(token).unwrap() <= bytes_max);
    };
    assert!(matches!(refused, SendError::Full(bytes) if bytes.len() == 50_000));
    assert_eq!(rig.queue.counters().sends_refused, 1);
    let reader = thread::spawn(move || {
        let mut room = vec![0; taken];
        near.read_exact(&mut room).map(|()| near)
    });
    assert!(matches!(rig.next().kind, Kind::Drained));
    assert!(rig.queue.unsent_bytes(token).unwrap() <= rig.config.write_mark_bytes);
    rig.queue.send(token, vec![2; 10]).unwrap();
    while !reader.is_finished() {
        rig.turn(Duration::from_millis(1));
    }
    reader.join().unwrap().unwrap();
}

fn an_empty_stream_takes_one_buffer_above_the_bound(mut rig: Rig) {
    let (_near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    let large = rig.config.write_bytes_max + (16 << 20);
    rig.queue.send(token, vec![0; large]).unwrap();
    assert!(matches!(rig.queue.send(token, vec![0]), Err(SendError::Full(_))));
}

fn a_revoked_token_is_in_no_later_batch(mut rig: Rig) {
    let mut pairs = Vec::new();
    for key in 0..8 {
        let (near, far) = tcp_pair();
        pairs.push((rig.queue.declare_stream(far, key).unwrap(), near));
    }
    for (_, near) in &mut pairs {
        near.write_all(b"now").unwrap();
    }
    // All eight are pending; one is delivered. Four of the rest are revoked, some of them hinted and some
    // not.
    let first = rig.next().token;
    let revoked: Vec<Token> =
        pairs.iter().map(|(token, _)| *token).filter(|token| *token != first).take(4).collect();
    for token in &revoked {
        assert!(rig.queue.revoke(*token));
        assert!(!rig.queue.revoke(*token));
    }
    let mut others = 0;
    while others < 3 {
        rig.each(2, |_, event| {
            assert!(!revoked.contains(&event.token));
            others += 1;
        });
    }
    rig.expect_silence();
}

fn a_reused_slot_hears_nothing_of_its_last_tenant(mut rig: Rig) {
    let mut tokens = HashSet::new();
    let mut slots = HashSet::new();
    for round in 0..300_u64 {
        let (mut near, far) = tcp_pair();
        let token = rig.queue.declare_stream(far, round).unwrap();
        assert!(tokens.insert(token), "a token was given twice");
        slots.insert(token.bits() as u32);
        if round % 3 != 0 {
            near.write_all(b"for this tenant").unwrap();
        }
        match round % 3 {
            // Revoked before the kernel was ever asked, with bytes waiting.
            1 => {}
            2 => {
                let event = rig.next();
                assert_eq!((event.token, event.key), (token, round));
                near.write_all(b"never read").unwrap();
            }
            _ => rig.expect_silence(),
        }
        assert!(rig.queue.revoke(token));
    }
    assert!(slots.len() < tokens.len() / 10, "slots were hardly reused");
}

fn a_stale_token_names_nothing(mut rig: Rig) {
    let (_near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    assert!(rig.queue.revoke(token));
    assert!(matches!(rig.queue.send(token, vec![1]), Err(SendError::Gone(bytes)) if bytes == [1]));
    assert!(!rig.queue.pause(token) && !rig.queue.resume(token) && !rig.queue.finish(token));
    assert!(!rig.queue.set_key(token, 1) && !rig.queue.set_deadline(token, Instant::now()));
    assert!(rig.queue.fd(token).is_none() && rig.queue.unsent_bytes(token).is_none());
    assert_eq!(rig.queue.listener_state(token), ListenerState::Closed);
    assert!(!rig.queue.revoke(rig.queue.mailbox()), "the mailbox is the queue's own");
}

fn slots_come_back_without_a_turn(mut rig: Rig) {
    for _ in 0..4 * rig.config.sources_max {
        let (_near, far) = UnixStream::pair().unwrap();
        let token = rig.queue.declare_stream(far, 0).unwrap();
        assert!(rig.queue.revoke(token));
    }
    assert_eq!(rig.queue.sources(), 0);
}

fn a_batch_is_never_larger_than_asked_and_the_rest_is_kept(mut rig: Rig) {
    let mut nears = Vec::new();
    for key in 0..20 {
        let (mut near, far) = tcp_pair();
        near.write_all(b"x").unwrap();
        rig.queue.declare_stream(far, key).unwrap();
        nears.push(near);
    }
    let mut keys = Vec::new();
    while keys.len() < 20 {
        let mut size = 0;
        rig.each(3, |_, event| {
            size += 1;
            keys.push(event.key);
        });
        assert!((1..=3).contains(&size));
    }
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..20));
    assert_eq!(rig.queue.get_next_events(&mut rig.batch, 0, None).unwrap(), 0);
    rig.expect_silence();
}

fn one_busy_stream_does_not_keep_the_others_out(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    rig.queue.declare_stream(far, 1).unwrap();
    // More than ten buffers wait, so that the stream stays ready however often it is served.
    near.set_nonblocking(true).unwrap();
    let mut waiting = 0;
    while waiting < 12 * rig.config.buffer_bytes {
        waiting += near.write(&[0; 4096]).expect("the socket takes a few buffers");
    }
    assert_eq!(rig.next().key, 1);
    let (mut other, other_far) = tcp_pair();
    other.write_all(b"me too").unwrap();
    rig.queue.declare_stream(other_far, 2).unwrap();
    let keys = [rig.next().key, rig.next().key, rig.next().key];
    assert!(keys.contains(&2), "{keys:?}");
}

fn a_post_is_delivered_while_a_stream_is_busy(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    rig.queue.declare_stream(far, 1).unwrap();
    near.write_all(&vec![0; 6 * rig.config.buffer_bytes]).unwrap();
    rig.next();
    for number in 0..3 {
        rig.queue.handle().post(number).unwrap();
    }
    let mut posted = 0;
    for _ in 0..5 {
        posted += u32::from(matches!(rig.next().kind, Kind::Posted(_)));
    }
    assert!((1..=3).contains(&posted), "neither may keep the other out, yet {posted} of 5 were posted");
}

fn timers_fire_in_order_and_not_before_their_time(mut rig: Rig) {
    let begin = Instant::now();
    let delays_ms = [40, 5, 80, 20, 20, 0, 120];
    let mut tokens = Vec::new();
    for delay_ms in delays_ms {
        let deadline = begin + Duration::from_millis(delay_ms);
        tokens.push(rig.queue.declare_timer(deadline, delay_ms).unwrap());
    }
    let mut fired = Vec::new();
    while fired.len() < delays_ms.len() {
        let event = rig.next();
        assert!(matches!(event.kind, Kind::Timer));
        assert!(begin.elapsed() >= Duration::from_millis(event.key));
        fired.push(event.key);
    }
    assert!(fired.is_sorted());
    assert!(tokens.iter().all(|token| !rig.queue.revoke(*token)), "a fired timer is gone");
    assert_eq!(rig.queue.sources(), 0);
}

fn a_revoked_timer_does_not_fire(mut rig: Rig) {
    let soon = Instant::now() + Duration::from_millis(5);
    let timer = rig.queue.declare_timer(soon, 1).unwrap();
    rig.queue.declare_timer(soon + Duration::from_millis(5), 2).unwrap();
    // One that has come due but was not delivered yet is silenced too.
    let overdue = rig.queue.declare_timer(Instant::now(), 3).unwrap();
    assert!(rig.queue.revoke(timer) && rig.queue.revoke(overdue));
    assert_eq!(rig.next().key, 2);
    rig.expect_silence();
}

fn a_moved_deadline_counts(mut rig: Rig) {
    let begin = Instant::now();
    let later = rig.queue.declare_timer(begin + Duration::from_millis(5), 1).unwrap();
    let sooner = rig.queue.declare_timer(begin + Duration::from_secs(3_600), 2).unwrap();
    assert!(rig.queue.set_deadline(later, begin + Duration::from_millis(60)));
    assert!(rig.queue.set_deadline(sooner, begin + Duration::from_millis(20)));
    assert_eq!(rig.next().key, 2);
    assert_eq!(rig.next().key, 1);
    assert!(begin.elapsed() >= Duration::from_millis(60));
}

fn a_stream_reports_its_deadline_and_stays(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 9).unwrap();
    assert!(rig.queue.set_deadline(token, Instant::now() + Duration::from_millis(5)));
    let event = rig.next();
    assert_eq!((event.token, event.key), (token, 9));
    assert!(matches!(event.kind, Kind::Timer));
    near.write_all(b"still here").unwrap();
    assert!(matches!(rig.next().kind, Kind::Received(_)));
    rig.queue.set_deadline(token, Instant::now() + Duration::from_millis(5));
    assert!(rig.queue.clear_deadline(token));
    rig.expect_silence();
}

fn a_deadline_ends_the_wait_and_not_before(mut rig: Rig) {
    for wait in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(15)] {
        let begin = Instant::now();
        let count = rig.queue.get_next_events(&mut rig.batch, 8, Some(begin + wait)).unwrap();
        assert_eq!(count, 0);
        assert!(begin.elapsed() >= wait);
    }
}

fn a_deadline_is_not_rounded_to_a_millisecond(mut rig: Rig) {
    for wait in [Duration::from_micros(100), Duration::from_micros(1_100)] {
        // A machine with other work may be late now and then, but not every time.
        let took = (0..200).map(|_| {
            let begin = Instant::now();
            assert_eq!(rig.turn(wait), 0);
            begin.elapsed()
        });
        let took = took.min().unwrap();
        assert!((wait..wait + Duration::from_micros(700)).contains(&took), "{wait:?} took {took:?}");
    }
}

fn posts_of_many_threads_all_arrive_in_their_order(mut rig: Rig) {
    const THREADS: u64 = 4;
    const POSTS: u64 = 20_000;
    let posters: Vec<_> = (0..THREADS)
        .map(|thread| {
            let handle = rig.queue.handle();
            thread::spawn(move || {
                for number in 0..POSTS {
                    let mut message = thread << 32 | number;
                    while let Err(PostError::Full(back)) = handle.post(message) {
                        message = back;
                        thread::yield_now();
                    }
                    if number % 64 == 0 {
                        handle.wake();
                    }
                }
            })
        })
        .collect();
    let mut next = [0; THREADS as usize];
    while next.iter().sum::<u64>() < THREADS * POSTS {
        rig.each(100, |_, event| match event.kind {
            Kind::Posted(message) => {
                let expected = &mut next[(message >> 32) as usize];
                assert_eq!(message & 0xffff_ffff, *expected);
                *expected += 1;
            }
            Kind::Wake => {}
            other => panic!("{other:?}"),
        });
    }
    for poster in posters {
        poster.join().unwrap();
    }
}

fn a_sleeping_queue_is_woken_each_time(mut rig: Rig) {
    const ROUNDS: u64 = 3_000;
    let handle = rig.queue.handle();
    let (ask, asked) = mpsc::channel::<(u64, Duration)>();
    let waker = thread::spawn(move || {
        for (round, pause) in asked {
            // Half the time the queue is asleep by now, half the time it is on its way.
            if round % 2 == 0 {
                thread::yield_now();
            }
            thread::sleep(pause);
            if round % 3 == 0 { handle.wake() } else { handle.post(round).unwrap() }
        }
    });
    // A queue that looks before it sleeps may meet a quick waker awake in each round. The waker is slower
    // from round to round then, until the queue was woken from a sleep.
    let mut pause = Duration::ZERO;
    let mut round = 0;
    while round < ROUNDS || rig.queue.counters().sleeps == 0 {
        if round >= ROUNDS {
            pause = (2 * pause).max(Duration::from_micros(rig.config.spin_us + 1));
            assert!(pause < PATIENCE, "the queue never slept");
        }
        ask.send((round, pause)).unwrap();
        let event = rig.next();
        assert_eq!(event.token, rig.queue.mailbox());
        match event.kind {
            Kind::Wake => assert_eq!(round % 3, 0),
            Kind::Posted(posted) => assert_eq!(posted, round),
            other => panic!("{other:?}"),
        }
        round += 1;
    }
    drop(ask);
    waker.join().unwrap();
}

fn a_full_mailbox_refuses(mut rig: Rig) {
    let handle = rig.queue.handle();
    let messages_max = rig.config.messages_max as u64;
    for number in 0..messages_max {
        handle.post(number).unwrap();
    }
    assert!(matches!(handle.post(99), Err(PostError::Full(99))));
    for expected in 0..messages_max {
        assert!(matches!(rig.next().kind, Kind::Posted(number) if number == expected));
    }
    handle.post(100).unwrap();
    drop(rig);
    assert!(matches!(handle.post(101), Err(PostError::Closed(101))));
}

fn the_end_of_a_stream_is_reported_after_its_bytes(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    let bytes = pattern(1, 3 * rig.config.buffer_bytes);
    near.write_all(&bytes).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    while received.len() < bytes.len() {
        match rig.next().kind {
            Kind::Received(lease) => received.extend_from_slice(&lease),
            other => panic!("{other:?}"),
        }
    }
    assert!(received == bytes);
    rig.expect_end(token);
    // The other direction is still open.
    rig.queue.send(token, b"goodbye".to_vec()).unwrap();
    rig.queue.flush();
    let mut answer = [0; 7];
    near.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"goodbye");
    rig.expect_silence();
}

fn a_reset_closes_the_stream(mut rig: Rig) {
    let (near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 3).unwrap();
    rig.expect_silence();
    reset(near);
    let event = rig.next();
    assert_eq!((event.token, event.key), (token, 3));
    assert!(matches!(event.kind, Kind::Closed(CloseReason::Reset)));
    assert_eq!(rig.queue.sources(), 0);
    assert!(!rig.queue.revoke(token));
}

fn a_reset_after_the_end_closes_the_stream(mut rig: Rig) {
    let (near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    rig.expect_end(token);
    reset(near);
    assert!(matches!(rig.next().kind, Kind::Closed(CloseReason::Reset)));
}

fn bytes_before_a_failed_send_are_still_delivered(mut rig: Rig) {
    let (mut near, far) = UnixStream::pair().unwrap();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    near.write_all(b"last words").unwrap();
    drop(near);
    rig.queue.send(token, b"nobody hears this".to_vec()).unwrap();
    rig.queue.flush();
    assert!(matches!(rig.queue.send(token, vec![1]), Err(SendError::Gone(_))));
    assert!(matches!(rig.next().kind, Kind::Received(bytes) if &bytes[..] == b"last words"));
    assert!(matches!(rig.next().kind, Kind::Closed(CloseReason::Reset)));
}

fn all_leases_out_pauses_receiving_until_one_returns(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    rig.queue.declare_stream(far, 0).unwrap();
    let (_cold, cold_far) = tcp_pair();
    rig.queue.declare_stream(cold_far, 1).unwrap();
    let bytes = pattern(4, (rig.config.buffers + 2) * rig.config.buffer_bytes);
    let expected = bytes.clone();
    let writer = thread::spawn(move || near.write_all(&bytes).map(|()| near));
    let mut leases = Vec::new();
    while leases.len() < rig.config.buffers {
        match rig.next().kind {
            Kind::Received(lease) => leases.push(lease),
            other => panic!("{other:?}"),
        }
    }
    rig.expect_silence();
    assert!(rig.queue.counters().buffers_exhausted > 0);
    // Timers and posts go on meanwhile.
    rig.queue.handle().post(5).unwrap();
    assert!(matches!(rig.next().kind, Kind::Posted(5)));
    let mut received: Vec<u8> = Vec::new();
    leases.drain(..).for_each(|lease| received.extend_from_slice(&lease));
    while received.len() < expected.len() {
        match rig.next().kind {
            Kind::Received(lease) => received.extend_from_slice(&lease),
            other => panic!("{other:?}"),
        }
    }
    assert!(received == expected);
    writer.join().unwrap().unwrap();
}

fn a_paused_stream_is_silent_and_loses_nothing(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    assert!(rig.queue.pause(token));
    near.write_all(b"one ").unwrap();
    rig.expect_silence();
    near.write_all(b"two").unwrap();
    rig.expect_silence();
    // A peer that keeps sending wakes the queue once, not each time.
    let stop = Arc::new(AtomicBool::new(false));
    let sender = thread::spawn({
        let (stop, mut near) = (Arc::clone(&stop), near.try_clone().unwrap());
        move || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) && sent < 2_000 {
                near.write_all(b".").unwrap();
                sent += 1;
                thread::sleep(Duration::from_micros(100));
            }
            sent
        }
    });
    let looks = rig.queue.counters().looks;
    assert_eq!(rig.turn(Duration::from_millis(50)), 0);
    assert!(rig.queue.counters().looks - looks < 10, "a paused stream keeps waking the queue");
    stop.store(true, Ordering::Relaxed);
    let sent = sender.join().unwrap();
    assert!(rig.queue.resume(token));
    let mut received = Vec::new();
    while received.len() < 7 + sent {
        match rig.next().kind {
            Kind::Received(lease) => received.extend_from_slice(&lease),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, [&b"one two"[..], &vec![b'.'; sent]].concat());
    // Sending does not rest.
    rig.queue.pause(token);
    rig.queue.send(token, b"heard".to_vec()).unwrap();
    rig.queue.flush();
    near.read_exact(&mut [0; 5]).unwrap();
    // An end that comes during the pause is reported after it.
    drop(near);
    rig.expect_silence();
    rig.queue.resume(token);
    rig.expect_end(token);
}

fn a_paused_listener_accepts_after_its_pause(mut rig: Rig) {
    let (listener, address) = rig.tcp_listener();
    assert!(rig.queue.pause(listener));
    assert_eq!(rig.queue.listener_state(listener), ListenerState::PausedByCaller);
    let _clients = [TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap()];
    rig.expect_silence();
    assert!(rig.queue.resume(listener));
    assert_eq!(rig.queue.listener_state(listener), ListenerState::Open);
    rig.accept();
    rig.accept();
}

fn a_listener_rests_while_sources_are_used_up(mut rig: Rig) {
    let (listener, address) = rig.tcp_listener();
    let timers: Vec<Token> = (0..rig.config.sources_max - 2)
        .map(|_| rig.queue.declare_timer(Instant::now() + PATIENCE * 100, 0).unwrap())
        .collect();
    let _clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let first = rig.accept();
    rig.expect_silence();
    assert_eq!(rig.queue.listener_state(listener), ListenerState::PausedByLimit);
    assert!(matches!(rig.queue.declare_timer(Instant::now(), 0), Err(DeclareError::Full)));
    assert!(rig.queue.counters().accepts_paused > 0);
    rig.queue.revoke(first);
    rig.accept();
    rig.queue.revoke(timers[0]);
    rig.accept();
    assert!(rig.queue.revoke(listener));
}

fn a_finished_stream_sends_its_rest_and_closes(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    let bytes = pattern(2, 8 << 20);
    let expected = bytes.clone();
    rig.queue.send(token, bytes).unwrap();
    assert!(rig.queue.finish(token));
    assert!(matches!(rig.queue.send(token, vec![1]), Err(SendError::Gone(_))));
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        near.read_to_end(&mut received).map(|_| received)
    });
    while rig.queue.sources() > 0 {
        assert_eq!(rig.turn(Duration::from_millis(10)), 0, "nothing is reported for a finished stream");
    }
    assert!(reader.join().unwrap().unwrap() == expected);
}

fn a_finished_stream_whose_peer_never_reads_is_cut(mut rig: Rig) {
    let (_near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    rig.queue.send(token, vec![0; 32 << 20]).unwrap();
    assert!(rig.queue.finish(token));
    assert_eq!(rig.queue.sources(), 1);
    let begin = Instant::now();
    while rig.queue.sources() > 0 {
        rig.turn(Duration::from_millis(10));
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(rig.queue.counters().lingers_cut, 1);
}

fn a_watched_pipe_reports_readiness_and_hangup(mut rig: Rig) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let token = rig.queue.declare_fd(reader, Watch::Read, 8).unwrap();
    rig.expect_silence();
    writer.write_all(b"signal").unwrap();
    let event = rig.next();
    assert_eq!((event.token, event.key), (token, 8));
    assert!(matches!(event.kind, Kind::Ready(readiness) if readiness.readable && !readiness.hung_up));
    let mut room = [0; 16];
    assert_eq!(rustix::io::read(rig.queue.fd(token).unwrap(), &mut room).unwrap(), 6);
    rig.expect_silence();
    drop(writer);
    assert!(matches!(rig.next().kind, Kind::Ready(readiness) if readiness.hung_up));
}

/// The two ends of a channel, the second of which rings the queue by a socket; and the source of that.
fn channel_with_bell(rig: &mut Rig, config: shm::Config, key: u64) -> (Channel, Channel, Token) {
    let (far, near) = UnixStream::pair().unwrap();
    let (here, memory) = Channel::create(config).unwrap();
    let mut there = Channel::open(memory).unwrap();
    there.watch_peer(near).unwrap();
    there.ring_by_socket();
    (here, there, rig.queue.declare_stream(far, key).unwrap())
}

fn a_ring_by_socket_is_one_byte(mut rig: Rig) {
    let (here, there, token) = channel_with_bell(&mut rig, shm::Config::default(), 9);
    let ((_answer, mut asked), (mut ask, _answered)) = (here.split(), there.split());
    for round in 0..20 {
        assert!(asked.doze().unwrap());
        rig.expect_silence();
        // The first of several messages rings.
        (0..=round % 3).for_each(|_| ask.send(&[round; shm::LINE_BYTES], None).unwrap());
        let event = rig.next();
        assert_eq!((event.token, event.key), (token, 9));
        assert!(matches!(event.kind, Kind::Received(bytes) if bytes.len() == 1));
        rig.expect_silence();
        assert!(!asked.doze().unwrap(), "a receiver with messages does not sleep");
        while asked.receive().unwrap().is_some() {}
        // Not asked for, it does not ring.
        ask.send(&[round; shm::LINE_BYTES], None).unwrap();
        rig.expect_silence();
        assert!(asked.receive().unwrap().is_some());
    }
}

fn a_queue_serves_many_channels_and_sleeps_between(mut rig: Rig) {
    const CHANNELS: usize = 20;
    const MESSAGES: u32 = 500;
    let config = shm::Config { lines: 4, block_bytes: 1_024 };
    let (mut halves, mut peers) = (Vec::new(), Vec::new());
    for number in 0..CHANNELS {
        let (here, there, _) = channel_with_bell(&mut rig, config, number as u64);
        let (answer, mut asked) = here.split();
        // The first message rings.
        assert!(asked.doze().unwrap());
        halves.push((answer, asked, Vec::new()));
        peers.push(thread::spawn(move || {
            let (mut ask, mut answered) = there.split();
            let patience = Some(Instant::now() + PATIENCE);
            let mut spin = Spin::new();
            let (mut sent, mut received) = (0, 0);
            while received < MESSAGES {
                // More requests than the ring holds, so that both ends run out of room.
                while sent < MESSAGES && sent < received + 16 {
                    let block = pattern(sent as usize, 400);
                    match ask.send(&[sent as u8; shm::LINE_BYTES], Some(&block)) {
                        Ok(()) => sent += 1,
                        Err(shm::SendError::Full) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                let soon = Some(Instant::now() + Duration::from_millis(1));
                match answered.wait(&mut spin, if sent < MESSAGES { soon } else { patience }).unwrap() {
                    Waited::Ready => {
                        let message = answered.receive().unwrap().unwrap();
                        assert_eq!(message.line()[0], received as u8);
                        received += 1;
                    }
                    other => assert!(other == Waited::TimedOut && patience > Some(Instant::now())),
                }
            }
        }));
    }
    let mut left = CHANNELS as u32 * MESSAGES;
    while left > 0 {
        rig.each(64, |_, event| {
            let (answer, asked, owed) = &mut halves[event.key as usize];
            // Until nothing more can be done before the next ring.
            loop {
                while let Some(message) = asked.receive().unwrap() {
                    owed.push(*message.line());
                    let mut block = Vec::new();
                    message.block.unwrap().copy_to(&mut block);
                    assert_eq!(block.len(), 400);
                }
                let mut sent = 0;
                while sent < owed.len() && answer.ask_for_room(None).unwrap() {
                    answer.send(&owed[sent], None).unwrap();
                    sent += 1;
                }
                owed.drain(..sent);
                left -= sent as u32;
                if asked.doze().unwrap() {
                    break;
                }
            }
        });
    }
    peers.into_iter().for_each(|peer| peer.join().unwrap());
}

fn an_address_is_free_after_revoke_and_after_drop(mut rig: Rig) {
    let (listener, address) = rig.tcp_listener();
    rig.expect_silence();
    rig.queue.revoke(listener);
    let again = TcpListener::bind(address).expect("the address is free after revoke");
    rig.queue.declare_listener(again, 0).unwrap();
    rig.expect_silence();
    drop(rig);
    TcpListener::bind(address).expect("the address is free after drop");
}

fn a_connection_in_progress_can_be_declared(mut rig: Rig) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let token = rig.queue.declare_stream(rig::connecting(listener.local_addr().unwrap()), 0).unwrap();
    rig.queue.send(token, b"as soon as possible".to_vec()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    rig.turn(Duration::from_millis(50));
    let mut received = [0; 19];
    far.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"as soon as possible");
}

fn a_refused_connection_in_progress_is_closed(mut rig: Rig) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    rig.queue.declare_stream(rig::connecting(address), 0).unwrap();
    assert!(matches!(rig.next().kind, Kind::Closed(CloseReason::Refused)));
}

fn churn_leaves_nothing_behind(mut rig: Rig) {
    let (_, address) = rig.tcp_listener();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|thread| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut round = thread;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let mut client = TcpStream::connect(address).unwrap();
                    let bytes = pattern(round, 1 + round * 37 % 9_000);
                    client.write_all(&bytes).unwrap();
                    match round % 3 {
                        0 => reset(client),
                        1 => drop(client),
                        _ => {
                            let mut answer = vec![0; bytes.len()];
                            client.read_exact(&mut answer).unwrap();
                            assert!(answer == bytes);
                        }
                    }
                }
            })
        })
        .collect();
    let mut ends = 0;
    while ends < 1_000 {
        rig.each(7, |queue, event| match event.kind {
            Kind::Received(lease) => drop(queue.send(event.token, lease.to_vec())),
            Kind::EndOfStream => {
                ends += 1;
                assert!(queue.finish(event.token));
            }
            Kind::Closed(_) => ends += 1,
            _ => {}
        });
    }
    stop.store(true, Ordering::Relaxed);
    while clients.iter().any(|client| !client.is_finished()) || rig.queue.sources() > 1 {
        rig.queue
            .get_next_events(&mut rig.batch, 7, Some(Instant::now() + Duration::from_millis(10)))
            .unwrap();
        for event in rig.batch.drain(..) {
            match event.kind {
                Kind::Received(lease) => drop(rig.queue.send(event.token, lease.to_vec())),
                Kind::EndOfStream => drop(rig.queue.finish(event.token)),
                _ => {}
            }
        }
    }
    for client in clients {
        client.join().unwrap();
    }
}

/// The configuration of the tests: small, so that they reach every bound.
fn config() -> Config {
    Config {
        sources_max: 256,
        buffers: 8,
        buffer_bytes: 8 * 1024,
        write_bytes_max: 1 << 20,
        write_mark_bytes: 64 * 1024,
        messages_max: 128,
        linger_ms: 1_000,
        ..Config::default()
    }
}
