//! Servers as processes of their own: this program again, told to serve.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use super::super::{idle, load, stale};
use super::raw;
use super::shape::Shape;
use crate::tidy;

/// A server process. Dropping it ends it, and so does the end of this process, however it ends: the server's standard
/// input ends with it.
pub struct Child {
    process: std::process::Child,
    /// What it said when it was ready: `listening on ADDRESS`, and perhaps ` (BACKEND, ...)`.
    ready: String,
    says: Option<BufReader<ChildStdout>>,
}

impl Child {
    /// `tercel serve` on a directory and a free port.
    ///
    /// # Errors
    /// A sentence: why it did not start.
    pub fn serve(data: &Path) -> Result<Child, String> {
        Child::serve_with(data, &[])
    }

    /// The same with more to say on its command line.
    ///
    /// # Errors
    /// As [`Child::serve`].
    pub fn serve_with(data: &Path, more: &[&str]) -> Result<Child, String> {
        let mut command = this_program()?;
        command.args(["serve", "--until-eof", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(more);
        Child::start(command)
    }

    /// A bare server with a file at `path`.
    ///
    /// # Errors
    /// As [`Child::serve`].
    pub fn raw(mode: raw::Mode, path: &Path, shape: &Shape) -> Result<Child, String> {
        let mut command = this_program()?;
        command.args(["bench", "commit"]).env(raw::ROLE, raw::role(mode, path, shape));
        Child::start(command)
    }

    /// Connections to the server at `address` that do nothing.
    ///
    /// # Errors
    /// As [`Child::serve`].
    pub fn idle(address: &str, connections: usize) -> Result<Child, String> {
        let mut command = this_program()?;
        command.args(["bench", "idle"]).env(idle::ROLE, idle::role(address, connections));
        Child::start(command)
    }

    /// Starts a process of suite `load` that runs an antagonist or works.
    ///
    /// # Errors
    /// As [`Child::serve`].
    pub fn load(role: &str) -> Result<Child, String> {
        let mut command = this_program()?;
        command.args(["bench", "load"]).env(load::ROLE, role);
        Child::start(command)
    }

    /// A process that echoes.
    ///
    /// # Errors
    /// As [`Child::serve`].
    pub fn echo() -> Result<Child, String> {
        let mut command = this_program()?;
        command.args(["bench", "stale"]).env(stale::ROLE, "echo");
        Child::start(command)
    }

    /// Says a line to it and waits for the line that it answers.
    ///
    /// # Errors
    /// A sentence, if it does not answer: it has ended.
    pub fn ask(&mut self, line: &str) -> Result<String, String> {
        let gone = |e: &dyn std::fmt::Display| format!("a process of the bench has ended: {e}");
        let (Some(stdin), Some(says)) = (&mut self.process.stdin, &mut self.says) else {
            return Err(gone(&"it does not listen"));
        };
        writeln!(stdin, "{line}").map_err(|e| gone(&e))?;
        let mut answer = String::new();
        match says.read_line(&mut answer) {
            Ok(0) => Err(gone(&"see above")),
            Ok(_) => Ok(answer.trim().to_string()),
            Err(e) => Err(gone(&e)),
        }
    }

    fn start(mut command: Command) -> Result<Child, String> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start a server: {e}"))?;
        tidy::started(process.id());
        let mut ready = String::new();
        let mut says = process.stdout.take().map(BufReader::new);
        let read = says.as_mut().map(|says| says.read_line(&mut ready));
        let child = Child { process, ready, says };
        match (read, child.address()) {
            (Some(Ok(_)), address) if !address.is_empty() => Ok(child),
            _ if child.ready.is_empty() => {
                Err("a process of the bench ended at once; it said why above".into())
            }
            _ => Err(format!("a process of the bench did not start: it said {:?}", child.ready.trim())),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        parse(&self.ready).0
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// How the kernel delivers events to it, if it said so.
    pub fn backend(&self) -> &str {
        parse(&self.ready).1
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        tidy::waited(self.process.id());
        // It has nothing that is still wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn this_program() -> Result<Command, String> {
    std::env::current_exe().map(Command::new).map_err(|e| format!("cannot find this program: {e}"))
}

/// Address and backend in what a server says when it is ready.
fn parse(ready: &str) -> (&str, &str) {
    let Some(rest) = ready.trim().strip_prefix("listening on ") else { return ("", "") };
    let (address, about) = rest.split_once(" (").unwrap_or((rest, ""));
    (address, about.split([',', ')']).next().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_server_is_understood() {
        let line = "listening on 127.0.0.1:4000 (io_uring, space 00ff, a new space)\n";
        assert_eq!(parse(line), ("127.0.0.1:4000", "io_uring"));
        assert_eq!(parse("listening on 127.0.0.1:9\n"), ("127.0.0.1:9", ""));
        assert_eq!(parse("error: no\n"), ("", ""));
    }
}
