//! What a request in flight holds, counted exactly, on both sides of a connection in memory.

use rescind_core::dialect::ACP;
use rescind_core::{Call, Peer, Router, memory_pair};
use serde_json::value::RawValue;

use crate::peer::roomy;
use crate::wires::one_thread;

/// Bytes of heap a request in flight holds.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// All of them, on both sides; the caller's own handle, which is no heap, is not among them.
    pub all: f64,
    /// What the runtime's task cell takes beside the future in it.
    pub cell: f64,
    /// The future the user's handler returns.
    pub future: f64,
}

impl Resident {
    /// What is ours.
    #[must_use]
    pub fn beside(self) -> f64 {
        self.all - self.cell - self.future
    }
}

async fn parked(context: rescind_core::CallContext) -> Result<(), rescind_core::HandlerError> {
    context.cancelled().await;
    Ok(())
}

/// Measures with so many calls in flight, every handler parked.
#[must_use]
pub fn measure(requests: usize) -> Resident {
    let mut calls: Vec<Call<()>> = Vec::with_capacity(requests);
    let mut future = 0;
    let runtime = one_thread();
    let (client, server, size) = runtime.block_on(async {
        let (client, server) = memory_pair();
        let (told, size) = tokio::sync::oneshot::channel();
        let told = std::sync::Mutex::new(Some(told));
        let router = Router::new().method("park", move |context, _params: Box<RawValue>| {
            let future = parked(context);
            if let Some(told) = told.lock().expect("nobody panics").take() {
                let _ = told.send(size_of_val(&future));
            }
            future
        });
        let server = Peer::builder(ACP)
            .limits(roomy(requests))
            .serve(router)
            .attach(server)
            .expect("the runtime runs");
        let client = Peer::builder(ACP).limits(roomy(requests)).attach(client).expect("the runtime runs");
        tokio::task::yield_now().await;
        (client, server, size)
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
            }
            // Every handler was polled and waits.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            future = size.await.expect("a handler ran");
        });
    });
    let cell = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..100 {
                tokio::spawn(std::future::pending::<()>());
            }
        });
    });
    Resident {
        all: all.bytes_current as f64 / requests as f64,
        cell: cell.bytes_current as f64 / 100.0,
        future: future as f64,
    }
}
