//! Heads and bodies of HTTP/1.1 (RFC 9110, 9112), as far as a proxy must know them.
//!
//! A head is read once it is whole and written anew for the next hop. A body is passed on as it came; only
//! its end is looked for. Where two readings of a message are possible it is refused: two parties that
//! read it differently are how requests are smuggled.

use httparse::{EMPTY_HEADER, Header, Status};

/// A status and a sentence, for the client that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal(pub u16, pub &'static str);

/// A request's head.
pub struct Request {
    /// Bytes that the head took.
    pub bytes: usize,
    /// `host` or `host:port` of the origin.
    pub authority: String,
    pub tunnel: bool,
    /// The head for the origin; empty for a tunnel.
    pub forward: Vec<u8>,
    pub body: Body,
    pub asked: Asked,
    /// Set if the request may be sent a second time.
    pub repeatable: bool,
}

/// The part of a request that its answer depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    pub is_head: bool,
    /// By HTTP/1.0, which knows no chunks.
    pub is_old: bool,
    /// The client's connection is to stay.
    pub keeps: bool,
}

/// An answer's head.
pub struct Answer {
    pub bytes: usize,
    /// The head for the client.
    pub forward: Vec<u8>,
    pub body: Body,
    /// The origin's connection stays.
    pub keeps: bool,
    /// The client's connection stays.
    pub client_keeps: bool,
    /// Set if another answer follows.
    pub is_interim: bool,
}

/// Reads a request's head; none while it is not whole.
pub fn request(input: &[u8]) -> Result<Option<Request>, Refusal> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let bytes = match head.parse(input) {
        Ok(Status::Complete(bytes)) => bytes,
        Ok(Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal(431, "the head of the request is too large"));
        }
        Err(_) => return Err(Refusal(400, "this is no request of HTTP/1.1")),
    };
    let (Some(method), Some(path), Some(version)) = (head.method, head.path, head.version) else {
        return Err(Refusal(400, "this is no request of HTTP/1.1"));
    };
    let is_old = version == 0;
    let keeps = match is_old {
        true => says(head.headers, "keep-alive"),
        false => !says(head.headers, "close"),
    };
    let asked = Asked { is_head: method == "HEAD", is_old, keeps };
    if method == "CONNECT" {
        let request = Request {
            bytes,
            authority: path.into(),
            tunnel: true,
            forward: Vec::new(),
            body: Body::Length(0),
            asked,
            repeatable: false,
        };
        return Ok(Some(request));
    }
    let rest = path.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://")).map(|_| &path[7..]);
    let rest = rest.ok_or(Refusal(400, "a proxy is asked for http://HOST/PATH"))?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.is_empty() || authority.contains('@') {
        return Err(Refusal(400, "a proxy is asked for http://HOST/PATH"));
    }
    let framing = framing(head.headers).ok_or(Refusal(400, "the length of the request is not clear"))?;
    if hides_length(head.headers) || is_old && matches!(framing, Some(Body::Chunked(_))) {
        return Err(Refusal(400, "the length of the request is not clear"));
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut forward =
        format!("{method} {slash}{path} HTTP/1.{version}\r\nHost: {authority}\r\n").into_bytes();
    put_headers(&mut forward, head.headers, &["host"]);
    forward.extend_from_slice(if is_old { b"Via: 1.0 proxy\r\n\r\n" } else { b"Via: 1.1 proxy\r\n\r\n" });
    let body = framing.unwrap_or(Body::Length(0));
    let repeatable = matches!(method, "GET" | "HEAD") && body.is_empty();
    Ok(Some(Request { bytes, authority: authority.into(), tunnel: false, forward, body, asked, repeatable }))
}

/// Reads an answer's head; none while it is not whole. The error is the origin's.
pub fn answer(input: &[u8], asked: Asked) -> Result<Option<Answer>, Refusal> {
    let wrong = Refusal(502, "the origin's answer is no HTTP/1.1");
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let bytes = match head.parse(input) {
        Ok(Status::Complete(bytes)) => bytes,
        Ok(Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(Status::Partial) | Err(_) => return Err(wrong),
    };
    let (Some(code), Some(version)) = (head.code, head.version) else { return Err(wrong) };
    // The proxy asks for no other protocol.
    if code == 101 {
        return Err(wrong);
    }
    let is_interim = code < 200;
    if hides_length(head.headers) {
        return Err(wrong);
    }
    let body = match framing(head.headers).ok_or(wrong)? {
        _ if asked.is_head || is_interim || matches!(code, 204 | 304) => Body::Length(0),
        Some(body) => body,
        None => Body::UntilClose,
    };
    let until_close = matches!(body, Body::UntilClose);
    // A client of HTTP/1.0 would take chunks for the body itself.
    if asked.is_old && matches!(body, Body::Chunked(_)) {
        return Err(wrong);
    }
    let client_keeps = asked.keeps && !until_close;
    let mut forward = format!("HTTP/1.1 {code} {}\r\n", head.reason.unwrap_or_default()).into_bytes();
    let without: &[&str] = if matches!(body, Body::Chunked(_)) { &["content-length"] } else { &[] };
    put_headers(&mut forward, head.headers, without);
    forward.extend_from_slice(match (is_interim, client_keeps, asked.is_old) {
        (true, ..) | (_, true, false) => b"Via: 1.1 proxy\r\n\r\n".as_slice(),
        (_, true, true) => b"Via: 1.1 proxy\r\nConnection: keep-alive\r\n\r\n",
        (_, false, _) => b"Via: 1.1 proxy\r\nConnection: close\r\n\r\n",
    });
    let keeps = version == 1 && !asked.is_old && !until_close && !says(head.headers, "close");
    Ok(Some(Answer { bytes, forward, body, keeps, client_keeps, is_interim }))
}

/// A whole answer of the proxy's own, after which the connection closes.
pub fn refusal(Refusal(code, sentence): Refusal) -> Vec<u8> {
    let reason = match code {
        400 => "Bad Request",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Gateway Timeout",
    };
    let length = sentence.len() + 1;
    format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{sentence}\n"
    )
    .into_bytes()
}

/// Copies the headers that are for the next hop too.
fn put_headers(forward: &mut Vec<u8>, headers: &[Header<'_>], without: &[&str]) {
    for header in headers {
        let is = |name: &&str| header.name.eq_ignore_ascii_case(name);
        if !HOP.iter().any(is) && !without.iter().any(is) && !says(headers, header.name) {
            for part in [header.name.as_bytes(), b": ", header.value, b"\r\n"] {
                forward.extend_from_slice(part);
            }
        }
    }
}

/// Says whether the length of the body would be taken off on the way: the next hop would read the body as
/// another message.
fn hides_length(headers: &[Header<'_>]) -> bool {
    says(headers, "content-length") || says(headers, "transfer-encoding")
}

/// Says whether a `Connection` header, or its older form for proxies, has the word.
fn says(headers: &[Header<'_>], word: &str) -> bool {
    let is_of_connection = |header: &&Header<'_>| {
        ["connection", "proxy-connection"].iter().any(|name| header.name.eq_ignore_ascii_case(name))
    };
    headers.iter().filter(is_of_connection).any(|header| {
        header.value.split(|&b| b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    })
}

/// The body that the headers announce: `Some(None)` if they announce none, none if they contradict each
/// other.
fn framing(headers: &[Header<'_>]) -> Option<Option<Body>> {
    let mut length: Option<u64> = None;
    let mut chunked = false;
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let digits = std::str::from_utf8(header.value).ok()?;
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let value = digits.parse().ok().filter(|_| is_number && length.is_none())?;
            length = Some(value);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                return None;
            }
            chunked = true;
        }
    }
    match (chunked, length) {
        (true, Some(_)) => None,
        (true, None) => Some(Some(Body::Chunked(CHUNK))),
        (false, length) => Some(length.map(Body::Length)),
    }
}

/// The rest of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

/// A place in a chunked body. Lines end with both bytes of their end: elsewhere that is read in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunked {
    /// In the digits of a chunk's size.
    Size {
        size: u64,
        is_empty: bool,
    },
    /// Behind them, so many bytes.
    Extension {
        size: u64,
        bytes: u16,
    },
    /// At the second byte of that line's end.
    SizeEnd(u64),
    /// Bytes of a chunk that are still to come.
    Data(u64),
    /// The end of the line behind a chunk: so many of its two bytes have come.
    DataEnd(u8),
    /// In the lines behind the last chunk: their bytes, and those of the present one.
    Trailer {
        bytes: u16,
        line: u16,
    },
    /// At the second byte of such a line's end, or of the empty one's.
    TrailerEnd {
        bytes: u16,
        line: u16,
    },
    End,
}

impl Body {
    pub fn is_empty(&self) -> bool {
        *self == Body::Length(0)
    }

    /// Finds the part of the bytes that is the body's. Says how many they are, and whether it has ended; none
    /// if it is malformed.
    pub fn take(&mut self, bytes: &[u8]) -> Option<(usize, bool)> {
        match self {
            Body::UntilClose => Some((bytes.len(), false)),
            Body::Length(left) => {
                let part = (bytes.len() as u64).min(*left);
                *left -= part;
                Some((part as usize, *left == 0))
            }
            Body::Chunked(at) => {
                let mut used = 0;
                while used < bytes.len() && *at != Chunked::End {
                    used += at.step(&bytes[used..])?;
                }
                Some((used, *at == Chunked::End))
            }
        }
    }
}

impl Chunked {
    /// Takes a byte, or as many of a chunk as there are.
    fn step(&mut self, bytes: &[u8]) -> Option<usize> {
        *self = match (*self, bytes[0]) {
            (Chunked::Data(left), _) => {
                let part = (bytes.len() as u64).min(left);
                *self = if part == left { Chunked::DataEnd(0) } else { Chunked::Data(left - part) };
                return Some(part as usize);
            }
            (Chunked::Size { size, .. }, byte) if byte.is_ascii_hexdigit() => {
                let digit = (byte as char).to_digit(16)?.into();
                Chunked::Size { size: size.checked_mul(16)?.checked_add(digit)?, is_empty: false }
            }
            (Chunked::Size { size, is_empty: false } | Chunked::Extension { size, .. }, b'\r') => {
                Chunked::SizeEnd(size)
            }
            (Chunked::Size { size, is_empty: false }, b';' | b' ' | b'\t') => {
                Chunked::Extension { size, bytes: 0 }
            }
            (Chunked::Extension { size, bytes: bytes @ ..LINES_BYTES_MAX }, byte) if byte != b'\n' => {
                Chunked::Extension { size, bytes: bytes + 1 }
            }
            (Chunked::SizeEnd(0), b'\n') => Chunked::Trailer { bytes: 0, line: 0 },
            (Chunked::SizeEnd(size), b'\n') => Chunked::Data(size),
            (Chunked::DataEnd(0), b'\r') => Chunked::DataEnd(1),
            (Chunked::DataEnd(1), b'\n') => CHUNK,
            (Chunked::Trailer { bytes, line }, b'\r') => Chunked::TrailerEnd { bytes, line },
            (Chunked::Trailer { bytes: bytes @ ..LINES_BYTES_MAX, line }, byte) if byte != b'\n' => {
                Chunked::Trailer { bytes: bytes + 1, line: line + 1 }
            }
            (Chunked::TrailerEnd { line: 0, .. }, b'\n') => Chunked::End,
            (Chunked::TrailerEnd { bytes, .. }, b'\n') => Chunked::Trailer { bytes, line: 0 },
            _ => return None,
        };
        Some(1)
    }
}

/// Headers that are for one hop, and those that this proxy does not pass on.
const HOP: [&str; 8] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
];

const HEADERS_MAX: usize = 64;
/// Bytes of a head.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes behind a chunk's size, and of all lines behind the last chunk.
const LINES_BYTES_MAX: u16 = 4_096;
/// The start of a chunk.
const CHUNK: Chunked = Chunked::Size { size: 0, is_empty: true };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_alike_however_they_are_cut() {
        let whole = b"1\r\nx\r\n00a;n=\"v\"\r\n0123456789\r\n0\r\nA: b\r\n\r\nnext";
        for cut in 0..whole.len() {
            let mut body = Body::Chunked(CHUNK);
            let (first, over) = body.take(&whole[..cut]).unwrap();
            let rest = if over { 0 } else { body.take(&whole[first..]).unwrap().0 };
            assert_eq!((first + rest, body), (whole.len() - 4, Body::Chunked(Chunked::End)), "{cut}");
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for bad in
            ["\r\n", "g\r\n", "1\nx", "1\r\nxy", "1\r\nx\n", "0\r\n\n", "-1\r\n", "1fffffffffffffffff\r\n"]
        {
            assert_eq!(Body::Chunked(CHUNK).take(bad.as_bytes()), None, "{bad:?}");
        }
        let long = format!("0\r\n{}", "a: b\r\n".repeat(2_000));
        assert_eq!(Body::Chunked(CHUNK).take(long.as_bytes()), None);
    }
}
