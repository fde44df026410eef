//! A service that speaks S3 as far as archives ask for it: one bucket in memory, on a port of this machine.
//!
//! It takes objects with and without conditions, gives, lists and removes them, and judges every request's
//! signature as services do. A test says what goes wrong: an answer that fails, is cut, is lost after the
//! deed or comes late, and a list that lacks the newest objects.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use tercel_lock::unpoison;

/// The name of the bucket, and the keys that it takes.
pub const BUCKET: &str = "backups";
/// See [`BUCKET`].
pub const KEY_ID: &str = "THE-KEY";
/// See [`BUCKET`].
pub const SECRET: &str = "geheim/of+the/key=";

/// A request, as a test sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The name of the object; of a list its beginning.
    pub key: String,
    /// The request asks for a list.
    pub is_list: bool,
    /// The number of the request, from 1.
    pub number: u64,
    /// The first byte of what it writes.
    pub first: Option<u8>,
}

/// The thing that goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    No,
    /// Nothing is done, and the answer has this status and code.
    Answers(u16, &'static str),
    /// Nothing is done, and the answer repeats the request's headers, as some services do.
    Repeats,
    /// Nothing is done, and the connection ends.
    Ends,
    /// The request is carried out, and the connection ends before the answer.
    Loses,
    /// The request is carried out, and the connection ends in the middle of the answer.
    Cuts,
    /// The request waits until it is let go on, and is carried out then.
    Waits,
    /// The list lacks so many of the newest objects.
    Lacks(usize),
    /// The conditions of the request are ignored.
    IgnoresConditions,
}

type Judge = Box<dyn FnMut(&Request) -> Fault + Send>;

/// A service with one bucket, until it is dropped.
pub struct Bucket {
    address: SocketAddr,
    service: Arc<Service>,
}

struct Service {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Objects by name, with the number of the write.
    objects: BTreeMap<String, (Vec<u8>, u64)>,
    written: u64,
    requests: Vec<(Request, u16)>,
    judge: Option<Judge>,
    /// Names in a page of a list.
    page: usize,
    waiting: usize,
    /// The session token that requests must have.
    token: Option<String>,
    is_over: bool,
}

/// A request as it came.
struct Arrived {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// An answer: status, headers beside the usual ones, body.
type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

impl Bucket {
    /// Starts one whose lists have three names a page.
    #[must_use]
    pub fn start() -> Bucket {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
        let address = listener.local_addr().expect("its address");
        let state = Mutex::new(State { page: 3, ..State::default() });
        let service = Arc::new(Service { state, changed: Condvar::new() });
        let accepting = service.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.lock().is_over {
                    return;
                }
                let service = accepting.clone();
                thread::spawn(move || service.serve(stream));
            }
        });
        Bucket { address, service }
    }

    /// The variables by which a client finds it.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, String> {
        let endpoint = format!("http://{}", self.address);
        let all = [
            ("AWS_ACCESS_KEY_ID", KEY_ID),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_ENDPOINT_URL", &endpoint),
        ];
        all.map(|(name, value)| (name.to_string(), value.to_string())).into()
    }

    /// Serves a connection that something else has accepted, until it ends.
    pub fn serve(&self, stream: impl Read + Write) {
        self.service.serve(stream);
    }

    /// Has requests go wrong as a test says.
    pub fn judge(&self, judge: impl FnMut(&Request) -> Fault + Send + 'static) {
        self.service.lock().judge = Some(Box::new(judge));
    }

    /// Has nothing go wrong any more, and what waits go on.
    pub fn mend(&self) {
        self.service.lock().judge = None;
        self.service.changed.notify_all();
    }

    /// Requests must have this session token from now on.
    pub fn ask_token(&self, token: &str) {
        self.service.lock().token = Some(token.into());
    }

    /// The requests so far, and how they were answered.
    #[must_use]
    pub fn requests(&self) -> Vec<(Request, u16)> {
        self.service.lock().requests.clone()
    }

    /// Waits until so many requests wait to be let go on.
    pub fn until_waiting(&self, count: usize) {
        let state = self.service.lock();
        drop(unpoison(self.service.changed.wait_while(state, |state| state.waiting < count)));
    }

    /// The names of all objects.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.service.lock().objects.keys().cloned().collect()
    }

    /// The bytes of an object.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.service.lock().objects.get(name).map(|(bytes, _)| bytes.clone())
    }

    /// Puts an object, or removes it, without a request.
    pub fn set(&self, name: &str, bytes: Option<Vec<u8>>) {
        self.service.lock().set(name, bytes);
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.service.lock().is_over = true;
        self.service.changed.notify_all();
        // The listener wakes up by one more connection.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn set(&mut self, name: &str, bytes: Option<Vec<u8>>) {
        self.written += 1;
        match bytes {
            Some(bytes) => _ = self.objects.insert(name.into(), (bytes, self.written)),
            None => _ = self.objects.remove(name),
        }
    }
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, State> {
        unpoison(self.state.lock())
    }

    fn serve(&self, stream: impl Read + Write) {
        let mut stream = BufReader::new(stream);
        while let Ok(Some(arrived)) = read(&mut stream) {
            let Some((answer, is_cut)) = self.answer(&arrived) else { return };
            if write(stream.get_mut(), &answer, is_cut).is_err() || is_cut {
                return;
            }
        }
    }

    /// The answer to a request, and whether it is cut; none if the connection ends without one.
    fn answer(&self, arrived: &Arrived) -> Option<(Answer, bool)> {
        let mut state = self.lock();
        let prefix = arrived.query.iter().find(|(name, _)| name == "prefix");
        let path = decoded(&arrived.path.replace('+', "%2B"));
        let key = path.strip_prefix(&format!("/{BUCKET}")).map(|key| key.trim_start_matches('/'));
        let is_list = arrived.query.iter().any(|(name, _)| name == "list-type");
        let request = Request {
            method: arrived.method.clone(),
            key: prefix.map_or(key.unwrap_or_default(), |(_, prefix)| prefix).to_string(),
            is_list,
            number: state.requests.len() as u64 + 1,
            first: arrived.body.first().copied(),
        };
        state.requests.push((request.clone(), 0));
        let at = state.requests.len() - 1;
        let mut judge = state.judge.take();
        let fault = judge.as_mut().map_or(Fault::No, |judge| judge(&request));
        state.judge = judge;
        if fault == Fault::Waits {
            state.waiting += 1;
            self.changed.notify_all();
            let waits = |state: &mut State| state.judge.is_some() && !state.is_over;
            state = unpoison(self.changed.wait_while(state, waits));
            state.waiting -= 1;
        }
        let answer = match (fault, key) {
            (Fault::Ends, _) => return None,
            (Fault::Answers(status, code), _) => failed(status, code),
            (Fault::Repeats, _) => repeated(arrived),
            (_, None) => failed(404, "NoSuchBucket"),
            (_, Some(key)) => match refused(arrived, state.token.as_deref()) {
                Some(answer) => answer,
                None => state.carry_out(arrived, key, &request, fault),
            },
        };
        state.requests[at].1 = answer.0;
        (fault != Fault::Loses).then_some((answer, fault == Fault::Cuts))
    }
}

impl State {
    fn carry_out(&mut self, arrived: &Arrived, key: &str, request: &Request, fault: Fault) -> Answer {
        let there = self.objects.get(key);
        let tag = there.map(|(bytes, _)| tag_of(bytes));
        match arrived.method.as_str() {
            "GET" if request.is_list => self.list(arrived, &request.key, fault),
            "GET" => match there {
                Some((bytes, _)) => (200, vec![("ETag", tag_of(bytes))], bytes.clone()),
                None => failed(404, "NoSuchKey"),
            },
            "PUT" => {
                let is_heeded = fault != Fault::IgnoresConditions;
                let absent = arrived.headers.get("if-none-match").is_some_and(|what| what == "*");
                let matching = arrived.headers.get("if-match");
                match (is_heeded && absent && tag.is_some(), matching.filter(|_| is_heeded)) {
                    (true, _) => failed(412, "PreconditionFailed"),
                    (_, Some(_)) if tag.is_none() => failed(404, "NoSuchKey"),
                    (_, Some(wanted)) if tag.as_ref() != Some(wanted) => failed(412, "PreconditionFailed"),
                    _ => {
                        self.set(key, Some(arrived.body.clone()));
                        (200, vec![("ETag", tag_of(&arrived.body))], Vec::new())
                    }
                }
            }
            "DELETE" => {
                self.set(key, None);
                (204, Vec::new(), Vec::new())
            }
            _ => failed(405, "MethodNotAllowed"),
        }
    }

    fn list(&self, arrived: &Arrived, prefix: &str, fault: Fault) -> Answer {
        let mut numbers: Vec<u64> = self.objects.values().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        let lacking = if let Fault::Lacks(count) = fault { count } else { 0 };
        let newest = numbers.len().checked_sub(lacking + 1).map_or(0, |at| numbers[at]);
        let after = arrived.query.iter().find(|(name, _)| name == "continuation-token");
        let after = after.map_or("", |(_, token)| token.trim_start_matches("after "));
        let seen =
            self.objects.iter().filter(|(name, (_, number))| name.starts_with(prefix) && *number <= newest);
        let mut rest = seen.filter(|(name, _)| name.as_str() > after);
        let mut body = "<ListBucketResult>".to_string();
        let mut last = "";
        for (name, (bytes, _)) in rest.by_ref().take(self.page) {
            let (size, tag) = (bytes.len(), tag_of(bytes));
            let _ = write!(
                body,
                "<Contents><Key>{name}</Key><Size>{size}</Size><ETag>{tag}</ETag>\
                 <LastModified>2026-11-28T00:00:00.000Z</LastModified></Contents>"
            );
            last = name;
        }
        if rest.next().is_some() {
            let _ = write!(body, "<NextContinuationToken>after {last}</NextContinuationToken>");
        }
        body.push_str("</ListBucketResult>");
        (200, Vec::new(), body.into_bytes())
    }
}

fn failed(status: u16, code: &str) -> Answer {
    let body = format!("<Error><Code>{code}</Code><Message>Said by the test.</Message></Error>");
    (status, Vec::new(), body.into_bytes())
}

fn repeated(arrived: &Arrived) -> Answer {
    let headers: String = arrived.headers.iter().map(|(name, value)| format!("{name}: {value} ")).collect();
    let body = format!("<Error><Code>AccessDenied</Code><Message>{SECRET} {headers}</Message></Error>");
    (403, Vec::new(), body.into_bytes())
}

fn tag_of(bytes: &[u8]) -> String {
    format!("\"{}\"", &hex(&Sha256::digest(bytes))[..32])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The refusal of a request that is not signed as it must be (AWS Signature Version 4).
fn refused(arrived: &Arrived, token: Option<&str>) -> Option<Answer> {
    let header = |name: &str| arrived.headers.get(name).map_or("", String::as_str);
    if token.is_some_and(|token| token != header("x-amz-security-token")) {
        return Some(failed(400, "ExpiredToken"));
    }
    let fields = header("authorization").strip_prefix("AWS4-HMAC-SHA256 ").unwrap_or_default();
    let field = |name: &str| {
        let found = fields.split(',').find_map(|field| field.trim().strip_prefix(name));
        found.and_then(|field| field.strip_prefix('=')).unwrap_or_default()
    };
    let (id, scope) = field("Credential").split_once('/').unwrap_or_default();
    if id != KEY_ID {
        return Some(failed(403, "InvalidAccessKeyId"));
    }
    let mut query: Vec<String> =
        arrived.query.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    query.sort_unstable();
    let signed = field("SignedHeaders");
    let headers: String = signed.split(';').map(|name| format!("{name}:{}\n", header(name))).collect();
    let (hash, path) = (header("x-amz-content-sha256"), &arrived.path);
    let canonical = format!("{}\n{path}\n{}\n{headers}\n{signed}\n{hash}", arrived.method, query.join("&"));
    let digest = hex(&Sha256::digest(canonical));
    let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{digest}", header("x-amz-date"));
    let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), |key, part| keyed(&key, part));
    let is_signed =
        hex(&keyed(&key, &text)) == field("Signature") && hash == hex(&Sha256::digest(&arrived.body));
    (!is_signed).then(|| failed(403, "SignatureDoesNotMatch"))
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
                continue;
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read(stream: &mut impl BufRead) -> io::Result<Option<Arrived>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = query.map(|(name, value)| (decoded(name), decoded(value))).collect();
    let mut arrived = Arrived {
        method: method.into(),
        path: path.into(),
        query,
        headers: BTreeMap::new(),
        body: Vec::new(),
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        arrived.headers.insert(name.to_ascii_lowercase(), value.trim().into());
    }
    let length = arrived.headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    arrived.body.resize(length, 0);
    stream.read_exact(&mut arrived.body)?;
    Ok(Some(arrived))
}

fn write(stream: &mut impl Write, (status, headers, body): &Answer, is_cut: bool) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| _ = write!(head, "{name}: {value}\r\n"));
    head.push_str("\r\n");
    let bytes = [head.as_bytes(), body].concat();
    stream.write_all(if is_cut { &bytes[..bytes.len() - 1 - body.len() / 2] } else { &bytes })?;
    stream.flush()
}
