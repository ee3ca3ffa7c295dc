//! `rescind check --init`: the profile that it writes for a living peer.
#![cfg(unix)]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rescind_testkit::{Profile, RequestKind};
use serde_json::json;

const RESCIND: &str = env!("CARGO_BIN_EXE_rescind");

fn check(options: &[&str], peer: &[&str]) -> Output {
    let mut command = Command::new(RESCIND);
    command.arg("check").args(options).arg("--").args(peer).stdin(Stdio::null()).output().unwrap()
}

fn init(dialect: &str, more: &[&str], peer: &[&str]) -> String {
    let output = check(&[&["--dialect", dialect, "--init"], more].concat(), peer);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A shell script that answers each request in turn with these results. `None` reads a notification.
fn script(results: &[Option<&str>]) -> String {
    let mut number = 0;
    let mut script = String::new();
    for result in results {
        script.push_str("read l; ");
        if let Some(result) = result {
            number += 1;
            let answer = format!(r#"{{"jsonrpc":"2.0","id":"ask-{number}","result":{result}}}"#);
            let _ = write!(script, "echo '{answer}'; ");
        }
    }
    script + "cat > /dev/null"
}

/// The profile with everything that it suggests in comments.
fn with_suggestions(text: &str) -> String {
    let uncommented = text.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with([' ', '#']) => rest,
        Some(_) | None => line,
    });
    uncommented.collect::<Vec<_>>().join("\n")
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rescind-init-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_profile_is_valid_in_each_dialect_with_and_without_its_suggestions() {
    for dialect in ["acp", "acp-v2", "acp-draft", "lsp", "mcp", "mcp-2026", "abp"] {
        let text = init(dialect, &[], &[RESCIND, "fixture", "--dialect", dialect, "--listen", "stdio"]);
        for text in [text.clone(), with_suggestions(&text)] {
            Profile::from_toml(&text).unwrap_or_else(|error| panic!("{dialect}: {error}\n{text}"));
        }
        let full = Profile::from_toml(&with_suggestions(&text)).unwrap();
        assert!(full.requests.contains_key(&RequestKind::Slow), "{dialect}");
        assert!(full.requests.contains_key(&RequestKind::Quick), "{dialect}");
    }
}

#[test]
fn the_arguments_of_a_tool_are_made_from_its_schema() {
    let tools = r#"{"tools":[
        {"name":"echo","inputSchema":{"type":"object","required":["message"],"properties":{"message":{"type":"string"}}}},
        {"name":"longRunningOperation","description":"Reports progress","inputSchema":
          {"type":"object","properties":{"duration":{"type":"number"},"steps":{"type":"integer"},"note":{"type":"string"}}}}]}"#;
    let answer =
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"mine","version":"1"}}"#;
    let tools = tools.replace('\n', " ");
    let text = init("mcp", &[], &["sh", "-c", &script(&[Some(answer), None, Some(&tools)])]);
    assert!(text.contains("# The server says that it is mine."), "{text}");
    let profile = Profile::from_toml(&text).unwrap();
    let slow = profile.requests.get(&RequestKind::Slow).unwrap();
    assert_eq!(slow.method, "tools/call");
    assert_eq!(
        slow.params,
        json!({ "name": "longRunningOperation", "arguments": {"duration": 5, "steps": 10} })
    );
    assert_eq!(profile.requests.get(&RequestKind::Quick).unwrap().method, "ping");
    let full = Profile::from_toml(&with_suggestions(&text)).unwrap();
    let progress = full.requests.get(&RequestKind::Progress).unwrap();
    assert_eq!(progress.notification.as_deref(), Some("notifications/progress"));
    assert_eq!(progress.params.pointer("/_meta/progressToken"), Some(&json!("check")));
    // serde_json's features decide the order of an object's members.
    let commands = text.split("--slow 'tools/call ").skip(1).filter_map(|rest| rest.split('\'').next());
    let suggested: Vec<serde_json::Value> =
        commands.map(|arguments| serde_json::from_str(arguments).unwrap()).collect();
    assert!(suggested.contains(&json!({ "name": "echo", "arguments": { "message": "check" } })), "{text}");
}

#[test]
fn a_language_server_gets_the_document_that_is_named() {
    let folder = Folder::new("document");
    let document = folder.file("a b.py");
    std::fs::write(&document, "x = 1\n").unwrap();
    let answer = r#"{"capabilities":{"hoverProvider":true,"referencesProvider":{},"renameProvider":false}}"#;
    // The framing of a script is lines.
    let peer = ["sh", "-c", &script(&[Some(answer), None])];
    let options = ["--framing", "newline", "--step-timeout", "300", "--document", &document];
    let text = init("lsp", &options, &peer);
    // It hangs after its handshake, so nothing is measured.
    assert!(text.contains("#   textDocument/hover at 1:1: it was not answered within "), "{text}");
    let profile = Profile::from_toml(&text).unwrap().resolve(&folder.0, None).unwrap();
    let [open] = &profile.session.setup[..] else { panic!("{text}") };
    assert_eq!(open.params.pointer("/textDocument/text"), Some(&json!("x = 1\n")));
    assert_eq!(open.params.pointer("/textDocument/languageId"), Some(&json!("python")));
    let uri = open.params.pointer("/textDocument/uri").unwrap().as_str().unwrap();
    assert!(uri.starts_with("file:///") && uri.ends_with("/a%20b.py"), "{uri}");
    assert_eq!(profile.requests.get(&RequestKind::Quick).unwrap().method, "textDocument/hover");
    let full = Profile::from_toml(&with_suggestions(&text)).unwrap();
    assert_eq!(full.requests.get(&RequestKind::Slow).unwrap().method, "textDocument/references");
    assert!(!text.contains("textDocument/rename"), "{text}");
}

#[test]
fn an_agent_that_wants_a_login_gets_a_profile_that_says_so() {
    let opening =
        r#"{"jsonrpc":"2.0","id":"ask-1","result":{"protocolVersion":1,"authMethods":[{"id":"browser"}]}}"#;
    let refusal =
        r#"{"jsonrpc":"2.0","id":"ask-2","error":{"code":-32000,"message":"Authentication required"}}"#;
    let peer = format!("read l; echo '{opening}'; read l; echo '{refusal}'; cat > /dev/null");
    let text = init("acp", &[], &["sh", "-c", &peer]);
    assert!(text.contains("Authentication required") && text.contains("log in: browser"), "{text}");
    let profile = Profile::from_toml(&text).unwrap();
    assert!(profile.requests.is_empty() && profile.handshake.steps.is_empty(), "{text}");
    let full = Profile::from_toml(&with_suggestions(&text)).unwrap();
    assert_eq!(full.requests.get(&RequestKind::Slow).unwrap().method, "session/prompt");
    assert!(full.resolve(&std::env::temp_dir(), None).is_ok(), "what is used is bound");
}

#[test]
fn a_peer_that_cannot_be_asked_is_reported_in_one_sentence_that_says_what_to_do() {
    let framed = "printf 'Content-Length: 2\\r\\n\\r\\n{}'; cat > /dev/null";
    for (peer, words) in [
        ("exit 0", &["before it has answered `initialize`", "by hand", "exit status: 0"][..]),
        (
            "echo no licence >&2; exit 3",
            &["before it has answered `initialize`", "exit status: 3", "no licence"],
        ),
        ("echo Starting...; cat > /dev/null", &["not a message", "logs on stderr"]),
        (framed, &["not a message", "--framing content-length"]),
        (
            r#"read l; echo '{"jsonrpc":"2.0","id":"ask-1","error":{"code":-1,"message":"no"}}'; cat > /dev/null"#,
            &["`initialize` was refused", "[handshake]"],
        ),
    ] {
        let output = check(&["--dialect", "acp", "--init"], &["sh", "-c", peer]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{peer}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        for word in words {
            assert!(said.contains(word), "{peer}: {word}: {said}");
        }
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_peer_that_reads_nothing_is_reported_with_what_it_may_lack() {
    let output = check(&["--dialect", "acp", "--init"], &["sleep", "1000"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("was not answered within") && said.contains("--stdio"), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[test]
fn no_tool_is_called_that_is_not_marked_as_one_that_only_reads() {
    let folder = Folder::new("tools");
    let log = folder.file("log");
    let tools = r#"{"tools":[{"name":"erase"},{"name":"long","annotations":{"readOnlyHint":false}},
        {"name":"look","annotations":{"readOnlyHint":true}},{"name":"stare","annotations":{"readOnlyHint":true}}]}"#;
    let tools = tools.replace('\n', " ");
    // Each answer has the id of its request. One tool takes its time.
    let peer = format!(
        r#"while read -r line; do printf '%s\n' "$line" >> "{log}"
           id=${{line#*'"id":"'}}; id=${{id%%'"'*}}
           case "$line" in
             *'"initialize"'*) result='{{"protocolVersion":"2025-11-25","capabilities":{{}},"serverInfo":{{"name":"mine","version":"1"}}}}' ;;
             *'"tools/list"'*) result='{tools}' ;;
             *'"stare"'*) sleep 1; result='{{"content":[]}}' ;;
             *'"tools/call"'*) result='{{"content":[]}}' ;;
             *) continue ;;
           esac
           printf '{{"jsonrpc":"2.0","id":"%s","result":%s}}\n' "$id" "$result"
         done"#
    );
    let text = init("mcp", &[], &["sh", "-c", &peer]);
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("\"look\"") && log.contains("\"stare\""), "{log}");
    assert!(!log.contains("\"erase\"") && !log.contains("\"long\""), "{log}");
    let profile = Profile::from_toml(&text).unwrap();
    let slow = profile.requests.get(&RequestKind::Slow).unwrap();
    assert_eq!(slow.params, json!({ "name": "stare", "arguments": {} }), "{text}");
    assert!(text.contains("# The slowest of the tools that only read, each time: "), "{text}");
}
