//! Connections and their bounds, and the way of a request: head, body, answer.
//!
//! A request that can be answered from the cache is answered on the thread that read it. Every other one goes
//! to a thread that may wait for a server, and there are as many of these as requests may be in flight. The
//! invariant: nothing that a peer sends or withholds takes more than the bounds below.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::{task, time};

use crate::Config;
use crate::answer::{Answer, refused};
use crate::asked::Asked;
use crate::gate::{Gate, IN_FLIGHT_MAX};

/// Connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 1_024;
/// The body of a request.
const BODY_BYTES_MAX: usize = 8 << 20;
/// The head of a request, and what a connection buffers.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The pause after a connection that could not be taken, because descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until it is told to stop, and then for as long as requests under way may take.
pub async fn serve(listener: TcpListener, gate: Arc<Gate>, mut stop: watch::Receiver<bool>, config: &Config) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let next = async || {
        let room = connections.clone().acquire_owned().await;
        (room, listener.accept().await)
    };
    while let Some(accepted) = before_stop(&mut stop, next()).await {
        let (Ok(room), Ok((stream, _))) = accepted else {
            time::sleep(PAUSE).await;
            continue;
        };
        let served = connection(stream, gate.clone(), stop.clone(), config.idle);
        task::spawn(async move {
            served.await;
            drop(room);
        });
    }
    drop(listener);
    gate.stop();
    let _ = time::timeout(config.drain, connections.acquire_many(CONNECTIONS_MAX as u32)).await;
}

/// The result of a future, unless it is told to stop before.
async fn before_stop<T>(stop: &mut watch::Receiver<bool>, work: impl Future<Output = T>) -> Option<T> {
    let (mut stopped, mut work) = (pin!(stop.wait_for(|stop| *stop)), pin!(work));
    poll_fn(|cx| match stopped.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(cx).map(Some),
    })
    .await
}

async fn connection(stream: TcpStream, gate: Arc<Gate>, mut stop: watch::Receiver<bool>, idle: Duration) {
    // A peer that takes nothing holds its connection for no longer.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, idle.as_millis() as u32);
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, &gate, idle));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(idle).max_buf_size(HEAD_BYTES_MAX);
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), service));
    if before_stop(&mut stop, served.as_mut()).await.is_none() {
        served.as_mut().graceful_shutdown();
        // A peer that breaks off, or sends no HTTP, was told by hyper what there is to tell.
        let _ = served.await;
    }
}

/// Answers a request and counts it.
async fn answer(request: Request<Incoming>, gate: &Arc<Gate>, idle: Duration) -> Result<Answer, Infallible> {
    let begun = Instant::now();
    let (asked, body) = Asked::of(request);
    let route = asked.route;
    let answer = match gate.cached(&asked) {
        _ if asked.is_foreign(gate.is_public) => refused(
            StatusCode::FORBIDDEN,
            "a page of another site may not ask here",
            "name the gateway by its address, or localhost, from a program or its own console",
        ),
        Some(answer) => answer,
        None if asked.wants_events() => gate.clone().watch(asked).await,
        None => waiting(gate, asked, body, idle).await,
    };
    gate.counts.count(route, answer.status().as_u16(), begun.elapsed());
    Ok(answer)
}

/// Answers on a thread that may wait.
async fn waiting(gate: &Arc<Gate>, mut asked: Asked, body: Incoming, idle: Duration) -> Answer {
    let Ok(room) = gate.in_flight.clone().try_acquire_owned() else {
        let what = format!("{IN_FLIGHT_MAX} requests are in flight, which are all that this gateway takes");
        return refused(StatusCode::SERVICE_UNAVAILABLE, &what, "send it again, or run another gateway");
    };
    asked.body = match received(body, idle).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let gate = gate.clone();
    let done = task::spawn_blocking(move || {
        let answer = gate.answer(&asked);
        drop(room);
        answer
    });
    done.await.unwrap_or_else(|_| {
        let next = "report what was asked for; it is not known whether it was done";
        refused(StatusCode::INTERNAL_SERVER_ERROR, "the gateway failed at this request", next)
    })
}

/// The body of a request.
async fn received(mut body: Incoming, idle: Duration) -> Result<Vec<u8>, Answer> {
    let too_large = || {
        let what = format!("the body has more than {BODY_BYTES_MAX} bytes");
        refused(StatusCode::PAYLOAD_TOO_LARGE, &what, "send it in parts")
    };
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    loop {
        let frame = time::timeout(idle, poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))).await;
        match frame {
            Ok(None) => return Ok(bytes),
            Ok(Some(Ok(frame))) => {
                bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
                if bytes.len() > BODY_BYTES_MAX {
                    return Err(too_large());
                }
            }
            Ok(Some(Err(e))) => {
                return Err(refused(StatusCode::BAD_REQUEST, &format!("the body: {e}"), "send all of it"));
            }
            Err(_) => {
                return Err(refused(
                    StatusCode::REQUEST_TIMEOUT,
                    "the body did not come in time",
                    "send it again",
                ));
            }
        }
    }
}
