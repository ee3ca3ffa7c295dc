//! Wrong usage: exit code 2, and one sentence that says what to do.

use crate::common::{Files, output, text};

#[test]
fn wrong_usage_is_refused_with_a_sentence() {
    let files = Files::new();
    let (token, short) = (files.write("token", "0123456789abcdef"), files.write("short", "secret"));
    let cases: &[(&[&str], &str)] = &[
        (&["--dialect", "abp", "--listen", "stdio", "--", "x"], "does not carry abp"),
        (&["--dialect", "mcp", "--to-dialect", "acp", "--listen", "stdio", "--", "x"], "mcp and acp differ"),
        (&["--dialect", "mcp-2026", "--listen", "http://127.0.0.1:0/mcp", "--", "x"], "have no sessions"),
        (
            &["--dialect", "mcp", "--listen", "http://0.0.0.0:0/mcp", "--", "x"],
            "give --token-file FILE or --client-ca",
        ),
        (
            &["--dialect", "mcp", "--listen", "http://0.0.0.0:0/mcp", "--insecure", "--", "x"],
            "give --token-file FILE or",
        ),
        (
            &["--dialect", "mcp", "--listen", "ws://[::]:0/mcp", "--token-file", &token, "--", "x"],
            "without TLS",
        ),
        (
            &[
                "--dialect",
                "mcp",
                "--listen",
                "http://agent.example:0/mcp",
                "--token-file",
                &token,
                "--",
                "x",
            ],
            "without TLS",
        ),
        (
            &["--dialect", "mcp", "--listen", "http://127.0.0.1:0/mcp", "--token-file", &short, "--", "x"],
            "16 or more",
        ),
        (
            &[
                "--dialect",
                "mcp",
                "--listen",
                "http://127.0.0.1:0/mcp",
                "--token-file",
                "/nowhere",
                "--",
                "x",
            ],
            "could not be read",
        ),
        (
            &["--dialect", "mcp", "--listen", "stdio", "--token-file", &token, "--", "x"],
            "for ws:// and http://",
        ),
        (
            &["--dialect", "mcp", "--listen", "pipe:x", "--allow-origin", "https://a.example", "--", "x"],
            "for ws:// and http://",
        ),
        (&["--dialect", "mcp", "--listen", "https://127.0.0.1:0/mcp", "--", "x"], "needs --tls-cert FILE"),
        (
            &["--dialect", "mcp", "--listen", "http://127.0.0.1:0/mcp", "stdio"],
            "stdio is the side of the clients",
        ),
        (
            &["--dialect", "mcp", "--listen", "stdio", "--env", "RESCIND_NOT_SET", "--", "x"],
            "no such variable",
        ),
        (&["--dialect", "mcp", "--listen", "stdio", "--env", "A=1", "ws://127.0.0.1:1/"], "for a COMMAND"),
        (&["--dialect", "mcp", "--listen", "stdio", "--inherit-env", "ws://127.0.0.1:1/"], "for a COMMAND"),
        (
            &["--dialect", "mcp", "--listen", "stdio", "--to-token-file", &token, "pipe:x"],
            "for ws:// and http://",
        ),
        (&["--dialect", "mcp", "--listen", "stdio", "--to-token-file", &token, "--", "x"], "for an ENDPOINT"),
        (&["--dialect", "mcp", "--listen", "stdio", "--tls-ca", &token, "--", "x"], "for an ENDPOINT"),
        (&["--dialect", "mcp", "--listen", "stdio"], "required"),
        (&["--dialect", "mcp", "--listen", "stdio", "pipe:x", "--", "x"], "cannot be used with"),
        (&["--dialect", "mcp", "--listen", "stdio", "--max-sessions", "0", "--", "x"], "0"),
        (
            &[
                "--dialect",
                "mcp",
                "--listen",
                "http://127.0.0.1:0/mcp",
                "--allow-origin",
                "not an origin",
                "--",
                "x",
            ],
            "origin",
        ),
    ];
    for (arguments, word) in cases {
        let done = output(&[&["bridge"], *arguments].concat());
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
        assert!(!said.contains("0123456789abcdef"), "{said}");
    }
}

#[test]
fn a_name_that_is_in_use_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("http://{}/mcp", taken.local_addr().unwrap());
    let done = output(&["bridge", "--dialect", "mcp", "--listen", &listen, "--", "x"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("cannot listen on"), "{}", text(&done.stderr));
}

#[test]
fn a_host_that_cannot_be_allowed_is_refused() {
    for (command, listen, host, word) in [
        ("bridge", "pipe:x", "tools.example", "for ws:// and http://"),
        ("fixture", "stdio", "tools.example", "for ws:// and http://"),
        ("bridge", "http://127.0.0.1:0/mcp", "http://tools.example", "`name` or `name:port`"),
        ("bridge", "ws://127.0.0.1:0/mcp", "tools.example/mcp", "`name` or `name:port`"),
        ("fixture", "http://127.0.0.1:0/mcp", "*", "`name` or `name:port`"),
    ] {
        let mut arguments = vec![command, "--dialect", "mcp", "--listen", listen, "--allow-host", host];
        if command == "bridge" {
            arguments.extend(["--", "x"]);
        }
        let done = output(&arguments);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}
