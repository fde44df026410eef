//! A private PostgreSQL, for rows that have it as their limit: Debian's programs over a directory of the
//! measurement's own, reached over a Unix socket, and ended with this process.
//!
//! The client is this module's own. The simple-query protocol is a startup message, `Q`, and all that comes
//! until `Z`; crates for it would bring some forty packages, for a comparator that ships to nobody.
//!
//! PostgreSQL refuses to run as the superuser, so the superuser starts it as the user who owns nothing. Rows
//! are left out with a word where PostgreSQL is not there or cannot be started.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// The number of `nobody`, as whom the superuser runs it.
const NOBODY: u32 = 65_534;

/// The settings of a server: all durable, with room for this crate's connections. Checkpoints stay away from
/// the blocks of a measurement, which is to its good.
const SETTINGS: [&str; 9] = [
    "listen_addresses=",
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "max_connections=200",
    "max_prepared_transactions=200",
    "max_wal_size=4GB",
    "checkpoint_timeout=1h",
    "lc_messages=C",
];

/// The words of its log that say that it may be connected to.
const READY: &str = "ready to accept connections";

/// A server. It ends when this is dropped, or with the thread that started it.
pub struct Postgres {
    server: Child,
    socket: PathBuf,
}

impl Postgres {
    /// Starts one in a directory that it makes, below one that any user may pass through.
    ///
    /// # Errors
    /// A sentence: the reason for which rows are left out.
    pub fn start(dir: &Path) -> Result<Postgres, String> {
        let programs = programs()?;
        let data = dir.join("data");
        std::fs::create_dir(dir).map_err(failed)?;
        if geteuid().is_root() {
            chown(dir, Some(NOBODY), Some(NOBODY)).map_err(failed)?;
        }
        let mut make = command(&programs.join("initdb"));
        // The files of a space that is empty are synced by nobody: what is measured is written behind them.
        make.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data);
        let made = make.stdin(Stdio::null()).output().map_err(|e| format!("setpriv: {e}"))?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr);
            return Err(format!("initdb: {}", said.lines().last().unwrap_or("it says nothing")));
        }
        let mut serve = command(&programs.join("postgres"));
        serve.arg("-D").arg(&data).arg("-k").arg(dir);
        SETTINGS.iter().for_each(|setting| _ = serve.args(["-c", setting]));
        let mut server = serve
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("setpriv: {e}"))?;
        let log = server.stderr.take().ok_or("its log is no pipe")?;
        // From here on it is ended whatever happens.
        let postgres = Postgres { server, socket: dir.join(".s.PGSQL.5432") };
        let (mut log, mut last) = (BufReader::new(log).lines().map_while(Result::ok), String::new());
        loop {
            match log.next() {
                Some(line) if line.contains(READY) => break,
                Some(line) => last = line,
                None => return Err(format!("postgres: {last}")),
            }
        }
        // A pipe that nobody reads would hold it up. This ends with it.
        std::thread::spawn(move || log.for_each(drop));
        Ok(postgres)
    }

    /// Connects as its superuser to the database of that name.
    ///
    /// # Errors
    /// A sentence: what failed.
    pub fn connect(&self) -> Result<Connection, String> {
        Connection::open(&self.socket)
    }

    /// Its version, such as `15.12`.
    ///
    /// # Errors
    /// A sentence: what failed.
    pub fn version(&self) -> Result<String, String> {
        let said = self.connect()?.one("SHOW server_version")?;
        Ok(said.split(' ').next().unwrap_or_default().to_string())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // At once: its directory is about to be removed. So it leaves neither processes nor shared memory.
        if let Some(pid) = i32::try_from(self.server.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::QUIT);
        }
        let _ = self.server.wait();
    }
}

/// The newest programs of Debian's packages, or those on the path.
///
/// # Errors
/// A sentence, where there are none.
fn programs() -> Result<PathBuf, String> {
    let version = |dir: &PathBuf| dir.file_name()?.to_str()?.parse::<u32>().ok();
    let packages = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut packages: Vec<PathBuf> = packages.map(|entry| entry.path()).collect();
    packages.sort_by_key(|dir| std::cmp::Reverse(version(dir)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = packages.into_iter().map(|dir| dir.join("bin")).chain(std::env::split_paths(&path));
    all.find(|dir| ["initdb", "postgres"].iter().all(|name| dir.join(name).is_file()))
        .ok_or_else(|| "PostgreSQL is not installed (apt-get install postgresql)".into())
}

/// A command line of a program of it that ends with this process, as a user whom it accepts.
fn command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if geteuid().is_root() {
        command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
    }
    command.arg("--").arg(program).env("LC_ALL", "C").env_remove("PGDATA");
    command
}

/// A connection that says one thing at a time.
pub struct Connection {
    stream: BufReader<UnixStream>,
}

/// The columns of a row as text; none where it has none.
pub type Cells = Vec<Option<String>>;

impl Connection {
    fn open(socket: &Path) -> Result<Connection, String> {
        let stream = UnixStream::connect(socket).map_err(failed)?;
        let mut connection = Connection { stream: BufReader::new(stream) };
        let words = b"user\0postgres\0database\0postgres\0\0";
        let head = [network(8 + words.len() as u32), network(PROTOCOL)];
        let startup = [head.as_flattened(), words].concat();
        connection.stream.get_mut().write_all(&startup).map_err(failed)?;
        connection.answer()?;
        Ok(connection)
    }

    /// Says statements and waits until they are done. Gives the rows of all of them.
    ///
    /// # Errors
    /// The server's sentence about the first that failed, or that the connection has ended.
    pub fn query(&mut self, statements: &str) -> Result<Vec<Cells>, String> {
        self.say(statements)?;
        self.answer()
    }

    /// The first cell of the first row.
    ///
    /// # Errors
    /// As [`Connection::query`]; if there is none.
    pub fn one(&mut self, statements: &str) -> Result<String, String> {
        let rows = self.query(statements)?;
        let cell = rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten();
        cell.ok_or_else(|| format!("no row came of {statements}"))
    }

    /// Says statements, and does not wait: [`Connection::answer`] does.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn say(&mut self, statements: &str) -> Result<(), String> {
        let length = network(5 + statements.len() as u32);
        let message = [b"Q", &length[..], statements.as_bytes(), b"\0"].concat();
        self.stream.get_mut().write_all(&message).map_err(failed)
    }

    /// Waits until the statements that were said last are done.
    ///
    /// # Errors
    /// As [`Connection::query`].
    pub fn answer(&mut self) -> Result<Vec<Cells>, String> {
        let (mut rows, mut refused) = (Vec::new(), None);
        loop {
            let mut head = [0; 5];
            if let Err(e) = self.stream.read_exact(&mut head) {
                return Err(refused.unwrap_or_else(|| failed(e)));
            }
            let [kind, length @ ..] = head;
            let length = (network_u32(length) as usize).saturating_sub(4);
            if length > MESSAGE_MAX {
                return Err(format!("PostgreSQL sent a message of {length} bytes"));
            }
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body).map_err(failed)?;
            match kind {
                b'D' => rows.push(cells(&body).ok_or("PostgreSQL sent a row that is none")?),
                b'E' => refused = refused.or(Some(sentence(&body))),
                b'R' if body != [0; 4] => return Err("PostgreSQL asks who this is".into()),
                b'Z' => return refused.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }
}

/// Version 3.0 of the protocol.
const PROTOCOL: u32 = 3 << 16;
/// Bytes of a message, at most.
const MESSAGE_MAX: usize = 1 << 20;

/// The cells of a row: a count, and each with its length.
fn cells(body: &[u8]) -> Option<Cells> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let count = network_u32([0, 0, count[0], count[1]]);
    let mut cells = Vec::new();
    for _ in 0..count {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let length = network_u32(*length);
        // That of a cell without a value is less than none.
        let (cell, behind) = behind.split_at_checked(if length == u32::MAX { 0 } else { length as usize })?;
        cells.push(match length {
            u32::MAX => None,
            _ => Some(String::from_utf8(cell.to_vec()).ok()?),
        });
        rest = behind;
    }
    rest.is_empty().then_some(cells)
}

/// The sentence in an error's fields, each of which is a letter, a text and a zero.
fn sentence(body: &[u8]) -> String {
    let message = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"M"));
    format!("PostgreSQL: {}", String::from_utf8_lossy(message.unwrap_or(b"an error without a message")))
}

fn failed(e: impl Display) -> String {
    format!("PostgreSQL: {e}")
}

#[expect(clippy::big_endian_bytes, reason = "the protocol's integers are so, not ours")]
fn network(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

#[expect(clippy::big_endian_bytes, reason = "the protocol's integers are so, not ours")]
fn network_u32(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn answers_come_and_nothing_stays() {
        if let Err(reason) = programs() {
            return eprintln!("left out: {reason}");
        }
        let scratch = Scratch::new(None, "postgres").unwrap();
        let server = Postgres::start(&scratch.join("postgres")).unwrap();
        let mut client = server.connect().unwrap();
        let rows = client.query("SELECT 1, NULL, 'zwölf'; SELECT 2 WHERE false; SELECT 3").unwrap();
        let cell = |text: &str| Some(text.to_string());
        assert_eq!(rows, [vec![cell("1"), None, cell("zwölf")], vec![cell("3")]]);
        assert!(client.query("SELECT 1; SELECT nothing").unwrap_err().contains("nothing"));
        assert!(client.query("").unwrap().is_empty(), "an error leaves the connection whole");
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            assert_eq!(client.one(&format!("SHOW {setting}")).unwrap(), "on");
        }
        // Two connections at once, one of which has prepared what the other one commits.
        client.query("CREATE TABLE t (n int)").unwrap();
        client.query("BEGIN; INSERT INTO t VALUES (4); PREPARE TRANSACTION 'x'").unwrap();
        let mut other = server.connect().unwrap();
        other.say("COMMIT PREPARED 'x'").unwrap();
        assert!(other.answer().unwrap().is_empty());
        assert_eq!(client.one("SELECT n FROM t").unwrap(), "4");
        assert!(server.version().unwrap().starts_with(|c: char| c.is_ascii_digit()));
        drop(server);
        assert!(
            client.query("SELECT 1").is_err()
                && Connection::open(&scratch.join("postgres/.s.PGSQL.5432")).is_err()
        );
    }

    #[test]
    fn place_that_is_refused_is_a_reason() {
        if let Err(reason) = programs() {
            return eprintln!("left out: {reason}");
        }
        let scratch = Scratch::new(None, "postgres-refused").unwrap();
        let said = Postgres::start(&scratch.join("no/such")).err().unwrap();
        assert!(said.contains("No such file"), "{said}");
    }

    #[test]
    fn rows_that_are_none_are_refused() {
        assert_eq!(cells(&[0, 1, 0, 0, 0, 1, b'a']), Some(vec![Some("a".into())]));
        assert_eq!(cells(&[0, 1, 255, 255, 255, 255]), Some(vec![None]));
        for wrong in [&[0][..], &[0, 1], &[0, 1, 0, 0, 0, 2, b'a'], &[0, 0, 1], &[0, 1, 0, 0, 0, 1, 255]] {
            assert_eq!(cells(wrong), None, "{wrong:?}");
        }
    }
}
