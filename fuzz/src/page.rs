//! Pages as a disk or a peer gives them.

use arbitrary::{Arbitrary, Unstructured};
use tercel_wire::id::{PageId, SpaceId};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, Page, PageBuilder};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    id: u8,
    slots: u16,
    end: u16,
    birth: u64,
    /// Header, then objects; the slot table is filled from its end.
    table: [(u16, u16); 12],
    bytes: &'a [u8],
}

/// Parses the bytes as a page, and rebuilds a page that passes the check.
pub fn run(data: &[u8]) {
    for id in [1, 9] {
        let _ = Page::parse(data, PageId::new(id).expect("a page"));
    }
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let Some(id) = PageId::new(u32::from(input.id)) else { return };
    let mut bytes = vec![0; PAGE_BYTES];
    let n = input.bytes.len().min(PAGE_BYTES - PAGE_HEADER_BYTES);
    bytes[PAGE_HEADER_BYTES..][..n].copy_from_slice(&input.bytes[..n]);
    bytes[..2].copy_from_slice(b"TP");
    bytes[2..4].copy_from_slice(&2u16.to_le_bytes());
    bytes[4..8].copy_from_slice(&id.get().to_le_bytes());
    bytes[24..26].copy_from_slice(&(input.slots % 520).to_le_bytes());
    bytes[26..28].copy_from_slice(&input.end.to_le_bytes());
    bytes[32..40].copy_from_slice(&input.birth.to_le_bytes());
    for (i, (at, len)) in input.table.into_iter().enumerate() {
        let entry = PAGE_BYTES - 4 * (i + 1);
        bytes[entry..entry + 2].copy_from_slice(&at.to_le_bytes());
        bytes[entry + 2..entry + 4].copy_from_slice(&len.to_le_bytes());
    }
    let sum = {
        let mut h = crc32fast::Hasher::new();
        h.update(&bytes[..12]);
        h.update(&bytes[16..]);
        h.finalize()
    };
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    let Ok(page) = Page::parse(&bytes, id) else { return };

    let objects: Vec<(u16, &[u8])> = page.objects().collect();
    let room: usize = objects.iter().map(|(_, o)| o.len()).sum();
    // The parser lets objects overlap: only their user can tell. Then they need not fit a page of their own.
    if room + PAGE_HEADER_BYTES + 4 * usize::from(page.slots()) > PAGE_BYTES {
        return;
    }
    assert_eq!(page.free(), PAGE_BYTES - PAGE_HEADER_BYTES - room - 4 * usize::from(page.slots()));
    let mut builder = PageBuilder::new(Vec::new(), id, SpaceId(0)).born(page.birth());
    for (slot, object) in &objects {
        assert!(builder.push(*slot, object), "an object that was in a page fits into one");
    }
    builder.reserve_slots(page.slots());
    let made = builder.finish(page.stamp());
    let again = Page::parse(&made, id).expect("a page that was just made");
    assert_eq!(again.objects().collect::<Vec<_>>(), objects);
    assert_eq!((again.slots(), again.free(), again.birth()), (page.slots(), page.free(), page.birth()));
}
