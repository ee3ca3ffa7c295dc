//! The options of the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::wires::Wire;

/// Good and bad peers over one wire, half of all requests cancelled at random times. Exit code 1 if memory,
/// descriptors, tasks, requests or what the server counts grew, if a call hung or got another's answer, or if the
/// server came to refuse good peers.
#[derive(Debug, Parser)]
#[command(name = "soak", after_help = "example: soak --wire websocket --minutes 1 --svg websocket.svg")]
pub(crate) struct Options {
    /// The wire.
    #[arg(long, value_name = "NAME")]
    pub(crate) wire: Wire,
    /// The minutes under load.
    #[arg(long = "minutes", value_name = "N", default_value = "1", value_parser = minutes)]
    pub(crate) time: Duration,
    /// Writes a chart.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// What the peers draw from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    let time = Duration::try_from_secs_f64(minutes * 60.0).ok();
    let time = time.filter(|time| *time >= Duration::from_secs(4));
    time.ok_or_else(|| format!("{minutes} minutes are too short or too long"))
}

impl Options {
    /// The command that repeats this run, from the repository's root: the same calls and attacks, but not the same
    /// order of threads.
    pub(crate) fn command(&self) -> String {
        let (wire, minutes, seed) = (self.wire.name(), self.time.as_secs_f64() / 60.0, self.seed);
        let soak = "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=131072 cargo run --release -p rescind-integration-tests --bin soak --";
        format!("{soak} --wire {wire} --minutes {minutes} --seed {seed}")
    }
}
