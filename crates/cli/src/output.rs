//! Output to stdout and stderr, either of which may be closed or full. Logs go to stderr; stdout belongs to the protocol and
//! to reports.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::Failure;

/// The most notes that wait for stderr.
const MAX_NOTES: usize = 1024;
/// How long a program waits at its end for the notes to be written.
const NOTES_TIME: Duration = Duration::from_millis(300);

static NOTES: OnceLock<Option<SyncSender<String>>> = OnceLock::new();
static REASONS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The notes and reasons that are not written yet.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// The notes that found no room since the last one that did.
static LEFT_OUT: AtomicUsize = AtomicUsize::new(0);

/// Writes the result of a command.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| format!("the result could not be written to stdout: {error}"))
}

/// Writes a message that is not part of the result. A failed write is ignored.
pub(crate) fn message(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Writes the reason for the end of a connection, as [`note`] does. Other lines do not take its room.
pub(crate) fn reason(line: String) {
    let mut reasons = REASONS.lock().unwrap_or_else(PoisonError::into_inner);
    if reasons.len() < MAX_NOTES {
        WAITING.fetch_add(1, Ordering::SeqCst);
        reasons.push(line);
    }
    drop(reasons);
    // If there is no room, the thread is awake.
    note(String::new());
}

/// Writes a line about a running connection, from a thread of its own. A program that does not read our stderr cannot stop
/// the connections by that: a line that does not fit is left out and counted.
pub(crate) fn note(line: String) {
    let sender = NOTES.get_or_init(|| {
        let (sender, lines) = sync_channel(MAX_NOTES);
        let thread = thread::Builder::new().name("stderr".to_owned());
        thread.spawn(move || write_notes(&lines)).ok().map(|_| sender)
    });
    let Some(sender) = sender else { return message(&line) };
    WAITING.fetch_add(1, Ordering::SeqCst);
    let is_line = !line.is_empty();
    if sender.try_send(line).is_err() {
        WAITING.fetch_sub(1, Ordering::SeqCst);
        LEFT_OUT.fetch_add(usize::from(is_line), Ordering::SeqCst);
    }
}

fn write_notes(lines: &Receiver<String>) {
    for line in lines {
        let left_out = LEFT_OUT.swap(0, Ordering::SeqCst);
        message(&line);
        if left_out > 0 {
            message(&format!("rescind: {left_out} more lines found no room on stderr\n"));
        }
        let reasons = std::mem::take(&mut *REASONS.lock().unwrap_or_else(PoisonError::into_inner));
        for reason in &reasons {
            message(reason);
        }
        WAITING.fetch_sub(1 + reasons.len(), Ordering::SeqCst);
    }
}

/// Waits until the notes are written, for a moment.
pub(crate) fn finish_notes() {
    let end = Instant::now() + NOTES_TIME;
    while WAITING.load(Ordering::SeqCst) > 0 && Instant::now() < end {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Hides the fixture's one intended panic from stderr. Every other panic is reported as usual.
pub(crate) fn hide_intended_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        if text != Some(rescind_testkit::fixture::PANIC_TEXT) {
            tell(panic);
        }
    }));
}

/// Starts logging: errors and warnings of the cluster, with `-v` debug messages, with `-vv` every step.
pub(crate) fn start_log(verbose: u8) {
    let targets = match verbose {
        // The client of NATS reports errors that the commands report too.
        0 => Targets::new()
            .with_default(Level::ERROR)
            .with_target("rescind_cluster", Level::WARN)
            .with_target("async_nats", LevelFilter::OFF),
        1 => Targets::new().with_default(Level::DEBUG),
        2.. => Targets::new().with_default(Level::TRACE),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let subscriber = tracing_subscriber::registry().with(lines).with(targets);
    // It fails only if a subscriber is already set, and none is.
    drop(tracing::subscriber::set_global_default(subscriber));
}
