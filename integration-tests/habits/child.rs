//! Children behind a bridge: a client makes the call `work`, which the child answers as its entry says, and then `echo`, which
//! it answers as it should.

use std::io::Write as _;
use std::process::ExitCode;

use libtest_mimic::Trial;
use rescind::dialect::{Dialect, Role};
use rescind::http::{HttpClient, StreamableTransport};
use rescind::named_pipe::NamedPipeTransport;
use rescind::transport::Transport;
use rescind::{Outcome, Peer};
use serde_json::{Value, json};

use crate::play::{Program, bytes_of, entries, is_seen, opening, soon, trial, words};

const CHILDREN: &str = include_str!("children.json");
/// The argument with which this program is a child.
pub(crate) const ROLE: &str = "--as-child";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for entry in entries(CHILDREN) {
        for dialect in words(&entry, "dialects", &["mcp", "acp", "lsp"]) {
            for over in words(&entry, "over", &["ws", "http", "pipe"]) {
                // ACP over HTTP is another binding, and clients of LSP do not speak over HTTP.
                if over == "http" && dialect != "mcp" {
                    continue;
                }
                let (entry, dialect) = (entry.clone(), dialect.clone());
                let name = format!("children::{}::{dialect}_over_{over}", entry["name"].as_str().unwrap());
                trials.push(trial(name, move || async move { play(&entry, &dialect, &over).await }));
            }
        }
    }
    trials
}

async fn play(entry: &Value, dialect: &str, over: &str) {
    let exe = std::env::current_exe().unwrap().display().to_string();
    let name = entry["name"].as_str().unwrap();
    let listen = match over {
        "ws" => "ws://127.0.0.1:0/habits".to_owned(),
        "http" => "http://127.0.0.1:0/habits".to_owned(),
        _ => format!("pipe:habits-{}-{dialect}-{name}", std::process::id()),
    };
    let mut bridge = Program::start(&[
        "bridge",
        "--dialect",
        dialect,
        "--listen",
        &listen,
        "--",
        &exe,
        ROLE,
        dialect,
        name,
    ]);
    let endpoint = bridge.endpoint();
    let transport: Box<dyn Transport> = match over {
        "ws" => Box::new(rescind::websocket::connect(&endpoint)),
        "http" => Box::new(StreamableTransport::new(HttpClient::new(&endpoint).unwrap()).in_order()),
        _ => Box::new(NamedPipeTransport::new(endpoint.strip_prefix("pipe:").unwrap().parse().unwrap())),
    };
    let link = soon("the connection", transport.open()).await.unwrap();
    let client = Peer::builder(Dialect::by_name(dialect).unwrap()).role(Role::Client).attach(link).unwrap();
    let (params, _) = opening(dialect);
    let _: Value = soon("the handshake", client.call("initialize", &params)).await.unwrap();
    let answer = ask(&client, "work").await;
    assert!(is_seen(&entry["sees"], &answer), "{name}: the client sees {answer}");
    for text in words(entry, "stderr", &[]) {
        let _line = bridge.line(&text);
    }
    if entry["then"] != "ended" {
        assert_eq!(ask(&client, "echo").await["result"], json!({"echo": true}), "{name}: the next call");
    }
}

/// The answer to a call, as a message.
async fn ask(client: &Peer, method: &str) -> Value {
    let call = client.call::<_, Value>(method, &json!({})).start().unwrap();
    match soon(method, call.outcome()).await {
        Outcome::Completed(value) => json!({"result": value}),
        Outcome::Failed(error) => json!({"error": {"code": error.code.0, "message": error.message}}),
        other => panic!("{method}: {other:?}"),
    }
}

/// This program as the child of a bridge.
pub(crate) fn run(dialect: &str, name: &str) -> ExitCode {
    let entries = entries(CHILDREN);
    let entry = entries.iter().find(|entry| entry["name"] == name).expect("the habit is known");
    let is_lsp = dialect == "lsp";
    let mut input = std::io::stdin().lock();
    let mut output = std::io::stdout().lock();
    while let Some(message) = read(&mut input, is_lsp) {
        let id = &message["id"];
        let answer = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        let items = match message["method"].as_str() {
            Some("initialize") => vec![json!({"frame": answer(opening(dialect).1)})],
            Some("echo") => vec![json!({"frame": answer(json!({"echo": true}))})],
            Some("work") => entry["writes"].as_array().expect("a child writes something").clone(),
            _ => Vec::new(),
        };
        for item in &items {
            output.write_all(&bytes_of(item, is_lsp, id)).unwrap();
        }
        output.flush().unwrap();
    }
    ExitCode::SUCCESS
}

fn read(input: &mut impl std::io::BufRead, is_lsp: bool) -> Option<Value> {
    let mut line = String::new();
    if !is_lsp {
        return (input.read_line(&mut line).ok()? > 0).then(|| serde_json::from_str(&line).unwrap());
    }
    let mut length = 0;
    loop {
        line.clear();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some((_, value)) => length = value.parse().unwrap(),
            None => break,
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    Some(serde_json::from_slice(&body).unwrap())
}
