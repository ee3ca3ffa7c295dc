//! What the three sides share: what is written, what must be seen, and the programs.

use std::future::Future;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

/// A test of one entry.
pub(crate) fn trial<F: Future<Output = ()>>(
    name: String,
    play: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(play());
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok::<_, Failed>(())
    })
}

/// The entries of a file.
pub(crate) fn entries(json: &str) -> Vec<Value> {
    serde_json::from_str(json).expect("a file of habits is an array of entries")
}

/// The texts of a list, or those that count if there is none.
pub(crate) fn words(entry: &Value, name: &str, otherwise: &[&str]) -> Vec<String> {
    match entry[name].as_array() {
        Some(list) => list.iter().map(|word| word.as_str().unwrap().to_owned()).collect(),
        None => otherwise.iter().map(|&word| word.to_owned()).collect(),
    }
}

/// The bytes of one item of `writes`: `frame`, a message in the framing of the dialect; `characters`, one whose length
/// counts characters; `raw`, bytes as they are. `<id>` is the id as it came, `<number>` its digits, and `<ff>` one byte.
pub(crate) fn bytes_of(item: &Value, is_lsp: bool, id: &Value) -> Vec<u8> {
    let (kind, text) = item.as_object().and_then(|item| item.iter().next()).expect("an item has a kind");
    let text = text.as_str().unwrap().replace("<id>", &id.to_string());
    let text = text.replace("<number>", id.to_string().trim_matches('"'));
    let mut body = Vec::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('<') {
        body.extend_from_slice(before.as_bytes());
        match after.split_once('>').map(|(hex, after)| (hex, u8::from_str_radix(hex, 16), after)) {
            Some((hex, Ok(byte), left)) if hex.len() == 2 => {
                body.push(byte);
                rest = left;
            }
            _ => {
                body.push(b'<');
                rest = after;
            }
        }
    }
    body.extend_from_slice(rest.as_bytes());
    let header = |length: usize| format!("Content-Length: {length}\r\n\r\n").into_bytes();
    match (kind.as_str(), is_lsp) {
        ("raw", _) => body,
        ("frame", true) => [header(body.len()), body].concat(),
        ("characters", true) => {
            [header(String::from_utf8_lossy(&body).encode_utf16().count()), body].concat()
        }
        ("frame", false) => [body, b"\n".to_vec()].concat(),
        (kind, _) => panic!("{kind} is no kind of what is written"),
    }
}

/// Whether an answer is what an entry says: `result` is the result, `error` has texts that the error's message contains.
pub(crate) fn is_seen(sees: &Value, answer: &Value) -> bool {
    match (&sees["result"], sees["error"].as_array()) {
        (Value::Null, Some(texts)) => {
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            answer["error"].is_object() && texts.iter().all(|text| message.contains(text.as_str().unwrap()))
        }
        (result, None) => answer.get("result") == Some(result),
        (_, Some(_)) => panic!("an answer is a result or an error: {sees}"),
    }
}

/// A running `rescind`. It is killed on drop.
pub(crate) struct Program {
    pub(crate) child: Child,
    lines: mpsc::Receiver<String>,
    /// The lines of its stderr so far.
    seen: Vec<String>,
}

impl Program {
    /// Starts `rescind` with these arguments, and with pipes for its input and output.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rescind"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stderr);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    // Its pipe stays open.
                    let _ = reader.read_to_end(&mut Vec::new());
                    return;
                }
            }
        });
        Self { child, lines, seen: Vec::new() }
    }

    /// The endpoint that it prints when it listens.
    pub(crate) fn endpoint(&mut self) -> String {
        let line = self.line("listening on ");
        line.strip_prefix("listening on ").unwrap_or_else(|| panic!("it said: {line}")).to_owned()
    }

    /// Waits for a line of its stderr that contains this text.
    pub(crate) fn line(&mut self, text: &str) -> String {
        if let Some(line) = self.seen.iter().find(|line| line.contains(text)) {
            return line.clone();
        }
        loop {
            match self.lines.recv_timeout(HANG) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(why) => panic!("its stderr has no {text:?} ({why}): {:#?}", self.seen),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Every wait ends: a test that hangs has failed.
pub(crate) const HANG: Duration = Duration::from_secs(40);

pub(crate) async fn soon<F: IntoFuture>(what: &str, future: F) -> F::Output {
    let Ok(output) = tokio::time::timeout(HANG, future).await else { panic!("{what} does not come") };
    output
}

/// The opening request of a dialect: its params, and the result of a right server.
pub(crate) fn opening(dialect: &str) -> (Value, Value) {
    use serde_json::json;
    match dialect {
        "mcp" => (
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "habits", "version": "1"}}),
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "habits", "version": "1"}}),
        ),
        "lsp" => {
            (json!({"processId": null, "rootUri": null, "capabilities": {}}), json!({"capabilities": {}}))
        }
        "acp" => (
            json!({"protocolVersion": 1, "clientCapabilities": {}}),
            json!({"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}),
        ),
        _ => panic!("the habits of {dialect} are not known"),
    }
}
