//! `--html`: the content of the page, and that it is written to the given file.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

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
