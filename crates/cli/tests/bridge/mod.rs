//! `rescind bridge` as a program: children and endpoints behind it, and what its users see when something goes wrong. Here: a
//! bridge as a process, its clients, and the lives of its children.
#![cfg(unix)]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod children;
mod clients;
mod endpoints;
mod failing_endpoints;
mod login;
mod usage;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use rescind::dialect::{Dialect, Role};
use rescind::http::{HttpClient, StreamableTransport};
use rescind::named_pipe::NamedPipeTransport;
use rescind::transport::Transport;
use rescind::{ErrorObject, Outcome, Peer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::{Files, remove_pipe, rescind};

/// Every wait ends: a test that hangs has failed.
pub(crate) async fn soon<F: IntoFuture>(what: &str, future: F) -> F::Output {
    let Ok(output) = tokio::time::timeout(Duration::from_secs(40), future).await else {
        panic!("{what} does not come")
    };
    output
}

/// `rescind bridge`, after it has printed its endpoint. Killed on drop.
pub(crate) struct Bridge {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub(crate) endpoint: String,
}

impl Bridge {
    /// A bridge with these arguments after `--dialect D --listen ENDPOINT`.
    pub(crate) fn listen(dialect: &str, endpoint: &str, more: &[&str]) -> Self {
        Self::with_environment(dialect, endpoint, more, &[])
    }

    pub(crate) fn with_environment(
        dialect: &str,
        endpoint: &str,
        more: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut child = rescind(&["bridge", "--dialect", dialect, "--listen", endpoint])
            .args(more)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let endpoint = line.trim_end().strip_prefix("listening on ");
        let endpoint = endpoint.unwrap_or_else(|| panic!("it said: {line}")).to_owned();
        Self { child, stderr, endpoint }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit code, and what else it wrote to stderr.
    pub(crate) async fn ended(mut self) -> (Option<i32>, String) {
        let ended = tokio::task::spawn_blocking(move || {
            let mut rest = String::new();
            self.stderr.read_to_string(&mut rest).unwrap();
            (self.child.wait().unwrap().code(), rest)
        });
        soon("the end of the bridge", ended).await.unwrap()
    }

    /// A client that has shaken hands.
    pub(crate) async fn client(&self, dialect: &str) -> Peer {
        let client = self.stranger(dialect).await;
        soon("the handshake", client.call::<_, Value>("initialize", &hello(dialect))).await.unwrap();
        client
    }

    /// A client that has sent nothing.
    pub(crate) async fn stranger(&self, dialect: &str) -> Peer {
        connect(dialect, transport(&self.endpoint)).await
    }

    /// The open files of the bridge.
    #[cfg(target_os = "linux")]
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Its resident memory.
    #[cfg(target_os = "linux")]
    pub(crate) fn resident_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        remove_pipe(&self.endpoint);
    }
}

pub(crate) async fn connect(dialect: &str, transport: Box<dyn Transport>) -> Peer {
    let link = soon("the connection", transport.open()).await.unwrap();
    Peer::builder(Dialect::by_name(dialect).unwrap()).role(Role::Client).attach(link).unwrap()
}

pub(crate) fn transport(endpoint: &str) -> Box<dyn Transport> {
    match endpoint.strip_prefix("pipe:") {
        Some(address) => Box::new(NamedPipeTransport::new(address.parse().unwrap())),
        None if endpoint.starts_with("ws") => Box::new(rescind::websocket::connect(endpoint)),
        None => {
            Box::new(StreamableTransport::new(HttpClient::new(endpoint).unwrap()).in_order().no_renewal())
        }
    }
}

pub(crate) fn hello(dialect: &str) -> Value {
    match dialect {
        "mcp" => json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}
        }),
        "lsp" => json!({"processId": null, "rootUri": null, "capabilities": {}}),
        _ => json!({"protocolVersion": 1, "clientCapabilities": {}}),
    }
}

/// The error that answers a request.
pub(crate) async fn error_of(client: &Peer, method: &str, params: &Value) -> ErrorObject {
    let call = client.call::<_, Value>(method, params).start().unwrap();
    match soon("the answer", call.outcome()).await {
        Outcome::Failed(error) => error,
        other => panic!("{method}: {other:?}"),
    }
}

/// The fixture as the program behind a bridge.
pub(crate) fn fixture(dialect: &str) -> [String; 6] {
    let program = env!("CARGO_BIN_EXE_rescind");
    ["--", program, "fixture", "--dialect", dialect, "--listen=stdio"].map(str::to_owned)
}

/// The same as the last command of a shell script.
pub(crate) fn fixture_script(dialect: &str) -> String {
    format!("exec '{}' fixture --dialect {dialect} --listen stdio", env!("CARGO_BIN_EXE_rescind"))
}

pub(crate) fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// The life of a child and of all that it starts: they hold the writing end of a named pipe of the file system.
pub(crate) struct Lives {
    file: String,
    _files: Files,
}

/// The children of one life, of which the first has written its process id.
pub(crate) struct Life {
    pub(crate) pid: i32,
    pipe: BufReader<std::fs::File>,
}

impl Lives {
    pub(crate) fn new() -> Self {
        let files = Files::new();
        let file = files.write("lives", "");
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        Self { file, _files: files }
    }

    /// Arguments for a child that runs this shell script.
    pub(crate) fn child(&self, script: &str) -> [String; 4] {
        let script = format!("exec 9>'{}'; echo $$ >&9; {script}", self.file);
        ["--".to_owned(), "sh".to_owned(), "-c".to_owned(), script]
    }

    /// Waits until a child has begun.
    pub(crate) async fn begun(&self) -> Life {
        let file = self.file.clone();
        let begun = tokio::task::spawn_blocking(move || {
            let mut pipe = BufReader::new(std::fs::File::open(file).unwrap());
            let mut line = String::new();
            pipe.read_line(&mut line).unwrap();
            Life { pid: line.trim().parse().unwrap(), pipe }
        });
        soon("a child", begun).await.unwrap()
    }
}

impl Life {
    /// Waits until the child and all that it started have ended.
    pub(crate) async fn ended(mut self) {
        let ended = tokio::task::spawn_blocking(move || self.pipe.read_to_end(&mut Vec::new()).unwrap());
        soon("the end of the child", ended).await.unwrap();
    }

    pub(crate) fn kill(&self) {
        kill_process(Pid::from_raw(self.pid).unwrap(), Signal::KILL).unwrap();
    }
}
