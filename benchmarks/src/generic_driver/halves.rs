//! A library that works over any byte stream: its server's half and its client's, connected in memory or with pipes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, Join, join};
use tokio::net::unix::pipe;
use tokio::task::AbortHandle;

use super::Driven;
use super::library::Library;
use super::signals::{Signals, Watch};
use crate::subject::{Ends, Setup, Subject};

/// The buffer in each direction in memory, as large as that of a system's pipe.
const BUFFER: usize = 64 << 10;

/// One end of a byte stream.
pub trait End: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// For a library with separate readers and writers.
    fn split(self) -> (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static);
}

impl End for DuplexStream {
    fn split(self) -> (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static) {
        tokio::io::split(self)
    }
}

impl End for Join<pipe::Receiver, pipe::Sender> {
    fn split(self) -> (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static) {
        self.into_inner()
    }
}

/// The two halves of a library in one configuration.
pub trait Halves: Copy + Send + Sync + 'static {
    /// The buffer in each direction in memory, in bytes.
    const BUFFER: usize = BUFFER;

    /// Serves at this end until its client disconnects.
    fn serve<E: End>(
        self,
        end: E,
        slots: usize,
        signals: Arc<Signals>,
    ) -> impl Future<Output = ()> + Send + 'static;

    /// A client at this end, and the tasks that drive it.
    fn connect<E: End>(self, end: E, slots: usize) -> impl Future<Output = (impl Library, Tasks)> + Send;
}

/// Opens both halves in this process, or a client of a server in another process.
pub async fn open<H: Halves>(halves: H, setup: Setup) -> Box<dyn Subject> {
    match setup.ends {
        Ends::Memory => {
            let signals = Arc::new(Signals::default());
            let (near, far) = tokio::io::duplex(H::BUFFER);
            let mut serving = Tasks::default();
            serving.spawn(halves.serve(far, setup.slots, Arc::clone(&signals)));
            let (client, tasks) = halves.connect(near, setup.slots).await;
            Driven::boxed(client, Watch::Here(signals), serving.and(tasks))
        }
        Ends::Pipes { input, output, server } => {
            let (client, tasks) = halves.connect(pipes(input, output), setup.slots).await;
            Driven::of_far(client, server, Arc::default(), tasks).await
        }
    }
}

fn pipes(input: OwnedFd, output: OwnedFd) -> Join<pipe::Receiver, pipe::Sender> {
    join(
        pipe::Receiver::from_owned_fd(input).expect("a pipe to read"),
        pipe::Sender::from_owned_fd(output).expect("a pipe to write"),
    )
}

/// Serves a client in another process.
pub async fn serve<H: Halves>(halves: H, setup: Setup) {
    if let Ends::Pipes { input, output, .. } = setup.ends {
        let signals = Arc::new(Signals::default());
        Arc::clone(&signals).answer();
        halves.serve(pipes(input, output), setup.slots, signals).await;
    }
}

/// Tasks that are aborted when their subject is dropped.
#[derive(Debug, Default)]
pub struct Tasks(Vec<AbortHandle>);

impl Tasks {
    /// Both lists of tasks.
    #[must_use]
    pub fn and(mut self, mut those: Self) -> Self {
        self.0.append(&mut those.0);
        self
    }

    /// Spawns a task.
    pub fn spawn<F>(&mut self, task: F)
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.push(tokio::spawn(task).abort_handle());
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}
