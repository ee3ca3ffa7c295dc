//! `rescind check` against our own fixture and against peers that cannot be checked.
#![cfg(unix)]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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

// `rescind check` with profiles and programs that cannot be used: one sentence each, that says what to do.

const FIXTURE: [&str; 6] = [RESCIND, "fixture", "--dialect", "acp", "--listen", "stdio"];

/// The sentence on stderr, after the exit code for wrong usage.
fn sentence(output: &Output, what: &str) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{what}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{what}: {said}");
    assert!(output.stdout.is_empty(), "{what}");
    said
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rescind-input-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_profile_that_cannot_be_used_is_reported_with_what_to_change() {
    let folder = Folder::new("profiles");
    for (profile, words) in [
        (
            "[requests.slow]\nmethod = \"m\"\nparam = {}\n",
            &["line 4, column 1", "unknown field `param`", "`params`"][..],
        ),
        ("[requests.slow]\nmethod = \"no/such\"\n", &["`no/such`", "-32601", "--init lists"]),
        ("[session]\nscratch = \"nowhere\"\n", &["nowhere is missing"]),
        (
            "[requests.slow]\nmethod = \"m\"\nparams = { text = { file = \"no.py\" } }\n",
            &["`no.py` of the profile is missing"],
        ),
        ("[requests.slow]\nmethod = \"m\"\nparams = { id = \"${session}\" }\n", &["`${session}`", "binds"]),
        (
            "[requests.quick]\nmethod = \"test/echo\"\nparams = { value = 7 }\n[requests.slow]\nmethod = \"test/echo\"\n",
            &["ends by itself after"],
        ),
    ] {
        let file = folder.file("profile.toml", &format!("name = \"x\"\n{profile}"));
        let said = sentence(&facts(&["--dialect", "acp", "--profile", &file], &FIXTURE), profile);
        for word in words {
            assert!(said.contains(word), "{profile}: {word}: {said}");
        }
    }
}

#[test]
fn a_program_that_cannot_be_used_is_reported_with_what_to_do() {
    let lines = format!("'{RESCIND}' fixture --dialect lsp --listen stdio --framing newline");
    let heads = format!("'{RESCIND}' fixture --dialect acp --listen stdio --framing content-length");
    let refused = |message: &str| {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32000,"message":"{message}"}}}}"#);
        format!("read l; echo '{frame}'; exec cat > /dev/null")
    };
    let (login, workspace) = (refused("Authentication required"), refused("no workspace folder"));
    for (dialect, script, words) in [
        ("acp", "exit 0", &["exit status: 0", "by hand"][..]),
        ("acp", "echo no licence >&2; exit 3", &["exit status: 3", "no licence", "by hand"]),
        ("lsp", "echo Starting...; exec yes Starting...", &["not a frame", "logs on stderr", "--framing"]),
        (
            "lsp",
            "echo Starting...; read -r l; exit 0",
            &["not a message: Starting...", "logs on stderr", "--framing"],
        ),
        ("acp", "exec yes Starting...", &["not a message: Starting...", "logs on stderr"]),
        ("acp", "exec cat > /dev/null", &["the connection was closed", "--stdio"]),
        ("acp", "exec cat", &["`initialize` was refused", "another protocol", "--dialect"]),
        ("acp", &login, &["Authentication required", "[handshake]", "a login"]),
        ("acp", &workspace, &["no workspace folder", "[handshake]", "a workspace"]),
        ("lsp", &lines, &["--framing"]),
        ("acp", &heads, &["exit status: 2", "the header block is invalid", "--framing"]),
        (
            "acp",
            "printf 'Content-Length: 2\\r\\n\\r\\n{}'; exec cat > /dev/null",
            &["add --framing content-length"],
        ),
    ] {
        let said = sentence(&facts(&["--dialect", dialect], &["sh", "-c", script]), script);
        for word in words {
            assert!(said.contains(word), "{script}: {word}: {said}");
        }
    }
}

/// A language server in a few words: it answers `initialize`, and each other request with an error at once.
const NO_WORKSPACE: &str = r#"
    say() { printf 'Content-Length: %d\r\n\r\n%s' "${#1}" "$1"; }
    id=0
    while IFS= read -r head; do
        length=${head#*: }; length=${length%?}; read -r empty
        body=$(dd bs=1 count="$length" 2> /dev/null)
        case $body in
            *'"id"'*) id=$((id + 1)) ;;
            *) continue ;;
        esac
        case $body in
            *'"initialize"'*) say '{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}' ;;
            *) say '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32803,"message":"no workspace is open"}}' ;;
        esac
    done"#;

#[test]
fn a_request_that_a_program_refuses_without_a_workspace_is_reported_with_what_to_do() {
    let options = ["--dialect", "lsp", "--slow", "textDocument/references", "--quick", "workspace/symbol"];
    let said = sentence(&facts(&options, &["sh", "-c", NO_WORKSPACE]), "a workspace");
    for word in ["`textDocument/references`", "-32803", "no workspace is open", "a setup"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// Whether a process runs. A dead one that nobody has waited for does not.
fn is_running(pid: &str) -> bool {
    let state = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
    let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
fn a_program_that_forks_leaves_no_process_and_no_scratch_copy() {
    let folder = Folder::new("forks");
    std::fs::create_dir_all(folder.0.join("workspace")).unwrap();
    folder.file("workspace/a.txt", "here");
    let pids = folder.0.join("pids");
    let profile = folder.file(
        "profile.toml",
        &format!(
            "name = \"x\"\n[session]\nscratch = \"workspace\"\nenv = {{ PIDS = \"{}\", COPY = \"${{scratch}}\" }}\n",
            pids.display()
        ),
    );
    // The forked process keeps no pipe of the program.
    let script = r#"cat a.txt > /dev/null || exit 9
        sleep 1000 < /dev/null > /dev/null 2>&1 &
        echo "$! $COPY $(pwd)" >> "$PIDS"
        exec "$0" fixture --dialect acp --listen stdio"#;
    let output = facts(&["--dialect", "acp", "--profile", &profile], &["sh", "-c", script, RESCIND]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let started = std::fs::read_to_string(&pids).unwrap();
    assert!(!started.is_empty());
    let until = Instant::now() + Duration::from_secs(10);
    for line in started.lines() {
        let mut words = line.split(' ');
        let (pid, copy, at) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        assert_eq!(copy, at, "the copy is the working directory");
        while is_running(pid) {
            assert!(Instant::now() < until, "the process {pid} is left behind");
            std::thread::yield_now();
        }
        assert!(!std::path::Path::new(copy).exists(), "{copy} is left behind");
    }
}

/// A check that ends in a sentence leaves no process either: neither of a program that has ended, nor of one that hangs.
#[test]
fn a_program_that_forks_and_cannot_be_checked_leaves_no_process() {
    let folder = Folder::new("orphans");
    let refusal = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"Log in"}}"#;
    for (name, then) in
        [("ended", "exit 0".to_owned()), ("hangs", format!("read l; echo '{refusal}'; exec sleep 1000"))]
    {
        let pids = folder.0.join(name);
        let fork = "sleep 1000 < /dev/null > /dev/null 2>&1 &";
        let script = format!("{fork} echo $! >> '{0}'; echo $$ >> '{0}'; {then}", pids.display());
        sentence(&facts(&["--dialect", "acp"], &["sh", "-c", &script]), name);
        let started = std::fs::read_to_string(&pids).unwrap();
        assert!(started.lines().count() >= 2, "{started}");
        let until = Instant::now() + Duration::from_secs(10);
        for pid in started.lines() {
            while is_running(pid) {
                assert!(Instant::now() < until, "{name}: the process {pid} is left behind");
                std::thread::yield_now();
            }
        }
    }
}
