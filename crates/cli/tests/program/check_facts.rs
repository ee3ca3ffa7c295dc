//! `rescind check` against our own fixture and against peers that cannot be checked.
#![cfg(unix)]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

const RESCIND: &str = env!("CARGO_BIN_EXE_rescind");

fn facts(options: &[&str], peer: &[&str]) -> Output {
    let mut command = Command::new(RESCIND);
    command.arg("check").args(options).arg("--").args(peer);
    command.stdin(Stdio::null()).output().unwrap()
}

fn fixture(dialect: &str) -> [&str; 6] {
    [RESCIND, "fixture", "--dialect", dialect, "--listen", "stdio"]
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_report_on_our_own_fixture_begins_with_facts_and_nothing_broke() {
    let dialects = ["acp", "acp-v2", "acp-draft", "lsp", "mcp", "mcp-2026", "abp"];
    let run = |dialect| std::thread::spawn(move || facts(&["--dialect", dialect], &fixture(dialect)));
    for (dialect, running) in dialects.map(|dialect| (dialect, run(dialect))) {
        let output = running.join().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{dialect}: {text}{}", stderr(&output));
        let first = text.contains(" over stdio (") && text.contains("\n  cancels a running request: yes, ");
        assert!(first, "{dialect}: {text}");
        assert!(text.contains("stops the work of a cancelled request: yes"), "{dialect}: {text}");
        assert!(
            text.contains(" held, 0 broke, 0 other than recommended or left open, 0 unsure, "),
            "{dialect}: {text}"
        );
    }
}

#[test]
fn a_peer_that_declares_no_cancellation_where_one_must_is_sent_no_cancel() {
    let peer = [&fixture("acp-draft")[..], &["--no-cancel-capability"]].concat();
    let output = facts(&["--dialect", "acp-draft", "--json"], &peer);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (facts, cells) = (report["facts"].as_array().unwrap(), report["cells"].as_array().unwrap());
    let fact = facts.iter().find(|fact| fact["name"] == "cancels_running").unwrap();
    assert!(
        fact["answer"] == "not-asked" && fact["detail"].as_str().unwrap().contains("declares no cancel"),
        "{fact}"
    );
    // That scenario cancels `initialize` itself, whose answer has the declaration.
    let others = cells.iter().filter(|cell| cell["scenario"] != "initialize_not_cancelled");
    let traces = facts.iter().chain(others).flat_map(|one| one["trace"].as_array().unwrap());
    let sent = |line: &&Value| {
        line["direction"] == "sent" && line["text"].as_str().unwrap().contains("cancelRequest")
    };
    assert_eq!(traces.filter(sent).count(), 0);
    assert!(
        cells.iter().filter(|cell| cell["outcome"] == "held").count() > 3,
        "what needs no cancel is asked"
    );
}

#[test]
fn a_right_strict_server_of_mcp_2026_is_not_accused_where_a_profile_asks_for_progress() {
    let options = [
        "--dialect",
        "mcp-2026",
        "--json",
        "--slow",
        r#"tools/call {"name": "sleep", "arguments": {"ms": 2000}}"#,
        "--progress",
        r#"tools/call {"name": "progress", "arguments": {"count": 3, "every_ms": 300}}"#,
    ];
    let output = facts(&options, &fixture("mcp-2026"));
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let cells = report["cells"].as_array().unwrap();
    let broke: Vec<_> = cells.iter().filter(|cell| cell["outcome"] == "broke").collect();
    assert!(broke.is_empty() && output.status.code() == Some(0), "{broke:?}");
    for (name, asks) in [("progress_only_with_token", false), ("progress_before_answer", true)] {
        let cell = cells.iter().find(|cell| cell["scenario"] == name).unwrap();
        assert_eq!(cell["outcome"], "held", "{cell}");
        let sent = cell["trace"].as_array().unwrap().iter().filter(|line| line["direction"] == "sent");
        let requests: Vec<_> = sent
            .filter_map(|line| line["text"].as_str())
            .filter(|text| text.contains("\"progress\""))
            .collect();
        assert!(
            !requests.is_empty()
                && requests.iter().all(|text| text.contains("io.modelcontextprotocol/protocolVersion")),
            "{requests:?}"
        );
        assert!(requests.iter().all(|text| text.contains("progressToken") == asks), "{name}: {requests:?}");
    }
}

#[test]
fn the_json_and_the_junit_file_have_the_facts() {
    let junit = std::env::temp_dir().join(format!("rescind-facts-{}.xml", std::process::id()));
    let output = facts(&["--dialect", "acp", "--json", "--junit", junit.to_str().unwrap()], &fixture("acp"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["version"], 2);
    let facts = report["facts"].as_array().unwrap();
    let fact = facts.iter().find(|fact| fact["name"] == "cancels_running").unwrap();
    assert_eq!((&fact["answer"], &fact["demand"]), (&Value::from("yes"), &Value::from("should")));
    assert_eq!(fact["cancel_us"].as_array().unwrap().len(), 20);
    let text = std::fs::read_to_string(&junit).unwrap();
    std::fs::remove_file(&junit).unwrap();
    assert!(text.contains("<testcase classname=\"facts\" name=\"cancels_running\"/>"), "{text}");
    assert!(text.contains("failures=\"0\""), "{text}");
}

#[test]
fn a_peer_that_cannot_be_checked_is_reported_in_one_sentence() {
    let silent: &[&str] = &["sh", "-c", "exit 0"];
    let refusal =
        r#"read l; echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"Log in"}}'; read l"#;
    for (peer, word) in [
        (&["no-such-program-here"][..], "no-such-program-here"),
        (silent, "no session could be opened"),
        (&["sh", "-c", refusal], "`initialize` was refused"),
    ] {
        let output = facts(&["--dialect", "acp"], peer);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(word) && said.trim_end().lines().count() == 1, "{said}");
    }
}

#[test]
fn a_slow_request_that_is_quick_is_refused_with_both_times() {
    let options = ["--dialect", "acp", "--quick", "test/echo {}", "--slow", "test/echo {}"];
    let output = facts(&options, &fixture("acp"));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("ends by itself after") && said.contains("--slow"), "{said}");
}

#[test]
fn a_request_with_broken_params_is_wrong_usage() {
    let output = facts(&["--dialect", "acp", "--slow", "m {a: 1}"], &fixture("acp"));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--slow") && said.contains("not JSON"), "{said}");
}

#[test]
fn a_witness_that_is_switched_off_is_not_used() {
    let stops_work = |options: &[&str]| {
        let output = facts(&[&["--dialect", "acp", "--json"][..], options].concat(), &fixture("acp"));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let facts = report["facts"].as_array().unwrap();
        facts.iter().find(|fact| fact["name"] == "stops_work").unwrap().clone()
    };
    let fact = stops_work(&[]);
    assert_eq!((&fact["answer"], &fact["evidence"]), (&"yes".into(), &serde_json::json!(["request"])));
    let off = ["progress", "serial", "processor", "command", "request"];
    let options: Vec<&str> = off.iter().flat_map(|witness| ["--no-witness", witness]).collect();
    let fact = stops_work(&options);
    assert!(fact["answer"] != "yes" && fact["evidence"] == serde_json::json!([]), "{fact}");
}

#[test]
fn the_problem_matcher_is_written_and_registered() {
    let file = std::env::temp_dir().join(format!("rescind-matcher-{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    // A peer that sends each message twice.
    let twice = r#""$0" fixture --dialect acp --listen stdio | sed -u p"#;
    let output = facts(&["--dialect", "acp", "--problem-matcher", path], &["sh", "-c", twice, RESCIND]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("::add-matcher::{path}\n")), "{}", stderr(&output));
    let matcher: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let pattern = &matcher["problemMatcher"][0]["pattern"][0];
    assert_eq!(pattern["regexp"], r"^(error|warning)\[([a-z_0-9, ]+)\]: (.*)$");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().any(|line| line.starts_with("error[answers_once]: ")), "{text}");

    let output = facts(&["--dialect", "acp", "--problem-matcher", "no/such/folder/x.json"], &fixture("acp"));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no/such/folder/x.json") && said.trim_end().lines().count() == 1, "{said}");
}

#[test]
fn options_for_facts_are_wrong_usage_where_no_facts_are_asked() {
    for other in ["--init", "--client"] {
        for option in [&["--slow", "m"][..], &["--no-witness", "serial"], &["--problem-matcher", "x"]] {
            let output = facts(&[&["--dialect", "acp", other][..], option].concat(), &fixture("acp"));
            assert_eq!(output.status.code(), Some(2), "{other} {option:?}");
            assert!(stderr(&output).contains("cannot be used with"), "{}", stderr(&output));
        }
    }
}
