//! `rescind fixture`: its live page, its messages and its allocator.

use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

fn rescind(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rescind"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A process that is killed at the end of its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The response to a GET of this URL.
fn get(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn the_page_shows_what_a_check_asked_the_fixture() {
    let arguments =
        ["fixture", "--dialect", "mcp", "--listen", "ws://127.0.0.1:0/mcp", "--page", "127.0.0.1:0"];
    let mut fixture = Running(rescind(&arguments).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(fixture.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let page = lines.next().unwrap().strip_prefix("page on ").unwrap().to_owned();
    let endpoint = lines.next().unwrap().strip_prefix("listening on ").unwrap().to_owned();
    assert!(get(&page).starts_with("HTTP/1.1 200 OK"));
    let origin = &page[..page.len() - 65];
    assert!(get(&format!("{origin}readyz")).ends_with("ready\n"));
    assert!(
        get(&format!("{origin}metrics"))
            .contains("rescind_requests_started_total{direction=\"received\"} 0\n")
    );
    let checked = rescind(&["check", "--dialect", "mcp", "--json", &endpoint]).output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
    let metrics = get(&format!("{origin}metrics"));
    let count = |name: &str| -> u64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert!(
        count("rescind_requests_ended_total{direction=\"received\",outcome=\"completed\"}") > 10,
        "{metrics}"
    );
    assert!(
        count("rescind_requests_ended_total{direction=\"received\",outcome=\"cancelled\"}") > 0,
        "{metrics}"
    );
    assert!(count("rescind_cancels_ended_total{direction=\"received\"}") > 0, "{metrics}");
}

#[test]
fn an_address_that_cannot_be_used_is_one_sentence() {
    for (address, why) in [
        ("0.0.0.0:0", "not a loopback address"),
        ("127.0.0.1", "invalid socket address"),
        ("127.0.0.1:99999", "invalid"),
    ] {
        let done: Output = rescind(&["fixture", "--dialect", "acp", "--listen", "stdio", "--page", address])
            .output()
            .unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(
            said.contains(&format!("the page cannot be served at {address}")) && said.contains(why),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

// The fixture's messages, where a protocol's documents allow only one form.

/// What a fixture over stdio writes in answer to these lines.
fn said(dialect: &str, lines: &[&str]) -> Vec<String> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rescind"))
        .args(["fixture", "--dialect", dialect, "--listen", "stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for line in lines {
        writeln!(stdin, "{line}").unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn read(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

/// The single answer to one line.
fn answer(dialect: &str, line: &str) -> Value {
    let said = said(dialect, &[line]);
    assert_eq!(said.len(), 1, "{said:?}");
    read(&said[0])
}

#[test]
fn acp_v2_opens_with_its_own_handshake() {
    let answer = answer(
        "acp-v2",
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":2,"info":{"name":"c","version":"1"}}}"#,
    );
    let result = &answer["result"];
    assert_eq!(result["protocolVersion"], 2);
    assert!(result["info"]["name"].is_string() && result["info"]["version"].is_string(), "{answer}");
    assert!(result["capabilities"]["session"].is_object() && result.get("agentInfo").is_none(), "{answer}");
}

#[test]
fn a_progress_token_comes_back_as_it_was() {
    for token in ["12345678901234567890123", "-9223372036854775809", "\"a\"", "0"] {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"test/progress","params":{{"_meta":{{"progressToken":{token}}}}}}}"#
        );
        let said = said("mcp", &[&call]);
        assert!(said[0].contains(&format!(r#""progressToken":{token},"#)), "{said:?}");
    }
}

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

#[test]
fn a_server_of_mcp_2026_asks_its_client_nothing() {
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"nested","arguments":{{"depth":1,"width":2}},{META}}}}}"#
    );
    assert_eq!(answer("mcp-2026", &call)["result"]["structuredContent"], json!({"children": 0}));
}

#[test]
fn requests_of_mcp_2026_are_checked_for_their_meta_before_their_method() {
    for (params, code) in [
        ("{}".to_owned(), -32602),
        (format!("{{{META}}}").replace("2026-07-28", "1900-01-01"), -32022),
        (format!("{{{META}}}"), -32601),
    ] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"nope","params":{params}}}"#);
        assert_eq!(answer("mcp-2026", &line)["error"]["code"], code, "{params}");
    }
    let opening =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    let error = &answer("mcp-2026", opening)["error"];
    assert_eq!((&error["code"], &error["data"]["supported"]), (&json!(-32601), &json!(["2026-07-28"])));
}

#[test]
fn wrong_arguments_of_a_tool_are_reported_in_its_result() {
    let call = |params: &str| {
        answer("mcp", &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#))
    };
    assert_eq!(call(r#"{"name":"sleep","arguments":{"ms":"x"}}"#)["result"]["isError"], true);
    for malformed in [r#"{"name":"nope"}"#, r#"{"name":"sleep","arguments":[]}"#] {
        assert_eq!(call(malformed)["error"]["code"], -32602, "{malformed}");
    }
    let listed = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x"}}"#;
    assert_eq!(answer("mcp", listed)["error"]["code"], -32602, "there is one page");
}

/// The value of `GLIBC_TUNABLES` in the environment of a fixture that answers. The process id is the one with which
/// it was started.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn tunables(set: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rescind"));
    command.args(["fixture", "--dialect", "acp", "--listen", "stdio"]);
    command.env_remove("GLIBC_TUNABLES").env_remove("RESCIND_ALLOCATOR_SET");
    for name in ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"] {
        command.env_remove(name);
    }
    if let Some(set) = set {
        command.env("GLIBC_TUNABLES", set);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"test/echo\"}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.contains("\"id\":1"), "{answer}");
    let environment = std::fs::read(format!("/proc/{}/environ", child.id())).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    let environment = String::from_utf8(environment).unwrap();
    // glibc parses its settings in place and may replace each colon with a zero byte.
    let (_, value) = environment.split_once("GLIBC_TUNABLES=").unwrap_or_default();
    let settings = value.split(['\0', ':']).take_while(|setting| setting.starts_with("glibc."));
    settings.collect::<Vec<_>>().join(":")
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_fixture_sets_the_allocator_to_release_large_blocks() {
    let ours =
        "glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072:glibc.malloc.arena_max=2";
    assert_eq!(tunables(None), ours);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn the_users_allocator_settings_are_kept() {
    let theirs = "glibc.malloc.mmap_threshold=262144:glibc.malloc.tcache_count=3";
    let both = format!("{theirs}:glibc.malloc.trim_threshold=131072:glibc.malloc.arena_max=2");
    assert_eq!(tunables(Some(theirs)), both);
    assert_eq!(tunables(Some(&both)), both, "all is set");
}
