//! The pace at which a peer takes what is written to it.
//!
//! The kernel takes bytes for as long as the peer does. The invariant: what is written at once is taken
//! within a time that its length alone decides, or the connection ends.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tercel::tools::network_of;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes a second that a peer takes at least, on average and after a pause: a line of 1 Mbit/s has as many.
const TAKEN_A_SECOND_MIN: u64 = 128 << 10;

/// A connection, as others see it.
#[derive(Debug)]
pub struct Link {
    /// The network of its peer.
    from: IpAddr,
    taken_bytes: AtomicU64,
    /// The last signs of its peer; none while the gateway works for it.
    signs: Mutex<Option<Signs>>,
    /// Its peer has asked for something, as a whole.
    has_asked: AtomicBool,
    cut: watch::Sender<bool>,
}

/// When a peer last did something.
#[derive(Debug, Clone, Copy)]
struct Signs {
    /// The peer sent or took something.
    heard: Instant,
    /// The peer asked for something, as a whole, or took something.
    useful: Instant,
}

impl Signs {
    fn now() -> Signs {
        let now = Instant::now();
        Signs { heard: now, useful: now }
    }
}

impl Link {
    pub fn new(from: IpAddr) -> Arc<Link> {
        let (taken_bytes, signs) = (AtomicU64::new(0), Mutex::new(Some(Signs::now())));
        let (from, has_asked) = (network_of(from), AtomicBool::new(false));
        Arc::new(Link { from, taken_bytes, signs, has_asked, cut: watch::Sender::new(false) })
    }

    /// The network of its peer.
    pub fn from(&self) -> IpAddr {
        self.from
    }

    /// The gateway works for its peer, or does so no longer.
    pub fn works(&self, works: bool) {
        *self.signs() = if works { None } else { Some(Signs::now()) };
    }

    /// Its peer has asked for something.
    pub fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
        if let Some(signs) = &mut *self.signs() {
            *signs = Signs::now();
        }
    }

    /// The times since its peer sent or took something, and since it asked for something or took some;
    /// none while the gateway works for it.
    pub fn silence(&self) -> Option<(Duration, Duration)> {
        self.signs().map(|signs| (signs.heard.elapsed(), signs.useful.elapsed()))
    }

    fn hear(&self) {
        if let Some(signs) = &mut *self.signs() {
            signs.heard = Instant::now();
        }
    }

    fn signs(&self) -> MutexGuard<'_, Option<Signs>> {
        self.signs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that its peer has taken so far.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Has the connection end at once.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Tells of that.
    pub fn is_cut(&self) -> watch::Receiver<bool> {
        self.cut.subscribe()
    }
}

/// A stream that fails once its peer is too slow.
pub struct Paced<S> {
    stream: S,
    link: Arc<Link>,
    /// The time for a peer that takes nothing.
    pause: Duration,
    /// The bytes under way, while there are some.
    under_way: Option<UnderWay>,
}

struct UnderWay {
    begun: Instant,
    bytes: u64,
    /// Ends the wait for the peer.
    wait: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub fn new(stream: S, link: Arc<Link>, pause: Duration) -> Paced<S> {
        Paced { stream, link, pause, under_way: None }
    }

    /// Takes note of a write. Fails once the peer has taken too little.
    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let begin = || UnderWay { begun: Instant::now(), bytes: 0, wait: None };
        let under_way = self.under_way.get_or_insert_with(begin);
        if let Poll::Ready(written) = written {
            let bytes = *written.as_ref().unwrap_or(&0) as u64;
            under_way.bytes += bytes;
            under_way.wait = None;
            self.link.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
            // A peer takes bytes of a handshake, too.
            match self.link.has_asked.load(Ordering::Relaxed) {
                true => self.link.signs().iter_mut().for_each(|signs| *signs = Signs::now()),
                false => self.link.hear(),
            }
            return Poll::Ready(written);
        }
        let takes = Duration::from_secs_f64(under_way.bytes as f64 / TAKEN_A_SECOND_MIN as f64);
        let end = under_way.begun + self.pause + takes;
        let wait = under_way.wait.get_or_insert_with(|| Box::pin(sleep_until(end)));
        ready!(wait.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S> AsRef<S> for Paced<S> {
    fn as_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.link.hear();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.wrote(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        this.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The connection flushes once all of an answer is written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        this.under_way = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
