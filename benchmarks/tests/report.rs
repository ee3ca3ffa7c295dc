//! The program that measures everything, in a short run: its outputs have all their parts.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rescind_benchmarks::counts::Counts;
use rescind_benchmarks::report::{Tables, tables_page};
use serde_json::Value;

fn run(part: &str, extra: &[&str]) -> (Value, String) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let place = std::env::temp_dir().join(format!("rescind-report-{process}-{number}"));
    std::fs::create_dir_all(&place).expect("a folder");
    let (json, html) = (place.join("report.json"), place.join("report.html"));
    let tables = place.join("tables.json");
    let ran = Command::new(env!("CARGO_BIN_EXE_report"))
        .args([part, "--short"])
        .args(extra)
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .arg("--tables")
        .arg(&tables)
        .output()
        .expect("it runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let read = |file: PathBuf| std::fs::read_to_string(file).expect("it was written");
    let page = read(tables.with_extension("html"));
    let tables: Tables = serde_json::from_str(&read(tables)).expect("they are the tables");
    assert!(page == tables_page(&tables) && page.contains(&tables.tally), "{page}");
    let told = (serde_json::from_str(&read(json)).expect("it is JSON"), read(html));
    std::fs::remove_dir_all(&place).expect("it is ours");
    told
}

fn rows<'a>(told: &'a Value, library: &str) -> Vec<&'a Value> {
    let rows = told["results"].as_array().expect("results are a list").iter();
    rows.filter(|row| row["library"] == library).collect()
}

#[test]
fn cancels_are_measured_of_us_and_of_the_floor() {
    let (told, page) = run("W3", &[]);
    for library in ["rescind", "floor"] {
        let rows = rows(&told, library);
        let measured = rows.iter().filter(|row| row["nanoseconds"]["p50"].as_u64() > Some(0)).count();
        // Three measures in memory, on one thread and on two; two or three over pipes.
        assert!(measured >= 8, "{library}: {rows:#?}");
    }
    assert!(page.contains("<svg") && !page.contains("http://") && !page.contains("https://"), "{page}");
}

#[test]
fn a_cancel_is_answered_with_every_slot_taken_on_every_wire() {
    let (told, _) = run("W4", &[]);
    let ours = rows(&told, "rescind");
    assert_eq!(
        ours.len(),
        24,
        "tasks and quick handlers; running and queued, in three places, and with slots to spare: {ours:#?}"
    );
    assert!(ours.iter().all(|row| row["nanoseconds"]["count"].as_u64() > Some(0)), "{ours:#?}");
    assert_eq!(told["budgets"].as_array().map(Vec::len), Some(6), "each is held against its own: {told:#}");
    assert_eq!(rows(&told, "channels")[0]["said"], "no limit");
}

#[test]
fn budgets_show_the_measured_and_the_required_values() {
    let (told, _) = run("machine", &[]);
    let budgets = told["budgets"].as_array().expect("budgets are a list");
    assert_eq!(budgets.len(), 4, "{budgets:#?}");
    for budget in budgets {
        let met = budget["value"].as_f64() <= budget["limit"].as_f64();
        assert_eq!(budget["met"], met, "{budget}");
        assert!(budget["name"].is_string() && budget["value"].as_f64() >= Some(0.0), "{budget}");
    }
}

#[cfg(feature = "peers")]
#[test]
fn a_library_for_any_stream_is_measured_over_pipes_to_a_child_process() {
    for (part, cancels) in [("W1", false), ("W3", true)] {
        let (told, _) = run(part, &[]);
        for library in
            ["rmcp", "agent-client-protocol", "async-lsp", "tower-lsp-server", "jsonrpsee", "tarpc"]
        {
            let rows = rows(&told, library);
            let piped = rows.iter().filter(|row| row["place"] == "pipes, one core");
            let measured = piped.filter(|row| row["nanoseconds"]["p50"].as_u64() > Some(0)).count();
            let expected = !cancels || library != "jsonrpsee";
            assert_eq!(measured > 0, expected, "{part} of {library}: {rows:#?}");
        }
    }
}

#[test]
fn every_wire_has_us_with_both_kinds_of_handlers_and_the_floor() {
    let (told, _) = run("wires", &[]);
    for wire in [
        "stdio",
        "named-pipe",
        "websocket",
        "http-streamable",
        "http-streamable-h2",
        "http-stateless",
        "http-stateless-h2",
        "http-acp",
    ] {
        let measured = |library: &str, configuration: &str, case: &str, measure: &str| {
            rows(&told, library).iter().any(|row| {
                row["configuration"] == configuration
                    && row["case"] == *case
                    && row["measure"] == measure
                    && (row["nanoseconds"]["p50"].as_u64() > Some(0) || row["value"].is_number())
            })
        };
        assert!(measured("floor", "the same frames without a library", wire, "round trip"), "{wire}");
        for configuration in ["default", "quick handlers"] {
            let ours = |case: &str, measure| measured("rescind", configuration, case, measure);
            assert!(ours(wire, "round trip"), "{wire}: {configuration}");
            assert!(ours(wire, "over the floor"), "{wire}: {configuration}");
            assert!(
                ours(&format!("{wire}, 64 in flight"), "a request, of all the time"),
                "{wire}: {configuration}"
            );
            assert!(ours(&format!("{wire}, cancel"), "to handler"), "{wire}: {configuration}");
            assert_eq!(ours(wire, "an idle session"), wire != "stdio", "{wire}: {configuration}");
        }
    }
}

#[test]
fn large_frames_are_echoed_on_every_transport_and_each_side_says_its_memory() {
    let (told, _) = run("W10", &[]);
    for size in ["64 KiB", "1 MiB"] {
        for configuration in ["default", "quick handlers"] {
            let ours = rows(&told, "rescind");
            let ours = ours.iter().filter(|row| row["case"] == size && row["configuration"] == configuration);
            let times = ours.clone().filter(|row| row["nanoseconds"]["p50"].as_u64() > Some(0)).count();
            assert_eq!(times, 10, "{size}, {configuration}");
            let memory = ours.filter(|row| row["unit"] == "frames").count();
            assert_eq!(memory, if size == "64 KiB" { 0 } else { 19 }, "{size}, {configuration}");
        }
    }
}

#[cfg(feature = "peers")]
#[test]
fn other_libraries_are_measured_on_the_wires_that_their_users_choose() {
    let (told, _) = run("wires", &[]);
    let echo = |library: &str, wire: &str| {
        let rows = rows(&told, library);
        let row = rows.iter().find(|row| row["case"] == wire && row["measure"] == "round trip");
        row.is_some_and(|row| row["nanoseconds"]["p50"].as_u64() > Some(0))
    };
    for (library, wire) in [
        ("async-lsp", "stdio"),
        ("tower-lsp-server", "stdio"),
        ("rmcp", "http-streamable"),
        ("rmcp", "http-stateless"),
        ("jsonrpsee", "websocket"),
        ("jsonrpsee", "http-streamable"),
        ("jsonrpsee", "http-stateless"),
        ("agent-client-protocol", "websocket"),
        ("agent-client-protocol", "http-acp"),
    ] {
        assert!(echo(library, wire), "{library} over {wire}: {:#?}", rows(&told, library));
    }
}

/// The budgets hold for what is counted, so this holds for it too.
#[test]
fn asking_about_a_task_takes_at_most_a_fifth_more_than_an_echo() {
    let budgets = Counts::from_json(include_str!("../counts.json")).expect("it has the budgets");
    let instructions = |name| budgets.of(name).and_then(|count| count.instructions).expect("it is counted");
    let (echo, question) =
        (instructions("echo over http-streamable"), instructions("tasks/get over http-streamable"));
    assert!(question * 5 <= echo * 6, "{question} instructions, {echo} of an echo");
}
