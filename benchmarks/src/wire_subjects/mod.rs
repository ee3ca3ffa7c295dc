//! Subjects between two processes, on the transports that users would choose: this library, the floor, and the other libraries with
//! their own clients and servers.

mod floor;
mod ours;
#[cfg(feature = "peers")]
mod typed;

use std::os::fd::OwnedFd;

use serde_json::value::RawValue;

use crate::cross_process::{Far, Serves, Wire, own_pipes};
use crate::generic_driver::prepare_text;
use crate::subject::{BoxFuture, Competitor, Ends, Name, Setup, Subject};

pub use floor::{ENVELOPES, FLOOR};
pub use ours::{OURS, QUICK};
#[cfg(feature = "peers")]
pub use ours::{QUICK_TYPED, TYPED};

/// More handlers at once than a workload has.
const SLOTS: usize = 4096;

/// Opens a client of a server in another process.
type Open = for<'a> fn(Wire, &'a mut Far) -> BoxFuture<'a, Box<dyn Subject>>;
/// Serves in this process until it is asked to end, and calls the function when it listens.
type Serve = fn(Wire, fn(&str)) -> BoxFuture<'static, ()>;

/// One library in one configuration, on some transports.
#[derive(Clone, Copy, Debug)]
pub struct WireSubject {
    /// Its name.
    pub name: Name,
    /// The transports on which it is measured.
    pub wires: &'static [Wire],
    /// How it is opened and served.
    pub kind: Kind,
}

/// How a subject is opened and served.
#[derive(Clone, Copy)]
pub enum Kind {
    /// It has its own client and server for this transport.
    Sockets {
        /// Opens a client.
        open: Open,
        /// Serves.
        serve: Serve,
    },
    /// It works over any stream of bytes, here the pipes of a child.
    Pipes(Competitor),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sockets { .. } => "Sockets",
            Self::Pipes(_) => "Pipes",
        })
    }
}

impl WireSubject {
    /// Starts its server.
    ///
    /// # Panics
    /// If the process does not start.
    pub async fn start(&self, wire: Wire) -> Far {
        Far::start(wire, Serves::Subject(self.name)).await
    }

    /// Opens a client of its server.
    pub async fn open(&self, wire: Wire, far: &mut Far) -> Box<dyn Subject> {
        match self.kind {
            Kind::Sockets { open, .. } => open(wire, far).await,
            Kind::Pipes(competitor) => {
                let (input, output) = far.take_pipes();
                (competitor.open)(setup(input, output, far.process())).await
            }
        }
    }
}

fn setup(input: OwnedFd, output: OwnedFd, server: u32) -> Setup {
    Setup { ends: Ends::Pipes { input, output, server }, slots: SLOTS }
}

/// This library, the floor and the others on this transport. The floor is the first.
#[must_use]
pub fn on(wire: Wire) -> Vec<WireSubject> {
    let ours = [FLOOR, OURS, QUICK];
    #[cfg(feature = "peers")]
    let all = ours.into_iter().chain([TYPED, QUICK_TYPED]).chain(crate::peers::on_wires());
    #[cfg(not(feature = "peers"))]
    let all = ours.into_iter();
    all.filter(|one| one.wires.contains(&wire)).collect()
}

/// Serves what was asked: two lines, a library and a configuration.
///
/// # Panics
/// If there is no such subject.
pub(crate) async fn serve(wire: Wire, asked: &str, listens: fn(&str)) {
    let (library, configuration) = asked.split_once('\n').expect("a subject is named by two lines");
    let mut all = on(wire).into_iter().chain([ENVELOPES, OURS, QUICK]);
    let is_it = |one: &WireSubject| one.name.library == library && one.name.configuration == configuration;
    // In a task, as in the other measurements.
    match all.find(is_it).expect("one of them").kind {
        Kind::Sockets { serve, .. } => {
            let _ = tokio::spawn(serve(wire, listens)).await;
        }
        Kind::Pipes(competitor) => {
            let (input, output) = own_pipes();
            listens("pipes");
            let serve = competitor.serve.expect("it serves");
            let _ = tokio::spawn(serve(setup(input, output, std::process::id()))).await;
        }
    }
}

/// The params of an echo with this many bytes, made once.
fn raw_params(wire: Wire, bytes: usize) -> &'static RawValue {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    static MADE: Mutex<BTreeMap<(&str, usize), &RawValue>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.entry((wire.name(), bytes)).or_insert_with(|| Box::leak(wire.params(bytes)))
}

/// Makes the texts of an echo with this many bytes, which stay.
pub fn prepare(wire: Wire, bytes: usize) {
    prepare_text(bytes);
    let _ = raw_params(wire, bytes);
}
