//! Connections and their bounds, and the way of a request: head, body, answer.
//!
//! A request that can be answered from the cache is answered on the thread that read it, and one that reads
//! an object or the roots waits for a server as a task does. Every other one goes to a thread that may wait,
//! and there are as many of these as requests may be in flight.
//! Health and counters have threads of their own: an operator asks for them just when there are no others.
//! Where the gateway speaks for callers, counters are an operator's alone, and need a client as any request.
//! The invariant: nothing that a peer sends, withholds or leaves untaken costs more than the bounds below.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::header::ACCEPT_ENCODING;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};
use tokio::{task, time};

use crate::Config;
use crate::answer::{self, Answer, refused, with};
use crate::asked::{Asked, outage};
use crate::callers::{Callers, Door};
use crate::gate::{Gate, IN_FLIGHT_MAX, SIGNS_MAX};
use crate::https::FOR_EVER;
use crate::json::call::cut;
use crate::pace::{Link, Paced};
use crate::route::Route;

/// Connections at once; one beyond them ends one that is of no use, from the network that has most of these.
const CONNECTIONS_MAX: usize = 1_024;
/// The body of a request.
const BODY_BYTES_MAX: usize = 8 << 20;
/// A body beyond is large: as values it has many times its bytes.
const LARGE_BODY_BYTES: usize = 1 << 20;
/// The head of a request, and what a connection buffers.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Bytes that the kernel has for a peer: a line with a round trip of 100 ms takes 20 Mbit/s so.
const SENT_BYTES_MAX: usize = 256 << 10;
/// The silence of a peer that keeps its connection from another.
const SILENT: Duration = Duration::from_secs(1);
/// Time for a peer to say all of what it asks, where it keeps its connection from another: two ways to the
/// other side of the Earth and back.
const UNFINISHED: Duration = Duration::from_millis(500);
/// The pause after a connection that could not be taken, because descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Time for an answer that is under way when the certificate of its caller ends.
const LAST_ANSWER: Duration = Duration::from_secs(5);

/// Answers until it is told to stop, and then for as long as requests under way may take.
pub async fn serve(
    listener: TcpListener,
    (gate, callers): (Arc<Gate>, Option<Arc<Callers>>),
    mut stop: watch::Receiver<bool>,
    config: &Config,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut links: Vec<Weak<Link>> = Vec::new();
    let mut looks: Vec<_> = gate.https.clone().map(|https| task::spawn(https.look())).into_iter().collect();
    looks.extend(callers.clone().map(|callers| task::spawn(callers.look())));
    while let Some(accepted) = unless(&mut stop, listener.accept()).await {
        let Ok((stream, from)) = accepted else {
            time::sleep(PAUSE).await;
            continue;
        };
        links.retain(|link| link.strong_count() > 0);
        let Some(Ok(room)) = unless(&mut stop, room(&connections, &links)).await else { break };
        let link = Link::new(from.ip());
        links.push(Arc::downgrade(&link));
        let at = (gate.clone(), callers.clone());
        let served = connection(stream, at, link, stop.clone(), config.idle);
        task::spawn(async move {
            served.await;
            drop(room);
        });
    }
    drop(listener);
    looks.iter().for_each(|looks| looks.abort());
    gate.stop();
    let _ = time::timeout(config.drain, connections.acquire_many(CONNECTIONS_MAX as u32)).await;
}

/// Room for a connection: if there is none, that of a peer which is silent, or does not come to the end of
/// what it asks; and of these one from the network that has most of them.
async fn room(of: &Arc<Semaphore>, links: &[Weak<Link>]) -> Result<OwnedSemaphorePermit, AcquireError> {
    let mut wait = Duration::ZERO;
    loop {
        if let Ok(room) = time::timeout(wait, of.clone().acquire_owned()).await {
            return room;
        }
        let all = links.iter().filter_map(Weak::upgrade).filter_map(|link| Some((link.silence()?, link)));
        let is_useless = |(silent, unfinished): (Duration, Duration)| {
            // Between two requests nothing is unfinished.
            silent >= SILENT || unfinished >= UNFINISHED && silent < unfinished
        };
        let useless: Vec<_> = all.filter(|(silence, _)| is_useless(*silence)).collect();
        let mut of_network = BTreeMap::<IpAddr, usize>::new();
        useless.iter().for_each(|(_, link)| *of_network.entry(link.from()).or_default() += 1);
        let key = |((_, unfinished), link): &(_, Arc<Link>)| (of_network[&link.from()], *unfinished);
        if let Some((_, link)) = useless.iter().max_by_key(|one| key(one)) {
            link.cut();
        }
        // One that was cut ends at once; else another peer is silent by then.
        wait = PAUSE;
    }
}

/// The result of a future, unless something else is told before.
async fn unless<T>(told: &mut watch::Receiver<bool>, work: impl Future<Output = T>) -> Option<T> {
    let (mut told, mut work) = (pin!(told.wait_for(|told| *told)), pin!(work));
    poll_fn(|cx| match told.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(cx).map(Some),
    })
    .await
}

async fn connection(
    stream: TcpStream,
    (gate, callers): (Arc<Gate>, Option<Arc<Callers>>),
    link: Arc<Link>,
    mut stop: watch::Receiver<bool>,
    idle: Duration,
) {
    // A peer that is gone without a word holds its connection for no longer.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, idle.as_millis() as u32);
    let _ = stream.set_nodelay(true);
    // Else the kernel takes megabytes for a peer that takes none.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SENT_BYTES_MAX);
    let Some(https) = &gate.https else {
        let stream = Paced::new(stream, link.clone(), idle);
        let known = Known { time: FOR_EVER, taken_back: None };
        return talk((stream, known), &Door::new(gate, callers, None), &link, stop, idle).await;
    };
    // The handshake may begin by the authorities before.
    let taken_back = Some(https.taken_back());
    let shaken = https.accept(stream, |stream| Paced::new(stream, link.clone(), idle));
    let shaken = unless(&mut stop, unless(&mut link.is_cut(), shaken)).await;
    let Some(Some(Some((stream, time, caller)))) = shaken else { return };
    let known = Known { time, taken_back };
    talk((stream, known), &Door::new(gate, callers, caller), &link, stop, idle).await;
}

/// The bounds of what is known of a peer.
struct Known {
    /// Time until its certificate ends.
    time: Duration,
    /// Tells when an authority is taken back; none without HTTPS.
    taken_back: Option<watch::Receiver<u64>>,
}

/// Reads requests and answers them, until the peer or the gateway ends that, or the peer is known no longer.
async fn talk(
    (stream, Known { time: known_for, mut taken_back }): (impl AsyncRead + AsyncWrite + Unpin, Known),
    door: &Door,
    link: &Arc<Link>,
    mut stop: watch::Receiver<bool>,
    idle: Duration,
) {
    let mut cut = link.is_cut();
    let service = service_fn(|request| answer(request, door, link, idle));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(idle).max_buf_size(HEAD_BYTES_MAX);
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), service));
    let is_taken_back = async {
        match &mut taken_back {
            Some(taken_back) => _ = taken_back.changed().await,
            None => std::future::pending().await,
        }
    };
    let mut is_taken_back = pin!(is_taken_back);
    // A caller is known until its certificate ends, or an authority is taken back.
    let known = poll_fn(|cx| match is_taken_back.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => served.as_mut().poll(cx).map(Some),
    });
    let known = time::timeout(known_for, known);
    // A peer that breaks off, or sends no HTTP, was told by hyper what there is to tell.
    let grace = match unless(&mut cut, unless(&mut stop, known)).await {
        None | Some(Some(Ok(Some(_)))) => return,
        Some(None) => FOR_EVER,
        Some(Some(Ok(None) | Err(_))) => LAST_ANSWER,
    };
    served.as_mut().graceful_shutdown();
    let _ = unless(&mut cut, time::timeout(grace, served)).await;
}

/// Answers a request and counts it.
async fn answer(
    request: Request<Incoming>,
    door: &Door,
    link: &Arc<Link>,
    idle: Duration,
) -> Result<Answer, Infallible> {
    let begun = Instant::now();
    link.asks();
    let (mut asked, body) = Asked::of(request);
    let (route, own) = (asked.route, door.own());
    let origin = asked.origin(own).map(str::to_string);
    let answer = if asked.is_foreign(own) {
        refused(
            StatusCode::FORBIDDEN,
            "a page of another site may not ask here",
            "name the gateway by its address, or localhost, from a program or its own console, or let its operator \
             say --cors",
        )
    } else if !asked.is_text {
        refused(
            StatusCode::BAD_REQUEST,
            "the address has escapes that are no UTF-8",
            "escape the bytes of UTF-8, such as %C3%A9 for é",
        )
    } else if asked.is_reserved() {
        refused(
            StatusCode::FORBIDDEN,
            "the root is the gateway's own",
            "name an object of your program: GET /v1/roots lists the roots",
        )
    } else if origin.is_some() && asked.is_preflight() {
        answer::preflight()
    } else {
        // The states of what may wait are large, and an answer from the cache goes without.
        let gate = match door.is_own(&asked) {
            true => Ok(None),
            false => Box::pin(door.gate(&mut asked)).await.map(Some),
        };
        match gate.as_ref().map(|gate| gate.as_ref().unwrap_or(own)) {
            Ok(gate) => match gate.cached(&asked) {
                Some(answer) => gate.room.hold(answer, link).await,
                None if asked.wants_events() => gate.clone().watch(asked).await,
                None => Box::pin(waiting(gate, link, asked, body, idle)).await,
            },
            Err(refusal) => refusal.answer(),
        }
    };
    own.counts.count(route, answer.status().as_u16(), begun.elapsed());
    Ok(match origin {
        Some(origin) => {
            let has_certificates = own.https.as_ref().is_some_and(|https| https.proves_callers());
            answer::shared_with(answer, &origin, has_certificates)
        }
        None => answer,
    })
}

/// Answers on a thread that may wait.
async fn waiting(
    gate: &Arc<Gate>,
    link: &Arc<Link>,
    mut asked: Asked,
    body: Incoming,
    patience: Duration,
) -> Answer {
    if let Some(coding) = asked.coding() {
        let what = format!("the body is coded as `{}`, which is not read here", cut(&coding));
        let next = "send it as it is, without Content-Encoding";
        let refused = refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, &what, next);
        return with(refused, ACCEPT_ENCODING, "identity");
    }
    let mut held = Vec::new();
    let received = received(body, &gate.bodies, &mut held, &mut asked.body);
    match time::timeout(patience, received).await {
        Ok(Ok(())) => {}
        Ok(Err(answer)) => return answer,
        Err(_) => {
            let what = "the body did not come in time";
            return refused(StatusCode::REQUEST_TIMEOUT, what, "send it again");
        }
    }
    if asked.body.len() > LARGE_BODY_BYTES {
        match gate.large_bodies.clone().try_acquire_many_owned(asked.body.len() as u32) {
            Ok(room) => held.push(room),
            Err(_) => return no_room("the large bodies in work have 16 MiB"),
        }
    }
    if let Some(refused) = without_server(gate, &asked) {
        return refused;
    }
    let (places, max) = match asked.route.is_sign() {
        true => (&gate.signs, SIGNS_MAX),
        false => (&gate.in_flight, IN_FLIGHT_MAX),
    };
    let Ok(place) = places.clone().try_acquire_owned() else {
        return no_room(&format!("{max} requests are in flight"));
    };
    let at = gate.clone();
    link.works(true);
    if let Some(answer) = at.awaited(&asked).await {
        link.works(false);
        return gate.room.hold(answer, link).await;
    }
    let done = task::spawn_blocking(move || {
        let answer = at.answer(&asked);
        drop((asked, held));
        (answer, place)
    });
    let done = done.await;
    link.works(false);
    match done {
        Ok((answer, _place)) => gate.room.hold(answer, link).await,
        Err(_) => {
            let next = "report what was asked for; it is not known whether it was done";
            refused(StatusCode::INTERNAL_SERVER_ERROR, "the gateway failed at this request", next)
        }
    }
}

/// The refusal of a request that would wait for a server while there has been none for some time.
fn without_server(gate: &Gate, asked: &Asked) -> Option<Answer> {
    let is_stale = || asked.parameter("fresh").as_deref() == Some("stale");
    let waits = match asked.route {
        Route::Object | Route::Roots | Route::Table | Route::Map => asked.is_allowed && !is_stale(),
        Route::Method | Route::Procedure | Route::Services | Route::Status | Route::OpenApi => {
            asked.is_allowed
        }
        Route::Health | Route::Metrics | Route::Console | Route::Watch | Route::None => false,
    };
    let why = outage(&gate.client).filter(|_| waits)?;
    Some(answer::error(&tercel::Error::Unavailable(format!("no server answers: {why}"))))
}

/// Receives the body of a request, as far as there is room for it among all.
async fn received(
    mut body: Incoming,
    room: &Arc<Semaphore>,
    held: &mut Vec<OwnedSemaphorePermit>,
    bytes: &mut Vec<u8>,
) -> Result<(), Answer> {
    let too_large = || {
        let what = format!("the body has more than {BODY_BYTES_MAX} bytes");
        refused(StatusCode::PAYLOAD_TOO_LARGE, &what, "send it in parts")
    };
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let wrong = |e| refused(StatusCode::BAD_REQUEST, &format!("the body: {e}"), "send all of it");
        let frame = frame.map_err(wrong)?;
        let data = frame.data_ref().map_or(&[][..], |data| data);
        if bytes.len() + data.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        let more = room.clone().try_acquire_many_owned(data.len() as u32);
        let more = more.map_err(|_| no_room("the bodies of requests have 64 MiB"))?;
        match held.first_mut() {
            Some(held) => held.merge(more),
            None => held.push(more),
        }
        bytes.extend_from_slice(data);
    }
    Ok(())
}

fn no_room(why: &str) -> Answer {
    let what = format!("{why}, which are all that this gateway takes");
    refused(StatusCode::SERVICE_UNAVAILABLE, &what, "send it again, or run another gateway")
}
