//! The audit: one line of JSON for each connect, refusal, grant, definition, backup and operator's request.
//!
//! A thread of its own writes it, so that the loop never waits for the file. Files are rotated: the one that
//! is written, and three before it. Refusals that say the same again within ten seconds, as of a client that
//! tries again and again, are one line, and few of them are kept at once, so that no stranger writes over
//! what others did. The invariant: a line that was lost or is not repeated is counted by the next one.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tercel_engine::server::{Audit, Audited, Audits};
use tercel_engine::time::date_of_day;
use tercel_wire::access::Principal;

/// Lines that are not in the audit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Left {
    /// Lines without room.
    lost: u64,
    /// Refusals that say what one before them did.
    repeated: u64,
}

/// The audit of a server. Each connect, refusal, grant, definition, backup and request of an operator is a
/// line of JSON, with the principal and no argument of a call. Lines that come faster than the disk takes
/// them are lost, and counted by the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auditing {
    /// The file. It has 64 MiB, and three before it are kept as `FILE.1` to `FILE.3`.
    pub file: PathBuf,
    /// Set if each call of a method or procedure is a line, too. No call takes the shortest way then.
    pub calls: bool,
}

impl Auditing {
    pub(super) fn audits(&self) -> Audits {
        if self.calls { Audits::Calls } else { Audits::Events }
    }
}

impl<P: Into<PathBuf>> From<P> for Auditing {
    /// All but calls.
    fn from(file: P) -> Auditing {
        Auditing { file: file.into(), calls: false }
    }
}

/// The audit of a server that runs.
pub(crate) struct AuditLog {
    lines: Option<SyncSender<String>>,
    /// Lines left out since the last one that is not.
    left: Left,
    /// The refusals of the last ten seconds, and since when they are of these.
    refusals: (Instant, BTreeSet<(Arc<Principal>, String)>),
    thread: Option<JoinHandle<()>>,
}

impl AuditLog {
    /// Appends to a file, which is made if there is none.
    ///
    /// # Errors
    /// If it cannot be opened, or there is no thread for it.
    pub(crate) fn open(path: &Path) -> io::Result<AuditLog> {
        let files = Files::open(path, FILE_BYTES_MAX)?;
        let (lines, rx) = sync_channel(LINES_MAX);
        let thread =
            std::thread::Builder::new().name("tercel-audit".into()).spawn(move || write(files, &rx))?;
        let refusals = (Instant::now(), BTreeSet::new());
        Ok(AuditLog { lines: Some(lines), left: Left::default(), refusals, thread: Some(thread) })
    }

    /// Adds an event.
    pub(crate) fn add(&mut self, of: &Audited) {
        let Some(lines) = &self.lines else { return };
        if let Audit::Refused(why) = &of.what {
            let (since, refusals) = &mut self.refusals;
            if since.elapsed() >= REPEATED {
                (*since, *refusals) = (Instant::now(), BTreeSet::new());
            }
            if refusals.contains(&(of.who.clone(), why.clone())) {
                return self.left.repeated += 1;
            }
            if refusals.len() >= REFUSALS_MAX {
                return self.left.lost += 1;
            }
            refusals.insert((of.who.clone(), why.clone()));
        }
        match lines.try_send(line(&now(), of, self.left)) {
            Ok(()) => self.left = Left::default(),
            Err(_) => self.left.lost += 1,
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write(mut files: Files, lines: &Receiver<String>) {
    let mut has_failed = false;
    while let Ok(first) = lines.recv() {
        let mut batch = first;
        // What has come meanwhile goes with it.
        lines.try_iter().take(LINES_MAX).for_each(|line| batch.push_str(&line));
        match files.append(batch.as_bytes()) {
            Ok(()) => has_failed = false,
            Err(why) if !std::mem::replace(&mut has_failed, true) => {
                tracing::error!(path = %files.path.display(), %why, "the audit cannot be written: make room, or mend the path");
            }
            Err(_) => {}
        }
    }
}

/// The file that is written, and those before it.
struct Files {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl Files {
    fn open(path: &Path, bytes_max: u64) -> io::Result<Files> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Files { path: path.into(), file, bytes, bytes_max })
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + lines.len() as u64 > self.bytes_max {
            self.rotate()?;
        }
        self.file.write_all(lines)?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for n in (1..FILES_MAX).rev() {
            let from = if n == 1 { self.path.clone() } else { self.older(n - 1) };
            match std::fs::rename(from, self.older(n)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *self = Files::open(&self.path, self.bytes_max)?;
        Ok(())
    }

    /// The name of the file that was written so many files before.
    fn older(&self, n: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{n}"));
        name.into()
    }
}

/// The line of an event.
fn line(at: &str, Audited { who, client, what }: &Audited, left: Left) -> String {
    let mut out = format!("{{\"at\":\"{at}\",\"who\":{}", quoted(&who.to_string()));
    if let Some(client) = client {
        out += &format!(",\"client\":\"{:016x}\"", client.0);
    }
    out += &match what {
        Audit::Connected => ",\"what\":\"connected\"".into(),
        Audit::Refused(why) => format!(",\"what\":\"refused\",\"why\":{}", quoted(why)),
        Audit::Granted(right) | Audit::Revoked(right) => {
            let word = if matches!(what, Audit::Granted(_)) { "grant" } else { "revoke" };
            let (to, role) = (quoted(&right.who.to_string()), quoted(&right.role.to_string()));
            format!(",\"what\":\"{word}\",\"to\":{to},\"role\":{role}")
        }
        Audit::Defined(class) => format!(",\"what\":\"define\",\"class\":{}", quoted(class)),
        Audit::Backup => ",\"what\":\"backup\"".into(),
        Audit::Called(name) => format!(",\"what\":\"call\",\"of\":{}", quoted(name)),
        Audit::Settled { of, prepared, is_committed } => format!(
            ",\"what\":\"settle\",\"transaction\":\"{of}\",\"prepared\":{prepared},\"committed\":{is_committed}"
        ),
        Audit::Operated(kind) => format!(",\"what\":\"operate\",\"request\":\"{kind:?}\""),
    };
    for (name, lines) in [("lost_before", left.lost), ("repeated_before", left.repeated)] {
        if lines > 0 {
            out += &format!(",\"{name}\":{lines}");
        }
    }
    out + "}\n"
}

/// A text as JSON has it.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out + "\""
}

/// The time, as `2026-11-27T20:15:30.123Z`.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (date, of_day) = (date_of_day(seconds / 86_400), seconds % 86_400);
    format!("{date}T{:02}:{:02}:{:02}.{millis:03}Z", of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

/// Time in which a refusal that says the same as one before is no line of its own.
const REPEATED: Duration = Duration::from_secs(10);

/// Refusals that are lines of their own in such a time: with the longest words, 64 MiB in twenty minutes.
const REFUSALS_MAX: usize = 1_000;

/// Lines that wait for the file, some 256 KiB: beyond it lines are lost, and counted.
const LINES_MAX: usize = 1_024;

/// Bytes of a file, and files: what was written before the last of them is gone.
const FILE_BYTES_MAX: u64 = 64 << 20;
const FILES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use tercel_wire::access::Role;
    use tercel_wire::id::ClientId;
    use tercel_wire::message::Right;

    use super::*;

    fn refused(why: &str) -> Audited {
        let who = Arc::new(Principal::client("anna").unwrap());
        Audited { who, client: Some(ClientId(7)), what: Audit::Refused(why.into()) }
    }

    #[test]
    fn line_is_json_whatever_it_tells() {
        let told = line("then", &refused("a \"b\" \\ \n"), Left { lost: 3, repeated: 0 });
        let expected = "{\"at\":\"then\",\"who\":\"client:anna\",\"client\":\"0000000000000007\",\"what\":\"refused\",\
                        \"why\":\"a \\\"b\\\" \\\\ \\u000a\",\"lost_before\":3}\n";
        assert_eq!(told, expected);
    }

    #[test]
    fn refusals_that_repeat_themselves_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut log = AuditLog::open(&path).unwrap();
        (0..500).for_each(|_| log.add(&refused("no role")));
        let granted = Right { who: Principal::Anyone, role: Role::Read };
        log.add(&Audited { what: Audit::Granted(granted), ..refused("") });
        // Strangers that each say something else fill no more than their part.
        (0..2 * REFUSALS_MAX).for_each(|n| log.add(&refused(&n.to_string())));
        assert_eq!(log.refusals.1.len(), REFUSALS_MAX);
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("no role").count(), 1, "{text}");
        assert!(text.lines().nth(1).unwrap().ends_with(",\"repeated_before\":499}"), "{text}");
    }

    #[test]
    fn four_files_are_kept_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut files = Files::open(&path, 100).unwrap();
        for n in 0..20 {
            files.append(format!("{n:039}\n").as_bytes()).unwrap();
        }
        let names = |n: usize| if n == 0 { path.clone() } else { files.older(n) };
        let texts: Vec<String> = (0..4).map(|n| std::fs::read_to_string(names(n)).unwrap()).collect();
        assert!(texts.iter().all(|text| text.len() == 80), "{texts:?}");
        assert!(texts[0].contains("19\n") && texts[3].contains("12\n") && !files.older(4).exists());
    }

    #[test]
    fn added_lines_are_in_the_file_at_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut log = AuditLog::open(&path).unwrap();
        (0..10).for_each(|n| log.add(&refused(&n.to_string())));
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!((text.lines().count(), text.contains("\"why\":\"9\"")), (10, true), "{text}");
    }
}
