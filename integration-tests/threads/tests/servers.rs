//! Two connections of a server that runs one handler at a time: each pair of events of their requests, at the same
//! time. The connections share its counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_core::{
    CallContext, FrameKind, HandlerError, Link, MemoryTransport, Peer, Router, Server, ServerLimits,
    Transport, dialect, memory_listener,
};
use rescind_threads::{frame, next, pairs, until_free};
use serde_json::{Value, json};
use shuttle::future::{block_on, spawn};
use shuttle::sync::Mutex;
use shuttle::thread;

/// The events of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Its handler ends.
    Finish,
    /// The peer cancels it.
    Cancel,
    /// The connection is lost.
    Disconnect,
}

use Event::{Cancel, Disconnect, Finish};

const CONNECTIONS: usize = 2;

/// How many handlers are alive, and the most there were.
#[derive(Clone, Default)]
struct Alive(Arc<(AtomicUsize, AtomicUsize)>);

impl Alive {
    fn enter(&self) -> Self {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
        self.clone()
    }

    fn leave(self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn play(first: Event, second: Event) {
    let alive = Alive::default();
    let entered = alive.clone();
    let router = Router::new().method("work", move |context: CallContext, params: Value| {
        let one = entered.enter();
        async move {
            let result = if params["waits"] == true {
                Err(HandlerError::stopped(context.cancelled().await))
            } else {
                thread::yield_now();
                Ok(json!(1))
            };
            one.leave();
            result
        }
    });
    let (listener, transport) = memory_listener();
    let mut limits = ServerLimits::default();
    (limits.max_running_handlers, limits.max_connections) = (1, CONNECTIONS);
    let peers: Arc<Mutex<Vec<Peer>>> = Arc::default();
    let met = Arc::clone(&peers);
    let server = Server::builder([dialect::ACP])
        .serve(router)
        .server_limits(limits)
        .on_peer(move |peer| met.lock().expect("nobody panics with it").push(peer))
        .listen(listener);
    let serving = spawn(server.run());
    let ends = [first, second].map(|event| {
        let link = open(&transport);
        thread::spawn(move || ask(link, event))
    });
    for end in ends {
        let (answer, link) = end.join().expect("it says what is wrong");
        if let Some(answer) = answer {
            let code = &answer["error"]["code"];
            let is_refused = code == -32803 || code == -32000 || code == -32603;
            assert!(
                answer["result"] == 1 || code == -32800 || is_refused,
                "{first:?} and {second:?}: {answer}"
            );
        }
        drop(link);
    }
    assert!(alive.0.1.load(Ordering::SeqCst) <= 1, "I10: more handlers than the server lets run");
    let met = loop {
        let met = peers.lock().expect("nobody panics with it").clone();
        if met.len() == CONNECTIONS {
            break met;
        }
        thread::yield_now();
    };
    for peer in met {
        let _: Result<(), _> = block_on(peer.closed());
        until_free(&peer);
        let stats = peer.stats();
        assert_eq!((stats.running, stats.draining), (0, 0), "I10: {stats:?}");
    }
    // The place of a connection is free when its task has ended. If it is never freed, this waits forever.
    let again = loop {
        match ask(open(&transport), Finish) {
            (Some(answer), _) => break answer,
            (None, _) => thread::yield_now(),
        }
    };
    assert_eq!(again["result"], 1, "I3: the permit of a handler that ended is not free");
    assert_eq!(alive.0.0.load(Ordering::SeqCst), 0, "I10: a handler was lost");
    drop(transport);
    assert!(block_on(serving).is_ok_and(|ended| ended.is_ok()), "L3: the server did not end");
}

fn open(transport: &MemoryTransport) -> Link {
    block_on(Box::new(transport.clone()).open()).expect("the listener is there")
}

/// Sends a request and applies the event. Returns the answer, if the connection did not end before.
fn ask(mut link: Link, event: Event) -> (Option<Value>, Option<Link>) {
    let waits = event != Finish;
    send(&mut link, &json!({"jsonrpc": "2.0", "id": 1, "method": "work", "params": {"waits": waits}}));
    match event {
        Disconnect => return (None, None),
        Cancel => {
            let cancel = json!({"requestId": 1});
            send(&mut link, &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": cancel}));
        }
        Finish => {}
    }
    let answer = block_on(next(&mut link.rx));
    (answer, Some(link))
}

fn send(link: &mut Link, body: &Value) {
    // The transport has room for these few frames. A connection above the limit is closed.
    let _: Result<(), _> = link.tx.as_mut().start_send(frame(FrameKind::Request, body));
}

pairs! {
    "I1 or L3";
    finish_and_finish: Finish, Finish;
    finish_and_cancel: Finish, Cancel;
    finish_and_disconnect: Finish, Disconnect;
    cancel_and_cancel: Cancel, Cancel;
    cancel_and_disconnect: Cancel, Disconnect;
    disconnect_and_disconnect: Disconnect, Disconnect;
}
