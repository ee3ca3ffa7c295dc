//! The options of the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::wires::Wire;

pub(crate) const USAGE: &str = "usage: soak --wire NAME [--minutes N] [--svg FILE] [--seed N]
Good and bad peers over one wire, half of all requests cancelled at random times. Exit code 1 if memory, descriptors, tasks,
requests or what the server counts grew, if a call hung or got another's answer, or if the server came to refuse good peers.
wires: stdio, named-pipe, websocket, http-streamable, http2-streamable, http-stateless, http-acp
example: soak --wire websocket --minutes 1 --svg websocket.svg";

pub(crate) struct Options {
    pub(crate) wire: Wire,
    pub(crate) time: Duration,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) seed: u64,
}

impl Options {
    /// The command that repeats this run, from the repository's root: the same calls and attacks, but not the same
    /// order of threads.
    pub(crate) fn command(&self) -> String {
        let (wire, minutes, seed) = (self.wire.name(), self.time.as_secs_f64() / 60.0, self.seed);
        let soak = "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=131072 cargo run --release -p rescind-integration-tests --bin soak --";
        format!("{soak} --wire {wire} --minutes {minutes} --seed {seed}")
    }

    /// # Errors
    /// A sentence with the error.
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut wire, mut minutes, mut svg, mut seed) = (None, 1.0, None, 1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("`{word}` needs a value"));
            match word.as_str() {
                "--wire" => {
                    let name = value()?;
                    wire = Some(Wire::named(&name).ok_or_else(|| format!("there is no wire `{name}`"))?);
                }
                "--minutes" => minutes = number(&value()?)?,
                "--seed" => seed = number(&value()?)?,
                "--svg" => svg = Some(PathBuf::from(value()?)),
                _ => return Err(format!("`{word}` is no option")),
            }
        }
        let time = Duration::try_from_secs_f64(minutes * 60.0)
            .ok()
            .filter(|time| *time >= Duration::from_secs(4))
            .ok_or_else(|| format!("{minutes} minutes are too short or too long"))?;
        Ok(Self { wire: wire.ok_or("a wire is needed")?, time, svg, seed })
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}
