//! `rescind check --client` against one right and many wrong clients. This program is those clients too: it is started
//! again with the name of a fault.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

#[path = "client_check/client.rs"]
mod client;

use std::process::{Command, ExitCode, Output, Stdio};

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;

/// A fault, the fact that shows it, and the answer.
const FAULTS: [(&str, &str, &str); 17] = [
    ("never-cancels", "sends_cancel", "no"),
    ("wrong-id", "names_request", "no"),
    ("id-as-text", "keeps_id_type", "no"),
    ("twice", "cancels_once", "no"),
    ("before-its-request", "cancel_follows_request", "no"),
    ("other-spelling", "spells_cancel", "no"),
    ("cancels-initialize", "never_cancels_initialize", "no"),
    ("hangs-after-cancel", "goes_on", "no"),
    ("dies-on-late-answer", "late_result_ignored", "no"),
    ("dies-on-late-answer", "late_error_ignored", "no"),
    ("cancels-what-is-answered", "no_cancel_when_answered", "no"),
    ("reuses-id", "ids_not_reused", "no"),
    ("cancels-both", "other_calls_untouched", "no"),
    ("silent-timeout", "timeout_sends_cancel", "no"),
    ("fails-to-close", "closes_cleanly", "no"),
    ("no-version", "message_form", "no"),
    ("byte-order-mark", "message_form", "no"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).map(String::as_str) == Some("client") {
        return client::run(&arguments[2]);
    }
    let mut trials: Vec<Trial> = FAULTS
        .iter()
        .map(|&(fault, fact, answer)| {
            Trial::test(format!("{fault}_is_told_by_{fact}"), move || {
                told_by(fault, fact, answer);
                Ok(())
            })
        })
        .collect();
    for (name, test) in [
        ("a_right_client_has_no_fault_over_stdio", right_over_stdio as fn()),
        ("a_client_that_does_not_connect_is_reported_in_one_sentence", not_connected),
        ("a_client_that_makes_no_slow_request_is_reported_with_what_it_made", no_slow_request),
        ("a_client_that_cannot_be_started_is_reported", not_started),
        ("a_scenario_that_is_skipped_is_not_asked", skipped),
        ("placeholders_are_filled", placeholders),
        ("a_placeholder_of_the_other_kind_is_wrong_usage", wrong_placeholder),
        ("a_dialect_without_this_check_is_reported", unknown_dialect),
    ] {
        trials.push(Trial::test(name, move || {
            test();
            Ok(())
        }));
    }
    let mut how = Arguments::from_args();
    // Each is a handful of processes, which mostly wait.
    how.test_threads.get_or_insert(24);
    libtest_mimic::run(&how, trials).exit_code()
}

fn check(options: &[&str], client: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rescind"))
        .args(["check", "--client"])
        .args(options)
        .arg("--")
        .args(client)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn check_fault(fault: &str) -> (Value, Output) {
    let this = std::env::current_exe().unwrap();
    // The check waits this long for each step of a client that hangs, fifteen times.
    let step_timeout = if fault == "hangs-after-cancel" { "1000" } else { "2000" };
    let output = check(
        &["--dialect", "mcp", "--json", "--step-timeout", step_timeout],
        &[this.to_str().unwrap(), "client", fault],
    );
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (report, output)
}

fn fact<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["facts"].as_array().unwrap().iter().find(|fact| fact["name"] == name).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn told_by(fault: &str, name: &str, answer: &str) {
    let (report, output) = check_fault(fault);
    let found = fact(&report, name);
    assert_eq!(found["answer"], answer, "{fault}: {found:#}");
    assert!(!found["trace"].as_array().unwrap().is_empty(), "no frames: {found:#}");
    let detail = found["detail"].as_str().unwrap();
    assert_eq!(found["demand"] != "open", detail.contains("3 times of 3"), "{found:#}");
    let faults = report["summary"]["faults"].as_u64().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(faults > 0)), "{}", stderr(&output));
    assert_eq!(found["demand"] == "must", faults > 0, "{report:#}");
}

fn right_over_stdio() {
    let (report, output) = check_fault("none");
    for fact in report["facts"].as_array().unwrap() {
        assert_eq!(fact["answer"], "yes", "{fact:#}");
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

fn refused(output: &Output, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(output.stdout.is_empty());
}

fn this_client(fault: &str, more: &[&str]) -> Output {
    let this = std::env::current_exe().unwrap();
    check(&[&["--dialect", "mcp"], more].concat(), &[this.to_str().unwrap(), "client", fault])
}

fn not_connected() {
    refused(
        &this_client("does-not-connect", &[]),
        &["did not connect", "RESCIND_COMMAND", "exit status: 4", "why"],
    );
    refused(&this_client("does-not-connect", &["--listen", "ws://127.0.0.1:0/"]), &["RESCIND_ENDPOINT"]);
}

fn no_slow_request() {
    refused(&this_client("no-slow-request", &[]), &["RESCIND_SLOW", "initialize"]);
}

fn not_started() {
    refused(&check(&["--dialect", "mcp"], &["no-such-program-here"]), &["no-such-program-here"]);
}

fn skipped() {
    refused(&this_client("skips-cancel", &[]), &["skips", "77"]);
    let (report, output) = check_fault("skips-timeout");
    assert_eq!(fact(&report, "timeout_sends_cancel")["answer"], "not-asked", "{report:#}");
    assert_eq!(output.status.code(), Some(0));
}

fn placeholders() {
    let this = std::env::current_exe().unwrap();
    let output = check(
        &["--dialect", "mcp", "--json"],
        &[this.to_str().unwrap(), "client", "by-arguments", "{scenario}", "{command}"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

fn wrong_placeholder() {
    refused(&check(&["--dialect", "mcp"], &["x", "{endpoint}"]), &["--listen"]);
    refused(
        &check(&["--dialect", "mcp", "--listen", "ws://127.0.0.1:0/"], &["x", "{command}"]),
        &["{endpoint}"],
    );
}

fn unknown_dialect() {
    refused(&check(&["--dialect", "abp"], &["x"]), &["abp", "lsp, mcp"]);
}
