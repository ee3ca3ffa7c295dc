//! Whether the work of a cancelled request stops: by progress that ceases, by the next answer of a peer that serves one
//! request at a time, by the processor time of its processes (Linux only), or by a count that the user's command or a
//! request of the peer gives.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rescind_testkit::runner::{Evidence, TraceLine};
use rescind_testkit::wire_format::WireFormat;
use rescind_testkit::{Profile, RequestKind, Witness, follow};
use serde_json::Value;

use super::CheckSettings;
use super::baseline::{Baselines, Timing, error_of, shown};
use super::session::{Lost, PeerSession, Received, Sent, TOKEN_PLACES, token_for};
use super::tries::{NORMAL_END, Tries, cancel_delay, is_cancelled};

/// How long the peer is watched after a cancel.
pub(super) const WATCH: Duration = Duration::from_millis(500);

/// From this share of one processor on, the work of a request is seen in the processor time.
pub(super) const BUSY: f64 = 0.15;

/// What a witness saw.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) evidence: Evidence,
    pub(super) stopped: bool,
    pub(super) detail: String,
}

/// What the progress of one request showed.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub(super) sent: Sent,
    /// The answer, if it came.
    pub(super) answered: Option<Received>,
    /// The notifications before the cancel or the answer.
    pub(super) before: usize,
    /// Those after the answer to the request, or after its cancel if no answer is due.
    pub(super) after: usize,
    /// What was sent and received meanwhile.
    pub(super) trace: Vec<TraceLine>,
}

impl Progress {
    /// Whether the answer is an error.
    pub(super) fn is_error(&self, wire_format: WireFormat) -> bool {
        self.answered.as_ref().is_some_and(|answer| error_of(wire_format, answer).is_some())
    }
}

/// Runs the progress request to its normal end and watches what follows.
pub(super) async fn progress_to_the_end(
    session: &mut PeerSession,
    within: Duration,
) -> Result<Progress, Lost> {
    let begun = session.trace.len();
    let sent = session.send_kind(RequestKind::Progress).await?;
    let token = token_of(session, &sent.id);
    let answered = session.answer(&sent.id, sent.at + within).await?;
    let mut progress = Progress { sent, answered, before: 0, after: 0, trace: Vec::new() };
    if let Some(answer) = &progress.answered {
        let answered_at = answer.at;
        session.listen(answered_at + WATCH).await?;
        let times = progress_times(session, &token, progress.sent.at);
        progress.before = times.iter().filter(|at| **at <= answered_at).count();
        progress.after = times.len() - progress.before;
    }
    progress.trace = session.trace.get(begun..).unwrap_or_default().to_vec();
    Ok(progress)
}

/// Cancels the progress request after its first notifications and watches what follows. Returns how many came after the
/// cancel had taken effect, and how often they came before.
pub(super) async fn progress_after_a_cancel(
    session: &mut PeerSession,
    baselines: &Baselines,
    deadline: Duration,
) -> Result<Option<(usize, Duration)>, Lost> {
    let sent = session.send_kind(RequestKind::Progress).await?;
    let token = token_of(session, &sent.id);
    // Two notifications show how often they come.
    while progress_times(session, &token, sent.at).len() < 2 {
        let until = sent.at + deadline;
        if session.now() >= until || !session.answers(&sent.id).is_empty() {
            return Ok(None);
        }
        session.listen((session.now() + Duration::from_millis(5)).min(until)).await?;
    }
    let seen = progress_times(session, &token, sent.at);
    let interval = match seen.as_slice() {
        [.., first, second] => second.saturating_duration_since(*first),
        _ => Duration::ZERO,
    };
    let cancelled = session.cancel(&sent.id).await?;
    let patience = (interval * 3).max(WATCH).min(deadline);
    let answer = session.answer(&sent.id, cancelled + patience).await?;
    // Progress ceases at the normal end of the request too.
    if ended_normally(session, baselines.progress.as_ref(), &sent) {
        return Ok(None);
    }
    // Those that were on their way when the cancel came are no sign of work.
    let settled =
        answer.as_ref().map_or(cancelled + interval.max(Duration::from_millis(100)), |answer| answer.at);
    session.listen(settled + patience).await?;
    let times = progress_times(session, &token, sent.at);
    let after = times.iter().filter(|at| **at > settled).count();
    Ok(Some((after, interval)))
}

/// The name under which the peer reports progress of the request with this id. Null: it has none.
fn token_of(session: &PeerSession, id: &Value) -> Value {
    let request = session.profile.requests.get(&RequestKind::Progress);
    let has_token = request
        .is_some_and(|request| TOKEN_PLACES.iter().any(|place| request.params.pointer(place).is_some()));
    if has_token { token_for(id) } else { Value::Null }
}

/// When progress of this request was reported.
fn progress_times(session: &PeerSession, token: &Value, since: Instant) -> Vec<Instant> {
    let request = session.profile.requests.get(&RequestKind::Progress);
    let named = request.and_then(|request| request.notification.clone());
    let method = named.unwrap_or_else(|| session.wire_format.facts.progress.method.to_owned());
    let is_it = |frame: &Value| {
        let by_method = frame.get("method").and_then(Value::as_str) == Some(&method);
        let tokens = ["params.progressToken", "params.token"];
        let by_token = token.is_null() || tokens.iter().any(|path| follow(frame, path) == Some(token));
        by_method && by_token
    };
    let later = session.received.iter().filter(|one| one.at >= since);
    later.filter(|one| is_it(&one.frame)).map(|one| one.at).collect()
}

/// Looks at the processor time of the peer while the slow request runs and after its cancel.
pub(super) async fn by_processor_time(
    session: &mut PeerSession,
    baselines: &Baselines,
    leader: u32,
) -> Result<Option<Seen>, Lost> {
    let window = baselines.slow_takes().map_or(WATCH, |takes| (takes / 4).min(WATCH));
    let rest = baselines.slow_takes().map(|takes| takes.saturating_sub(window + cancel_delay(baselines)));
    // The time after the cancel must end well before the normal end of the request.
    if rest.is_some_and(|rest| rest < window * 2) {
        return Ok(None);
    }
    let sent = session.send_kind(RequestKind::Slow).await?;
    session.listen(sent.at + cancel_delay(baselines)).await?;
    let Some(busy) = share_of_a_processor(session, leader, window).await? else { return Ok(None) };
    if busy < BUSY || !session.answers(&sent.id).is_empty() {
        session.cancel(&sent.id).await?;
        return Ok(None);
    }
    session.cancel(&sent.id).await?;
    // The work may look at its cancel only now and then.
    session.listen(session.now() + window / 2).await?;
    let Some(after) = share_of_a_processor(session, leader, window).await? else { return Ok(None) };
    // A request that came to its own end meanwhile uses no more processor time either.
    if ended_normally(session, baselines.slow.as_ref(), &sent) {
        return Ok(None);
    }
    let stopped = after < busy / 3.0;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let detail = format!(
        "processor time: {} of a processor before its cancel, {} after it",
        percent(busy),
        percent(after)
    );
    // In between: other work of the peer, or of the machine.
    let clear = stopped || after > busy / 2.0;
    Ok(clear.then_some(Seen { evidence: Evidence::Processor, stopped, detail }))
}

/// Whether a cancelled request has been answered as if nobody had cancelled it.
fn ended_normally(session: &PeerSession, baseline: Option<&Timing>, sent: &Sent) -> bool {
    let answers = session.answers(&sent.id);
    let (Some(baseline), Some(answer)) = (baseline, answers.first()) else { return false };
    let took = answer.at.saturating_duration_since(sent.at);
    let is_late = baseline.takes.is_some_and(|takes| {
        took >= takes.mul_f64(NORMAL_END)
            // A machine that is less busy than before.
            || (took >= takes / 3 && baseline.is_whole(session.wire_format, answer))
    });
    is_late
        && error_of(session.wire_format, answer) == baseline.error
        && !is_cancelled(session.wire_format, &answer.frame)
}

pub(super) async fn share_of_a_processor(
    session: &mut PeerSession,
    leader: u32,
    window: Duration,
) -> Result<Option<f64>, Lost> {
    let (begun, before) = (Instant::now(), processor_time_of_group(leader));
    session.listen(session.now() + window).await?;
    let after = processor_time_of_group(leader);
    let (Some(before), Some(after)) = (before, after) else { return Ok(None) };
    Ok(Some(after.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64()))
}

/// The next answer of a peer that serves one request at a time comes sooner than the work would have allowed.
pub(super) fn by_serial_service(baselines: &Baselines, owes_silence: bool, tries: &Tries) -> Option<Seen> {
    let takes = baselines.slow_takes().filter(|_| baselines.concurrent == Some(false))?;
    let rest = takes.saturating_sub(cancel_delay(baselines));
    // Where an answer is owed, the next request was sent behind it, which shows something only if it came early. Where
    // silence is owed, the first try waited for the normal end.
    let first = match (owes_silence, tries.worked()) {
        (true, _) => 1,
        (false, Some(true)) => 0,
        (false, Some(false) | None) => return None,
    };
    let mut times: Vec<Duration> = tries.quick_after.iter().skip(first).copied().collect::<Option<_>>()?;
    times.sort_unstable();
    let median = *times.get(times.len() / 2)?;
    let stopped = median < rest / 2;
    let detail = format!(
        "it serves one request at a time, and the next was answered {} after the cancel; the slow one had {} left",
        shown(median),
        shown(rest)
    );
    Some(Seen { evidence: Evidence::Serial, stopped, detail })
}

/// A count of the user's command or of a request of the peer, which grows while work runs.
pub(super) async fn by_counter(
    session: &mut PeerSession,
    baselines: &Baselines,
    counter: &Counter,
    settings: &CheckSettings,
) -> Result<Option<Seen>, Lost> {
    let sent = session.send_kind(RequestKind::Slow).await?;
    let first = counter.read(session, settings.deadline).await?;
    session.listen(sent.at + cancel_delay(baselines).max(WATCH / 2)).await?;
    let running = counter.read(session, settings.deadline).await?;
    session.cancel(&sent.id).await?;
    session.listen(session.now() + WATCH / 2).await?;
    let cancelled = counter.read(session, settings.deadline).await?;
    session.listen(session.now() + WATCH / 2).await?;
    let later = counter.read(session, settings.deadline).await?;
    // A count that ceases at the normal end of the request shows nothing.
    if ended_normally(session, baselines.slow.as_ref(), &sent) {
        return Ok(None);
    }
    let (Some(first), Some(running), Some(cancelled), Some(later)) = (first, running, cancelled, later)
    else {
        return Ok(None);
    };
    Ok(counter.judge([first, running, cancelled, later]))
}

/// Where the count comes from.
#[derive(Clone, Debug)]
pub(super) enum Counter {
    /// The first number that the command prints: the work that was done so far.
    Command { words: Vec<String>, folder: Option<PathBuf> },
    /// The number of running handlers in the result of a request.
    Request { witness: Witness, running: String },
}

impl Counter {
    /// The counter that the profile names.
    pub(super) fn of(profile: &Profile) -> Option<Self> {
        let witness = profile.witness.clone()?;
        if !witness.command.is_empty() {
            // As the peer: in the copy of the scratch folder, if there is one.
            return Some(Self::Command { words: witness.command, folder: profile.session.scratch.clone() });
        }
        let running = witness.running.clone()?;
        Some(Self::Request { witness, running })
    }

    /// Reads the count. `None`: it could not be read.
    pub(super) async fn read(
        &self,
        session: &mut PeerSession,
        deadline: Duration,
    ) -> Result<Option<i64>, Lost> {
        match self {
            Self::Command { words, folder } => {
                let (words, folder) = (words.clone(), folder.clone());
                let read = tokio::task::spawn_blocking(move || printed_number(&words, folder.as_deref()));
                Ok(read.await.ok().flatten())
            }
            Self::Request { witness, running } => {
                let params = session.bindings.fill(&witness.params);
                let sent = session.request(&witness.method, params).await?;
                let answer = session.answer(&sent.id, sent.at + deadline).await?;
                let value = answer.and_then(|answer| session.wire_format.value(&answer.frame).cloned());
                Ok(value.and_then(|value| follow(&value, running).and_then(Value::as_i64)))
            }
        }
    }

    /// Reads four counts: before the work, while it runs, after its cancel, and later.
    pub(super) fn judge(&self, [first, running, cancelled, later]: [i64; 4]) -> Option<Seen> {
        let detail = format!(
            "the count was {first}, {running} while it ran, {cancelled} after its cancel and {later} later"
        );
        match self {
            // It grows while work runs.
            Self::Command { .. } => (running > first).then_some(Seen {
                evidence: Evidence::Command,
                stopped: later == cancelled,
                detail,
            }),
            // It is the number of running handlers.
            Self::Request { .. } => (running > later || later == running).then_some(Seen {
                evidence: Evidence::Request,
                stopped: later < running,
                detail,
            }),
        }
    }
}

/// Runs a command, in this folder if one is given, and reads the first number that it prints.
fn printed_number(command: &[String], folder: Option<&Path>) -> Option<i64> {
    let (program, arguments) = command.split_first()?;
    let mut command = std::process::Command::new(program);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let output = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split(|character: char| !character.is_ascii_digit()).find_map(|word| word.parse().ok())
}

/// The witness without its command or its request, if these are not asked.
pub(super) fn limited_to(mut witness: Witness, command: bool, request: bool) -> Option<Witness> {
    if !command {
        witness.command.clear();
    }
    if !request {
        witness.method.clear();
        (witness.running, witness.cancelled, witness.draining) = (None, None, None);
    }
    let is_left = !witness.command.is_empty() || !witness.method.is_empty();
    is_left.then_some(witness)
}

/// The processor time that the processes of this group have used, those of ended children included. `None`: it cannot
/// be read on this system.
#[cfg(target_os = "linux")]
pub(super) fn processor_time_of_group(leader: u32) -> Option<Duration> {
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // A process may end while the folder is read.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        ticks += ticks_of(&stat, leader).unwrap_or(0);
    }
    (ticks_per_second > 0).then(|| Duration::from_millis(ticks.saturating_mul(1_000) / ticks_per_second))
}

#[cfg(not(target_os = "linux"))]
pub(super) const fn processor_time_of_group(_: u32) -> Option<Duration> {
    None
}

/// The ticks in a line of `/proc/PID/stat`, if the process belongs to the group.
#[cfg(target_os = "linux")]
fn ticks_of(stat: &str, group: u32) -> Option<u64> {
    // The name in parentheses may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Numbered from the state, which is the third field of the line: the group is the fifth, and the times are the
    // fourteenth to the seventeenth.
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    if number(2)? != u64::from(group) {
        return None;
    }
    (11..=14).map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_witness_can_be_left_out() {
        let text = "name = \"x\"\n[witness]\ncommand = [\"count\"]\nmethod = \"stats\"\nrunning = \"a\"";
        let witness = Profile::from_toml(text).unwrap().witness.unwrap();
        let left = |command, request| -> Option<Witness> { limited_to(witness.clone(), command, request) };
        let both = left(true, true).unwrap();
        assert_eq!((both.command.len(), both.method.as_str()), (1, "stats"));
        let command = left(true, false).unwrap();
        assert_eq!((command.command.len(), command.method.as_str(), command.running), (1, "", None));
        let request = left(false, true).unwrap();
        assert_eq!((request.command.len(), request.method.as_str()), (0, "stats"));
        assert!(left(false, false).is_none());
    }

    #[test]
    fn a_command_that_counts_shows_whether_work_stopped() {
        let counter = Counter::Command { words: Vec::new(), folder: None };
        assert!(counter.judge([0, 5, 6, 6]).unwrap().stopped);
        assert!(!counter.judge([0, 5, 6, 9]).unwrap().stopped);
        assert!(counter.judge([5, 5, 5, 5]).is_none(), "it never counted");
    }

    #[cfg(unix)]
    #[test]
    fn the_first_number_that_a_command_prints_is_its_count() {
        let words = |text: &str| vec!["printf".to_owned(), text.to_owned()];
        assert_eq!(printed_number(&words("done 17 of 20"), None), Some(17));
        assert_eq!(printed_number(&words("nothing"), None), None);
        assert_eq!(printed_number(&["no/such/program".to_owned()], None), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_command_is_run_in_the_copy_of_the_scratch_folder() {
        let folder = std::env::temp_dir().join(format!("rescind-witness-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("counter.txt"), "12\n").unwrap();
        let words = ["cat".to_owned(), "counter.txt".to_owned()];
        assert_eq!(printed_number(&words, Some(&folder)), Some(12));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_times_of_a_process_and_its_ended_children_are_added() {
        let stat = "7 (a) b) R 1 42 42 0 -1 0 0 0 0 0 10 20 3 4 20 0 1 0 99 0 0";
        assert_eq!(ticks_of(stat, 42), Some(37));
        assert_eq!(ticks_of(stat, 43), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_used_processor_time() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        let before = processor_time_of_group(u32::try_from(group).unwrap()).unwrap();
        let mut sum = 0_u64;
        // Work until the counter moves, which it does every few milliseconds.
        while processor_time_of_group(u32::try_from(group).unwrap()).unwrap() == before {
            for number in 0..100_000_u64 {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(number));
            }
        }
        assert!(processor_time_of_group(u32::try_from(group).unwrap()).unwrap() > before);
    }
}
