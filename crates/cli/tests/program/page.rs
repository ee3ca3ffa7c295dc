//! `rescind fixture --page`: the live page beside a server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

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
