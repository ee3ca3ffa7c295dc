//! The memory of a request in flight, counted exactly, on both sides of a connection in memory.

use rescind_core::dialect::ACP;
use rescind_core::{Call, Limits, Peer, Router, memory_pair};
use serde_json::value::RawValue;

use crate::wires::one_thread;

/// Heap bytes of a request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// All of them, on both sides. The caller's handle is not on the heap and not included.
    pub all: f64,
    /// The bytes that the runtime allocates for the handler's future when it is spawned alone: the future, the task's
    /// cell around it, and the rounding of both.
    pub task: f64,
    /// The future that the handler returns.
    pub future: f64,
}

impl Resident {
    /// The bytes of this library.
    #[must_use]
    pub fn beside(self) -> f64 {
        self.all - self.task
    }
}

/// Limits that allow this many requests in flight.
fn roomy(requests: usize) -> Limits {
    let mut limits = Limits::default();
    limits.max_calls = requests;
    limits.max_running_handlers = requests;
    limits.max_memory_bytes = limits.max_memory_bytes.max(requests.saturating_mul(2048));
    limits
}

async fn parked(context: rescind_core::CallContext) -> Result<(), rescind_core::HandlerError> {
    context.cancelled().await;
    Ok(())
}

/// Measures with this many calls in flight, with every handler waiting.
///
/// # Panics
/// If a limit refuses one of them.
#[must_use]
pub fn measure(requests: usize) -> Resident {
    let mut calls: Vec<Call<()>> = Vec::with_capacity(requests);
    let runtime = one_thread();
    let (client, server, first) = runtime.block_on(async {
        let (client, server) = memory_pair();
        let (told, first) = tokio::sync::oneshot::channel();
        let told = std::sync::Mutex::new(Some(told));
        let router = Router::new().method("park", move |context, _params: Box<RawValue>| {
            if let Some(told) = told.lock().expect("nobody panics").take() {
                let _ = told.send(rescind_core::CallContext::clone(&context));
            }
            parked(context)
        });
        let server = Peer::builder(ACP)
            .limits(roomy(requests))
            .serve(router)
            .attach(server)
            .expect("the runtime runs");
        let client = Peer::builder(ACP).limits(roomy(requests)).attach(client).expect("the runtime runs");
        tokio::task::yield_now().await;
        (client, server, first)
    });
    let params = crate::params(1);
    let all = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..requests {
                calls.push(client.call("park", &*params).start().expect("a call starts"));
                if calls.len().is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
            while (server.stats().running as usize) < requests {
                tokio::task::yield_now().await;
                assert_eq!(client.stats().calls as usize, requests, "no limit refuses a request");
            }
            // Every handler was polled and waits.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
    });
    let context = runtime.block_on(first).expect("a handler ran");
    let future = size_of_val(&parked(context.clone()));
    let spawned = 1000;
    let tasks = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..spawned {
                tokio::spawn(parked(context.clone()));
                // The runtime's queue must not grow.
                tokio::task::yield_now().await;
            }
        });
    });
    Resident {
        all: all.bytes_current as f64 / requests as f64,
        task: tasks.bytes_current as f64 / f64::from(spawned),
        future: future as f64,
    }
}
