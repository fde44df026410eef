//! Bytes between the members of a group, and of a member's file of votes.

use tercel_engine::order::quorum::members::Members;
use tercel_engine::order::quorum::packet::Packet;
use tercel_engine::order::quorum::remembered::{Remembered, SLOT_BYTES};
use tercel_wire::cursor::Reader;
use tercel_wire::id::ViewId;

/// Reads the bytes as a packet, as a list of members and as a file of votes; what can be read says the same
/// when it is written and read again.
pub fn run(data: &[u8]) {
    if let Ok(packet) = Packet::decode(data) {
        assert_eq!(Packet::decode(&packet.encode()), Ok(packet), "it is not read as it was written");
    }
    if let Ok(members) = Members::decode(&mut Reader::new(data)) {
        let mut out = Vec::new();
        members.encode(&mut out);
        assert_eq!(Members::decode(&mut Reader::new(&out)), Ok(members));
    }
    let _ = Remembered::read(data, ViewId::NONE);
    votes(data);
}

/// Makes a file of votes whose copies have right checksums, and begin with pieces of the bytes.
fn votes(data: &[u8]) {
    let mut file = vec![0; 2 * SLOT_BYTES];
    let pieces = data.chunks(data.len().div_ceil(4).max(1));
    for (copy, piece) in file.chunks_exact_mut(SLOT_BYTES / 2).zip(pieces) {
        let (body, sum) = copy.split_at_mut(SLOT_BYTES / 2 - 4);
        let n = piece.len().min(body.len() - 16);
        body[16..16 + n].copy_from_slice(&piece[..n]);
        body[..8].copy_from_slice(b"tercelmb");
        body[8] = 2;
        sum.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    }
    let Ok(found) = Remembered::read(&file, ViewId::NONE) else { return };
    for (at, copy) in found.copies() {
        file[at as usize..at as usize + copy.len()].copy_from_slice(&copy);
    }
    let again = Remembered::read(&file, ViewId::NONE);
    assert_eq!(again, Ok(found), "the newest slot is read as it was written");
}
