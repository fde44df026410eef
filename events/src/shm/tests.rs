//! Two ends in one process: the bounds, the waits, and a peer that scribbles.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel_machine::random::Random;

use super::region::{Lane, POSITION_MASK};
use super::*;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
const SMALL: Config = Config { lines: 4, block_bytes: 256 };

type Halves = (Sender, Receiver);

fn patience() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

fn pair_at(config: Config, first: u32) -> (Halves, Halves) {
    let (here, memory) = Channel::create_at(config, first).unwrap();
    let mut there = Channel::open(memory).unwrap();
    there.end.first = first;
    (here.split(), there.split())
}

fn pair(config: Config) -> (Sender, Receiver) {
    let ((sender, _), (_, receiver)) = pair_at(config, 0);
    (sender, receiver)
}

fn line(number: u64) -> [u8; LINE_BYTES] {
    let mut line = [number as u8; LINE_BYTES];
    line[..8].copy_from_slice(&number.to_le_bytes());
    line
}

fn bytes(number: u64, count: usize) -> Vec<u8> {
    (0..count).map(|at| (number as usize * 31 + at) as u8).collect()
}

/// Receives the message with this number and this block.
fn expect(receiver: &mut Receiver, number: u64, block: Option<&[u8]>) {
    let message = receiver.receive().unwrap().expect("a message is there");
    assert_eq!(message.line(), &line(number));
    let mut received = Vec::new();
    let copied = message.block.as_ref().map(|block| block.copy_to(&mut received));
    assert_eq!(copied.map(|()| &received[..]), block);
}

#[test]
fn messages_arrive_in_order_in_both_directions() {
    let ((mut ask, mut answered), (mut answer, mut asked)) = pair_at(Config::default(), 0);
    for number in 0..1_000 {
        let block = bytes(number, number as usize * 7);
        ask.send(&line(number), Some(&block)).unwrap();
        answer.send(&line(number + 5), None).unwrap();
        expect(&mut asked, number, Some(&block));
        expect(&mut answered, number + 5, None);
        assert!(asked.receive().unwrap().is_none());
    }
}

#[test]
fn positions_begin_again_after_their_end() {
    for before in [0, 1, 2, 3, 5, 9] {
        let ((mut sender, _), (_, mut receiver)) =
            pair_at(SMALL, (POSITION_MASK + 1 - before) & POSITION_MASK);
        for number in 0..40 {
            for ahead in 0..number % 3 {
                sender.send(&line(number + ahead), Some(&bytes(number, 5))).unwrap();
            }
            for ahead in 0..number % 3 {
                expect(&mut receiver, number + ahead, Some(&bytes(number, 5)));
            }
            assert!(receiver.receive().unwrap().is_none());
        }
    }
}

#[test]
fn a_full_ring_refuses_until_half_of_it_is_read() {
    let (mut sender, mut receiver) = pair(SMALL);
    for number in 0..4 {
        assert!(sender.has_room(None).unwrap());
        sender.send(&line(number), None).unwrap();
    }
    assert_eq!(sender.send(&line(9), None), Err(SendError::Full));
    expect(&mut receiver, 0, None);
    assert!(!sender.has_room(None).unwrap());
    expect(&mut receiver, 1, None);
    sender.send(&line(4), None).unwrap();
    sender.send(&line(5), None).unwrap();
    assert_eq!(sender.send(&line(9), None), Err(SendError::Full));
    (2..6).for_each(|number| expect(&mut receiver, number, None));
}

#[test]
fn a_block_is_refused_while_or_because_it_does_not_fit() {
    let (mut sender, mut receiver) = pair(SMALL);
    let most = 256 - Config::BLOCK_OVERHEAD;
    assert_eq!(sender.send(&line(0), Some(&vec![0; most + 1])), Err(SendError::TooLarge));
    assert!(!sender.has_room(Some(usize::MAX)).unwrap());
    assert!(matches!(sender.wait_for_room(Some(most + 1), None), Err(WaitError::TooLarge)));
    for number in 0..10 {
        let block = bytes(number, most);
        sender.send(&line(number), Some(&block)).unwrap();
        assert_eq!(sender.send(&line(9), Some(&[])), Err(SendError::Full));
        expect(&mut receiver, number, Some(&block));
        // Another phase of the area each time.
        sender.send(&line(number), Some(&[1])).unwrap();
        expect(&mut receiver, number, Some(&[1]));
    }
}

#[test]
fn a_channel_without_blocks_takes_lines_alone() {
    let (mut sender, mut receiver) = pair(Config { lines: 4, block_bytes: 0 });
    assert_eq!(sender.send(&line(0), Some(&[])), Err(SendError::TooLarge));
    sender.send(&line(0), None).unwrap();
    expect(&mut receiver, 0, None);
    // What such a channel cannot hold is not looked for.
    sender.send(&line(1), None).unwrap();
    let word = &lane(&sender).slot(1).0[0];
    word.fetch_or(send::HAS_BLOCK, Ordering::Relaxed);
    assert_eq!(receiver.receive().unwrap_err(), Corrupt);
}

#[test]
fn parts_are_gathered_and_read_in_place() {
    let (mut sender, mut receiver) = pair(SMALL);
    let whole = bytes(3, 100);
    for cut in 0..=100 {
        sender.send_parts(&line(1), &[&whole[..cut], &[], &whole[cut..]]).unwrap();
        let message = receiver.receive().unwrap().unwrap();
        let block = message.block.unwrap();
        assert_eq!((block.len(), block.is_empty()), (100, false));
        let mut part = vec![0; 100 - cut];
        assert!(block.read_at(cut, &mut part));
        assert_eq!(part, whole[cut..]);
        assert!(!block.read_at(cut + 1, &mut part) && !block.read_at(usize::MAX, &mut part));
        assert!(block.read_at(100, &mut []));
    }
    sender.send_parts(&line(1), &[]).unwrap();
    assert!(receiver.receive().unwrap().unwrap().block.unwrap().is_empty());
}

#[test]
fn a_block_is_written_where_it_is_read_and_no_further() {
    let (mut sender, mut receiver) = pair(SMALL);
    let whole = bytes(3, 100);
    // What a fill leaves out is zeros; what it has too much goes nowhere.
    for (written, there) in [(100, 100), (120, 100), (0, 0), (37, 37)] {
        let fill =
            |block: &mut LoanedBlock<'_>| whole.iter().cycle().take(written).for_each(|b| block.write(&[*b]));
        sender.send_with(&line(1), 100, fill).unwrap();
        sender.send(&line(2), Some(&[9; 20])).unwrap();
        {
            let message = receiver.receive().unwrap().unwrap();
            let block = message.block.unwrap();
            let mut read = vec![1; 100];
            assert!(block.len() == 100 && block.read_at(0, &mut read));
            assert_eq!(read, [&whole[..there], &vec![0; 100 - there]].concat(), "{written} bytes");
        }
        expect(&mut receiver, 2, Some(&[9; 20]));
    }
    let never = |_: &mut LoanedBlock<'_>| panic!("there is no room to fill");
    assert_eq!(sender.send_with(&line(1), 1 << 20, never), Err(SendError::TooLarge));
}

#[test]
fn a_written_block_is_there_once_it_is_sent_and_takes_nothing_if_it_is_not() {
    let (mut sender, mut receiver) = pair(SMALL);
    let most = 256 - Config::BLOCK_OVERHEAD;
    for number in 0..10 {
        let (block, other) = (bytes(number, most), bytes(number + 1, 50));
        // This one is never sent.
        sender.write_block(most, |room| room.write(&other)).unwrap();
        assert!(receiver.receive().unwrap().is_none());
        let written = sender.write_block(most, |room| room.write(&block)).unwrap();
        assert!(receiver.receive().unwrap().is_none());
        written.send(&line(number)).unwrap();
        let never = |_: &mut LoanedBlock<'_>| panic!("there is no room to fill");
        assert!(matches!(sender.write_block(1, never), Err(SendError::Full)));
        assert!(matches!(sender.write_block(most + 1, never), Err(SendError::TooLarge)));
        expect(&mut receiver, number, Some(&block));
        // Another phase of the area each time.
        sender.write_block(0, |_| {}).unwrap().send(&line(number)).unwrap();
        expect(&mut receiver, number, Some(&[]));
    }
}

#[test]
fn a_block_keeps_its_room_until_it_is_dropped() {
    let (mut sender, mut receiver) = pair(SMALL);
    sender.send(&line(0), Some(&[1; 150])).unwrap();
    let message = receiver.receive().unwrap().unwrap();
    assert_eq!(sender.send(&line(1), Some(&[2; 150])), Err(SendError::Full));
    drop(message);
    sender.send(&line(1), Some(&[2; 150])).unwrap();
    // One that is forgotten keeps it until the next message is asked for.
    std::mem::forget(receiver.receive().unwrap());
    assert_eq!(sender.send(&line(2), Some(&[3; 150])), Err(SendError::Full));
    assert!(receiver.receive().unwrap().is_none());
    sender.send(&line(2), Some(&[3; 150])).unwrap();
    expect(&mut receiver, 2, Some(&[3; 150]));
}

#[test]
fn impossible_configurations_are_refused() {
    for (lines, block_bytes) in [(0, 0), (2, 0), (3, 0), (8_192, 0), (64, 63), (64, (64 << 20) + 64)] {
        let refused = Channel::create(Config { lines, block_bytes }).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
    let largest = Config { lines: Config::LINES_MAX, block_bytes: Config::BLOCK_BYTES_MAX };
    let (mut sender, mut receiver) = pair(largest);
    sender.send(&line(1), Some(&[5; 100])).unwrap();
    expect(&mut receiver, 1, Some(&[5; 100]));
}

fn lane(sender: &Sender) -> Lane<'_> {
    sender.end.region.lane(sender.end.region.place(sender.end.outgoing))
}

#[test]
fn an_impossible_sequence_number_is_an_error_for_good() {
    // Position 0 of four lines: 1 is full, and what the last round would have left is empty.
    let empty = 1_u64.wrapping_sub(4) as u32 & POSITION_MASK;
    for number in [0, 2, 5, empty - 1, empty + 1, POSITION_MASK] {
        let (mut sender, mut receiver) = pair(SMALL);
        sender.send(&line(0), None).unwrap();
        lane(&sender).slot(0).0[0].store(u64::from(number), Ordering::Relaxed);
        assert_eq!(receiver.receive().unwrap_err(), Corrupt, "{number}");
        lane(&sender).slot(0).0[0].store(1, Ordering::Relaxed);
        assert_eq!(receiver.receive().unwrap_err(), Corrupt);
        assert_eq!(receiver.doze().unwrap_err(), Corrupt);
        assert!(matches!(receiver.wait(&mut Spin::new(), None), Err(WaitError::Corrupt(_))));
    }
}

#[test]
fn impossible_positions_are_errors() {
    type Scribble = fn(&Sender, u64);
    let lines: Scribble = |sender, value| lane(sender).line_position().store(value, Ordering::Relaxed);
    let blocks: Scribble = |sender, value| lane(sender).block_position().store(value, Ordering::Relaxed);
    let set = [
        (lines, &[5, 100, u64::from(POSITION_MASK), u64::from(POSITION_MASK) + 1, u64::MAX]),
        (blocks, &[1, 63, 320, 1 << 40, u64::MAX]),
    ];
    for (scribble, values) in set {
        for value in values {
            let (mut sender, _receiver) = pair(SMALL);
            for number in 0..4 {
                sender.send(&line(number), Some(&[1; 56])).unwrap();
            }
            scribble(&sender, *value);
            assert_eq!(sender.send(&line(4), None), Err(SendError::Corrupt(Corrupt)), "{value}");
            scribble(&sender, 0);
            assert_eq!(sender.has_room(None), Err(Corrupt));
            assert!(matches!(sender.wait_for_room(None, None), Err(WaitError::Corrupt(_))));
        }
    }
}

#[test]
fn impossible_flags_are_errors() {
    for value in [2, 3, u64::MAX] {
        let (mut sender, mut receiver) = pair(SMALL);
        lane(&sender).asleep().store(value, Ordering::Relaxed);
        assert_eq!(sender.send(&line(0), None), Err(SendError::Corrupt(Corrupt)));
        lane(&sender).starved().store(value, Ordering::Relaxed);
        lane(&sender).asleep().store(0, Ordering::Relaxed);
        assert!(receiver.receive().is_ok());
        let (mut sender, mut receiver) = pair(SMALL);
        lane(&sender).starved().store(value, Ordering::Relaxed);
        sender.send(&line(0), Some(&[1])).unwrap();
        expect(&mut receiver, 0, Some(&[1]));
        assert_eq!(receiver.receive().unwrap_err(), Corrupt);
    }
}

#[test]
fn an_impossible_length_is_an_error() {
    for bytes in [249, 256, 1 << 40, u64::MAX - 8, u64::MAX] {
        let (mut sender, mut receiver) = pair(SMALL);
        sender.send(&line(0), Some(&[1; 100])).unwrap();
        lane(&sender).words(0, 8)[0][0].store(bytes, Ordering::Relaxed);
        assert_eq!(receiver.receive().unwrap_err(), Corrupt, "{bytes}");
    }
    // One that is possible is believed once, and the block stays what it was then.
    let (mut sender, mut receiver) = pair(SMALL);
    sender.send(&line(0), Some(&[1; 100])).unwrap();
    let message = receiver.receive().unwrap().unwrap();
    lane(&sender).words(0, 8)[0][0].store(u64::MAX, Ordering::Relaxed);
    let mut copy = Vec::new();
    message.block.as_ref().unwrap().copy_to(&mut copy);
    assert_eq!(copy, [1; 100]);
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let ((mut sender, mut idle), (_, _receiver)) = pair_at(SMALL, 0);
    let wait = Duration::from_millis(30);
    for budget in [0, 1_000, 1 << 40] {
        let begin = Instant::now();
        let waited = idle.wait(&mut Spin::with_budget(budget), Some(begin + wait)).unwrap();
        assert_eq!(waited, Waited::TimedOut);
        assert!(begin.elapsed() >= wait);
    }
    (0..4).for_each(|number| sender.send(&line(number), None).unwrap());
    let begin = Instant::now();
    assert_eq!(sender.wait_for_room(None, Some(begin + wait)).unwrap(), Waited::TimedOut);
    assert!(begin.elapsed() >= wait);
}

#[test]
fn rings_that_mean_nothing_do_not_lengthen_a_wait() {
    let ((_, mut idle), (other, _)) = pair_at(SMALL, 0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                other.end.ring();
            }
        });
        let deadline = Some(Instant::now() + Duration::from_millis(50));
        assert_eq!(idle.wait(&mut Spin::with_budget(0), deadline).unwrap(), Waited::TimedOut);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_end_of_the_peer_is_told_after_its_last_message() {
    let (socket, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (mut here, descriptors) = Channel::create(SMALL).unwrap();
    here.watch_peer(&socket).unwrap();
    let (mut ask, mut answered) = here.split();
    let (mut answer, asked) = Channel::open(descriptors).unwrap().split();
    answer.send(&line(1), None).unwrap();
    drop((answer, asked, theirs));
    let mut spin = Spin::with_budget(0);
    assert_eq!(answered.wait(&mut spin, None).unwrap(), Waited::Ready);
    expect(&mut answered, 1, None);
    assert_eq!(answered.wait(&mut spin, None).unwrap(), Waited::PeerGone);
    (0..4).for_each(|number| ask.send(&line(number), None).unwrap());
    assert_eq!(ask.wait_for_room(None, None).unwrap(), Waited::PeerGone);
}

/// One thread sends random messages, the other checks them; the rings are small, so that both wait for each
/// other.
fn exchange(config: Config, messages: u64, budget_ns: u64) {
    let (mut sender, mut receiver) = pair(config);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut random = Random::new(7);
            for number in 0..messages {
                let count = random.below(config.block_bytes as u64 / 2) as usize;
                let block = (random.below(3) > 0).then(|| bytes(number, count));
                loop {
                    match sender.send(&line(number), block.as_deref()) {
                        Ok(()) => break,
                        Err(SendError::Full) => {
                            let room = block.as_ref().map(Vec::len);
                            assert_eq!(sender.wait_for_room(room, patience()).unwrap(), Waited::Ready);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        let mut random = Random::new(7);
        let mut spin = Spin::with_budget(budget_ns);
        for number in 0..messages {
            let count = random.below(config.block_bytes as u64 / 2) as usize;
            let block = (random.below(3) > 0).then(|| bytes(number, count));
            assert_eq!(receiver.wait(&mut spin, patience()).unwrap(), Waited::Ready);
            expect(&mut receiver, number, block.as_deref());
        }
    });
}

#[test]
fn two_threads_exchange_random_messages() {
    exchange(SMALL, 20_000, 0);
    exchange(Config { lines: 16, block_bytes: 2_048 }, 100_000, Spin::DEFAULT_NS);
}

/// Sends and receives until something is wrong or the time is up; never panics and never stays.
fn suffer((mut sender, mut receiver): Halves, until: Instant) -> u32 {
    let (mut errors, mut spin) = (0, Spin::with_budget(1_000));
    let mut copy = Vec::new();
    let mut random = Random::new(3);
    while Instant::now() < until && errors < 2 {
        errors = 0;
        let block = vec![1; random.below(300) as usize];
        let soon = Some(Instant::now() + Duration::from_millis(1));
        match sender.send(&[2; LINE_BYTES], Some(&block)) {
            Ok(()) | Err(SendError::TooLarge) => {}
            Err(SendError::Full) => {
                errors += u32::from(sender.wait_for_room(Some(10), soon).is_err());
            }
            Err(SendError::Corrupt(_)) => errors += 1,
        }
        match receiver.wait(&mut spin, soon) {
            Ok(Waited::Ready) => match receiver.receive() {
                Ok(Some(Message { block: Some(block), .. })) => {
                    copy.clear();
                    block.copy_to(&mut copy);
                    assert_eq!(copy.len(), block.len());
                }
                Ok(_) => {}
                Err(Corrupt) => errors += 1,
            },
            Ok(_) => {}
            Err(_) => errors += 1,
        }
    }
    errors
}

#[test]
fn a_peer_that_scribbles_everywhere_does_no_harm() {
    let mut random = Random::new(11);
    let mut corrupt = 0;
    for round in 0..60 {
        let config = Config { lines: 4 << (round % 3), block_bytes: 64 * (round % 6) };
        let (here, there) = pair_at(config, 0);
        let scribbler = Arc::clone(&here.0.end);
        let until = Instant::now() + Duration::from_millis(25);
        let seed = random.below(u64::MAX);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while Instant::now() < until {
                    scribbler.region.scribble(&mut random);
                    // Some rounds leave time for messages between.
                    (0..random.below(1 << (round % 12))).for_each(|_| std::hint::spin_loop());
                }
            });
            let ends = [scope.spawn(move || suffer(here, until)), scope.spawn(move || suffer(there, until))];
            corrupt += ends.into_iter().map(|end| end.join().unwrap()).sum::<u32>();
        });
        assert!(until.elapsed() < PATIENCE);
    }
    assert!(corrupt > 0, "nothing was noticed");
}
