//! A call over HTTP, from our client to our server: each pair of events that can end it, at the same time, over each
//! binding.

mod http_site;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http_site::{HttpSite, accept};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rescind_core::dialect::{self, Dialect, Role};
use rescind_core::{Call, Outcome, Peer};
use rescind_http::{
    Acp, AcpTransport, HttpClient, Stateless, StatelessTransport, Streamable, StreamableTransport,
};
use rescind_threads::{Threads, gated, tests, until_free};
use serde_json::{Value, json};
use shuttle::future::{block_on, spawn};
use shuttle::thread;
use tokio::sync::watch;

/// The events that end a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The peer answers.
    Finish,
    /// Another thread cancels.
    Cancel,
    /// Its handle is dropped.
    Drop,
    /// All connections are lost, and none can be opened again.
    Disconnect,
    /// The client shuts down.
    Shutdown,
}

use End::{Cancel, Disconnect, Drop, Finish, Shutdown};

/// The HTTP binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    Streamable,
    Stateless,
    Acp,
}

impl Binding {
    const fn dialect(self) -> Dialect {
        match self {
            Self::Streamable | Self::Acp => dialect::ACP,
            Self::Stateless => dialect::MCP_2026,
        }
    }

    fn site(self) -> (HttpSite, rescind_http::HttpListener) {
        match self {
            Self::Streamable => HttpSite::new(Streamable::new(), &[]),
            Self::Stateless => HttpSite::new(Stateless::new(), &[]),
            Self::Acp => HttpSite::new(Acp::new(), &[]),
        }
    }

    async fn connect(self, client: HttpClient) -> Peer {
        let peer = Peer::builder(self.dialect()).role(Role::Client);
        let connected = match self {
            Self::Streamable => peer.connect(StreamableTransport::new(client)).await,
            Self::Stateless => peer.connect(StatelessTransport::new(client)).await,
            Self::Acp => peer.connect(AcpTransport::new(client).http1()).await,
        };
        match connected {
            Ok(peer) => peer,
            Err(error) => panic!("no connection: {error}"),
        }
    }

    /// Whether a request opens a session.
    const fn shakes(self) -> bool {
        !matches!(self, Self::Stateless)
    }
}

/// A client whose connections end in the site, until they are cut.
fn dial(site: &HttpSite, cut: &watch::Receiver<bool>) -> HttpClient {
    let (site, cut) = (site.clone(), cut.clone());
    let Ok(client) = HttpClient::new("http://localhost/") else { panic!("no client") };
    client.dial(move || {
        if *cut.borrow() {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = tokio::io::duplex(64 * 1024);
        let service = TowerToHyperService::new(site.service());
        let mut cut = cut.clone();
        drop(spawn(async move {
            let serving = http1::Builder::new().serve_connection(TokioIo::new(far), service);
            tokio::select! {
                biased;
                // The client may disconnect at any time.
                _ended = serving => {}
                _ = cut.wait_for(|cut| *cut) => {}
            }
        }));
        Ok(near)
    })
}

fn play(binding: Binding, first: End, second: End) {
    let has = move |end| first == end || second == end;
    let (site, mut listener) = binding.site();
    let (open, gate) = watch::channel(false);
    let (cut, is_cut) = watch::channel(false);
    // The clock is paused, so only the notification starts a stream.
    let router = gated(gate, true);
    let serving = thread::spawn(move || {
        let server = block_on(accept(&mut listener, Peer::builder(binding.dialect()).serve(router)));
        (server, listener)
    });
    let peer = block_on(binding.connect(dial(&site, &is_cut)));
    if binding.shakes() {
        let params = json!({"protocolVersion": 1});
        let opened = block_on(async { peer.call::<_, Value>("initialize", &params).await });
        assert!(opened.is_ok(), "the session: {opened:?}");
    }
    let Ok((server, listener)) = serving.join() else { panic!("the server panicked") };
    let call = started(&peer);
    let canceller = call.canceller();
    let mut threads = Threads::default();
    for end in [first, second] {
        match end {
            Finish | Drop => {}
            Cancel => {
                let canceller = canceller.clone();
                threads.spawn(move || {
                    canceller.cancel("stop");
                });
            }
            Disconnect => {
                threads.open(cut.clone());
            }
            Shutdown => {
                let peer = peer.clone();
                threads.spawn(move || {
                    block_on(peer.shutdown(Duration::ZERO));
                });
            }
        }
    }
    if has(Finish) {
        threads.open(open);
    }
    if has(Drop) {
        // Polled once, so that it leaves a waker.
        block_on(async {
            let mut call = pin!(call);
            std::future::poll_fn(|cx| Poll::Ready(drop(call.as_mut().poll(cx)))).await;
        });
    } else {
        // A client that lost its connections tries again after a time that never passes here.
        if has(Disconnect) {
            block_on(peer.shutdown(Duration::ZERO));
        }
        let outcome = block_on(call.outcome());
        let may_be = match &outcome {
            Outcome::Completed(value) | Outcome::CompletedAfterCancel(value) => {
                has(Finish) && value == "done"
            }
            Outcome::Cancelled(_) => has(Cancel) || has(Shutdown) || has(Disconnect),
            Outcome::Disconnected { .. } => has(Disconnect) || has(Shutdown),
            _ => false,
        };
        assert!(may_be, "I4, I13: {first:?} and {second:?} ended with {outcome:?}");
    }
    threads.join();
    block_on(peer.shutdown(Duration::ZERO));
    assert_eq!(peer.stats().calls, 0, "I3: {first:?} and {second:?} left a call");
    drop(listener);
    block_on(server.shutdown(Duration::ZERO));
    until_free(&server);
}

fn started(peer: &Peer) -> Call<Value> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    match peer.call::<_, Value>(Arc::from("work"), &json!({"_meta": meta})).start() {
        Ok(call) => call,
        Err(error) => panic!("it was not started: {error}"),
    }
}

macro_rules! pairs {
    ($($name:ident: $first:ident, $second:ident;)*) => {
        pairs!(streamable, Streamable, $($name: $first, $second;)*);
        pairs!(stateless, Stateless, $($name: $first, $second;)*);
        pairs!(acp, Acp, $($name: $first, $second;)*);
    };
    ($module:ident, $binding:ident, $($name:ident: $first:ident, $second:ident;)*) => {
        mod $module {
            use super::*;

            tests! { "I13"; $($name: play(Binding::$binding, $first, $second);)* }
        }
    };
}

pairs! {
    finish_and_cancel: Finish, Cancel;
    finish_and_drop: Finish, Drop;
    finish_and_disconnect: Finish, Disconnect;
    finish_and_shutdown: Finish, Shutdown;
    cancel_and_drop: Cancel, Drop;
    cancel_and_disconnect: Cancel, Disconnect;
    cancel_and_shutdown: Cancel, Shutdown;
    drop_and_disconnect: Drop, Disconnect;
    drop_and_shutdown: Drop, Shutdown;
    disconnect_and_shutdown: Disconnect, Shutdown;
}
