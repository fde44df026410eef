//! A server in a process of its own. It ends when this process does, however that ends, because its standard input then
//! ends too.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use tercel::{Address, AddressError};

use crate::fail::Failure;
use crate::tidy;

/// A server process that this process started. It is killed when this is dropped.
pub struct ServerProcess {
    child: Child,
    /// Kept open, so that the server can say that it has stopped.
    _out: BufReader<ChildStdout>,
    address: Address,
    backend: String,
}

impl ServerProcess {
    /// Starts this very program as a server and waits until it listens; at a port of its choice if none is named.
    pub fn start(dir: &Path, at: Option<&Address>) -> Result<ServerProcess, Failure> {
        ServerProcess::start_with(dir, at, &[])
    }

    /// With more arguments for it.
    pub fn start_with(dir: &Path, at: Option<&Address>, more: &[String]) -> Result<ServerProcess, Failure> {
        let listen = at.map_or("127.0.0.1:0".to_string(), |a| a.to_string());
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--until-eof", "--listen", &listen, "--data"])
            .arg(dir)
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        tidy::started(child.id());
        let failed = |what: &str| Failure::new(format!("the server process {what}"));
        let mut out = BufReader::new(child.stdout.take().ok_or_else(|| failed("has no output"))?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        let words = line.strip_prefix("listening on ").and_then(|l| l.split_once(" ("));
        let Some((address, rest)) = words else {
            tidy::waited(child.id());
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed("did not start; it said why above"));
        };
        let address = address.parse().map_err(|e: AddressError| Failure::new(e.to_string()))?;
        let backend = rest.split(',').next().unwrap_or_default().to_string();
        Ok(ServerProcess { child, _out: out, address, backend })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn backend(&self) -> &str {
        &self.backend
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL: no chance to tidy up.
    pub fn kill(&mut self) -> Result<(), Failure> {
        tidy::waited(self.child.id());
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits.
    pub fn stop(mut self) -> Result<(), Failure> {
        tidy::waited(self.child.id());
        signal_term(self.child.id());
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("the server ended with {status}"))) }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        tidy::waited(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks a process of ours to stop.
fn signal_term(id: u32) {
    let pid = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}
