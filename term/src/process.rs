//! A process of this program that this process started. It ends when this process does, however that ends,
//! because its standard input then ends too.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tercel::{Address, AddressError};

use crate::fail::Failure;
use crate::tidy;

/// This program, or the server beside it, in another process: a server, or a part of a measurement. It is
/// killed when this is dropped.
pub struct OwnProcess {
    child: Child,
    /// Kept open, so that the process can say that it has stopped.
    out: BufReader<ChildStdout>,
    /// The first line of its output.
    ready: String,
}

impl OwnProcess {
    /// Starts a server and waits until it listens; at a port of its choice if none is named. `more` goes to
    /// the end of its command line.
    ///
    /// # Errors
    /// If it does not start; it has then said why on standard error.
    pub fn serve(dir: &Path, at: Option<&Address>, more: &[&str]) -> Result<OwnProcess, Failure> {
        OwnProcess::serve_by(Command::new, dir, at, more)
    }

    /// The same by a command line that begins the server's program in some other way.
    ///
    /// # Errors
    /// As [`OwnProcess::serve`].
    pub(crate) fn serve_by(
        begin: impl FnOnce(PathBuf) -> Command,
        dir: &Path,
        at: Option<&Address>,
        more: &[&str],
    ) -> Result<OwnProcess, Failure> {
        let listen = at.map_or("127.0.0.1:0".to_string(), |a| a.to_string());
        let mut command = begin(tercel()?);
        command
            .args(["serve", "--until-eof", "--log-level", "off", "--listen", &listen, "--data"])
            .arg(dir)
            .args(more);
        OwnProcess::start(command)
    }

    /// Starts a part of this program that only this program asks for: the command line `args`, and in the
    /// environment `variable` with the value `role`.
    ///
    /// # Errors
    /// If it does not say `listening on`; it has then said why on standard error.
    pub fn role(args: &[&str], variable: &str, role: impl AsRef<OsStr>) -> Result<OwnProcess, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).env(variable, role);
        OwnProcess::start(command)
    }

    /// Starts another program that says the same when it is ready.
    ///
    /// # Errors
    /// If it does not say `listening on`.
    pub fn start(mut command: Command) -> Result<OwnProcess, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        tidy::started(child.id());
        let out = child.stdout.take().expect("its output is a pipe");
        let mut process = OwnProcess { child, out: BufReader::new(out), ready: String::new() };
        process.out.read_line(&mut process.ready)?;
        match parse(&process.ready) {
            Some(_) => Ok(process),
            None => Err(Failure::new(match process.ready.trim() {
                "" => "a process of this program did not start; it said why above".into(),
                said => format!("a process of this program did not start: it said {said:?}"),
            })),
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If it is no server, and so listens nowhere.
    pub fn address(&self) -> Result<Address, Failure> {
        self.listens_on().parse().map_err(|e: AddressError| Failure::new(e.to_string()))
    }

    /// Where it listens, in its own words.
    pub fn listens_on(&self) -> &str {
        parse(&self.ready).map_or("", |(address, _)| address)
    }

    /// The way in which the kernel delivers events to it; empty if it is no server.
    pub fn backend(&self) -> &str {
        parse(&self.ready).map_or("", |(_, backend)| backend)
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Says a line to it and waits for the line that it answers.
    ///
    /// # Errors
    /// If it does not answer, because it has ended.
    pub fn ask(&mut self, line: &str) -> Result<String, Failure> {
        let gone =
            |e: &dyn std::fmt::Display| Failure::new(format!("a process of this program has ended: {e}"));
        let Some(stdin) = &mut self.child.stdin else { return Err(gone(&"it does not listen")) };
        writeln!(stdin, "{line}").map_err(|e| gone(&e))?;
        let mut answer = String::new();
        match self.out.read_line(&mut answer) {
            Ok(0) => Err(gone(&"see above")),
            Ok(_) => Ok(answer.trim().to_string()),
            Err(e) => Err(gone(&e)),
        }
    }

    /// Kills it with SIGKILL: it cannot tidy up.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(&mut self) -> Result<(), Failure> {
        tidy::waited(self.child.id());
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends it a signal. One that has ended, and was not waited for, takes none.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it with SIGTERM, and waits.
    ///
    /// # Errors
    /// If it ends with an error.
    pub fn stop(self) -> Result<(), Failure> {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// If it ends with an error.
    pub fn ended(mut self) -> Result<(), Failure> {
        tidy::waited(self.child.id());
        // Waiting would close it, and its end stops a server at once that is to let calls come to their end.
        let stdin = self.child.stdin.take();
        let status = self.child.wait()?;
        drop(stdin);
        if status.success() { Ok(()) } else { Err(Failure::new(format!("the server ended with {status}"))) }
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        tidy::waited(self.child.id());
        // It has nothing that is still wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program that ships, of which servers and gateways of this run are: measurements are of it, too.
///
/// # Errors
/// If it is not there.
pub fn tercel() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    if own.ends_with("tercel-bench") { beside("tercel", "tercel-cli") } else { Ok(own) }
}

/// Finds another program of this build, of the crate `package`, where this program is.
///
/// # Errors
/// If it is not there.
pub fn beside(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?.with_file_name(name);
    if program.is_file() {
        return Ok(program);
    }
    let failure = Failure::new(format!("{} is not there, which this needs", program.display()));
    Err(failure.next(format!("build it with `cargo build --release -p {package}`, and put it there")))
}

/// Lets this process open as many descriptors as its hard limit allows: each client takes one. The usual soft
/// limit is for programs that keep descriptors in small sets.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Address and backend in the line by which a process says that it is ready.
fn parse(ready: &str) -> Option<(&str, &str)> {
    let rest = ready.trim().strip_prefix("listening on ")?;
    let (address, about) = rest.split_once(" (").unwrap_or((rest, ""));
    // A server may listen at several.
    let address = address.split(' ').next()?;
    Some((address, about.split([',', ')']).next().unwrap_or("")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_server_is_understood() {
        let line = "listening on 127.0.0.1:4000 (io_uring, space 00ff, a new space)\n";
        assert_eq!(parse(line), Some(("127.0.0.1:4000", "io_uring")));
        assert_eq!(parse("listening on 127.0.0.1:9\n"), Some(("127.0.0.1:9", "")));
        let several = "listening on 127.0.0.1:4000 unix:/tmp/socket (epoll, space 00ff, a new space)\n";
        assert_eq!(parse(several), Some(("127.0.0.1:4000", "epoll")));
        assert_eq!(parse("error: no\n"), None);
    }
}
