//! The program as scripts use it: its output and its exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn rescind(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rescind"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    rescind(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn help_has_an_example_for_each_command() {
    for command in ["matrix", "check", "fixture"] {
        let help = output(&[command, "--help"]);
        assert_eq!(help.status.code(), Some(0));
        let help = text(&help.stdout);
        assert!(help.contains("Example") && help.contains(&format!("rescind {command}")), "{help}");
    }
    let help = output(&["--help"]);
    assert!(text(&help.stdout).contains("Exit codes: 0 every scenario held"));
}

#[test]
fn the_contract_names_every_flag_of_every_command() {
    let contract = include_str!("../../../../docs/cli.md");
    for command in ["matrix", "check", "fixture"] {
        let help = output(&[command, "--help"]);
        let (_, options) = text(&help.stdout).split_once("Options:").unwrap();
        let (options, _) = options.split_once("\nExample").unwrap();
        let flags = options.split_whitespace().filter(|word| word.starts_with("--"));
        let flags: Vec<&str> = flags.map(|flag| flag.trim_end_matches([',', '.'])).collect();
        assert!(flags.contains(&"--dialect") && flags.len() > 4, "{flags:?}");
        for flag in flags.into_iter().filter(|flag| *flag != "--help") {
            let flag = flag.trim_end_matches("...");
            assert!(contract.contains(flag), "docs/cli.md says nothing of {flag} of {command}");
        }
    }
}

#[test]
fn wrong_usage_exits_2_and_says_what_to_do() {
    for (arguments, word) in [
        (&["matrix", "--dialect", "acpp"][..], "the dialects are acp,"),
        (&["matrix", "--wire", "carrier-pigeon"], "the wires are memory, stdio, websocket, "),
        (&["matrix", "--scenario", "no_such_scenario"], "without options runs all"),
        (&["fixture", "--dialect", "acp", "--listen", "smoke"], "the endpoints are stdio, pipe:PATH-OR-NAME"),
        (&["fixture", "--dialect", "acp", "--listen", "stdio", "--options", "no-such.json"], "no-such.json"),
        (
            &["fixture", "--dialect", "mcp", "--listen", "stdio", "--sessionless"],
            "--sessionless is for the dialect mcp",
        ),
        (
            &["fixture", "--dialect", "acp", "--listen", "http://127.0.0.1:0/", "--sessionless"],
            "with the binding streamable",
        ),
        (
            &["fixture", "--dialect", "mcp-2026", "--listen", "http://127.0.0.1:0/", "--sessionless"],
            "for the dialect mcp",
        ),
        (
            &["fixture", "--dialect", "mcp", "--listen", "stdio", "--legacy-sse"],
            "--legacy-sse is for the dialect mcp",
        ),
        (
            &["fixture", "--dialect", "mcp-2026", "--listen", "http://127.0.0.1:0/", "--legacy-sse"],
            "for the dialect mcp",
        ),
        (
            &["fixture", "--dialect", "mcp", "--listen", "http://127.0.0.1:0/sse", "--legacy-sse"],
            "/sse is the path of --listen",
        ),
        (
            &["bridge", "--dialect", "acp", "--listen", "http://127.0.0.1:0/acp", "--legacy-sse", "--", "x"],
            "--legacy-sse is for the dialect mcp",
        ),
        (
            &["check", "--dialect", "lsp", "--binding", "legacy-sse", "http://127.0.0.1:1/"],
            "legacy-sse does not carry the dialect lsp",
        ),
        (&["check", "--dialect", "acp", "--profile", "no-such.toml", "--", "peer"], "no-such.toml"),
        (&["check", "--dialect", "acp", "--", "no-such-program-here"], "no-such-program-here"),
    ] {
        let reported = output(arguments);
        assert_eq!(reported.status.code(), Some(2), "{arguments:?}");
        assert!(reported.stdout.is_empty(), "{arguments:?}");
        let error = text(&reported.stderr);
        assert!(error.contains(word), "{arguments:?}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}

/// The names of the members. Their order is that of `serde_json`'s map, which a dependency may choose.
fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn json_goes_to_stdout_and_the_table_to_stderr() {
    let arguments = ["matrix", "--dialect", "mcp", "--wire", "memory", "--scenario", "cancel_running"];
    let done = output(&[&arguments[..], &["--json", "--table"]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(names(&report), ["cells", "summary", "version"]);
    assert_eq!(report["version"], 2);
    let cells = report["cells"].as_array().unwrap();
    let summary = &report["summary"];
    assert_eq!((&summary["held"], &summary["broke"]), (&Value::from(cells.len()), &0.into()));
    assert_eq!(names(summary), ["broke", "deviating", "deviations", "faults", "held", "not_asked", "unsure"]);
    let cell = cells.iter().find(|cell| cell["scenario"] == "cancel_running").unwrap();
    assert_eq!(
        names(cell),
        [
            "cancel_us",
            "demand",
            "dialect",
            "evidence",
            "outcome",
            "scenario",
            "sources",
            "trace",
            "why",
            "wire"
        ]
    );
    assert_eq!(
        (&cell["dialect"], &cell["wire"], &cell["outcome"]),
        (&"mcp".into(), &"memory".into(), &"held".into())
    );
    assert!(cell["cancel_us"].is_u64());
    assert_eq!(names(&cell["trace"][0]), ["direction", "text"]);
    let table = text(&done.stderr);
    assert!(table.contains("cancel_running") && table.contains("held / broke"), "{table}");
}

#[test]
fn the_matrix_ends_in_a_summary_and_shows_rows_and_reasons_when_asked() {
    let arguments =
        ["matrix", "--dialect", "abp", "--wire", "memory", "--wire", "http-acp", "--scenario", "ack_"];
    let run = |more: &[&str]| {
        let done = output(&[&arguments[..], more].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stdout).to_owned()
    };
    let summary = run(&[]);
    assert!(summary.lines().count() < 10, "{summary}");
    let (_, grid) = summary.split_once("\n\n").unwrap();
    let mut lines = grid.lines();
    assert_eq!(lines.next().unwrap().split_whitespace().collect::<Vec<_>>(), ["memory", "http-acp"]);
    let row: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let (held, asked) = row[1].split_once('/').unwrap();
    assert!(row[0] == "abp" && held == asked && held.parse::<usize>().unwrap() > 2, "{row:?}");
    assert_eq!(row[2], "-", "nothing is asked there");
    assert!(summary.contains("from a cancel to its answer"), "{summary}");
    assert!(summary.ends_with(&format!(" {held} held, 0 broke, {held} not asked\n")), "{summary}");
    assert!(!summary.contains("ack_true") && !summary.contains("this binding"), "{summary}");

    let table = run(&["--table"]);
    assert!(table.contains("ack_true") && table.contains("held / broke"), "{table}");
    assert!(table.contains("from a cancel to its answer") && !table.contains("this binding"), "{table}");
    let reasons = run(&["--reasons"]);
    assert!(reasons.contains("abp ack_true over http-acp: this binding does not carry"), "{reasons}");
    assert!(!reasons.contains("held / broke"), "{reasons}");
}

#[test]
fn no_colour_is_written_to_a_pipe() {
    for no_color in ["", "1"] {
        let arguments = ["matrix", "--dialect", "lsp", "--wire", "memory", "--scenario", "cancel_twice"];
        let done = rescind(&arguments).arg("--table").env("NO_COLOR", no_color).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        assert!(!done.stdout.contains(&0x1b) && !done.stderr.contains(&0x1b));
        assert!(text(&done.stdout).contains("cancel_twice"));
    }
}

/// A fixture over stdio that has answered one request.
fn fixture() -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = rescind(&["fixture", "--dialect", "acp", "--listen", "stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let echo = br#"{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":7}}"#;
    let input = child.stdin.as_mut().unwrap();
    input.write_all(echo).unwrap();
    input.write_all(b"\n").unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(answer, serde_json::json!({"jsonrpc": "2.0", "id": 1, "result": {"value": 7}}));
    (child, out)
}

#[test]
fn the_end_of_input_ends_the_fixture_with_success() {
    let (mut child, mut out) = fixture();
    drop(child.stdin.take());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "stdout carries frames only");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_mcp_fixture_exits_soon_after_the_end_of_its_input() {
    let meta = serde_json::json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "script", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    for dialect in ["mcp", "mcp-2026"] {
        let mut child = rescind(&["fixture", "--dialect", dialect, "--listen", "stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let began = std::time::Instant::now();
        let mut input = child.stdin.take().unwrap();
        for (id, name, arguments) in [
            (1, "echo", serde_json::json!({"value": 7})),
            (2, "wait", serde_json::json!({})),
            (3, "echo", serde_json::json!({"value": 8})),
        ] {
            let params = serde_json::json!({"name": name, "arguments": arguments, "_meta": meta});
            let call =
                serde_json::json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
            writeln!(input, "{call}").unwrap();
        }
        drop(input);
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{dialect}");
        assert!(
            began.elapsed() < std::time::Duration::from_secs(15),
            "{dialect}: it took {:?}",
            began.elapsed()
        );
        let answers: Vec<Value> =
            text(&done.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let mut ids: Vec<_> =
            answers.iter().map(|answer| (answer["id"].as_i64(), answer.get("result").is_some())).collect();
        ids.sort_unstable();
        assert_eq!(ids, [(Some(1), true), (Some(2), false), (Some(3), true)], "{dialect}: {answers:?}");
    }
}

#[cfg(unix)]
#[test]
fn sigterm_and_sigint_end_the_fixture_with_success() {
    use rustix::process::{Pid, Signal, kill_process};
    for signal in [Signal::TERM, Signal::INT] {
        let (mut child, mut out) = fixture();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "stdout carries frames only");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn the_lsp_fixture_ends_at_exit_and_fails_without_a_shutdown() {
    for (shutdown, code) in [(true, 0), (false, 1)] {
        let mut child = rescind(&["fixture", "--dialect", "lsp", "--listen", "stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Kept open until the process has ended: the end of input would end it too.
        let mut stdin = child.stdin.take().unwrap();
        let mut say = |body: &str| write!(stdin, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        say(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}"#);
        say(r#"{"jsonrpc":"2.0","id":2,"method":"test/wait"}"#);
        if shutdown {
            say(r#"{"jsonrpc":"2.0","id":3,"method":"shutdown"}"#);
        }
        say(r#"{"jsonrpc":"2.0","method":"exit"}"#);
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(out.contains(r#""id":3,"result":null"#), shutdown, "{out}");
        assert_eq!(child.wait().unwrap().code(), Some(code));
        drop(stdin);
    }
}

#[test]
fn our_own_fixture_passes_the_check() {
    let fixture = env!("CARGO_BIN_EXE_rescind");
    for dialect in ["acp", "lsp"] {
        let done = output(&[
            "check",
            "--dialect",
            dialect,
            "--json",
            "--",
            fixture,
            "fixture",
            "--dialect",
            dialect,
            "--listen",
            "stdio",
        ]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(report["summary"]["broke"], 0);
        assert!(report["summary"]["held"].as_u64().unwrap() > 20, "{}", report["summary"]);
        let unexplained = report["cells"]
            .as_array()
            .unwrap()
            .iter()
            .find(|cell| cell["outcome"] == "not-asked" && cell["why"].as_str().unwrap().is_empty());
        assert_eq!(unexplained, None);
    }
}

// `--html`: the content of the page, and that it is written to the given file.

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rescind")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A file that is deleted on drop.
struct Page(PathBuf);

impl Page {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("rescind-{name}-{}.html", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The data that its script reads.
    fn data(&self) -> Value {
        let page = std::fs::read_to_string(&self.0).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        serde_json::from_str(data).unwrap()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

#[test]
fn the_html_page_of_the_matrix_has_the_same_data_as_the_json() {
    let page = Page::new("matrix");
    let done = run(&[
        "matrix",
        "--dialect",
        "abp",
        "--wire",
        "memory",
        "--wire",
        "websocket",
        "--scenario",
        "cancel_",
        "--json",
        "--html",
        page.path(),
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let cells = report["cells"].as_array().unwrap();
    let data = page.data();
    assert_eq!(data["wires"], serde_json::json!(["memory", "websocket"]));
    let rows = data["cells"].as_array().unwrap();
    assert!(cells.len() > 10);
    assert_eq!(rows.len(), cells.len());
    let text = |at: &Value| data["texts"][usize::try_from(at.as_u64().unwrap()).unwrap()].as_str().unwrap();
    for (row, cell) in rows.iter().zip(cells) {
        assert_eq!(text(&row[0]), cell["dialect"]);
        assert_eq!(data["wires"][usize::try_from(row[1].as_u64().unwrap()).unwrap()], cell["wire"]);
        assert_eq!(text(&row[2]), cell["scenario"]);
        assert_eq!(row[5], cell["cancel_us"]);
        let trace = cell["trace"].as_array().unwrap();
        assert_eq!(row[7].as_array().unwrap().len(), trace.len());
        for (drawn, line) in row[7].as_array().unwrap().iter().zip(trace) {
            let at = drawn.as_i64().unwrap();
            assert_eq!(line["direction"], if at < 0 { "received" } else { "sent" });
            let shown = text(&Value::from(if at < 0 { -1 - at } else { at }));
            assert!(line["text"] == shown || shown.ends_with("bytes in all)"), "{shown}");
        }
    }
}

#[test]
fn a_check_writes_a_page_too() {
    let page = Page::new("check");
    let rescind = env!("CARGO_BIN_EXE_rescind");
    let done = run(&[
        "check",
        "--dialect",
        "mcp-2026",
        "--html",
        page.path(),
        "--",
        rescind,
        "fixture",
        "--dialect",
        "mcp-2026",
        "--listen",
        "stdio",
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let data = page.data();
    assert_eq!(data["wires"], serde_json::json!(["stdio"]));
    assert!(data["cells"].as_array().unwrap().len() > 20);
}

#[test]
fn an_html_page_that_cannot_be_written_is_reported_before_any_scenario() {
    let place = "no/such/directory/page.html";
    for arguments in
        [&["matrix", "--html", place][..], &["check", "--dialect", "acp", "--html", place, "--", "cat"]]
    {
        let done = run(arguments);
        assert_eq!(done.status.code(), Some(2));
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(said.contains(place) && said.trim_end().lines().count() == 1, "{said}");
        assert!(done.stdout.is_empty());
    }
}

/// The commands that `rescind --help` shows.
const COMMANDS: [&str; 8] =
    ["matrix", "check", "fixture", "bridge", "cancel", "worker", "completions", "man"];

#[test]
fn shells_complete_every_command_and_none_that_is_hidden() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let printed = output(&["completions", shell]);
        assert!(printed.status.success() && printed.stderr.is_empty(), "{printed:?}");
        let script = String::from_utf8(printed.stdout).unwrap();
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("problem-matcher") && !script.contains("relay"), "{shell}");
    }
    let unknown = output(&["completions", "cmd"]);
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn man_pages_are_written_for_the_program_and_each_command() {
    let folder = std::env::temp_dir().join(format!("rescind-man-{}", std::process::id()));
    let write = |folder: PathBuf| rescind(&["man"]).arg(folder).output().unwrap();
    let written = write(folder.join("man1"));
    assert!(written.status.success() && written.stdout.is_empty(), "{written:?}");
    let mut names: Vec<_> = std::fs::read_dir(folder.join("man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected: Vec<_> = COMMANDS.iter().map(|command| format!("rescind-{command}.1")).collect();
    expected.push("rescind.1".to_owned());
    expected.sort();
    assert_eq!(names, expected);
    let page = std::fs::read_to_string(folder.join("man1/rescind-bridge.1")).unwrap();
    assert!(page.contains(".TH rescind-bridge 1") && page.contains(r"\fB\-\-allow\-host\fR"), "{page}");
    // A file is no folder.
    let refused = write(folder.join("man1/rescind.1"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("could not be written"), "{refused:?}");
    std::fs::remove_dir_all(folder).unwrap();
}
