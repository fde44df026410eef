//! Answers: a body with its status and headers, and errors as answers that say who must act.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, CONTENT_TYPE,
    HeaderName, HeaderValue, RETRY_AFTER, VARY,
};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tercel::{Bound, Error};
use tokio::sync::mpsc;

use crate::json::call::{Said, Wrong};

pub type Answer = Response<Content>;

/// The body of an answer: known at once, or events as they come.
#[derive(Debug)]
pub enum Content {
    Whole(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Content::Whole(bytes) => Poll::Ready(bytes.take()),
            Content::Events(events) => events.poll_recv(cx),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Content::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer of some type.
pub fn of_type(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let body: Bytes = body.into();
    let mut answer = Response::new(Content::Whole(Some(body).filter(|body| !body.is_empty())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// An answer in JSON.
pub fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    of_type(status, "application/json", serde_json::to_vec(body).expect("its keys are texts"))
}

/// The same answer with a header, whose value is of visible characters.
pub fn with(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}

/// The answer to a browser that asks whether a page of a site that may ask may send a request.
pub fn preflight() -> Answer {
    let answer = of_type(StatusCode::NO_CONTENT, "text/plain", "");
    let answer = with(answer, ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST");
    let answer = with(answer, ACCESS_CONTROL_ALLOW_HEADERS, TAKEN);
    with(answer, ACCESS_CONTROL_MAX_AGE, "600")
}

/// The headers that a page may send, and those of an answer that it may read.
const TAKEN: &str = "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID";
const SHOWN: &str = "ETag, Retry-After, Tercel-Token, WWW-Authenticate";

/// The answer for a page of this site, which a browser then lets it read.
pub fn shared_with(answer: Answer, origin: &str, has_certificates: bool) -> Answer {
    let answer = with(with(answer, ACCESS_CONTROL_ALLOW_ORIGIN, origin), VARY, "Origin");
    let answer = with(answer, ACCESS_CONTROL_EXPOSE_HEADERS, SHOWN);
    // The certificate of a page's reader is sent with its requests only then.
    if has_certificates { with(answer, ACCESS_CONTROL_ALLOW_CREDENTIALS, "true") } else { answer }
}

/// A refusal: what is wrong, and the next step.
pub fn refused(status: StatusCode, what: &str, next: &str) -> Answer {
    refused_with(status, json!({ "error": what, "next": next }))
}

fn refused_with(status: StatusCode, body: Value) -> Answer {
    let answer = json(status, &body);
    let is_later = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    // A new leader is there within a second, and buffers drain as fast.
    if is_later { with(answer, RETRY_AFTER, "1") } else { answer }
}

/// A request that cannot be done.
pub fn wrong(why: &Wrong) -> Answer {
    match why {
        Wrong::Absent(Said { what, next }) => refused(StatusCode::NOT_FOUND, what, next),
        Wrong::Invalid(Said { what, next }) => refused(StatusCode::BAD_REQUEST, what, next),
        Wrong::Space(e) => error(e),
        Wrong::Method(e) => refused(
            StatusCode::INTERNAL_SERVER_ERROR,
            &e.to_string(),
            "nothing was changed; the server's program must act",
        ),
    }
}

/// An error of the space.
pub fn error(e: &Error) -> Answer {
    let text = e.to_string();
    let (status, next, executed) = kind(e);
    let (what, next) = match text.rsplit_once("; ") {
        Some((what, next)) => (what, next),
        None => (text.as_str(), next),
    };
    let mut body = json!({ "error": what, "next": next });
    if let Some(executed) = executed {
        body["executed"] = executed.into();
    }
    if let Error::Unknown { op: Some(op), .. } = e {
        body["operation"] = op.to_string().into();
    }
    refused_with(status, body)
}

/// The status of an error, the next step if its text has none, and how far a call was executed that ended so,
/// if that is in doubt.
fn kind(e: &Error) -> (StatusCode, &'static str, Option<&'static str>) {
    const LATER: &str = "send it again";
    const LOOK: &str = "it was executed once at most: look whether it was before you send it again";
    match e {
        Error::Conflict(_) => (StatusCode::CONFLICT, LATER, None),
        Error::PlaceLost(_) => (StatusCode::CONFLICT, LATER, None),
        Error::Taken(_) => (StatusCode::CONFLICT, "choose another key", None),
        Error::NotFound(_) => (StatusCode::NOT_FOUND, "GET /v1/roots lists the roots of the space", None),
        Error::Denied(_) => (StatusCode::FORBIDDEN, "ask who gives rights in the space", None),
        Error::Schema(_) | Error::Invalid(_) => {
            (StatusCode::BAD_REQUEST, "GET /openapi.json says what is taken", None)
        }
        Error::Unsupported(_) => (StatusCode::NOT_IMPLEMENTED, "upgrade the server", None),
        Error::Full(Bound::Transactions) => (StatusCode::TOO_MANY_REQUESTS, LATER, None),
        Error::Full(Bound::Pages | Bound::Roots { .. } | Bound::Exports { .. }) => {
            (StatusCode::INSUFFICIENT_STORAGE, "make room in the space", None)
        }
        Error::Full(
            Bound::Buffer
            | Bound::Disk
            | Bound::Server(_)
            | Bound::Cache
            | Bound::TransactionsInside { .. }
            | Bound::Watched { .. },
        ) => (StatusCode::SERVICE_UNAVAILABLE, LATER, None),
        Error::Full(_) => (StatusCode::PAYLOAD_TOO_LARGE, "send less at once", None),
        Error::Unavailable(_) | Error::OtherHistory(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "see that the servers run, and send it again", None)
        }
        Error::Timeout => (StatusCode::GATEWAY_TIMEOUT, "nothing was changed: send it again", None),
        Error::Unknown { .. } => (StatusCode::GATEWAY_TIMEOUT, LOOK, Some("unknown")),
        Error::Failed(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "the server's program must act", Some("in part"))
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "`tercel check` shows where the space is damaged", None),
    }
}
