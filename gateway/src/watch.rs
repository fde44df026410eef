//! Server-sent events: changes of an object or a root, and the status of the servers.
//!
//! A stream has a thread, because a watch waits as threads do. The invariant: an event's id is a token of a
//! state that the reader was told, so a reader that comes back with it misses nothing.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;
use tercel::{Any, Error, Oref, Ref, Token, Watch};
use tokio::sync::{mpsc, oneshot};

use crate::answer::{self, Answer, Content, refused, with};
use crate::asked::Asked;
use crate::events::{Events, RETRY, ROUND, since};
use crate::gate::{Gate, STREAMS_MAX, Shown};
use crate::json::call::Wrong;
use crate::objects::read;
use crate::ranges::Ranged;
use crate::route::Route;

/// Events that wait for their reader. Changes behind them join, so none is lost.
const EVENTS_MAX: usize = 16;
/// Time between two states of the servers.
const STATUS_EVERY: Duration = Duration::from_secs(1);

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
impl Gate {
    /// Begins a stream, and says so or why not.
    pub async fn watch(self: Arc<Gate>, asked: Asked) -> Answer {
        let Ok(room) = self.streams.clone().try_acquire_owned() else {
            let what = format!("{STREAMS_MAX} streams are open, which are all that this gateway has");
            return refused(StatusCode::SERVICE_UNAVAILABLE, &what, "close some, or run another gateway");
        };
        let (to, events) = mpsc::channel(EVENTS_MAX);
        let (begun, begins) = oneshot::channel::<Result<(), Wrong>>();
        let thread = thread::Builder::new().name("tercel-events".into()).spawn(move || {
            let mut events = Events::new(to);
            match asked.route {
                Route::Status => match self.status() {
                    Err(e @ Error::Denied(_)) => _ = begun.send(Err(e.into())),
                    _ => {
                        let _ = begun.send(Ok(()));
                        self.tell_status(&asked, &mut events);
                    }
                },
                Route::Table | Route::Map => match Ranged::begin(&self, &asked) {
                    Ok(ranged) => {
                        let _ = begun.send(Ok(()));
                        ranged.tell(&self, &asked, &mut events);
                    }
                    Err(why) => _ = begun.send(Err(why)),
                },
                _ => match Watched::begin(&self, &asked) {
                    Ok(watched) => {
                        let _ = begun.send(Ok(()));
                        watched.tell(&self, &asked, &mut events);
                    }
                    Err(e) => _ = begun.send(Err(e.into())),
                },
            }
            drop(room);
        });
        match (thread, begins.await) {
            (Ok(_), Ok(Ok(()))) => {
                let mut answer = Response::new(Content::Events(events));
                answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
                // A proxy that gathers an answer, as nginx does by default, would hold events back.
                with(with(answer, CACHE_CONTROL, "no-store"), ACCEL_BUFFERING, "no")
            }
            (Ok(_), Ok(Err(why))) => answer::wrong(&why),
            _ => {
                refused(StatusCode::SERVICE_UNAVAILABLE, "the system has no thread for it", "try again later")
            }
        }
    }

    fn tell_status(&self, asked: &Asked, events: &mut Events) {
        if !events.send(RETRY.into()) {
            return;
        }
        loop {
            let (name, data) = match self.status() {
                Ok(status) => ("status", json!(status)),
                Err(e) => ("error", json!({ "error": e.to_string() })),
            };
            let next = Instant::now() + STATUS_EVERY;
            if !events.tell(None, name, &data) {
                return;
            }
            while Instant::now() < next {
                if self.is_stopped() || asked.is_over() || !events.pass() {
                    return;
                }
                thread::park_timeout(next.saturating_duration_since(Instant::now()).min(ROUND));
            }
        }
    }
}

/// Something that is watched.
struct Watched {
    watch: Watch,
    /// A root's name, or a reference.
    name: String,
    /// The reader has told how far it came, and that place is known.
    resumes: bool,
    /// It has told so, and that place is of another history.
    anew: bool,
}

impl Watched {
    fn begin(gate: &Gate, asked: &Asked) -> Result<Watched, Error> {
        let name = asked.path[2].clone();
        match gate.client.run(|tx| read(tx, &name).map(drop)) {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(e) => return Err(e),
        }
        let (last, since) = since(asked);
        let start = |since: Option<Token>| {
            let watch = match name.parse::<Oref>() {
                Ok(oref) => gate.client.watch().object(Ref::<Any>::new(oref)),
                Err(_) => gate.client.watch().root(&name),
            };
            since.into_iter().fold(watch, |watch, token| watch.since(token)).start()
        };
        let (watch, resumes) = match start(since) {
            Err(Error::OtherHistory(_)) if since.is_some() => (start(None)?, false),
            watch => (watch?, since.is_some()),
        };
        Ok(Watched { watch, name, resumes, anew: last.is_some() && !resumes })
    }

    /// Tells changes until nobody reads, the gateway stops, or the reader is not known any more.
    fn tell(mut self, gate: &Gate, asked: &Asked, events: &mut Events) {
        let (at, first) = (self.watch.token(), if self.anew { "anew" } else { "state" });
        if !events.send(RETRY.into()) || !self.resumes && !self.tell_state(gate, events, at, first) {
            return;
        }
        while !gate.is_stopped() && !asked.is_over() && events.pass() {
            match self.watch.next_within(ROUND) {
                Ok(None) => {}
                Ok(Some(change)) => {
                    if !self.tell_state(gate, events, change.token, "change") {
                        return;
                    }
                }
                Err(e) => {
                    let next = "the stream ends here: connect again";
                    events.tell(None, "error", &json!({ "error": e.to_string(), "next": next }));
                    return;
                }
            }
        }
    }

    /// Tells the state at a token or behind it.
    fn tell_state(&self, gate: &Gate, events: &mut Events, at: Token, name: &str) -> bool {
        let state = gate.client.transaction().at_least(at).run(|tx| {
            read(tx, &self.name).map(|(oref, layout, object)| json!(Shown::of(oref, &layout, &object)))
        });
        match state {
            Ok(state) => events.tell(Some(at), name, &state),
            Err(Error::NotFound(_)) => events.tell(Some(at), "absent", &json!({ "name": self.name })),
            Err(e) => {
                // The reader comes back for what it was not told.
                events.tell(None, "error", &json!({ "error": e.to_string(), "next": "connect again" }));
                false
            }
        }
    }
}
