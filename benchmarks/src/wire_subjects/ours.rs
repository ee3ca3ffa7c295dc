//! This library between two processes.

use std::sync::Arc;

use rescind_core::{Call, CallContext, HandlerError, Outcome, Peer, Router};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

#[cfg(feature = "peers")]
use super::typed;
use super::{Kind, WireSubject, raw_params};
use crate::cross_process::{Far, OurClient, Wire, serve_router};
use crate::generic_driver::{Driven, Library, Returned, Signals, Slots, Tasks};
use crate::subject::{BoxFuture, Subject};
use crate::subjects::rescind;

pub(super) const WIRES: &[Wire] = &[
    Wire::Stdio,
    Wire::ContentLength,
    Wire::NamedPipe,
    Wire::WebSocket,
    Wire::Streamable,
    Wire::Streamable2,
    Wire::Stateless,
    Wire::Stateless2,
    Wire::Acp,
];

/// This library with default settings. Params are passed as JSON text.
pub const OURS: WireSubject = WireSubject {
    name: rescind::COMPETITOR.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open(wire, far, Texts::Raw)),
        serve: |wire, _| Box::pin(serve(wire, Handlers::Tasks)),
    },
};

/// The same with quick handlers: `Router::quick`.
pub const QUICK: WireSubject = WireSubject {
    name: rescind::QUICK.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open(wire, far, Texts::Raw)),
        serve: |wire, _| Box::pin(serve(wire, Handlers::Quick)),
    },
};

/// The default, with texts that are serialized and parsed on both sides, as in the other libraries.
#[cfg(feature = "peers")]
pub const TYPED: WireSubject = WireSubject {
    name: rescind::TYPED.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open(wire, far, Texts::Typed)),
        serve: |wire, _| Box::pin(serve(wire, Handlers::Tasks)),
    },
};

/// Such texts, and quick handlers.
#[cfg(feature = "peers")]
pub const QUICK_TYPED: WireSubject = WireSubject {
    name: rescind::QUICK_TYPED.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open(wire, far, Texts::Typed)),
        serve: |wire, _| Box::pin(serve(wire, Handlers::Quick)),
    },
};

/// How a text is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Texts {
    /// As JSON text.
    Raw,
    /// It is serialized and parsed on both sides.
    #[cfg(feature = "peers")]
    Typed,
}

/// How the handlers are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handlers {
    Tasks,
    Quick,
}

async fn open(wire: Wire, far: &mut Far, texts: Texts) -> Box<dyn Subject> {
    let OurClient { peer, parked, .. } = OurClient::open(wire, far).await;
    let ours = Ours { wire, peer, parked: Mutex::new(parked), texts };
    Driven::of_far(ours, far.process(), Arc::default(), Tasks::default()).await
}

fn serve(wire: Wire, handlers: Handlers) -> BoxFuture<'static, ()> {
    let signals = Arc::new(Signals::default());
    Arc::clone(&signals).answer();
    Box::pin(serve_router(wire, router(&signals, handlers)))
}

fn router(signals: &Arc<Signals>, handlers: Handlers) -> Router {
    let parking = Arc::clone(signals);
    let initialize = |_: CallContext, asked: Value| async move {
        Ok(json!({
            "protocolVersion": asked["protocolVersion"], "capabilities": {}, "agentCapabilities": {},
            "serverInfo": { "name": "benchmark", "version": "1" },
        }))
    };
    let echo = |_: CallContext, params: Box<RawValue>| async move { Ok(params) };
    let park = move |context: CallContext, _: Value| {
        let signals = Arc::clone(&parking);
        async move {
            // Over HTTP it is sent with the response's head. After that a cancel need not wait.
            context.try_notify("parked", &json!({}))?;
            let _waiting = signals.wait();
            context.cancelled().await;
            Ok::<_, HandlerError>(json!({}))
        }
    };
    let router = Router::new().method("initialize", initialize);
    #[cfg(feature = "peers")]
    let router = {
        let echo_text = |_: CallContext, params: typed::Text| async move { Ok(params) };
        match handlers {
            Handlers::Tasks => router.method("echo text", echo_text),
            Handlers::Quick => router.quick("echo text", echo_text),
        }
    };
    match handlers {
        Handlers::Tasks => router.method("echo", echo).method("park", park),
        Handlers::Quick => router.quick("echo", echo).quick("park", park),
    }
}

struct Ours {
    wire: Wire,
    peer: Peer,
    parked: Mutex<UnboundedReceiver<()>>,
    /// Without the other libraries there is nothing to compare typed texts with.
    #[cfg_attr(not(feature = "peers"), expect(dead_code, reason = "it is always raw"))]
    texts: Texts,
}

impl Library for Ours {
    type Text = &'static str;
    type Parked = Call<Value>;

    fn slots(&self) -> Slots {
        Slots::Wait(super::SLOTS)
    }

    async fn echo(&self, text: &'static str) -> usize {
        #[cfg(feature = "peers")]
        if self.texts == Texts::Typed {
            let params = typed::params(self.wire, text);
            let echoed: typed::Text = self.peer.call("echo text", &params).await.expect("the server echoes");
            return echoed.text.len();
        }
        let params = raw_params(self.wire, text.len());
        let echoed: Box<RawValue> = self.peer.call("echo", params).await.expect("the server echoes");
        // The stateless revision adds a member to a result.
        if echoed.get().len() >= params.get().len() { text.len() } else { 0 }
    }

    async fn park(&self) -> Call<Value> {
        let call = self.peer.call("park", &self.wire.params(1)).start().expect("a call starts");
        self.parked.lock().await.recv().await.expect("the handler says that it waits");
        call
    }

    async fn cancel(&self, parked: Call<Value>) -> Returned {
        parked.canceller().cancel("");
        let outcome = parked.outcome().await;
        assert!(matches!(outcome, Outcome::CompletedAfterCancel(_) | Outcome::Cancelled(_)), "{outcome:?}");
        Returned::default()
    }
}
