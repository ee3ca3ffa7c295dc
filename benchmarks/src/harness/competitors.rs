//! The competitors, each with a separate connection, in the places where a workload is played.

use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::cross_process::{Wire, own_pipes};
use crate::resources::{one_thread, pinned, two_workers};
use crate::subject::{Competitor, Ends, Name, Setup, Subject, is_short};
use crate::subjects;
use crate::wire_subjects::WireSubject;

const SERVES: &str = "RESCIND_BENCHMARK_SERVES_SUBJECT";

/// The transport and the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory, on one thread.
    OneThread,
    /// In memory, on two workers.
    TwoWorkers,
    /// Pipes to a child process on the same core.
    Pipes,
}

impl Place {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::OneThread, Self::TwoWorkers, Self::Pipes];

    /// Its name in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneThread => "memory, one thread",
            Self::TwoWorkers => "memory, two workers",
            Self::Pipes => "pipes, one core",
        }
    }

    /// Runs the work there in a task, because waking something outside the tasks makes the runtime look for events
    /// once more.
    ///
    /// # Panics
    /// If the work panics.
    pub fn run<T: Send + 'static>(self, work: impl Future<Output = T> + Send + 'static) -> T {
        let run = |runtime: tokio::runtime::Runtime| {
            let done = runtime.block_on(async { tokio::spawn(work).await.expect("the work ends") });
            runtime.shutdown_background();
            done
        };
        match self {
            Self::OneThread => run(one_thread()),
            Self::TwoWorkers => run(two_workers()),
            Self::Pipes => pinned(|| run(one_thread())),
        }
    }
}

/// A competitor with an open connection.
pub struct Entrant {
    /// Its name.
    pub name: Name,
    /// `None` after it failed with [`out`](Self::out).
    pub subject: Option<Box<dyn Subject>>,
    /// Why it is skipped.
    pub out: Option<&'static str>,
    _server: Option<Server>,
}

/// What ends the server's process on drop.
type Server = Box<dyn Send>;

impl std::fmt::Debug for Entrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entrant").field("name", &self.name).field("out", &self.out).finish_non_exhaustive()
    }
}

/// A server's process, which is killed on drop.
#[derive(Debug)]
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The time limit of an operation. An operation above its limit counts as never done: a competitor that hangs must
/// not stop the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Opening a connection, or one turn among others: the slowest takes a fraction of a second.
    Turn,
    /// A whole workload that is played once: 100,000 in flight, 100,000 deadlines.
    Whole,
    /// Operations of this library and the floors only: 1,000,000 in flight.
    Long,
}

impl Bound {
    const fn longest(self, short: bool) -> Duration {
        match (self, short) {
            (Self::Turn, true) => Duration::from_secs(2),
            (Self::Turn, false) => Duration::from_secs(10),
            (Self::Whole, true) => Duration::from_secs(5),
            (Self::Whole, false) => Duration::from_secs(30),
            (Self::Long, _) => Duration::from_secs(300),
        }
    }
}

/// Runs work that may never end or may panic, and returns so in that case.
///
/// # Errors
/// "never" or "panicked".
pub async fn attempt<T>(bound: Bound, work: impl Future<Output = T>) -> Result<T, &'static str> {
    let longest = bound.longest(is_short());
    match AssertUnwindSafe(tokio::time::timeout(longest, work)).catch_unwind().await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err("never"),
        Err(_) => Err("panicked"),
    }
}

/// Opens a connection of this competitor.
pub async fn enter(competitor: &Competitor, place: Place, slots: usize) -> Entrant {
    let name = competitor.name;
    let (ends, server): (_, Option<Server>) = match place {
        Place::OneThread | Place::TwoWorkers => (Ends::Memory, None),
        Place::Pipes if competitor.serve.is_some() => {
            let (ends, child) = child(name, slots);
            (ends, Some(Box::new(Served(child))))
        }
        Place::Pipes => return Entrant { name, subject: None, out: Some("none"), _server: None },
    };
    let opened = attempt(Bound::Turn, (competitor.open)(Setup { ends, slots })).await;
    let out = opened.as_ref().err().copied();
    Entrant { name, subject: opened.ok(), out, _server: server }
}

/// Opens a connection of this subject to a server in another process.
pub(super) async fn enter_on(one: &WireSubject, wire: Wire) -> Entrant {
    let name = one.name;
    let opened = attempt(Bound::Turn, async {
        let mut far = one.start(wire).await;
        let subject = one.open(wire, &mut far).await;
        (far, subject)
    });
    match opened.await {
        Ok((far, subject)) => {
            Entrant { name, subject: Some(subject), out: None, _server: Some(Box::new(far)) }
        }
        Err(out) => Entrant { name, subject: None, out: Some(out), _server: None },
    }
}

fn child(name: Name, slots: usize) -> (Ends, Child) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut child = Command::new(program)
        .env(SERVES, format!("{}\n{}\n{slots}", name.library, name.configuration))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts once more");
    let input = OwnedFd::from(child.stdout.take().expect("piped"));
    let output = OwnedFd::from(child.stdin.take().expect("piped"));
    (Ends::Pipes { input, output, server: child.id() }, child)
}

/// The competitor with this library and configuration.
#[must_use]
pub fn find(library: &str, configuration: &str) -> Option<Competitor> {
    let mut all = subjects::all().into_iter().chain(subjects::variants());
    all.find(|one| one.name.library == library && one.name.configuration == configuration)
}

/// Serves and does not return, if this process was started as a server.
///
/// # Panics
/// If there is no such server.
pub fn serve_if_asked() {
    let Ok(asked) = std::env::var(SERVES) else { return };
    let mut asked = asked.split('\n');
    let (Some(library), Some(configuration), Some(slots)) = (asked.next(), asked.next(), asked.next()) else {
        panic!("a server is named by three lines");
    };
    let competitor = find(library, configuration).expect("one of ours");
    let (input, output) = own_pipes();
    let ends = Ends::Pipes { input, output, server: std::process::id() };
    let serving = competitor.serve.expect("it serves");
    let setup = Setup { ends, slots: slots.parse().expect("a number") };
    // A task, as in `Place::run`.
    let served = one_thread().block_on(async { tokio::spawn(serving(setup)).await });
    std::process::exit(i32::from(served.is_err()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Case, Figure, Run, Work, play};
    use crate::subject::{BoxFuture, Carries, Echo};

    struct Panics;

    impl Subject for Panics {
        fn echo<'a>(&'a mut self, _: Echo, _: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
            Box::pin(async { panic!("as some do") })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_library_is_stopped_at_its_bound() {
        for bound in [Bound::Turn, Bound::Whole, Bound::Long] {
            let begin = tokio::time::Instant::now();
            assert_eq!(attempt(bound, std::future::pending::<()>()).await, Err("never"));
            assert_eq!(begin.elapsed().as_secs(), bound.longest(false).as_secs());
        }
    }

    #[test]
    fn a_panicking_library_is_shown_in_the_table_and_the_others_continue() {
        let name = Name { library: "it", version: "", configuration: "panics", carries: Carries::Bytes };
        let panics = Competitor {
            name,
            open: |_| Box::pin(async { Box::new(Panics) as Box<dyn Subject> }),
            serve: None,
        };
        let echo = Echo { bytes: 64, in_flight: 1, count: 1 };
        let case = Case { workload: "W1", name: "64 B".to_owned(), slots: 16, work: Work::Echo(echo) };
        let run = Run::new(2, false);
        let rows = play(&run, &case, Place::OneThread, &[panics, subjects::FLOOR]);
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert!(matches!(rows[0].figure, Figure::Said("panicked")), "{rows:?}");
        // Two turns in each of two rounds.
        assert!(matches!(&rows[1].figure, Figure::Times(times) if times.count == 4), "{rows:?}");
    }
}
