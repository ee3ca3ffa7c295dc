//! The fixture as a separate process with stdin and stdout. If the scenario acts as the server, the process is a
//! relay.

use std::io;
use std::process::id;

use rescind_core::{BoxFuture, ByteStream, Link, Transport};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::options_file::OptionsFile;
use super::{Program, Served, Wire, framing_of, only};
use crate::vector::Scenario;

pub(super) struct Stdio(Program);

impl Stdio {
    pub(super) fn new(program: &Program) -> Self {
        Self(program.clone())
    }

    fn start(&self, scenario: &Scenario) -> Result<Served, String> {
        let mut command = self
            .0
            .command()
            .args(["fixture", "--dialect", scenario.dialect, "--listen", "stdio"])
            .framing(framing_of(scenario)?);
        let options = OptionsFile::write(scenario)?;
        if let Some(file) = &options {
            command = command.arg("--options").arg(file.path());
        }
        let (link, child) = command.start().map_err(|error| error.to_string())?;
        let ended = child.clone();
        let exit_report = move || {
            let status = ended.exit_status()?;
            (!status.success()).then(|| format!("{status}; stderr: {}", ended.stderr_tail()))
        };
        let end = async move {
            let _status = child.wait().await;
            drop(options);
        };
        Ok(Served {
            connect: only(link),
            many_lines: false,
            half_close: true,
            exit_report: Some(Box::new(exit_report)),
            end: Box::pin(end),
        })
    }
}

impl Wire for Stdio {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move { self.start(scenario) })
    }

    /// Our end is the stdio of a real process. The other side of that process is connected back to us.
    fn pair<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move {
            let framing = framing_of(scenario)?;
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| error.to_string())?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            let word = format!("relay {} {}\n", id(), address.port());
            let command = self.0.command().arg("relay").arg(address.to_string()).arg(&word).framing(framing);
            let (ours, child) = command.start().map_err(|error| error.to_string())?;
            let stream = tokio::select! {
                found = accept_with_word(&listener, word.as_bytes()) => found.map_err(|error| error.to_string())?,
                status = child.wait() => return Err(format!("the relay ended: {status}")),
            };
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            let (from, to) = stream.into_split();
            let far = Box::new(ByteStream::new(from, to).framing(framing)).open().await;
            Ok((ours, far.map_err(|error| error.to_string())?))
        })
    }
}

/// The connection on which this word arrives first. Other connections come from programs that used this port before.
async fn accept_with_word(listener: &TcpListener, word: &[u8]) -> io::Result<TcpStream> {
    let mut callers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut stream, _) = accepted?;
                let mut said = vec![0; word.len()];
                callers.spawn(async move { stream.read_exact(&mut said).await.is_ok().then_some((stream, said)) });
            }
            Some(Ok(Some((stream, said)))) = callers.join_next() => {
                if said == word {
                    return Ok(stream);
                }
            }
        }
    }
}
