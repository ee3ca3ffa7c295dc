//! The server's process.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rescind_core::{
    CallContext, HandlerError, Link, Listener, Peer, Router, Server, ServerLimits, Share, Transport,
};
use rescind_http::{Acp, HttpServer, ServerBinding, Stateless, Streamable};
use rescind_named_pipe::{NamedPipeListener, PipeAddress};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::client::pipes;
use super::{OTHER_CORE, SERVE, Wire};
use crate::wires::{leave_the_first_core, one_thread};
use crate::{clock, load_test, raw, wire_subjects};

/// The most connections and sessions.
const MOST: usize = 100_000;

/// Serves and does not return, if this process was started by [`Far`](super::Far).
///
/// # Panics
/// If it cannot serve.
pub fn serve_if_asked() {
    let Ok(asked) = std::env::var(SERVE) else { return };
    let (name, serves) = asked.split_once(' ').expect("a wire and what it serves");
    let (serves, elsewhere) =
        serves.strip_suffix(OTHER_CORE).map_or((serves, false), |serves| (serves, true));
    if elsewhere {
        leave_the_first_core();
    }
    let mut wires = Wire::ALL.into_iter().chain([Wire::ContentLength]);
    let wire = wires.find(|wire| wire.name() == name).expect("a wire");
    one_thread().block_on(async {
        let serving = async {
            match serves {
                "Raw" => raw::serve(wire, raw::Answers::Same, listens).await,
                "LoadTest" => serve_router(wire, load_test::router()).await,
                "Ours" => serve_router(wire, router()).await,
                subject => wire_subjects::serve(wire, subject, listens).await,
            }
        };
        if wire.is_of_a_child() {
            serving.await;
        } else {
            tokio::select! { () = serving => {}, () = asked_to_end() => {} }
        }
    });
    std::process::exit(0);
}

/// Reports the address of this process to the one that measures.
fn listens(endpoint: &str) {
    eprintln!("listening {endpoint}");
}

async fn asked_to_end() {
    let (input, _) = own_pipes();
    let mut input = pipe::Receiver::from_owned_fd(input).expect("stdin is a pipe");
    let _ = input.read_u8().await;
}

/// Stdin and stdout.
pub(crate) fn own_pipes() -> (OwnedFd, OwnedFd) {
    let own = |descriptor: &dyn AsFd| descriptor.as_fd().try_clone_to_owned().expect("a descriptor is free");
    (own(&std::io::stdin()), own(&std::io::stdout()))
}

pub(crate) async fn serve_router(wire: Wire, router: Router) {
    match wire {
        Wire::Stdio | Wire::ContentLength => {
            let (input, output) = own_pipes();
            let link: Link = Box::new(pipes(wire, input, output)).open().await.expect("pipes open");
            let peer = Peer::builder(wire.dialect()).serve(router).attach(link).expect("it opens");
            listens("stdio");
            let _ = peer.closed().await;
        }
        Wire::NamedPipe => {
            let name = format!("rescind-benchmark-{}", std::process::id());
            let address = PipeAddress::name(&name).expect("a name");
            listen(wire, router, NamedPipeListener::bind(&address).await.expect("a pipe"), &name).await;
        }
        Wire::WebSocket => on_port(wire, router, rescind_websocket::bind("127.0.0.1:0").await).await,
        Wire::Streamable | Wire::Streamable2 => {
            on_port(wire, router, many(HttpServer::new(Streamable::new())).bind("127.0.0.1:0").await).await;
        }
        Wire::Stateless | Wire::Stateless2 => {
            on_port(wire, router, HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await).await;
        }
        Wire::Acp => {
            on_port(wire, router, many(HttpServer::new(Acp::new())).path("/acp").bind("127.0.0.1:0").await)
                .await;
        }
    }
}

/// A load test has more sessions than the default permits.
fn many<B: ServerBinding>(server: HttpServer<B>) -> HttpServer<B> {
    server.sessions(MOST).connections(2 * MOST)
}

async fn on_port<L: Listener>(wire: Wire, router: Router, bound: Result<L, rescind_core::TransportError>) {
    let listener = bound.expect("a port is free");
    let endpoint = listener.endpoint().0;
    listen(wire, router, listener, &endpoint).await;
}

async fn listen(wire: Wire, router: Router, listener: impl Listener, endpoint: &str) {
    // All clients have one address.
    let mut limits = ServerLimits::default();
    limits.max_connections = MOST;
    limits.client_share = Share::ALL;
    let server = Server::builder([wire.dialect()]).server_limits(limits).serve(router).on_peer(move |peer| {
        // It shows the client that the direction to it is open, which over HTTP is a separate stream.
        if wire.is_two_way() {
            peer.try_notify("welcome", &json!({})).expect("there is room");
        }
    });
    let server = server.listen(listener);
    listens(endpoint);
    let _ = server.run().await;
}

pub(crate) fn router() -> Router {
    let heard = Arc::new(watch::Sender::new(0_u64));
    let count = Arc::clone(&heard);
    Router::new()
        .method("initialize", |_: CallContext, asked: Value| async move {
            let version = asked["protocolVersion"].clone();
            Ok(json!({
                "protocolVersion": version, "capabilities": {}, "agentCapabilities": {},
                "serverInfo": {"name": "benchmark", "version": "1"},
            }))
        })
        .method("echo", |_: CallContext, params: Box<RawValue>| async move { Ok(params) })
        .method("park", |context: CallContext, _: Value| async move {
            // Over HTTP it is sent with the response's head. After that a cancel need not wait.
            context.try_notify("parked", &json!({}))?;
            context.cancelled().await;
            eprintln!("signalled {}", clock());
            Ok::<_, HandlerError>(json!({}))
        })
        .method("heard", move |_: CallContext, params: Value| {
            let mut heard = heard.subscribe();
            async move {
                let least = params["least"].as_u64().unwrap_or_default();
                let heard = heard.wait_for(|heard| *heard >= least).await.expect("the router lives");
                Ok(json!({ "heard": *heard }))
            }
        })
        .notification("noise", move |_, _: Value| {
            count.send_modify(|heard| *heard += 1);
            async {}
        })
}
