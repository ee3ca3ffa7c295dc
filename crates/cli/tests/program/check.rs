//! `rescind check` against peers of every kind: the output for people and scripts, and the processes that remain.
#![cfg(unix)]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Fixture, output, text};

fn check(options: &[&str], peer: &[&str]) -> Output {
    let rescind = env!("CARGO_BIN_EXE_rescind");
    Command::new(rescind)
        .arg("check")
        .args(options)
        .arg("--")
        .args(peer)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The cells of a JSON report.
fn cells(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["cells"].as_array().unwrap().clone()
}

fn outcomes<'a>(cells: &'a [Value], outcome: &str) -> Vec<&'a str> {
    cells.iter().filter(|cell| cell["outcome"] == outcome).map(|cell| cell["why"].as_str().unwrap()).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The one sentence on stderr about a peer that cannot be checked.
fn sentence(output: &Output) -> String {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    said
}

const JSON: [&str; 3] = ["--dialect", "acp", "--json"];
const QUICK: [&str; 7] = ["--dialect", "acp", "--json", "--step-timeout", "300", "--start-timeout", "4000"];

/// A file for the process ids of a peer.
struct PidFile(PathBuf);

impl PidFile {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("rescind-check-{name}-{}", std::process::id())))
    }

    /// Each start adds a line.
    fn script(&self, then: &str) -> String {
        format!("echo $$ >> '{}'; {then}", self.0.display())
    }

    fn pids(&self) -> Vec<String> {
        std::fs::read_to_string(&self.0).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn nobody_is_left(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        let pids = self.pids();
        assert!(!pids.is_empty(), "the peer was never started");
        for pid in pids {
            while is_running(&pid) {
                assert!(Instant::now() < until, "the peer {pid} is left behind");
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn is_running(pid: &str) -> bool {
    let state = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
    let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
fn a_missing_peer_program_is_wrong_usage_and_reported_in_one_sentence() {
    let output = check(&["--dialect", "acp"], &["no-such-program-here", "--stdio"]);
    assert!(sentence(&output).contains("no-such-program-here"), "{}", stderr(&output));
}

#[test]
fn a_peer_that_exits_at_once_is_reported_with_its_status_and_its_last_words() {
    let said = sentence(&check(&JSON, &["sh", "-c", "echo no licence >&2; exit 3"]));
    for word in ["`sh`", "exit status: 3", "no licence"] {
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(said.matches("no licence").count(), 1, "said twice: {said}");
}

#[test]
fn the_noise_of_a_peer_is_reported() {
    for (dialect, peer, words) in [
        ("acp", &["yes", "Starting..."][..], &["not a message: Starting...", "logs on stderr"][..]),
        ("lsp", &["yes", "Starting..."], &["not a frame", "--framing"]),
    ] {
        let said = sentence(&check(&["--dialect", dialect], peer));
        for word in words {
            assert!(said.contains(word), "{dialect}: {said}");
        }
    }
}

#[test]
fn a_frame_without_an_end_is_reported() {
    // More than a frame may have, and then nothing.
    let script = "head -c 20000000 /dev/zero; exec sleep 1000";
    let options = ["--dialect", "acp", "--json", "--start-timeout", "15000"];
    let said = sentence(&check(&options, &["sh", "-c", script]));
    assert!(said.contains("the frame is larger than 16777216 bytes"), "{said}");
}

#[test]
fn a_peer_that_reads_nothing_is_reported_and_killed() {
    let file = PidFile::new("hangs");
    let said = sentence(&check(&QUICK, &["sh", "-c", &file.script("exec sleep 1000")]));
    assert!(said.contains("`initialize` was not answered within 4s") && said.contains("--stdio"), "{said}");
    file.nobody_is_left();
}

#[test]
fn a_peer_that_echoes_every_frame_speaks_another_protocol() {
    let said = sentence(&check(&QUICK, &["cat"]));
    assert!(said.contains("`initialize` was refused") && said.contains("another protocol"), "{said}");
}

#[test]
fn a_peer_that_closes_after_the_handshake_is_reported_with_its_status() {
    let script = r#"read l; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}'; exit 4"#;
    let said = sentence(&check(&JSON, &["sh", "-c", script]));
    assert!(said.contains("exit status: 4") && said.contains("first quick request"), "{said}");
}

#[test]
fn a_check_that_is_interrupted_ends_its_peer() {
    let file = PidFile::new("stopped");
    let rescind = env!("CARGO_BIN_EXE_rescind");
    let mut check = Command::new(rescind)
        .args(["check", "--dialect", "acp", "--step-timeout", "600000", "--", "sh", "-c"])
        .arg(file.script("exec sleep 1000"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !file.pids().iter().any(|pid| is_running(pid)) {
        assert!(Instant::now() < until, "the peer was never started");
        std::thread::yield_now();
    }
    assert!(Command::new("kill").arg(check.id().to_string()).status().unwrap().success());
    assert_eq!(check.wait().unwrap().code(), Some(2));
    file.nobody_is_left();
}

/// Runs a check of our fixture with a script that changes each line of its output. Its input is not changed.
fn meddled(meddle: &str) -> Output {
    let fixture = r#""$0" fixture --dialect acp --listen stdio"#;
    check(&JSON, &["sh", "-c", &format!("{fixture} | {meddle}"), env!("CARGO_BIN_EXE_rescind")])
}

fn held(output: &Output) -> Vec<String> {
    let cells = cells(output);
    let held = cells.iter().filter(|cell| cell["outcome"] == "held");
    held.map(|cell| cell["scenario"].as_str().unwrap().to_owned()).collect()
}

/// Adds a line before each line of the fixture.
fn before_each(line: &str) -> String {
    format!(r#"while IFS= read -r line; do printf '%s\n%s\n' '{line}' "$line"; done"#)
}

#[test]
fn a_peer_with_its_own_methods_and_requests_passes_the_same_scenarios() {
    let plain = meddled("cat");
    assert_eq!(plain.status.code(), Some(0), "{}", stderr(&plain));
    let wanted = held(&plain);
    assert!(wanted.len() > 30, "{wanted:?}");
    let peers = [
        ("an extra notification", before_each(r#"{"jsonrpc":"2.0","method":"window/log","params":{"x":1}}"#)),
        // It sends requests after the end of its input, when no answer can reach it.
        (
            "a request of its own",
            before_each(r#"{"jsonrpc":"2.0","id":"own","method":"fs/read_text_file","params":{}}"#),
        ),
        (
            "other words and data",
            r#"sed -u 's/"message":"[^"]*"/"message":"Cancelled by user","data":{"requestId":1}/'"#
                .to_owned(),
        ),
        ("a null beside the result", r#"sed -u 's/,"result":/,"error":null,"result":/'"#.to_owned()),
        ("a null beside the error", r#"sed -u 's/,"error":{/,"result":null,"error":{/'"#.to_owned()),
        ("members nobody asked for", r#"sed -u 's/^{/{"_meta":{},"x":1,/'"#.to_owned()),
    ];
    // A check waits more than it works.
    let running = peers.map(|(what, meddle)| (what, std::thread::spawn(move || meddled(&meddle))));
    for (what, running) in running {
        let output = running.join().unwrap();
        let cells = cells(&output);
        assert!(outcomes(&cells, "broke").is_empty(), "{what}: {:?}", outcomes(&cells, "broke"));
        assert_eq!(held(&output), wanted, "{what}");
    }
}

#[test]
fn a_peer_with_a_wrong_code_fails() {
    let output = meddled(r#"sed -u 's/"code":-32800/"code":-32603/'"#);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn a_peer_with_a_second_answer_fails() {
    let output = meddled("sed -u p");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn a_peer_may_answer_with_any_error_where_the_fixture_panics() {
    let output = meddled(r#"sed -u 's/"code":-32603/"code":-32000/'"#);
    assert!(held(&output).iter().any(|scenario| scenario == "panic"), "{}", stderr(&output));
}

/// The outcome of one scenario, and its reason.
fn outcome_of(output: &Output, scenario: &str) -> (String, String) {
    let cells = cells(output);
    let cell = cells.iter().find(|cell| cell["scenario"] == scenario).unwrap();
    let text = |name: &str| cell[name].as_str().unwrap().to_owned();
    (text("outcome"), text("why"))
}

#[test]
fn a_request_whose_handler_ignores_the_cancel_is_answered_once() {
    let scenario = "deaf_handler_answers_once";
    let cancelled = r#"sed -u 's/"result":{"ignored":true}/"error":{"code":-32800,"message":"stopped"}/'"#;
    assert_eq!(outcome_of(&meddled(cancelled), scenario), ("held".to_owned(), String::new()));
    // Sends the answer to the cancel, and then the answer of the handler.
    let twice = r#"{ late=; while IFS= read -r line; do printf '%s\n' "$line" ${late:+"$late"}; late=
        case "$line" in *ignored*) late=$line ;; esac; done; }"#;
    let (outcome, why) = outcome_of(&meddled(twice), scenario);
    assert!(outcome == "broke" && why.contains("ignored"), "{outcome}: {why}");
}

#[test]
fn in_abp_the_result_may_come_before_the_acknowledgement() {
    let fixture = r#""$0" fixture --dialect abp --listen stdio"#;
    // Each acknowledgement is delayed until the next line, or forever if there is none.
    let swapped = r"sed -u '/cancel-result/{N;s/\(.*\)\n\(.*\)/\2\n\1/}'";
    let options = ["--dialect", "abp", "--json", "--step-timeout", "500"];
    let script = format!("{fixture} | {swapped}");
    let output = check(&options, &["sh", "-c", &script, env!("CARGO_BIN_EXE_rescind")]);
    assert_eq!(outcome_of(&output, "cancel_running"), ("held".to_owned(), String::new()));
}

#[test]
fn a_ping_of_the_peers_is_answered() {
    let fixture = r#""$0" fixture --dialect mcp --listen stdio"#;
    let ping = before_each(r#"{"jsonrpc":"2.0","id":"own","method":"ping"}"#);
    let script = format!("{fixture} | {ping}");
    let output =
        check(&["--dialect", "mcp", "--json"], &["sh", "-c", &script, env!("CARGO_BIN_EXE_rescind")]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer = |frame: &Value| {
        let said: Value = serde_json::from_str(frame["text"].as_str().unwrap()).unwrap_or_default();
        frame["direction"] == "sent" && said["id"] == "own" && said["result"] == serde_json::json!({})
    };
    let cells = cells(&output);
    assert!(cells.iter().any(|cell| cell["trace"].as_array().unwrap().iter().any(answer)));
}

#[test]
fn without_a_witness_the_frames_are_still_checked() {
    let file = PidFile::new("no-witness");
    let requests = "[requests.slow]\nmethod = \"test/wait\"\n[requests.quick]\nmethod = \"test/echo\"\n";
    std::fs::write(&file.0, format!("name = \"x\"\n{requests}")).unwrap();
    let options = ["--dialect", "acp", "--json", "--profile", file.0.to_str().unwrap()];
    let fixture = [env!("CARGO_BIN_EXE_rescind"), "fixture", "--dialect", "acp", "--listen", "stdio"];
    let output = check(&options, &fixture);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let asked = held(&output);
    for scenario in
        ["cancel_running", "cancel_twice", "cancel_unknown", "siblings_untouched", "unknown_method"]
    {
        assert!(asked.iter().any(|held| held == scenario), "{scenario} is not among {asked:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_written_is_reported_in_one_sentence() {
    for more in [&[][..], &["--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_rescind"))
            .args(["check", "--dialect", "acp"])
            .args(more)
            .args(["--", env!("CARGO_BIN_EXE_rescind"), "fixture", "--dialect", "acp", "--listen", "stdio"])
            .stdin(Stdio::null())
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("could not be written to stdout"), "{}", stderr(&output));
    }
}

#[test]
fn a_peer_that_refuses_to_open_a_session_is_reported_with_its_answer() {
    let refusal = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"Authentication required"}}"#;
    let output = check(&JSON, &["sh", "-c", &format!("read l; echo '{refusal}'; exec sleep 1000")]);
    let said = sentence(&output);
    for word in ["`initialize` was refused", "-32000", "Authentication required", "[handshake]"] {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn a_check_without_a_peer_explains_both_ways_to_give_one() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_rescind")).args(["check", "--dialect", "acp"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("ENDPOINT") && said.contains("COMMAND"), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[test]
fn an_invalid_profile_is_reported_in_one_sentence_with_its_position() {
    let file = PidFile::new("profile");
    std::fs::write(&file.0, "name = \"x\"\nfoo = 1\n").unwrap();
    let output = check(&["--dialect", "acp", "--profile", file.0.to_str().unwrap()], &["cat"]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("line 2, column 1: unknown field `foo`"), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[test]
fn a_peer_cannot_send_control_characters_to_the_terminal() {
    // As noise, in an answer that ends up in the sentence, on stderr, and in the report of a peer that can be checked.
    let refusal = r#"printf '{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"\033[31mred"}}\n'"#;
    let fixture = r#""$0" fixture --dialect acp --listen stdio"#;
    let noise = r#"while IFS= read -r line; do printf '\033[31mred\n%s\n' "$line"; done"#;
    for script in [
        r"printf '\033[31mred\n'; exec yes".to_owned(),
        format!("read l; {refusal}; read l"),
        r"printf '\033[31mred\n' >&2; exit 3".to_owned(),
        format!("{fixture} | {noise}"),
    ] {
        let options = ["--dialect", "acp", "--start-timeout", "4000"];
        let output = check(&options, &["sh", "-c", &script, env!("CARGO_BIN_EXE_rescind")]);
        let both = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&both).into_owned();
        assert!(!text.contains('\u{1b}') && text.contains("u{1b}[31mred"), "{script}: {text}");
    }
}

#[test]
fn a_missing_profile_is_wrong_usage() {
    let output = check(&["--dialect", "acp", "--profile", "no/such/profile.toml"], &["cat"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no/such/profile.toml"), "{}", stderr(&output));
}

// `rescind check` of our own fixture, in every dialect and on every wire: no fault, and nothing broke.

const DIALECTS: [&str; 7] = ["acp", "acp-v2", "acp-draft", "lsp", "mcp", "mcp-2026", "abp"];

/// Checks a peer and returns what the report has against it, or leaves open that was asked of it.
fn against(dialect: &str, peer: &[&str]) -> Vec<String> {
    let done = output(&[&["check", "--dialect", dialect, "--json"], peer].concat());
    assert_eq!(
        done.status.code(),
        Some(0),
        "{dialect} {peer:?}: {}{}",
        text(&done.stderr),
        text(&done.stdout)
    );
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let least = if dialect == "abp" { 20 } else { 30 };
    assert!(report["summary"]["held"].as_u64().unwrap() > least, "{dialect} {peer:?}: {}", report["summary"]);
    let word = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let facts = report["facts"].as_array().unwrap().iter().filter(|fact| fact["answer"] == "no");
    let facts = facts.map(|fact| format!("{}: {}", word(fact, "name"), word(fact, "detail")));
    let cells = report["cells"].as_array().unwrap().iter();
    let cells = cells.filter(|cell| cell["outcome"] == "broke" || cell["outcome"] == "unsure");
    let cells = cells.map(|cell| format!("{}: {}", word(cell, "scenario"), word(cell, "why")));
    facts.chain(cells).collect()
}

/// Checks the fixture of each dialect, all at once: a check waits more than it works.
fn all(check: impl Fn(&'static str) -> Vec<String> + Send + Sync + Copy) {
    std::thread::scope(|scope| {
        let checks = DIALECTS.map(|dialect| (dialect, scope.spawn(move || check(dialect))));
        for (dialect, check) in checks {
            assert_eq!(check.join().unwrap(), Vec::<String>::new(), "{dialect}");
        }
    });
}

fn listening(dialect: &str, endpoint: &str) -> Vec<String> {
    let fixture = Fixture::listen(dialect, endpoint, &[]);
    against(dialect, &[&fixture.endpoint])
}

#[test]
fn the_fixture_of_each_dialect_has_no_fault_over_stdio() {
    let rescind = env!("CARGO_BIN_EXE_rescind");
    all(|dialect| against(dialect, &["--", rescind, "fixture", "--dialect", dialect, "--listen", "stdio"]));
}

#[test]
fn the_fixture_of_each_dialect_has_no_fault_over_a_websocket() {
    all(|dialect| listening(dialect, "ws://127.0.0.1:0/agent"));
}

#[test]
fn the_fixture_of_each_dialect_has_no_fault_over_http() {
    all(|dialect| listening(dialect, "http://127.0.0.1:0/agent"));
}

#[test]
fn the_fixture_of_each_dialect_has_no_fault_over_a_pipe() {
    all(|dialect| {
        listening(dialect, &format!("pipe:rescind-check-fixture-{dialect}-{}", std::process::id()))
    });
}
