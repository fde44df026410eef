//! Looking into a page store's file without opening it: for files that may be damaged, and without writing to them.
//!
//! redb verifies its checksums only when asked to, refuses the whole file if one is wrong, and does not say which. Here
//! its trees are walked by hand (file format 3, as its `docs/design.md` describes): every node is checked against the
//! checksum that its parent keeps, every length before it is used, and what is wrong is named with its place in the
//! file. A node with one wrong byte is read as if it were put right where that can be found out: the checksums have 128
//! bits, so a correction that fits is the right one. What no tree leads to any more is looked for by its own marks: pages
//! carry number and checksum, named values a second copy that does.
//!
//! The invariant: bytes shown as sound are those that were committed.

use crate::disk::DiskError;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tercel_wire::cursor::{le16, le32, le64};
use tercel_wire::id::{PageId, Stamp};
use tercel_wire::mend::ByteError;
use tercel_wire::page::{PAGE_BYTES as PAGE, PAGE_MARK, Page, byte_errors};
use twox_hash::XxHash3_128;

/// A page store's file, open for reading.
#[derive(Debug)]
pub(crate) struct Raw {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Nodes that were tried to be put right by trying bytes.
    tried: usize,
    /// Nodes that were read.
    visited: u64,
}

/// What a walk comes by.
pub(crate) enum Seen<'a> {
    /// A page, at its place in the file.
    Page { key: u32, at: u64, bytes: &'a [u8], state: Soundness },
    /// An entry of another table.
    Named { table: &'a str, key: &'a [u8], value: &'a [u8], state: Soundness },
    /// A node of the pages' table that cannot be read. The pages below it are above `low`, and the last of them is
    /// `high`; `None` at the table's end. A leaf, which has [`LEAF_BYTES`], has one page.
    Missing { at: u64, bytes: u64, low: u32, high: Option<u32> },
    /// How many pages the table of pages says that it has.
    Count { pages: u64 },
    /// Something is wrong with what holds the file together.
    Flaw { at: u64, what: String, state: Soundness },
}

/// How far bytes can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Soundness {
    /// As they were committed.
    Sound,
    /// One byte was wrong and is put right: offset in the file, and what to exclusive-or it with.
    Mended { at: u64, xor: u8 },
    /// They are not what was committed.
    Bad,
}

/// What a search through the whole file comes by, current or long replaced.
pub(crate) enum Stray<'a> {
    /// A page whose checksum is right.
    Page { id: PageId, stamp: Stamp, at: u64 },
    /// What would be a page, did its checksum fit.
    Broken { id: PageId, stamp: Stamp },
    /// The copy of a named value, as [`framed`] makes it.
    Value { key: &'a str, stamp: Stamp, value: &'a [u8] },
}

type Each<'a> = &'a mut dyn FnMut(Seen<'_>);

/// A pointer to a node: where it is, and the checksum that it must have.
#[derive(Debug, Clone, Copy)]
struct Child {
    at: u64,
    bytes: u64,
    sum: u128,
}

/// Widths of a table's keys and values, where they are fixed.
#[derive(Debug, Clone, Copy)]
struct Widths {
    key: Option<usize>,
    value: Option<usize>,
}

impl Widths {
    fn is_of_pages(self) -> bool {
        self.key == Some(4) && self.value.is_none()
    }
}

impl Raw {
    pub(crate) fn open(path: &Path) -> Result<Raw, DiskError> {
        let file = File::open(path).map_err(DiskError::io("open", path))?;
        let bytes = file.metadata().map_err(DiskError::io("inspect", path))?.len();
        Ok(Raw { file, path: path.into(), bytes, tried: 0, visited: 0 })
    }

    /// Reads `bytes` bytes; as many as there are.
    pub(crate) fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>, DiskError> {
        let mut out = vec![0; bytes.min(self.bytes.saturating_sub(at)) as usize];
        self.file.read_exact_at(&mut out, at).map_err(DiskError::io("read", &self.path))?;
        Ok(out)
    }

    /// Walks the newest commit and shows everything in it, pages in the order of their keys.
    pub(crate) fn walk(&mut self, each: Each<'_>) -> Result<(), DiskError> {
        let head = self.read(0, HEAD_BYTES as u64)?;
        if head.len() < HEAD_BYTES {
            each(flaw(0, "the file ends within its header".into()));
            return Ok(());
        }
        let Some(slot) = self.head(head, each) else { return Ok(()) };
        let (data, system) = (root(&slot, DATA_ROOT_AT, 1), root(&slot, SYSTEM_ROOT_AT, 2));
        if let Some(data) = self.child(data, each) {
            self.tables(data, true, each)?;
        }
        if let Some(system) = self.child(system, each) {
            self.tables(system, false, each)?;
        }
        Ok(())
    }

    /// Checks the file's header; gives the commit that it names, if it can be believed.
    fn head(&self, mut head: Vec<u8>, each: Each<'_>) -> Option<Vec<u8>> {
        // These never change, and no checksum covers them.
        let fixed = [(0, &MAGIC[..]), (PAGE_SIZE_AT, &NODE_BYTES.to_le_bytes()[..4])];
        for (at, right) in fixed {
            let found = &mut head[at..at + right.len()];
            if let Some(i) = (0..right.len()).find(|i| found[*i] != right[*i]) {
                let what = "the header does not say that this is a file of redb".into();
                let state = Soundness::Mended { at: (at + i) as u64, xor: found[i] ^ right[i] };
                each(Seen::Flaw { at: (at + i) as u64, what, state });
                found.copy_from_slice(right);
            }
        }
        if head[GOD_AT] & !GOD_BITS != 0 {
            let what = "the header has unknown flags".into();
            each(Seen::Flaw { at: GOD_AT as u64, what, state: Soundness::Sound });
        }
        self.layout(&head, each);
        let primary = (head[GOD_AT] & 1) as usize;
        let mut slots = [0, 1].map(|i| head[SLOT_AT + i * SLOT_BYTES..][..SLOT_BYTES].to_vec());
        let ok = slots.each_mut().map(|slot| self.slot(slot));
        let id = |i: usize| le64(&slots[i], SLOT_ID_AT);
        let clean = head[GOD_AT] & UNCLEAN == 0;
        if clean && ok[0] != Soundness::Bad && ok[1] != Soundness::Bad && id(1 - primary) > id(primary) {
            let what = "the header points to the older of its two commits".into();
            let state = Soundness::Mended { at: GOD_AT as u64, xor: 1 };
            each(Seen::Flaw { at: GOD_AT as u64, what, state });
            return Some(slots[1 - primary].clone());
        }
        let at = (SLOT_AT + primary * SLOT_BYTES) as u64;
        match ok[primary] {
            Soundness::Sound => Some(slots[primary].clone()),
            Soundness::Mended { at: inner, xor } => {
                let what = "the newest commit's entry in the header has a wrong checksum".into();
                each(Seen::Flaw { at, what, state: Soundness::Mended { at: at + inner, xor } });
                Some(slots[primary].clone())
            }
            Soundness::Bad => {
                each(flaw(at, "the newest commit's entry in the header has a wrong checksum".into()));
                None
            }
        }
    }

    /// Checks the sizes in the header, none of which reading needs: a store made anew has its own.
    fn layout(&self, head: &[u8], each: Each<'_>) {
        let [header, max, full, rest] = [16, 20, 24, 28].map(|at| le32(head, at) as u64);
        let region = (header + max) * NODE_BYTES;
        let partial = if rest > 0 { (header + rest) * NODE_BYTES } else { 0 };
        let said = full.saturating_mul(region).saturating_add(partial).saturating_add(NODE_BYTES);
        let wrong = header != REGION_HEADER_PAGES || max != REGION_PAGES || rest > max;
        if wrong || (said != self.bytes && head[GOD_AT] & UNCLEAN == 0) {
            let what = "the sizes in the header are not those of the file".into();
            each(Seen::Flaw { at: 16, what, state: Soundness::Sound });
        }
    }

    /// Checks a commit's entry, and puts one wrong byte right.
    fn slot(&self, slot: &mut [u8]) -> Soundness {
        let fits = |slot: &[u8]| {
            slot[0] == FILE_FORMAT && sum_at(slot, SLOT_SUM_AT) == XxHash3_128::oneshot(&slot[..SLOT_SUM_AT])
        };
        if fits(slot) {
            return Soundness::Sound;
        }
        let found = try_bytes(slot, 0..SLOT_BYTES, &fits);
        found.map_or(Soundness::Bad, |e| Soundness::Mended { at: e.at as u64, xor: e.xor })
    }

    /// Walks a tree of tables: each entry of its leaves is a table with a tree of its own.
    fn tables(&mut self, root: Child, is_data: bool, each: Each<'_>) -> Result<(), DiskError> {
        let mut found: Vec<(String, Vec<u8>)> = Vec::new();
        let widths = Widths { key: None, value: None };
        self.tree(root, widths, NodePosition::default(), &mut |entry| match entry {
            Entry::Pair { key, value, state, .. } if state != Soundness::Bad => {
                found.push((String::from_utf8_lossy(key).into_owned(), value.to_vec()));
            }
            Entry::Pair { .. } | Entry::Missing { .. } => {}
            Entry::Flaw { at, what, state } => each(Seen::Flaw { at, what, state }),
        })?;
        for (name, table) in found {
            if table.len() < TABLE_BYTES || table[0] != TABLE_NORMAL {
                continue;
            }
            let width = |at: usize| (table[at] != 0).then(|| le32(&table, at + 1) as usize);
            let widths = Widths { key: width(TABLE_KEY_AT), value: width(TABLE_KEY_AT + 5) };
            let is_pages = name == super::redb::PAGES_NAME;
            if is_data && is_pages {
                each(Seen::Count { pages: le64(&table, TABLE_LENGTH_AT) });
            }
            let Some(root) = self.child(root_of_table(&table), each) else { continue };
            self.tree(root, widths, NodePosition::default(), &mut |entry| match entry {
                Entry::Missing { at, bytes, position } if is_data && is_pages => {
                    each(Seen::Missing { at, bytes, low: position.low, high: position.high });
                }
                Entry::Missing { .. } => {}
                Entry::Flaw { at, what, state } => each(Seen::Flaw { at, what, state }),
                Entry::Pair { key, value, at, state } if is_data => match <[u8; 4]>::try_from(key) {
                    Ok(key) if is_pages => {
                        each(Seen::Page { key: u32::from_le_bytes(key), at, bytes: value, state });
                    }
                    _ => each(Seen::Named { table: &name, key, value, state }),
                },
                Entry::Pair { .. } => {}
            })?;
        }
        Ok(())
    }

    fn tree(
        &mut self,
        child: Child,
        widths: Widths,
        position: NodePosition,
        each: &mut dyn FnMut(Entry<'_>),
    ) -> Result<(), DiskError> {
        // No tree has more nodes than the file has room for.
        self.visited += 1;
        if self.visited > self.bytes / NODE_BYTES + 1 {
            each(Entry::Flaw { at: child.at, what: "the trees are tangled".into(), state: Soundness::Bad });
            return Ok(());
        }
        let mut node = self.read(child.at, child.bytes)?;
        let state = self.verify(&mut node, &child, widths);
        let kind = node.first().copied();
        let tells_itself = match state {
            Soundness::Sound | Soundness::Mended { .. } => is_of_pages(&node, widths),
            // A node that is wrong in unknown ways is believed only if it is a page with the number that led here.
            Soundness::Bad => {
                is_of_pages(&node, widths)
                    && Leaf::of(&node, widths)
                        .is_some_and(|leaf| leaf.pairs == 1 && position.expects(&leaf, &node))
            }
        };
        if state != Soundness::Sound && !tells_itself {
            let what = match kind {
                Some(BRANCH) => "a node of the tree has a wrong checksum".into(),
                _ => "a leaf of the tree has a wrong checksum".into(),
            };
            each(Entry::Flaw { at: child.at, what, state });
            if state == Soundness::Bad {
                each(Entry::Missing { at: child.at, bytes: child.bytes, position });
            }
        }
        match kind {
            Some(LEAF) if state != Soundness::Bad || tells_itself => {
                let Some(leaf) = Leaf::of(&node, widths) else { return Ok(()) };
                for i in 0..leaf.pairs {
                    let Some((key, value, at)) = leaf.pair(&node, i) else { break };
                    each(Entry::Pair { key, value, at: child.at + at as u64, state });
                }
            }
            Some(BRANCH) if state != Soundness::Bad && position.depth < DEPTH_MAX => {
                let children = le16(&node, 2) as usize + 1;
                for i in 0..children {
                    let sum = 8 + i * 16;
                    let pointer = 8 + children * 16 + i * 8;
                    let Some(raw) = node.get(pointer..pointer + 8) else { break };
                    // A separator is the greatest key to its left.
                    let separator = |i: usize| {
                        let at = 8 + children * 24 + i * 4;
                        node.get(at..at + 4).filter(|_| widths.key == Some(4)).map(|key| le32(key, 0))
                    };
                    let low = if i == 0 { position.low } else { separator(i - 1).unwrap_or(position.low) };
                    let high = if i + 1 < children { separator(i) } else { position.high };
                    let position = NodePosition { depth: position.depth + 1, low, high };
                    let (at, bytes) = pointer_to(le64(raw, 0));
                    if at + bytes > self.bytes {
                        let what = "a node points outside".into();
                        each(Entry::Flaw { at: child.at, what, state: Soundness::Bad });
                        each(Entry::Missing { at, bytes, position });
                        continue;
                    }
                    let child = Child { at, bytes, sum: sum_at(&node, sum) };
                    self.tree(child, widths, position, each)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares a node with its checksum, and puts one wrong byte right if that makes them agree.
    fn verify(&mut self, node: &mut [u8], child: &Child, widths: Widths) -> Soundness {
        let fits = |node: &[u8]| {
            end_of(node, widths)
                .and_then(|end| node.get(..end))
                .is_some_and(|n| XxHash3_128::oneshot(n) == child.sum)
        };
        if fits(node) {
            return Soundness::Sound;
        }
        if widths.is_of_pages()
            && let Some(state) = mend_page(node, child)
        {
            return state;
        }
        if self.tried >= TRIED_MAX {
            return Soundness::Bad;
        }
        self.tried += 1;
        let end = if node.len() as u64 <= NODE_BYTES { node.len() } else { TRIED_HEAD_BYTES };
        let end = end.min(end_of(node, widths).unwrap_or(end).max(TRIED_HEAD_BYTES)).min(node.len());
        let found = try_bytes(node, 0..end, &fits);
        found.map_or(Soundness::Bad, |e| Soundness::Mended { at: child.at + e.at as u64, xor: e.xor })
    }

    /// The node that a root points to, if it lies in the file.
    fn child(&self, root: Option<(u64, u128)>, each: Each<'_>) -> Option<Child> {
        let (pointer, sum) = root?;
        let (at, bytes) = pointer_to(pointer);
        if at + bytes > self.bytes {
            each(flaw(0, format!("the root of a tree is at byte {at}, outside of the file")));
            return None;
        }
        Some(Child { at, bytes, sum })
    }

    /// Looks through the whole file for pages, and for copies of the values of these names, whether or not anything leads
    /// to them.
    pub(crate) fn strays(&self, names: &[&str], each: &mut dyn FnMut(Stray<'_>)) -> Result<(), DiskError> {
        let (mut at, mut looked_at) = (0, 0);
        while at < self.bytes {
            let window = self.read(at, STRAY_WINDOW_BYTES)?;
            for i in 0..window.len().min(STRAY_STEP_BYTES as usize) {
                let rest = &window[i..];
                let may_be_page = (at + i as u64) % NODE_BYTES == LEAF_HEAD_BYTES as u64;
                if may_be_page && rest.starts_with(&PAGE_MARK) && rest.len() >= PAGE {
                    let Some(id) = PageId::new(le32(rest, 4)) else { continue };
                    each(match Page::parse(&rest[..PAGE], id) {
                        Ok(page) => Stray::Page { id, stamp: page.stamp(), at: at + i as u64 },
                        Err(_) => Stray::Broken { id, stamp: Stamp(le64(rest, 16)) },
                    });
                } else if rest.starts_with(&COPY_MAGIC) && rest.len() >= COPY_HEAD_BYTES {
                    // They do not lie one in the other, and so have no more bytes than the file; more than that look so.
                    let whole = copy_bytes(rest);
                    let is_named =
                        names.iter().any(|key| rest[COPY_HEAD_BYTES..].starts_with(key.as_bytes()));
                    if !is_named || whole > COPY_BYTES_MAX || looked_at > COPIES_MAX * self.bytes {
                        continue;
                    }
                    looked_at += whole as u64;
                    let copy = self.read(at + i as u64, whole as u64)?;
                    if let Some((key, stamp, value)) = unframed(&copy) {
                        each(Stray::Value { key, stamp, value });
                    }
                }
            }
            at += STRAY_STEP_BYTES;
        }
        Ok(())
    }
}

fn flaw(at: u64, what: String) -> Seen<'static> {
    Seen::Flaw { at, what, state: Soundness::Bad }
}

/// Where in a tree a node is, and between which keys, if the keys are numbers.
#[derive(Debug, Clone, Copy, Default)]
struct NodePosition {
    depth: usize,
    low: u32,
    high: Option<u32>,
}

impl NodePosition {
    /// Whether a leaf's first key is the only one that a leaf of one key can have here.
    fn expects(&self, leaf: &Leaf, node: &[u8]) -> bool {
        let key = leaf.pair(node, 0).and_then(|(key, ..)| key.try_into().ok()).map(u32::from_le_bytes);
        key.is_some_and(|key| self.high.map_or(key > self.low, |high| key == high))
    }
}

/// What a walk through one tree comes by.
enum Entry<'a> {
    Missing { at: u64, bytes: u64, position: NodePosition },
    Pair { key: &'a [u8], value: &'a [u8], at: u64, state: Soundness },
    Flaw { at: u64, what: String, state: Soundness },
}

/// The pairs of a leaf; every offset is checked where it is used.
#[derive(Debug, Clone, Copy)]
struct Leaf {
    pairs: usize,
    widths: Widths,
}

impl Leaf {
    fn of(node: &[u8], widths: Widths) -> Option<Leaf> {
        let pairs = le16(node.get(..4)?, 2) as usize;
        (node[0] == LEAF && pairs > 0).then_some(Leaf { pairs, widths })
    }

    fn ends_bytes(&self, width: Option<usize>) -> usize {
        if width.is_none() { 4 * self.pairs } else { 0 }
    }

    fn keys_at(&self) -> usize {
        4 + self.ends_bytes(self.widths.key) + self.ends_bytes(self.widths.value)
    }

    fn key_end(&self, node: &[u8], i: usize) -> Option<usize> {
        match self.widths.key {
            Some(width) => Some(self.keys_at() + width.checked_mul(i + 1)?),
            None => Some(le32(node.get(4 + 4 * i..8 + 4 * i)?, 0) as usize),
        }
    }

    fn value_end(&self, node: &[u8], i: usize) -> Option<usize> {
        match self.widths.value {
            Some(width) => Some(self.key_end(node, self.pairs - 1)? + width.checked_mul(i + 1)?),
            None => {
                let at = 4 + self.ends_bytes(self.widths.key) + 4 * i;
                Some(le32(node.get(at..at + 4)?, 0) as usize)
            }
        }
    }

    /// Key, value and the value's offset.
    fn pair<'n>(&self, node: &'n [u8], i: usize) -> Option<(&'n [u8], &'n [u8], usize)> {
        let key = if i == 0 { self.keys_at() } else { self.key_end(node, i - 1)? };
        let value = if i == 0 { self.key_end(node, self.pairs - 1)? } else { self.value_end(node, i - 1)? };
        let key = node.get(key..self.key_end(node, i)?)?;
        Some((key, node.get(value..self.value_end(node, i)?)?, value))
    }
}

/// Whether it is a leaf of the table of pages. Such a leaf says itself what is wrong with it.
fn is_of_pages(node: &[u8], widths: Widths) -> bool {
    widths.is_of_pages()
        && Leaf::of(node, widths)
            .and_then(|leaf| leaf.pair(node, 0))
            .is_some_and(|(_, value, _)| value.len() == PAGE)
}

/// Where a node's checksum ends.
fn end_of(node: &[u8], widths: Widths) -> Option<usize> {
    match *node.first()? {
        LEAF => {
            let leaf = Leaf::of(node, widths)?;
            leaf.value_end(node, leaf.pairs - 1)
        }
        BRANCH => {
            let keys = le16(node.get(..4)?, 2) as usize;
            let behind = 8 + (keys + 1) * 24;
            match widths.key {
                Some(width) => Some(behind + width.checked_mul(keys)?),
                None => {
                    let at = behind + 4 * keys.checked_sub(1)?;
                    Some(le32(node.get(at..at + 4)?, 0) as usize)
                }
            }
        }
        _ => None,
    }
}

/// Puts a leaf right of which no more than one byte of its page is wrong, which the page's own checksum names, and
/// anything of what surrounds it: that follows from the page. The checksum of the node proves it.
fn mend_page(node: &mut [u8], child: &Child) -> Option<Soundness> {
    if node.len() as u64 != LEAF_BYTES {
        return None;
    }
    let mut errors = vec![None];
    errors.extend(byte_errors(&node[LEAF_HEAD_BYTES..LEAF_HEAD_BYTES + PAGE]).into_iter().map(Some));
    for (error, pad) in errors.into_iter().flat_map(|e| [node[1], 0, 0xff].map(|pad| (e, pad))) {
        let mut made = node[..LEAF_HEAD_BYTES + PAGE].to_vec();
        if let Some(error) = error {
            error.apply(&mut made[LEAF_HEAD_BYTES..]);
        }
        made[..4].copy_from_slice(&[LEAF, pad, 1, 0]);
        made[4..8].copy_from_slice(&((LEAF_HEAD_BYTES + PAGE) as u32).to_le_bytes());
        made.copy_within(LEAF_HEAD_BYTES + 4..LEAF_HEAD_BYTES + 8, 8);
        if XxHash3_128::oneshot(&made) != child.sum {
            continue;
        }
        let wrong = |range: std::ops::Range<usize>| range.into_iter().find(|i| made[*i] != node[*i]);
        let at = wrong(LEAF_HEAD_BYTES..made.len()).or_else(|| wrong(0..LEAF_HEAD_BYTES)).unwrap_or(0);
        let state = Soundness::Mended { at: child.at + at as u64, xor: made[at] ^ node[at] };
        node[..made.len()].copy_from_slice(&made);
        return Some(state);
    }
    None
}

/// The byte with which everything fits; it is put right. Bits are tried first, because they are what mostly goes wrong.
fn try_bytes(
    bytes: &mut [u8],
    range: std::ops::Range<usize>,
    fits: &dyn Fn(&[u8]) -> bool,
) -> Option<ByteError> {
    let bits = range.clone().flat_map(|at| (0..8).map(move |bit| ByteError { at, xor: 1 << bit }));
    let rest = range.flat_map(|at| (1..=255).map(move |xor| ByteError { at, xor }));
    for error in bits.chain(rest.filter(|e| !e.is_bit())) {
        error.apply(bytes);
        if fits(bytes) {
            return Some(error);
        }
        error.apply(bytes);
    }
    None
}

/// Place and size of the node that a page number of redb's names: 20 bits of index, 20 of region, 5 of order on top.
fn pointer_to(raw: u64) -> (u64, u64) {
    let order = raw >> 59;
    let index = raw & (0xf_ffff >> order);
    let region = (raw >> 20) & 0xf_ffff;
    let bytes = NODE_BYTES << order;
    let region_bytes = (REGION_HEADER_PAGES + REGION_PAGES) * NODE_BYTES;
    (NODE_BYTES + region * region_bytes + REGION_HEADER_PAGES * NODE_BYTES + index * bytes, bytes)
}

fn root(slot: &[u8], at: usize, non_null_at: usize) -> Option<(u64, u128)> {
    (slot[non_null_at] != 0).then(|| (le64(slot, at), sum_at(slot, at + 8)))
}

fn root_of_table(table: &[u8]) -> Option<(u64, u128)> {
    (table[9] != 0).then(|| (le64(table, 10), sum_at(table, 18)))
}

fn sum_at(bytes: &[u8], at: usize) -> u128 {
    bytes.get(at..at + 16).and_then(|b| b.try_into().ok()).map_or(0, u128::from_le_bytes)
}

/// A named value as its copy is stored: it can be found and checked without anything around it.
///
/// Eight bytes of magic, the stamp of its commit 8, bytes of the name 4, bytes of the value 4, name, value, CRC-32 of
/// all that 4.
pub(super) fn framed(key: &str, value: &[u8], stamp: Stamp) -> Vec<u8> {
    let mut out = Vec::with_capacity(COPY_HEAD_BYTES + key.len() + value.len() + 4);
    out.extend_from_slice(&COPY_MAGIC);
    out.extend_from_slice(&stamp.0.to_le_bytes());
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(value);
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// What [`framed`] was given, if the copy is sound.
pub(crate) fn unframed(copy: &[u8]) -> Option<(&str, Stamp, &[u8])> {
    if !copy.starts_with(&COPY_MAGIC) || copy.len() < COPY_HEAD_BYTES || copy.len() != copy_bytes(copy) {
        return None;
    }
    let (body, sum) = copy.split_at(copy.len() - 4);
    if crc32fast::hash(body) != le32(sum, 0) {
        return None;
    }
    let (key, value) = body[COPY_HEAD_BYTES..].split_at(le32(copy, 16) as usize);
    Some((std::str::from_utf8(key).ok()?, Stamp(le64(copy, 8)), value))
}

/// Bytes of a copy by its head.
fn copy_bytes(copy: &[u8]) -> usize {
    (COPY_HEAD_BYTES + 4).saturating_add(le32(copy, 16) as usize).saturating_add(le32(copy, 20) as usize)
}

const COPY_MAGIC: [u8; 8] = *b"tercelnv";
const COPY_HEAD_BYTES: usize = 24;

/// By how much more than the file has in bytes may look like copies.
const COPIES_MAX: u64 = 4;

/// The largest named value that is looked for, the ordered state, has some megabytes.
const COPY_BYTES_MAX: usize = 256 << 20;

/// Looked through at once, and by how much the look moves on: whatever begins in a step is whole in its window.
const STRAY_STEP_BYTES: u64 = 4 << 20;
const STRAY_WINDOW_BYTES: u64 = STRAY_STEP_BYTES + 16 * 1024;

/// Nodes for which every byte is tried: one takes seconds, and a file with more wrong is made anew from what can be read.
const TRIED_MAX: usize = 32;

/// Of nodes above 4 KiB only so many bytes are tried, the counts and lengths; the rest is a value's.
const TRIED_HEAD_BYTES: usize = 64;

/// redb refuses deeper trees.
const DEPTH_MAX: usize = 128;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
const NODE_BYTES: u64 = 4096;
/// What a leaf with a page of ours takes: two nodes' room, and before the page what it is, one pair, its end and its key.
pub(crate) const LEAF_BYTES: u64 = 8192;
const LEAF_HEAD_BYTES: usize = 12;
const GOD_AT: usize = MAGIC.len();
/// The newest commit is the second; the file was not closed; the commit was in two phases; it was not flushed.
const GOD_BITS: u8 = 0b1111;
const UNCLEAN: u8 = 2;
const PAGE_SIZE_AT: usize = 12;
/// What files have that redb 4 makes.
const REGION_HEADER_PAGES: u64 = 0;
const REGION_PAGES: u64 = 1 << 20;
const SLOT_AT: usize = 64;
const SLOT_BYTES: usize = 128;
const HEAD_BYTES: usize = SLOT_AT + 2 * SLOT_BYTES;
const FILE_FORMAT: u8 = 3;
const DATA_ROOT_AT: usize = 8;
const SYSTEM_ROOT_AT: usize = DATA_ROOT_AT + 32;
const SLOT_ID_AT: usize = DATA_ROOT_AT + 3 * 32;
const SLOT_SUM_AT: usize = SLOT_BYTES - 16;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
const TABLE_NORMAL: u8 = 3;
const TABLE_LENGTH_AT: usize = 1;
const TABLE_KEY_AT: usize = 42;
const TABLE_BYTES: usize = TABLE_KEY_AT + 10;
