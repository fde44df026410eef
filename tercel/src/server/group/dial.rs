//! A connection to another member, made anew whenever it ends. Names are resolved each time.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tercel_events::Handle;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::MemberId;
use tercel_wire::message::Join;

use crate::address::Address;
use crate::server::Post;
use crate::server::store::post;

/// Connects to one member, on a thread of its own.
pub(super) struct Dialer {
    again: Option<Sender<()>>,
    /// Ends by itself once nobody waits for it: it may be in a connect for a while.
    _thread: JoinHandle<()>,
}

impl Dialer {
    /// Begins to connect. Each connection is greeted with `join` and posted.
    pub(super) fn start(
        to: MemberId,
        address: Address,
        join: Join,
        handle: Handle<Post>,
    ) -> std::io::Result<Dialer> {
        let (again, asked) = channel();
        let _thread = std::thread::Builder::new()
            .name("tercel-dial".into())
            .spawn(move || dial(to, &address, &join, &asked, &handle))?;
        Ok(Dialer { again: Some(again), _thread })
    }

    /// The connection has ended: makes another.
    pub(super) fn again(&self) {
        if let Some(again) = &self.again {
            let _ = again.send(());
        }
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.again = None;
    }
}

fn dial(to: MemberId, address: &Address, join: &Join, asked: &Receiver<()>, handle: &Handle<Post>) {
    let mut greeting = Vec::new();
    let mut body = Vec::new();
    join.encode(&mut body);
    frame::encode(Header::new(Kind::Join, 0), &body, &mut greeting);
    let mut pause = PAUSE_MIN;
    loop {
        match connect(address, &greeting) {
            Ok(stream) => {
                post(handle, Post::Dialed(to, stream));
                pause = PAUSE_MIN;
                if asked.recv().is_err() {
                    return;
                }
            }
            Err(_) => {
                match asked.recv_timeout(pause) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                }
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }
}

fn connect(address: &Address, greeting: &[u8]) -> std::io::Result<OwnedFd> {
    let stream = address.connect(CONNECT_MAX)?;
    // A stream is a stream: what the socket is of makes no difference to a write.
    let mut stream = UnixStream::from(stream);
    stream.write_all(greeting)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

/// The wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// The pause before the next attempt, at first and at most: a member that is back is found within this time,
/// or sooner by its own connection.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
