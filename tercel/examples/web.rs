//! A web server with Tercel inside, on hyper and tokio: `cargo run -p tercel --example web`. Its handlers
//! read what is cached without a switch of tasks, write, and follow changes; none of them blocks a thread.
//!
//! ```text
//! curl http://127.0.0.1:8080/            # the count
//! curl -X POST http://127.0.0.1:8080/    # one more
//! curl -N http://127.0.0.1:8080/events   # each change, as a server-sent event
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tercel::{Client, Object, Ref, Watch};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

#[derive(Object)]
pub struct Visits {
    count: u64,
}

/// The state of all handlers: a client is cheap to clone.
#[derive(Clone)]
pub struct App {
    space: Client,
    visits: Ref<Visits>,
}

impl App {
    /// Finds the visits in a space, or makes them.
    pub async fn new(space: Client) -> Result<App, tercel::Error> {
        let visits = space
            .run_async(|tx| match tx.find_root::<Visits>("visits")? {
                Some(visits) => Ok(visits.reference()),
                None => {
                    let visits = tx.create(&Visits { count: 0 })?;
                    tx.set_root("visits", visits)?;
                    Ok(visits)
                }
            })
            .await?;
        Ok(App { space, visits })
    }

    /// Reads: at once if it is cached.
    async fn count(&self) -> Result<u64, tercel::Error> {
        self.space.run_async(|tx| Ok(tx.get(self.visits)?.count())).await
    }

    /// Writes: done once it is durable.
    async fn visit(&self) -> Result<u64, tercel::Error> {
        self.space
            .run_async(|tx| {
                let count = tx.get(self.visits)?.count() + 1;
                tx.edit(self.visits)?.set_count(count)?;
                Ok(count)
            })
            .await
    }

    /// Follows: an event with the count now, and one after each change.
    async fn follow(&self) -> Result<Content, tercel::Error> {
        let (space, visits) = (self.space.clone(), self.visits);
        // It waits for the server once.
        let started = tokio::task::spawn_blocking(move || space.watch().object(visits).start());
        let watch = started.await.map_err(|e| tercel::Error::Unavailable(e.to_string()))??;
        let (to, events) = mpsc::channel(16);
        tokio::spawn(self.clone().tell(watch, to));
        Ok(Content::Events(events))
    }

    async fn tell(self, mut watch: Watch, to: mpsc::Sender<Bytes>) {
        loop {
            let event = match self.count().await {
                Ok(count) => format!("data: {count}\n\n"),
                Err(e) => format!("event: error\ndata: {e}\n\n"),
            };
            if to.send(event.into()).await.is_err() {
                return;
            }
            // Changes join until they are taken, so a slow reader costs nothing.
            let mut changed = pin!(watch.next_async());
            let mut closed = pin!(to.closed());
            let changed = poll_fn(|cx| match changed.as_mut().poll(cx) {
                Poll::Ready(change) => Poll::Ready(change.is_ok()),
                Poll::Pending => closed.as_mut().poll(cx).map(|()| false),
            });
            if !changed.await {
                return;
            }
        }
    }

    async fn answer(self, asked: Request<Incoming>) -> Result<Response<Content>, Infallible> {
        let whole = |count: u64| Content::Whole(Some(format!("{count}\n").into()));
        let answer = match (asked.method(), asked.uri().path()) {
            (&Method::GET, "/") => self.count().await.map(whole),
            (&Method::POST, "/") => self.visit().await.map(whole),
            (&Method::GET, "/events") => self.follow().await,
            _ => return Ok(with(StatusCode::NOT_FOUND, Content::Whole(None))),
        };
        Ok(match answer {
            Ok(content) => with(StatusCode::OK, content),
            Err(e) => with(StatusCode::SERVICE_UNAVAILABLE, Content::Whole(Some(format!("{e}\n").into()))),
        })
    }

    /// Answers requests until the future is dropped.
    pub async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        loop {
            let (stream, _) = listener.accept().await?;
            let app = self.clone();
            let service = service_fn(move |asked| app.clone().answer(asked));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    }
}

fn with(status: StatusCode, content: Content) -> Response<Content> {
    let kind = if let Content::Events(_) = content { "text/event-stream" } else { "text/plain" };
    let mut answer = Response::new(content);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    answer
}

/// A body that is there, or events as they come.
enum Content {
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
}

/// Opens a space in this process. A program with servers elsewhere says `Client::connect_async(ADDRESS)`.
fn main() -> Result<(), Box<dyn Error>> {
    let space = tercel::embedded("./visits")?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let at: SocketAddr = "127.0.0.1:8080".parse()?;
        let app = App::new(space).await?;
        println!("http://{at}/");
        Ok(app.serve(TcpListener::bind(at).await?).await?)
    })
}
