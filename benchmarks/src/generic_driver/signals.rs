//! What the handlers of a server report to the measuring side, in this process or from another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Notify};

use crate::clock;

/// Counts the handlers that wait for their cancel, and those that got it. The server owns it.
#[derive(Debug, Default)]
pub struct Signals {
    waiting: AtomicUsize,
    signalled: AtomicUsize,
    last: AtomicU64,
    changed: Notify,
}

/// The counts of [`Signals`] so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The total number of handlers that began to wait.
    pub waiting: usize,
    /// The total number of handlers that were signalled.
    pub signalled: usize,
    /// The time of the last signal, on [`clock`].
    pub last: u64,
}

impl Signals {
    /// Records that a handler begins to wait. If the drop of its future is the only signal, the returned guard is
    /// dropped with it.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
        Waiting(Arc::clone(self))
    }

    fn seen(&self) -> Seen {
        Seen {
            waiting: self.waiting.load(Ordering::Acquire),
            signalled: self.signalled.load(Ordering::Acquire),
            last: self.last.load(Ordering::Acquire),
        }
    }

    /// Answers a [`Watch`] in another process on request. Nothing is sent without a request, so that a measured
    /// handler writes only to its own transport.
    ///
    /// # Panics
    /// If this process serves twice.
    pub fn answer(self: Arc<Self>) {
        let listener = UnixListener::bind(socket(std::process::id())).expect("a name of this process's own");
        tokio::spawn(async move {
            let Ok((mut asked, _)) = listener.accept().await else { return };
            while asked.read_u8().await.is_ok() {
                let Seen { waiting, signalled, last } = self.seen();
                let told = [waiting as u64, signalled as u64, last].map(u64::to_le_bytes);
                if asked.write_all(told.as_flattened()).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// A name without a file.
fn socket(process: u32) -> String {
    format!("\0rescind-benchmark-{process}")
}

/// A waiting handler. Its drop records the signal.
#[derive(Debug)]
pub struct Waiting(Arc<Signals>);

impl Drop for Waiting {
    fn drop(&mut self) {
        // The clock is read first, because the rest is not part of the library. Other handlers may be signalled on
        // other workers.
        self.0.last.fetch_max(clock(), Ordering::AcqRel);
        self.0.signalled.fetch_add(1, Ordering::AcqRel);
        self.0.changed.notify_waiters();
    }
}

/// The measuring side's view of a server's [`Signals`].
#[derive(Debug)]
pub enum Watch {
    /// The server is in this process.
    Here(Arc<Signals>),
    /// The server is in another process, and is queried on a separate socket, which is opened when it is needed. The client here
    /// may have handlers too.
    Far(u32, Mutex<Option<UnixStream>>, Arc<Signals>),
}

impl Watch {
    /// The view of the server in this process, which [answers](Signals::answer) one such view, and of the client here.
    #[must_use]
    pub fn far(process: u32, client: Arc<Signals>) -> Self {
        Self::Far(process, Mutex::new(None), client)
    }

    /// The counts so far.
    ///
    /// # Panics
    /// If the server does not answer, or its process ended.
    pub async fn seen(&self) -> Seen {
        match self {
            Self::Here(signals) => signals.seen(),
            Self::Far(process, server, client) => {
                let mut server = server.lock().await;
                if server.is_none() {
                    *server = Some(UnixStream::connect(socket(*process)).await.expect("the server listens"));
                }
                let server = server.as_mut().expect("it is open");
                server.write_all(b"?").await.expect("the server is asked");
                let mut told = [0; 3];
                for number in &mut told {
                    *number = server.read_u64_le().await.expect("the server tells");
                }
                let ([waiting, signalled, last], here) = (told, client.seen());
                Seen {
                    waiting: waiting as usize + here.waiting,
                    signalled: signalled as usize + here.signalled,
                    last: last.max(here.last),
                }
            }
        }
    }

    /// Returns when this many handlers have begun to wait.
    pub async fn until_waiting(&self, handlers: usize) -> Seen {
        self.until(|seen| seen.waiting >= handlers).await
    }

    /// Returns when this many handlers were signalled.
    pub async fn until_signalled(&self, handlers: usize) -> Seen {
        self.until(|seen| seen.signalled >= handlers).await
    }

    /// Returns when every waiting handler was signalled.
    pub async fn until_all_signalled(&self) -> Seen {
        let waiting = self.seen().await.waiting;
        self.until_signalled(waiting).await
    }

    async fn until(&self, done: impl Fn(Seen) -> bool) -> Seen {
        loop {
            // It receives every change from here on, even if it is not polled yet.
            let changed = match self {
                Self::Here(signals) => Some(signals.changed.notified()),
                Self::Far(..) => None,
            };
            let seen = self.seen().await;
            if done(seen) {
                return seen;
            }
            if let Some(changed) = changed {
                changed.await;
            }
        }
    }
}
