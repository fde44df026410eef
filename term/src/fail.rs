//! Errors as people meet them: what happened, and the next step.

use std::io::ErrorKind;
use std::path::Path;

use tercel::DiskError;
use tercel::backup::BackupError;
use tercel::check::CheckError;
use tercel::tools::disk::dir::is_member;
use tercel::{Bound, Error, ServerError};

use crate::wrap::{columns, wrap};
use crate::{Term, program};

/// The failure of a command.
#[derive(Debug)]
pub struct Failure {
    /// The event that failed.
    pub what: String,
    /// The next step for the user.
    pub next: Option<String>,
    /// The exit code, as `tercel --help` has them: 1 for a failure, 2 for a wrong command line, 3 for unsound
    /// data.
    pub code: u8,
}

/// The result of a command.
pub type Outcome = Result<std::process::ExitCode, Failure>;

impl Failure {
    /// A failure with the exit code 1 and no next step.
    pub fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), next: None, code: 1 }
    }

    /// A failure from an error whose text after its last semicolon is the next step.
    pub fn of_sentence(text: &str) -> Failure {
        match text.rsplit_once("; ") {
            Some((what, next)) => Failure::new(what).next(next),
            None => Failure::new(text),
        }
    }

    /// A failure from an error of a command that asks a server and opens no directory. `option` names the
    /// server, such as `--addr`.
    pub fn at_server(e: Error, option: &str) -> Failure {
        if let Some(failure) = Failure::of_group(&e) {
            return failure;
        }
        let is_away = matches!(e, Error::Unavailable(_));
        let failure = Failure::from(e);
        match is_away {
            true if failure.is_of_silence() => failure,
            true => failure.next(format!(
                "start a server with `tercel serve --data DIR`, or name another one with {option} ADDR"
            )),
            false => failure,
        }
    }

    /// Says whether something holds the server's address and says nothing: no server can be started there.
    fn is_of_silence(&self) -> bool {
        self.code == LATER
    }

    /// The failure where servers answered that serve nothing now, and said why and what to do.
    fn of_group(e: &Error) -> Option<Failure> {
        let text = e.to_string();
        let known = [("; start the members", LATER), ("; name it alone", 1)];
        let (_, code) = known.iter().find(|(next, _)| text.contains(next))?;
        Some(Failure::of_sentence(&text).code(*code))
    }

    /// The same with a next step.
    pub fn next(mut self, next: impl Into<String>) -> Failure {
        self.next = Some(next.into());
        self
    }

    /// The same, of a command that opened a directory. A member's is neither repaired nor restored, so what
    /// is advised for others is no step there.
    pub fn in_directory(self, dir: &Path) -> Failure {
        let parts = self.what.split("; ").chain(self.next.as_deref());
        if !parts.clone().any(is_of_one_server) || !is_member(dir) {
            return self;
        }
        let what: Vec<&str> = self.what.split("; ").filter(|part| !is_of_one_server(part)).collect();
        Failure { what: what.join("; "), next: Some(anew(dir)), code: self.code }
    }

    /// The same with another exit code.
    pub fn code(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    /// Prints it to standard error. Commands in it call the program as the user did.
    pub fn print(&self, term: &Term) {
        // Messages call the program by its name; what is to be copied must be what was typed.
        let called = format!("`{} ", program());
        let show = |head: String, words: &str| {
            let line = format!("{head} {}", words.replace("`tercel ", &called));
            // Elsewhere one line is one error, as a search in logs expects.
            match term.err {
                true => eprintln!("{}", wrap(&line, columns(), 2)),
                false => eprintln!("{line}"),
            }
        };
        show(term.red("error:"), &self.what);
        if let Some(next) = &self.next {
            show(term.bold("next:"), next);
        }
    }
}

/// The end of what a client says of an address at which nobody greets.
const SILENT: &str = "the server does not answer the greeting";

impl From<tercel::Error> for Failure {
    fn from(e: tercel::Error) -> Failure {
        if let Some(failure) = Failure::of_group(&e) {
            return failure;
        }
        if matches!(&e, tercel::Error::Unavailable(why) if why.ends_with(SILENT)) {
            let next = "something holds that address: see whether it is a Tercel server, and whether it is stopped or hangs";
            return Failure::new(e.to_string()).code(LATER).next(next);
        }
        // The one setting that a command can get wrong.
        let is_of_line = matches!(&e, tercel::Error::Invalid(text) if text.contains("`cache_bytes`"));
        let next = match &e {
            tercel::Error::Conflict(_) => Some("others change the same objects all the time: try again"),
            tercel::Error::Unavailable(_) => {
                Some("start a server with `tercel serve --data DIR`, or name a directory with --data DIR")
            }
            tercel::Error::PlaceLost(_) => {
                Some("the server did not hear of this client for too long: run the same command again")
            }
            tercel::Error::Timeout | tercel::Error::Unknown { .. } => {
                Some("the server is slow or gone: `tercel stat` tells whether it is there")
            }
            tercel::Error::Corrupt(_) => Some("stop the server and run `tercel check --data DIR`"),
            tercel::Error::Full(Bound::Cache | Bound::Reads) => Some("give more memory with --cache"),
            tercel::Error::Invalid(_) if is_of_line => {
                Some("give another size with --cache, such as --cache 1G")
            }
            tercel::Error::Server(fault) => match fault.get::<ServerError>() {
                Some(e) => return Failure::of_server(e),
                None => None,
            },
            _ => None,
        };
        let text = e.to_string();
        let failure = Failure::new(without_advice(&text)).code(if is_of_line { 2 } else { 1 });
        match next {
            Some(next) => failure.next(next),
            None => failure,
        }
    }
}

/// A sentence of the library's without what it says to do, where the command says it.
fn without_advice(text: &str) -> &str {
    text.split_once("; start a server there").map_or(text, |(what, _)| what)
}

impl From<ServerError> for Failure {
    fn from(e: ServerError) -> Failure {
        Failure::of_server(&e)
    }
}

impl Failure {
    fn of_server(e: &ServerError) -> Failure {
        let next = match e {
            ServerError::NoSpace(_) => {
                Some("make one with `tercel import debian --data DIR` or `tercel serve --data DIR`")
            }
            ServerError::TooLarge { name: "mob_bytes", .. } => {
                Some("give less memory with --mob, such as --mob 1G")
            }
            ServerError::TooLarge { name: "cache_bytes", .. } => {
                Some("give less memory with --cache, such as --cache 1G")
            }
            ServerError::Disk(e) => of_disk(e),
            ServerError::Join(_) => {
                let failure = Failure::of_sentence(&e.to_string());
                return match failure.next {
                    Some(_) => failure,
                    None => failure.next(
                        "name members that run, with --join ADDR,ADDR: `tercel group status --server ADDR` asks one",
                    ),
                };
            }
            ServerError::Address(_) => return Failure::of_sentence(&e.to_string()),
            _ => None,
        };
        let wrong_line = matches!(e, ServerError::TooLarge { .. });
        let failure = Failure::new(e.to_string()).code(if wrong_line { 2 } else { 1 });
        match next {
            Some(next) => failure.next(next),
            None => failure,
        }
    }
}

/// Says whether words advise to repair a directory, or to put another state in its place.
fn is_of_one_server(words: &str) -> bool {
    ["tercel check", "tercel restore", "restore a backup"].iter().any(|advice| words.contains(advice))
}

/// The steps for a member whose directory is damaged: the others have what it had.
pub fn anew(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "the other members have what it had: remove it (`tercel group remove ADDR --server OTHERS`), empty {dir}, and let it join \
         again (`tercel serve --data {dir} --listen ADDR --join OTHERS --secret FILE`, with a copy of the file `secret` of another \
         member, then `tercel group add ADDR`); if no quorum is left for good, `tercel group rescue --data {dir}`"
    )
}

/// Says whether the server's buffer was full, so that nothing happened and the same can be tried again a
/// moment later.
pub fn drains(e: &Error) -> bool {
    matches!(e, Error::Full(Bound::Buffer))
}

/// The next step when a data directory cannot be opened and the error itself names none.
pub fn of_disk(e: &DiskError) -> Option<&'static str> {
    match e {
        DiskError::Locked { .. } => Some(
            "if that is a server, ask it instead with --server ADDR where a command has that; else end it or wait: one data directory is used by one at a time",
        ),
        DiskError::Io { source, path, .. } => match source.kind() {
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Some(match is_in_space(path) {
                true => {
                    "a data directory must be writable for the user that opens it, even to read: copy it with `cp -r` to where it is"
                }
                false => {
                    "name a directory that this user may write to, or a new one where this user may make one; a file that is only to be \
                     read must be readable for this user"
                }
            }),
            ErrorKind::FileTooLarge => Some(
                "raise the limit on the size of a file, which `ulimit -f` shows, or take a file system that has larger ones",
            ),
            ErrorKind::NotADirectory => Some("name a directory: a new one, or one that Tercel made"),
            _ => None,
        },
        _ => None,
    }
}

/// Says whether a file is, or would be, in a directory with a space, or is that directory.
fn is_in_space(file: &Path) -> bool {
    file.ancestors().take(2).any(|dir| dir.join("format").exists())
}

/// For code whose errors are sentences.
impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.what
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::new(e.to_string())
    }
}

impl From<BackupError> for Failure {
    fn from(e: BackupError) -> Failure {
        let code = match &e {
            e if e.is_retryable() => LATER,
            BackupError::NotABackup(_) => 2,
            BackupError::Damaged { .. } | BackupError::Unsound { .. } => 3,
            _ => 1,
        };
        Failure::of_sentence(&e.to_string()).code(code)
    }
}

impl From<CheckError> for Failure {
    fn from(e: CheckError) -> Failure {
        match &e {
            // A check has no other way than through the directory.
            CheckError::Disk(DiskError::Locked { dir, pid }) => {
                let pid = pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}"));
                Failure::new(format!("{} is in use by {pid}, and a check needs it for itself", dir.display()))
                    .next("if that is a server, stop it first; else wait until it has ended, then run the same command again")
            }
            CheckError::Disk(disk) => {
                let failure = Failure::new(e.to_string());
                of_disk(disk).into_iter().fold(failure, |failure, next| failure.next(next))
            }
            _ => Failure::of_sentence(&e.to_string()),
        }
    }
}

/// The exit code when the same command may succeed later: a job that runs by itself tries again.
const LATER: u8 = 75;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_of_a_member_is_not_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let of = || {
            let damaged = "the log is damaged; `tercel check --data DIR --repair` saves what can be saved";
            Failure::new(damaged).next("restore a backup").in_directory(dir.path())
        };
        assert_eq!(of().next.as_deref(), Some("restore a backup"));
        std::fs::write(dir.path().join("votes"), "").unwrap();
        let member = of();
        assert_eq!(member.what, "the log is damaged");
        assert!(member.next.is_some_and(|next| next.contains("--join") && !next.contains("repair")));
        let other = Failure::new("it is in use; end that").in_directory(dir.path());
        assert_eq!((other.what.as_str(), other.next), ("it is in use; end that", None));
    }

    #[test]
    fn only_a_space_that_is_there_is_to_be_copied() {
        let dir = tempfile::tempdir().unwrap();
        let next = |name: &str| {
            let source = ErrorKind::PermissionDenied.into();
            of_disk(&DiskError::Io { op: "create", path: dir.path().join(name), source }).unwrap()
        };
        assert!(next("new").contains("may write"), "{}", next("new"));
        std::fs::write(dir.path().join("format"), "").unwrap();
        assert!(next("lock").contains("cp -r"), "{}", next("lock"));
    }
}
