//! The memory of large answers until their peers have taken them.
//!
//! An answer for which there is no room has the connection end whose peer takes its own most slowly. The
//! invariant: a peer that takes nothing keeps memory from no other for longer than [`QUIET`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::time;

use crate::answer::{Answer, Content};
use crate::pace::Link;

/// Bytes of all large answers that their peers have not taken: two of the largest.
const BYTES_MAX: usize = 2 * ANSWER_BYTES_MAX;
/// Bytes of one answer. A server's answer to a call has twice as many at most, and few of them do.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;
/// An answer up to here is small: the buffers of a connection take it at once, mostly.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// The time in which a peer shows its pace.
const QUIET: Duration = Duration::from_secs(1);

/// The large answers that are under way.
#[derive(Debug, Default)]
pub struct Room {
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    places: Vec<Arc<Place>>,
}

/// The place of one answer.
#[derive(Debug)]
struct Place {
    link: Arc<Link>,
    bytes: usize,
    begun: Instant,
    /// The bytes that the peer had taken before.
    before: u64,
}

impl Place {
    fn bytes_a_second(&self) -> f64 {
        let taken = self.link.taken_bytes() - self.before;
        taken as f64 / self.begun.elapsed().as_secs_f64()
    }
}

impl Room {
    /// The same answer, which keeps its place until its peer has taken it, if it is large.
    pub async fn hold(self: &Arc<Room>, answer: Answer, link: &Arc<Link>) -> Answer {
        let bytes = match answer.body() {
            Content::Whole(Some(body)) if body.len() > SMALL_BYTES_MAX => body.len(),
            _ => return answer,
        };
        let place = loop {
            match self.take(link, bytes) {
                Ok(place) => break place,
                Err(wait) => _ = time::timeout(wait, self.freed.notified()).await,
            }
        };
        let held = |body| Bytes::from_owner(Held { body, place, room: self.clone() });
        answer.map(|content| match content {
            Content::Whole(body) => Content::Whole(body.map(held)),
            events => events,
        })
    }

    /// Takes a place, at the cost of the slowest peers. Gives the time in which one of these is known, if
    /// none is so far.
    fn take(&self, link: &Arc<Link>, bytes: usize) -> Result<Arc<Place>, Duration> {
        let mut taken = self.lock();
        while taken.bytes + bytes > BYTES_MAX {
            let known = taken.places.iter().filter(|place| place.begun.elapsed() >= QUIET);
            let slowest = known.min_by(|a, b| a.bytes_a_second().total_cmp(&b.bytes_a_second())).cloned();
            let Some(slowest) = slowest else {
                let oldest = taken.places.iter().map(|place| place.begun.elapsed()).max();
                return Err(QUIET.saturating_sub(oldest.unwrap_or_default()));
            };
            slowest.link.cut();
            taken.free(&slowest);
        }
        let (link, before) = (link.clone(), link.taken_bytes());
        let place = Arc::new(Place { link, bytes, begun: Instant::now(), before });
        taken.bytes += bytes;
        taken.places.push(place.clone());
        Ok(place)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn free(&mut self, place: &Arc<Place>) {
        if let Some(at) = self.places.iter().position(|other| Arc::ptr_eq(other, place)) {
            self.places.swap_remove(at);
            self.bytes -= place.bytes;
        }
    }
}

/// A body in its place.
struct Held {
    body: Bytes,
    place: Arc<Place>,
    room: Arc<Room>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.lock().free(&self.place);
        self.room.freed.notify_one();
    }
}
