//! Opening a list, packed or not.
//!
//! The first bytes of a file give its format; its name is never asked. A packed file that ends before its own
//! end mark gives [`io::ErrorKind::UnexpectedEof`], never a quiet end, so a download cut short is not taken
//! for a short index. Plain text has no end mark. [`Stanzas`](super::Stanzas), which reads the text, refuses
//! a text that ends within a line. A text that was cut between two lines cannot be told from a whole text.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Error as XzError, Stream};
use lz4_flex::frame::FrameDecoder;
use thiserror::Error;

/// Text on its way out of a file. Read it as any [`BufRead`]; ask it how far it has come.
pub struct Input {
    text: Box<dyn BufRead + Send>,
    file_bytes: u64,
    bytes_read: Arc<AtomicU64>,
}

/// The format in which a list is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Not packed.
    Plain,
    /// gzip, one member or several.
    Gzip,
    /// xz, one stream or several.
    Xz,
    /// The format before xz.
    Lzma,
    /// lz4 frames, as apt keeps its lists.
    Lz4,
}

/// Why a list could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The operating system refused.
    #[error("the list cannot be read: {0}; name a file that exists and may be read")]
    Io(#[from] io::Error),
    /// Packed in a way this program does not unpack.
    #[error(
        "the list is packed with {0}, which is not read here; unpack it first, or give plain text, .gz, .xz, .lzma or .lz4"
    )]
    Unsupported(&'static str),
}

/// Opens the list at `path`.
///
/// # Errors
/// [`OpenError::Io`] if the file cannot be opened or its first bytes cannot be read,
/// [`OpenError::Unsupported`] if they name bzip2, zstd or a zip archive. Damage further in is met while
/// reading.
pub fn open(path: impl AsRef<Path>) -> Result<Input, OpenError> {
    let file = File::open(path)?;
    let file_bytes = file.metadata()?.len();
    unpack(file, file_bytes)
}

/// The list on standard input.
///
/// # Errors
/// As [`open`].
pub fn stdin() -> Result<Input, OpenError> {
    unpack(io::stdin(), 0)
}

/// The index that comes with the program: a part of Debian 12's main suite, 37,726 packages around libssl3.
///
/// # Errors
/// As [`open`]; a build with the file as it is in the source tree gives none.
pub fn sample() -> Result<Input, OpenError> {
    unpack(SAMPLE, SAMPLE.len() as u64)
}

impl Input {
    /// Size of the file as it lies on disk, before unpacking; zero for a pipe.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    #[cfg(test)]
    fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes of the file taken so far, at most a buffer ahead of the text handed out, for a progress bar that
    /// outlives a borrow of the input.
    pub fn bytes_read_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes_read)
    }
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.text.read(into)
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.text.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.text.consume(bytes);
    }
}

fn unpack(raw: impl Read + Send + 'static, file_bytes: u64) -> Result<Input, OpenError> {
    let bytes_read = Arc::new(AtomicU64::new(0));
    let mut raw = Counted { raw, bytes_read: Arc::clone(&bytes_read) };
    // The first bytes are read on their own, since one read of a pipe may give fewer than a magic number
    // needs.
    let mut magic = Vec::with_capacity(MAGIC_BYTES_MAX);
    raw.by_ref().take(MAGIC_BYTES_MAX as u64).read_to_end(&mut magic)?;
    let format = recognise(&magic)?;
    let packed = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(magic).chain(raw));
    let text: Box<dyn BufRead + Send> = match format {
        Format::Plain => Box::new(packed),
        Format::Gzip => {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, GzipMembers(Some(GzDecoder::new(packed)))))
        }
        Format::Xz | Format::Lzma => {
            let stream = match format {
                Format::Xz => Stream::new_stream_decoder(XZ_MEMORY_BYTES_MAX, CONCATENATED),
                _ => Stream::new_lzma_decoder(XZ_MEMORY_BYTES_MAX),
            };
            let decoder = XzDecoder::new_stream(packed, stream.map_err(io::Error::from)?);
            Box::new(BufReader::with_capacity(BUFFER_BYTES, Limited(decoder)))
        }
        Format::Lz4 => Box::new(BufReader::with_capacity(BUFFER_BYTES, Lz4Frames::new(packed))),
    };
    Ok(Input { text, file_bytes, bytes_read })
}

fn recognise(magic: &[u8]) -> Result<Format, OpenError> {
    match magic {
        [0x1f, 0x8b, ..] => Ok(Format::Gzip),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Format::Xz),
        // The frame format, and the older one that `lz4 -l` writes.
        [0x04 | 0x02, 0x22 | 0x21, 0x4d | 0x4c, 0x18, ..] => Ok(Format::Lz4),
        [properties, a, b, c, d, ..]
            if *properties < 225 && is_dictionary(u32::from_le_bytes([*a, *b, *c, *d])) =>
        {
            Ok(Format::Lzma)
        }
        [b'B', b'Z', b'h', ..] => Err(OpenError::Unsupported("bzip2")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Err(OpenError::Unsupported("zstd")),
        [b'P', b'K', 3, 4, ..] => Err(OpenError::Unsupported("zip")),
        _ => Ok(Format::Plain),
    }
}

/// Says whether an .lzma file may have a dictionary of so many bytes; xz too knows such files by that. No
/// four letters are one.
fn is_dictionary(bytes: u32) -> bool {
    bytes == u32::MAX || bytes.is_power_of_two() || (bytes.is_multiple_of(3) && (bytes / 3).is_power_of_two())
}

/// Member after member of gzip, and zeros behind the last, with which tapes and block devices fill up a file.
struct GzipMembers<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.0 {
            let bytes = decoder.read(into)?;
            if bytes > 0 || into.is_empty() {
                return Ok(bytes);
            }
            let source = decoder.get_mut();
            let rest = source.fill_buf()?;
            let zeros = rest.iter().take_while(|&&byte| byte == 0).count();
            if rest.is_empty() {
                break;
            }
            let another = zeros < rest.len();
            source.consume(zeros);
            if another {
                self.0 = self.0.take().map(|decoder| GzDecoder::new(decoder.into_inner()));
            }
        }
        Ok(0)
    }
}

/// An unpacker that says in our words that its memory does not suffice.
struct Limited<R>(R);

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| {
            match error.get_ref().and_then(|inner| inner.downcast_ref::<XzError>()) {
                Some(XzError::MemLimit) => io::Error::new(io::ErrorKind::OutOfMemory, MEMORY_EXCEEDED),
                _ => error,
            }
        })
    }
}

/// Counts what leaves the file.
struct Counted<R> {
    raw: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.raw.read(into)?;
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Frame after frame of lz4, strict about the end.
///
/// The decoder of the library says "end" in three cases: after a frame's end mark, before a first frame that
/// is not there, and where the file breaks off between two blocks. Only the first is an end. They are told
/// apart by whether the decoder ran into the end of its source, because here it is never asked to start a
/// frame at the end of the file.
struct Lz4Frames<R: Read> {
    decoder: FrameDecoder<Exhaustible<R>>,
    ended: bool,
}

impl<R: BufRead> Lz4Frames<R> {
    fn new(packed: R) -> Self {
        let source = Exhaustible { source: packed, exhausted: false };
        Self { decoder: FrameDecoder::new(source), ended: false }
    }
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() || self.ended {
            return Ok(0);
        }
        loop {
            let bytes = self.decoder.read(into).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => cut_short(),
                _ => error,
            })?;
            if bytes > 0 {
                return Ok(bytes);
            }
            let source = self.decoder.get_mut();
            if source.exhausted {
                return Err(cut_short());
            }
            if source.source.fill_buf()?.is_empty() {
                self.ended = true;
                return Ok(0);
            }
        }
    }
}

fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the lz4 frame has no end")
}

/// Remembers whether its reader was ever told that nothing is left.
struct Exhaustible<R> {
    source: R,
    exhausted: bool,
}

impl<R: Read> Read for Exhaustible<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.source.read(into)?;
        self.exhausted |= bytes == 0 && !into.is_empty();
        Ok(bytes)
    }
}

static SAMPLE: &[u8] = include_bytes!("../data/sample-packages.xz");

/// The longest magic number looked for, that of xz.
const MAGIC_BYTES_MAX: usize = 6;

/// One buffer on each side of the decoder. Large enough that calls through the box vanish, small enough for
/// the L2 cache.
const BUFFER_BYTES: usize = 64 * 1024;

/// A dictionary of 64 MiB is what `xz -9` asks for; twice that is room for all that packers of lists choose.
const XZ_MEMORY_BYTES_MAX: u64 = 128 * 1024 * 1024;
const MEMORY_EXCEEDED: &str =
    "the list is packed with so large a dictionary that unpacking takes more than 128 MiB of memory";

#[cfg(test)]
mod tests {
    use std::io::Write;

    use liblzma::stream::{Check, Filters, LzmaOptions};

    use super::*;
    use crate::Stanzas;

    fn text() -> Vec<u8> {
        (0..4_000).flat_map(|i| format!("Package: p{}\n\n", i * 7_919 % 10_007).into_bytes()).collect()
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    }

    fn xz(text: &[u8]) -> Vec<u8> {
        let mut packer = liblzma::write::XzEncoder::new(Vec::new(), 1);
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    }

    fn xz_with(dictionary_bytes: u32, pack: fn(&LzmaOptions) -> Stream, text: &[u8]) -> Vec<u8> {
        let mut options = LzmaOptions::new_preset(1).unwrap();
        options.dict_size(dictionary_bytes);
        let mut packer = liblzma::write::XzEncoder::new_stream(Vec::new(), pack(&options));
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    }

    fn lzma(text: &[u8]) -> Vec<u8> {
        xz_with(1 << 20, |options| Stream::new_lzma_encoder(options).unwrap(), text)
    }

    /// As apt writes it: blocks of 64 KiB that lean on their predecessors, no checksum, no size.
    fn lz4(text: &[u8]) -> Vec<u8> {
        use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
        let info = FrameInfo::new().block_mode(BlockMode::Linked).block_size(BlockSize::Max64KB);
        let mut packer = FrameEncoder::with_frame_info(info, Vec::new());
        // Flushing makes many small blocks, so that a cut between two of them is among the cuts tried below.
        for piece in text.chunks(9_000) {
            packer.write_all(piece).unwrap();
            packer.flush().unwrap();
        }
        packer.finish().unwrap()
    }

    fn read(packed: Vec<u8>) -> io::Result<Vec<u8>> {
        let bytes = packed.len() as u64;
        let mut input = unpack(io::Cursor::new(packed), bytes).map_err(io::Error::other)?;
        let mut text = Vec::new();
        input.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn every_format_gives_the_text_back() {
        for packed in [text(), gzip(&text()), xz(&text()), lzma(&text()), lz4(&text())] {
            assert_eq!(read(packed).unwrap(), text());
        }
    }

    #[test]
    fn members_one_after_another_are_one_text() {
        for pack in [gzip, xz, lz4] {
            let packed = [pack(b"Package: a\n"), pack(b""), pack(b"Version: 1\n")].concat();
            assert_eq!(read(packed).unwrap(), b"Package: a\nVersion: 1\n");
        }
    }

    #[test]
    fn zeros_behind_gzip_are_passed_over() {
        let zeros = vec![0; BUFFER_BYTES * 2];
        let packed = [gzip(b"Package: a\n"), zeros.clone(), gzip(b"Version: 1\n"), zeros].concat();
        assert_eq!(read(packed).unwrap(), b"Package: a\nVersion: 1\n");
        assert!(read([gzip(b"Package: a\n"), b"garbage".to_vec()].concat()).is_err());
    }

    #[test]
    fn dictionary_over_the_limit_is_named() {
        let pack = |options: &LzmaOptions| {
            Stream::new_stream_encoder(Filters::new().lzma2(options), Check::Crc32).unwrap()
        };
        for bytes in [64 << 20, 256 << 20] {
            // Packing reserves a multiple of the dictionary, so the size is written into what was packed with
            // less.
            let mut packed = xz_with(1 << 20, pack, b"Package: a\n");
            set_dictionary(&mut packed, bytes);
            let input = unpack(io::Cursor::new(packed), 0).unwrap();
            let said = Stanzas::new(input).next().map(|stanza| stanza.unwrap().name.to_owned());
            match said {
                Ok(name) => assert_eq!((bytes, &name[..]), (64 << 20, "a")),
                Err(error) => {
                    let error = error.to_string();
                    assert!(
                        bytes == 256 << 20 && error.contains("memory") && !error.contains("cut"),
                        "{error}"
                    );
                }
            }
        }
    }

    /// Sets the size of the dictionary in the first block's header of an .xz file.
    fn set_dictionary(packed: &mut [u8], bytes: u32) {
        // The header: its size, flags, the filter's number, size and property, padding, and a checksum.
        let header = 12..12 + 4 * (usize::from(packed[12]) + 1);
        packed[16] = (2 * (bytes.ilog2() - 12)) as u8;
        let (covered, sum) = packed[header].split_at_mut(8);
        let mut crc = flate2::Crc::new();
        crc.update(covered);
        sum.copy_from_slice(&crc.sum().to_le_bytes());
    }

    #[test]
    fn a_packed_file_cut_anywhere_is_an_error() {
        for pack in [gzip, xz, lzma, lz4] {
            let packed = pack(&text());
            for bytes in MAGIC_BYTES_MAX..packed.len() {
                let error = read(packed[..bytes].to_vec()).expect_err("a cut file passed");
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut to {bytes}: {error}");
            }
        }
    }

    #[test]
    fn a_packing_we_do_not_know_is_named() {
        let refused = unpack(&b"BZh91AY&SY"[..], 10).err().unwrap();
        assert!(refused.to_string().contains("bzip2"), "{refused}");
    }

    #[test]
    fn the_name_of_a_file_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.gz");
        std::fs::write(&path, xz(b"Package: a\n")).unwrap();
        let mut input = open(&path).unwrap();
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        assert_eq!(text, "Package: a\n");
        assert_eq!(input.bytes_read(), input.file_bytes());
    }

    #[test]
    fn an_empty_file_is_an_empty_text() {
        assert_eq!(read(Vec::new()).unwrap(), b"");
    }
}
