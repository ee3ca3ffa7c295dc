//! Our own serving: accepts sockets, one task a connection, all of which end with the listener.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::heads::HeadTimer;
use super::open::Open;
use super::refusal::Refused;
use super::reply;
use super::settings::HalfClose;
use super::stall::Stalling;
use super::{HttpService, ReplyBody, RequestBody, Settings};
use crate::doze::Doze;
use crate::given::{Accepted, Source};

/// After the listener is gone, what is being written has so long.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Fields of a head of HTTP/1.1. The library has a limit too, of 100; any but its own costs it as much as the rest of a head.
const FIELDS: usize = 64;
/// Requests open at a time on one HTTP/2 connection.
const STREAMS: u32 = 1024;
/// Streams a client may have reset before we have looked at them. The library's own 20 ends the connection of a client
/// that cancels a burst of calls by resetting; work is bounded by the driver's limits and not by this.
const RESETS: usize = 4096;

/// A socket and what is served on it.
pub(super) struct Serving {
    pub(super) source: Source,
    pub(super) path: String,
    #[cfg(feature = "rustls")]
    pub(super) tls: Option<crate::tls::Acceptor>,
}

impl Serving {
    /// Serves until the listener is dropped, then lets connections say their last words.
    pub(super) async fn run(mut self, service: HttpService, open: Open) {
        let settings = Arc::clone(service.settings());
        let places = Arc::new(Semaphore::new(settings.connections.min(Semaphore::MAX_PERMITS)));
        let mut builder = builder(&settings);
        if self.source.is_given() {
            builder.http1().auto_date_header(false);
            builder.http2().auto_date_header(false);
        }
        let builder = Arc::new(builder);
        let path: Arc<str> = self.path.as_str().into();
        let mut tasks = JoinSet::new();
        loop {
            let place = tokio::select! {
                biased;
                () = open.ended() => break,
                place = Arc::clone(&places).acquire_owned() => place,
            };
            let accepted = tokio::select! {
                biased;
                () = open.ended() => break,
                accepted = self.source.accept() => accepted,
            };
            while tasks.try_join_next().is_some() {}
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    // Out of descriptors, say: there is nothing to wait for but time.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            let one = One {
                service: service.clone(),
                builder: Arc::clone(&builder),
                path: Arc::clone(&path),
                open: open.clone(),
            };
            #[cfg(feature = "rustls")]
            let tls = self.tls.clone();
            tasks.spawn(async move {
                let _place = place;
                #[cfg(feature = "verify")]
                let stream = match stream {
                    Accepted::Socket(stream) => stream,
                    Accepted::Given(stream) => return one.serve(stream).await,
                };
                #[cfg(not(feature = "verify"))]
                let Accepted::Socket(stream) = stream;
                let _ = stream.set_nodelay(true);
                #[cfg(feature = "rustls")]
                if let Some(tls) = tls {
                    let within = one.service.settings().header_timeout;
                    match tokio::time::timeout(within, tls.accept(stream)).await {
                        Ok(Ok(stream)) => one.serve(stream).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    }
                    return;
                }
                one.serve::<TcpStream>(stream).await;
            });
        }
        drop(self.source);
        let last_words = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
        tasks.shutdown().await;
    }
}

fn builder(settings: &Settings) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .half_close(settings.half_close == HalfClose::Waits)
        .header_read_timeout(settings.header_timeout)
        .max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.idle_timeout / 2)
        .keep_alive_timeout(settings.header_timeout)
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(RESETS)
        .max_header_list_size(32 * 1024);
    builder
}

/// One connection.
struct One {
    service: HttpService,
    builder: Arc<auto::Builder<TokioExecutor>>,
    path: Arc<str>,
    open: Open,
}

impl One {
    async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::new(Activity::default());
        let (service, path, seen) = (self.service.clone(), Arc::clone(&self.path), Arc::clone(&activity));
        let handle = service_fn(move |request: Request<Incoming>| {
            let busy = Busy::new(&seen);
            let response = respond(&service, &path, request);
            async move { Ok::<_, Infallible>(response.await.map(|body| Tracked { body, _busy: busy })) }
        });
        let settings = self.service.settings();
        let mut builder = Box::new(auto::Builder::clone(&self.builder));
        builder.http1().timer(HeadTimer::default());
        let (stream, limit) = Stalling::new(stream, settings.stall_timeout);
        // In one expression: a variable between would keep its room in this future, a connection each.
        let mut serving = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), handle));
        // Looked at in time for either limit: which of them holds, its first request decides.
        let mut due = Doze::until(activity.last() + settings.header_timeout.min(settings.idle_timeout));
        let mut gone = pin!(self.open.ended());
        let asked = loop {
            tokio::select! {
                biased;
                ended = serving.as_mut() => {
                    // If it goes on, then as something else.
                    limit.lift();
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection broke");
                    }
                    return;
                }
                () = gone.as_mut() => break "the listener is gone",
                () = poll_fn(|cx| due.poll(cx)) => {}
            }
            let wait = if activity.requests() == 0 { settings.header_timeout } else { settings.idle_timeout };
            if activity.idle() && activity.last() + wait <= Instant::now() {
                break "nothing was asked for too long";
            }
            if !activity.idle() {
                activity.touch();
            }
            due.reset((activity.last() + wait).min(Instant::now() + settings.idle_timeout));
        };
        tracing::trace!(why = asked, "a connection is closed");
        serving.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(LAST_WORDS, serving).await;
    }
}

fn respond(
    service: &HttpService,
    path: &str,
    request: Request<Incoming>,
) -> rescind_core::BoxFuture<'static, Response<ReplyBody>> {
    if request.version() < Version::HTTP_2 && request.headers().len() > FIELDS {
        return Box::pin(std::future::ready(reply::closing(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)));
    }
    if path != "/" && request.uri().path() != path {
        let refused = Refused::not_found("nothing is served under this path");
        return Box::pin(std::future::ready(service.refuse(refused)));
    }
    service.respond(request.map(RequestBody::Own))
}

/// When a connection was last of use.
#[derive(Debug)]
struct Activity {
    open: AtomicUsize,
    requests: AtomicUsize,
    last: Mutex<Instant>,
}

impl Default for Activity {
    fn default() -> Self {
        Self { open: AtomicUsize::new(0), requests: AtomicUsize::new(0), last: Mutex::new(Instant::now()) }
    }
}

impl Activity {
    fn idle(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A request that is not answered in full yet.
struct Busy(Arc<Activity>);

impl Busy {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.open.fetch_add(1, Ordering::Relaxed);
        activity.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that keeps its connection from counting as idle.
struct Tracked {
    body: ReplyBody,
    _busy: Busy,
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
