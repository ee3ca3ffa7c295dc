//! `numbers.txt` and docs/cluster.md have the numbers of the code.

use std::fs;
use std::path::{Path, PathBuf};

/// The file, the constant, its value, words of its row in `numbers.txt`, and the value in the form of that row.
const NUMBERS: [[&str; 5]; 44] = [
    ["membership.rs", "BEAT", "Duration::from_secs(3)", "heartbeat of a node", "every 3 s"],
    ["membership.rs", "TIME_TO_LIVE", "Duration::from_secs(10)", "after its last heartbeat", "10 s"],
    ["membership.rs", "LINGER", "Duration::from_secs(6)", "entry is gone from the engine", "6 s"],
    ["membership.rs", "SETTLES", "Duration::from_secs(13)", "entry is gone from the engine", "13 s"],
    ["membership.rs", "REMEMBERED", "Duration::from_secs(24 * 3600)", "where a node was", "24 h"],
    ["membership.rs", "BETWEEN_READINGS", "Duration::from_millis(200)", "nodes that are not known", "200 ms"],
    ["keys.rs", "KEEP", "Duration::from_secs(3600)", "record of a cancel, and", "1 h"],
    ["keys.rs", "RECORD_LIMIT", "Duration::from_secs(60)", "while the engine is away: tried for", "60 s"],
    ["keys.rs", "RETRY", "Duration::from_millis(500)", "while the engine is away: tried for", "every 500 ms"],
    ["signals.rs", "RETRY", "Duration::from_millis(500)", "looking for watched keys again", "500 ms"],
    ["cluster.rs", "MAX_ANSWER", "64 * 1024", "an answer between nodes", "64 KiB"],
    ["cluster.rs", "HELLO", "Duration::from_secs(1)", "an answer between nodes", "within 1 s"],
    ["engine/fixed.rs", "ANSWER", "Duration::from_secs(10)", "an answer between nodes", "10 s"],
    ["engine/fixed.rs", "RETRY", "Duration::from_millis(500)", "asking a node again", "500 ms"],
    ["engine/fixed.rs", "MAX_VALUE", "16 * 1024", "longest value of a signal", "16 KiB"],
    ["engine/fixed.rs", "MAX_SIGNALS", "100_000", "static list: cancels", "100,000"],
    ["engine/redis.rs", "COMMAND_LIMIT", "Duration::from_secs(3)", "a command of the engine", "3 s"],
    ["engine/nats_server.rs", "COMMAND_LIMIT", "Duration::from_secs(3)", "a command of the engine", "3 s"],
    ["engine/redis.rs", "PING_INTERVAL", "Duration::from_secs(1)", "ping of the engine", "1 s"],
    ["engine/nats_server.rs", "PING_INTERVAL", "Duration::from_secs(1)", "ping of the engine", "1 s"],
    ["engine/redis.rs", "MIN_DELAY", "Duration::from_millis(50)", "engine again, after a loss", "50 ms"],
    ["engine/redis.rs", "MAX_DELAY", "Duration::from_secs(1)", "engine again, after a loss", "up to 1 s"],
    [
        "engine/nats_server.rs",
        "MIN_DELAY",
        "Duration::from_millis(50)",
        "engine again, after a loss",
        "50 ms",
    ],
    [
        "engine/nats_server.rs",
        "MAX_DELAY",
        "Duration::from_secs(1)",
        "engine again, after a loss",
        "up to 1 s",
    ],
    ["engine/nats.rs", "JOB_ACK_LIMIT", "Duration::from_secs(10)", "did not acknowledge", "10 s"],
    ["engine/mod.rs", "JOB_WAIT", "Duration::from_secs(5)", "waits for a job", "5 s"],
    ["pool.rs", "CONNECT", "Duration::from_secs(3)", "opening a connection to a node", "3 s"],
    ["pool.rs", "PING", "Duration::from_secs(3)", "ping every, and answer within", "3 s, 7 s"],
    ["pool.rs", "PONG", "Duration::from_secs(7)", "ping every, and answer within", "3 s, 7 s"],
    ["pool.rs", "STREAMS", "512", "requests on one connection", "512"],
    ["pool.rs", "ATTEMPTS", "2", "its owner has not begun with", "2 times"],
    ["pool.rs", "MAX_KEPT", "64 * 1024", "its owner has not begun with", "64 KiB"],
    ["process.rs", "RETRY_AFTER", "Duration::from_secs(2)", "`Retry-After` of a 503", "2 s"],
    ["routing.rs", "MAX_MESSAGE", "16 * 1024", "a message between nodes", "16 KiB"],
    ["routing.rs", "MESSAGE_TIMEOUT", "Duration::from_secs(10)", "a message between nodes", "within 10 s"],
    ["process.rs", "TOLD", "Duration::from_secs(2)", "what a node says of its tasks", "begins within 2 s"],
    [
        "process.rs",
        "ANSWERED",
        "Duration::from_secs(10)",
        "what a node says of its tasks",
        "arrives within 10 s more",
    ],
    ["process.rs", "MAX_TOLD", "48 << 20", "what a node says of its tasks", "at most 48 MiB"],
    ["task_records.rs", "MAX_RECORD", "512 * 1024", "longest record of a task", "512 KiB"],
    ["task_records.rs", "WRITERS", "16", "recording a task", "16 at a time"],
    ["task_records.rs", "LISTED", "101", "of dead nodes in a page", "101"],
    ["task_records.rs", "READERS", "16", "records of tasks that are read", "16"],
    ["task_records.rs", "RETRY", "Duration::from_millis(500)", "recording a task", "every 500 ms"],
    ["names.rs", "MAX_NAME_BYTES", "32", "characters of the name", "32"],
];

/// Sizes of batches and windows, lengths of signatures, and pauses that are no bounds for anyone.
const OTHERS: [&str; 13] = [
    "signals.rs BATCH",
    "engine/redis.rs BATCH",
    "engine/nats.rs READS",
    "engine/nats.rs ATTEMPTS",
    "engine/nats.rs READY_INTERVAL",
    "engine/nats_server.rs OPEN_ATTEMPTS",
    "engine/nats_server.rs OPEN_WAIT",
    "pool.rs STREAM_WINDOW",
    "pool.rs CONNECTION_WINDOW",
    "pool.rs RESETS",
    "cluster.rs RETRY_NAME",
    "secret.rs MIN_BYTES",
    "secret.rs MAC_BYTES",
];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn source(file: &str) -> String {
    fs::read_to_string(package().join("src").join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn the_table_and_docs_cluster_md_have_the_numbers_of_the_code() {
    let table = include_str!("numbers.txt");
    let page = fs::read_to_string(package().join("../../docs/cluster.md")).unwrap();
    for [file, name, value, words, shown] in NUMBERS {
        let declared = source(file).lines().filter(|line| line.contains(&format!("const {name}: "))).count();
        assert_eq!(declared, 1, "{file}: {name}");
        let is_so = source(file)
            .lines()
            .any(|line| line.contains(&format!("const {name}: ")) && line.ends_with(&format!("= {value};")));
        assert!(is_so, "{file}: {name} is not {value}");
        let of_number = |line: &&str| line.starts_with('|') && line.contains(words);
        let row = table.lines().find(of_number).unwrap_or_else(|| panic!("{words}: no row of numbers.txt"));
        // The page has the rows that an operator needs.
        for row in page.lines().filter(of_number).chain([row]) {
            assert!(row.contains(shown), "{words}: {shown} is not in {row}");
        }
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// A new number must be added to one of the lists, and to `numbers.txt` if it is a bound.
#[test]
fn every_number_is_listed() {
    let root = package().join("src");
    let mut found = Vec::new();
    files(&root, &mut found);
    let mut seen = 0;
    for path in found {
        let file = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        if file.contains("tests") {
            continue;
        }
        for line in source(&file).split("#[cfg(test)]").next().unwrap().lines() {
            let Some((name, rest)) = line.split_once("const ").and_then(|(_, rest)| rest.split_once(": "))
            else {
                continue;
            };
            if !["usize", "u32", "u64", "Duration"].iter().any(|kind| rest.starts_with(&format!("{kind} = ")))
            {
                continue;
            }
            seen += 1;
            let is_number = NUMBERS.iter().any(|[of, known, ..]| (*of, *known) == (&*file, name));
            let is_other = OTHERS.contains(&&*format!("{file} {name}"));
            assert!(is_number != is_other, "src/{file}: {name} is in no list, or in both");
        }
    }
    assert_eq!(seen, NUMBERS.len() + OTHERS.len(), "the constants of the code");
}
