//! Turns: each competitor in order, then in the reverse order, round after round, so that a change of the machine's
//! load affects all of them equally. And the competitors, each in its place.

use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::FutureExt as _;

use super::figures::{Distribution, Figure, Row};
use super::{Run, WARM};
use crate::cross_process::{Wire, own_pipes};
use crate::resources::{one_thread, pinned, two_workers};
use crate::subject::{
    BURST, CancelSamples, Competitor, Echo, Ends, Name, Setup, Subject, Tree, Which, is_short,
};
use crate::wire_subjects::WireSubject;
use crate::{clock, subjects};

/// One case of a workload.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// W1 and W2.
    Echo(Echo),
    /// W3, with this many cancels in a turn, and as many echoes for comparison.
    Cancel(usize),
    /// W4, with this many in a turn, and as many on a connection with free slots for comparison.
    Saturate(Which, usize),
    /// W6, with this many in a turn.
    Pairs(usize),
    /// W6, with this many in a turn.
    UnknownCancels(usize),
    /// W7.
    Cascade(Tree),
}

/// The name of a case in the report.
#[derive(Clone, Debug)]
pub struct Case {
    /// W1 to W9.
    pub workload: &'static str,
    /// The case.
    pub name: String,
    /// The limit of handlers; see [`Setup`](crate::subject::Setup).
    pub slots: usize,
    /// The operation.
    pub work: Work,
}

/// The name of a measure, and its samples.
type Samples = Vec<(&'static str, Vec<u64>)>;

impl Work {
    /// Its measures, in the order of its samples.
    const fn measures(self) -> &'static [&'static str] {
        match self {
            Self::Echo(Echo { in_flight: 1, .. }) => &["round trip"],
            Self::Echo(_) => &["round trip", "a request, of all the time"],
            Self::Cancel(_) => &["to handler", "to caller", "to answer", "an echo between"],
            Self::Saturate(..) => &["to caller", TO_SPARE],
            Self::Pairs(_) => &["a pair, of all the time"],
            Self::UnknownCancels(_) => &["a cancel, of all the time"],
            Self::Cascade(_) => &["to last handler", "to caller"],
        }
    }

    /// The same with at most this many requests in a turn, if there are very many.
    fn at_most(self, most: usize) -> Self {
        match self {
            Self::Pairs(count) => Self::Pairs(count.min(most).next_multiple_of(BURST)),
            Self::UnknownCancels(count) => Self::UnknownCancels(count.min(most).max(1)),
            Self::Echo(_) | Self::Cancel(_) | Self::Saturate(..) | Self::Cascade(_) => self,
        }
    }

    /// The requests of a turn, if [`at_most`](Self::at_most) can reduce them.
    const fn many(self) -> Option<usize> {
        match self {
            Self::Pairs(count) | Self::UnknownCancels(count) => Some(count),
            Self::Echo(_) | Self::Cancel(_) | Self::Saturate(..) | Self::Cascade(_) => None,
        }
    }
}

/// The measure of W4 on its other connection.
const TO_SPARE: &str = "to caller, slots to spare";

/// More slots than are ever used.
pub(super) const PLENTY: usize = 4096;

/// The most nanoseconds of a turn with very many requests. A slower competitor has fewer in the next turn.
const TURN: u64 = 40_000_000;

/// A competitor in a case.
pub(super) struct Player {
    entrant: Entrant,
    /// W4: another connection of the same competitor, with free slots.
    spare: Option<Entrant>,
    /// The times of each measure, in the order of the turns.
    samples: Samples,
    /// The most requests in the next turn.
    most: usize,
    /// The requests in the counted turns.
    played: usize,
}

/// Plays a case with all competitors, and returns a row for each of them and each measure.
#[must_use]
pub fn play(run: &Run, case: &Case, place: Place, competitors: &[Competitor]) -> Vec<Row> {
    run.begin(&format!("{} {}, {}", case.workload, case.name, place.name()), run.rounds + WARM);
    let (run, case, competitors) = (run.clone(), case.clone(), competitors.to_vec());
    place.run(async move {
        let mut field = Vec::new();
        for competitor in &competitors {
            let entrant = enter(competitor, place, case.slots).await;
            let spare = match case.work {
                Work::Saturate(..) => Some(enter(competitor, place, PLENTY).await),
                _ => None,
            };
            field.push(Player { spare, ..Player::new(entrant, case.work) });
        }
        take_turns(&run, case.work, &mut field).await;
        field.into_iter().flat_map(|player| rows(&case, place.name(), player)).collect()
    })
}

/// Plays every round.
pub(super) async fn take_turns(run: &Run, work: Work, field: &mut [Player]) {
    for round in 0..run.rounds + WARM {
        if round == WARM {
            for player in &mut *field {
                player.samples.iter_mut().for_each(|(_, samples)| samples.clear());
                player.played = 0;
            }
        }
        for place in (0..field.len()).chain((0..field.len()).rev()) {
            turn(&mut field[place], work).await;
        }
        run.step();
    }
}

impl Player {
    /// Its name.
    pub(super) const fn name(&self) -> Name {
        self.entrant.name
    }

    /// One that has not played yet.
    pub(super) fn new(entrant: Entrant, work: Work) -> Self {
        let samples = work.measures().iter().map(|measure| (*measure, Vec::new())).collect();
        Self { entrant, spare: None, samples, most: usize::MAX, played: 0 }
    }

    /// The median, over all turns, of how much longer a turn's median of the first measure is than that of this floor in the same
    /// turn, which a change of the machine's load hardly affects. `None`: one of them has no such turn.
    pub(super) fn over(&self, floor: &Self, each_turn: usize) -> Option<f64> {
        let medians = |player: &Self| -> Vec<u64> {
            let (_, samples) = &player.samples[0];
            let median = |turn: &[u64]| {
                let mut turn = turn.to_vec();
                turn.sort_unstable();
                turn[turn.len() / 2]
            };
            samples.chunks_exact(each_turn).map(median).collect()
        };
        let (ours, floors) = (medians(self), medians(floor));
        let mut over: Vec<_> =
            ours.iter().zip(&floors).map(|(ours, floor)| *ours as f64 - *floor as f64).collect();
        over.sort_unstable_by(f64::total_cmp);
        over.get(over.len() / 2).copied()
    }
}

/// The rows of a player.
pub(super) fn rows(case: &Case, place: &'static str, player: Player) -> Vec<Row> {
    let Player { entrant, spare, samples, played, .. } = player;
    // A connection that has failed says nothing about the other.
    let out = |measure| match (&spare, measure) {
        (Some(spare), TO_SPARE) => spare.out,
        _ => entrant.out,
    };
    let row = |measure, figure| {
        let figure = out(measure).map_or(figure, Figure::Said);
        Row::new(case.workload, case.name.clone(), place, measure, entrant.name, figure)
    };
    let times = |samples| Distribution::new(samples).map_or(Figure::Said("none"), Figure::Times);
    let mut rows: Vec<_> =
        samples.into_iter().map(|(measure, samples)| row(measure, times(samples))).collect();
    if case.work.many().is_some() {
        rows.push(row("played in all", Figure::Number { value: played as f64, unit: "requests" }));
    }
    rows
}

async fn turn(player: &mut Player, work: Work) {
    let work = work.at_most(player.most);
    let Player { entrant, spare, samples, most, played } = player;
    if let Some(subject) = &mut entrant.subject {
        let asked = ask(subject.as_mut(), work, samples);
        let out = attempt(Bound::Turn, asked).await.unwrap_or_else(Some);
        end_if_out(entrant, out);
        if let (Some(count), Some(each)) = (work.many(), samples[0].1.last()) {
            *played += count;
            *most = usize::try_from(TURN / each.max(&1)).unwrap_or(usize::MAX);
        }
    }
    // It is measured regardless of the result of the one without free slots.
    if let (Some(spare), Work::Saturate(_, count)) = (spare, work)
        && let Some(subject) = &mut spare.subject
    {
        let asked = ask_spare(subject.as_mut(), count, &mut samples[1].1);
        let out = attempt(Bound::Turn, asked).await.unwrap_or_else(Some);
        end_if_out(spare, out);
    }
}

fn end_if_out(entrant: &mut Entrant, out: Option<&'static str>) {
    if out.is_some() {
        entrant.out = out;
        entrant.subject = None;
    }
}

/// The same cancels on W4's other connection, which has free slots. Returns the reason if it fails.
async fn ask_spare(subject: &mut dyn Subject, count: usize, samples: &mut Vec<u64>) -> Option<&'static str> {
    let mut took = CancelSamples::default();
    let told = subject.cancel(count, &mut took).await;
    samples.append(&mut took.to_caller);
    told.said()
}

/// One turn. Returns the reason if it fails.
async fn ask(subject: &mut dyn Subject, work: Work, samples: &mut Samples) -> Option<&'static str> {
    let begin = clock();
    let each = |count: usize| (clock() - begin) / count.max(1) as u64;
    match work {
        Work::Echo(echo) => {
            subject.echo(echo, &mut samples[0].1).await;
            if let Some((_, all)) = samples.get_mut(1) {
                all.push(each(echo.count));
            }
            None
        }
        Work::Cancel(count) => {
            let mut took = CancelSamples::default();
            let told = subject.cancel(count, &mut took).await;
            for ((_, samples), mut took) in
                samples.iter_mut().zip([took.to_handler, took.to_caller, took.to_answer])
            {
                samples.append(&mut took);
            }
            if told.said().is_none() {
                subject.echo(Echo { bytes: 64, in_flight: 1, count }, &mut samples[3].1).await;
            }
            told.said()
        }
        Work::Saturate(which, count) => subject.saturate(which, count, &mut samples[0].1).await.said(),
        Work::Pairs(count) => {
            let told = subject.pairs(count).await;
            samples[0].1.push(each(count));
            told.said()
        }
        Work::UnknownCancels(count) => {
            let told = subject.unknown_cancels(count).await;
            samples[0].1.push(each(count));
            told.said()
        }
        Work::Cascade(tree) => {
            let told = match subject.cascade(tree, false).await {
                Ok(told) => told,
                Err(told) => return told.said(),
            };
            samples[0].1.push(told.to_last);
            samples[1].1.push(told.to_caller);
            None
        }
    }
}

// The competitors, each with a separate connection, in the places where a workload is played.

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
    let mut all = subjects::all().into_iter().chain(subjects::variants()).chain(subjects::servers());
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
    use crate::subject::{BoxFuture, Carries, Saturated, Told};

    /// A subject that answers cancels in one case, or in the other.
    struct Answers {
        saturated: Saturated,
        to_spare: Told,
    }

    impl Subject for Answers {
        fn echo<'a>(&'a mut self, _: Echo, _: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
            Box::pin(async {})
        }

        fn cancel<'a>(&'a mut self, count: usize, took: &'a mut CancelSamples) -> BoxFuture<'a, Told> {
            Box::pin(async move {
                took.to_caller.extend((0..count).map(|_| 7));
                self.to_spare
            })
        }

        fn saturate<'a>(
            &'a mut self,
            _: Which,
            count: usize,
            took: &'a mut Vec<u64>,
        ) -> BoxFuture<'a, Saturated> {
            Box::pin(async move {
                took.extend((0..count).map(|_| 9));
                self.saturated
            })
        }
    }

    const NAME: Name = Name { library: "it", version: "", configuration: "", carries: Carries::Bytes };
    const SILENT: Competitor = Competitor {
        name: NAME,
        open: |_| Box::pin(async { boxed(Saturated::Never, Told::Measured) }),
        serve: None,
    };
    const FAILS_TO_SPARE: Competitor = Competitor {
        name: NAME,
        open: |_| Box::pin(async { boxed(Saturated::Answered, Told::Never) }),
        serve: None,
    };

    fn boxed(saturated: Saturated, to_spare: Told) -> Box<dyn Subject> {
        Box::new(Answers { saturated, to_spare })
    }

    fn played(competitor: Competitor) -> [Figure; 2] {
        let work = Work::Saturate(Which::Running, 3);
        let case = Case { workload: "W4", name: "made up".to_owned(), slots: 4, work };
        let rows = play(&Run::new(2, false), &case, Place::OneThread, &[competitor]);
        let figures: Vec<_> = rows.into_iter().map(|row| row.figure).collect();
        figures.try_into().expect("two measures")
    }

    #[test]
    fn a_library_that_never_answers_with_all_slots_taken_still_has_its_figure_with_free_slots() {
        let [taken, spare] = played(SILENT);
        assert!(matches!(taken, Figure::Said("never")), "{taken:?}");
        // Two turns in each of two rounds, three cancels in each.
        assert!(matches!(&spare, Figure::Times(times) if (times.count, times.p50) == (12, 7)), "{spare:?}");
    }

    #[test]
    fn a_library_that_fails_with_free_slots_shows_that_beside_its_figure_with_all_slots_taken() {
        let [taken, spare] = played(FAILS_TO_SPARE);
        assert!(matches!(&taken, Figure::Times(times) if (times.count, times.p50) == (12, 9)), "{taken:?}");
        assert!(matches!(spare, Figure::Said("never")), "{spare:?}");
    }

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
