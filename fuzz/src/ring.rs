//! Packets between the members of a ring.

use tercel_machine::time::Now;
use tercel_ring::members::Place;
use tercel_ring::packet::{VERSION, decode};
use tercel_ring::{Config, Input, Level, Ring};

const GROUP: u64 = 7;

/// Hands pieces of the bytes to a member, as packets with a right head, amid messages and time. What can be
/// read is written back as it was.
pub fn run(data: &[u8]) {
    let mut out = Vec::new();
    let mut ring = Ring::new(Config::new(Place(1), 3, GROUP, 640), 0, Now(1), &mut out);
    let (mut now, mut rest) = (1, data);
    while let [from, kind, steps, length, after @ ..] = rest {
        let (body, left) = after.split_at(usize::from(*length).min(after.len()));
        rest = left;
        let mut packet = vec![VERSION, kind % 8];
        packet.extend(GROUP.to_le_bytes());
        packet.push(from % 4);
        packet.extend(body);
        if let Ok((head, read)) = decode(&packet, GROUP, 3) {
            assert_eq!(read.encode(head), packet, "it is not written as it was read");
        }
        now += u64::from(*steps) * 1_000;
        ring.handle(Now(now), Input::Packet(Place(from % 3), &packet), &mut out);
        if from & 16 != 0 && ring.has_room(body.len()) {
            ring.handle(Now(now), Input::Submit(Level::Safe, body.to_vec()), &mut out);
        }
        if from & 32 != 0 {
            ring.handle(Now(now), Input::Gone(Place(kind % 3)), &mut out);
        }
        ring.handle(Now(now), Input::Drained, &mut out);
        out.clear();
    }
}
