//! The fixture's messages, where a protocol's documents allow only one form.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

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
