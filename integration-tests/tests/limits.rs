//! SECURITY.md lists every limit with its value in the code.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rescind::{Limits, ServerLimits};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The forms of a number on the page: in kibibytes or mebibytes if it is a multiple, otherwise with commas from five
/// digits on.
fn shown(number: u64) -> Vec<String> {
    let digits = number.to_string();
    let commas = match digits.len() {
        5.. => format!("{},{}", &digits[..digits.len() - 3], &digits[digits.len() - 3..]),
        _ => digits.clone(),
    };
    let mut forms = vec![digits, commas];
    for (unit, name) in [(1 << 10, "KiB"), (1 << 20, "MiB")] {
        if number >= unit && number % unit == 0 {
            forms.push(format!("{} {name}", number / unit));
        }
    }
    forms
}

/// The rows of SECURITY.md that contain this.
fn rows<'a>(page: &'a str, what: &str) -> Vec<&'a str> {
    page.lines().filter(|line| line.starts_with('|') && line.contains(what)).collect()
}

fn has_value(row: &str, forms: &[String]) -> bool {
    let row = format!("{} ", row.replace(['|', ';', ':'], " "));
    forms.iter().any(|form| [' ', ','].iter().any(|end| row.contains(&format!(" {form}{end}"))))
}

/// The fields of a plain struct, as `Debug` prints them, one on each line.
fn fields(debug: &str) -> Vec<(String, String)> {
    let pairs = debug.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(": "));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn security_md_lists_every_connection_limit_with_its_default() {
    let page = read("SECURITY.md");
    let fields = fields(&format!("{:#?}", Limits::default()));
    assert!(fields.len() >= 20, "{fields:?}");
    for (name, value) in fields {
        let forms = match value.parse::<u64>() {
            Ok(number) => shown(number),
            Err(_) if value == "None" => vec!["no limit".to_owned()],
            Err(_) => vec![value.trim_end_matches('s').to_owned() + " s"],
        };
        let rows = rows(&page, &format!("`{name}`"));
        assert!(rows.iter().any(|row| has_value(row, &forms)), "`{name}` is {forms:?}: {rows:?}");
    }
}

#[test]
fn security_md_lists_the_server_limits_with_their_defaults() {
    let page = read("SECURITY.md");
    let limits = ServerLimits::default();
    for (what, value) in [
        ("running, over all connections", limits.max_running_handlers as u64),
        ("draining, over all connections", limits.max_draining_handlers as u64),
        ("sessions of a `Server`", limits.max_connections as u64),
        ("bytes held over all connections", limits.max_memory_bytes as u64),
    ] {
        assert!(rows(&page, what).iter().any(|row| has_value(row, &shown(value))), "{what}: {value}");
    }
    assert_eq!(limits.idle_timeout, None::<Duration>);
    assert!(rows(&page, "`ServerLimits::idle_timeout`").iter().any(|row| row.contains("| no limit |")));
}

/// The limits that cannot be set: the file, the constant, its value, words of its row on the page, and the value in
/// the form of the page.
const FIXED: [(&str, &str, &str, &str, &str); 60] = [
    ("core/src/driver/admission/connection_slots.rs", "MAX_CLOSING", "64", "made room and still close", "64"),
    ("core/src/id.rs", "MAX_ID_BYTES", "256", "bytes of an id", "256"),
    ("core/src/message.rs", "MAX_TOKEN_BYTES", "256", "bytes of a progress token", "256"),
    ("core/src/log_text.rs", "MAX_NAME_BYTES", "128", "bytes of a name in a log", "128"),
    ("core/src/log_text.rs", "MAX_TEXT_BYTES", "256", "bytes of a text in a log", "256"),
    ("core/src/cause.rs", "MAX_REASON_BYTES", "256", "bytes of a reason kept", "256"),
    ("core/src/dialect/json.rs", "MAX_DEPTH", "127", "depth of JSON", "127"),
    ("core/src/framing/content_length.rs", "MAX_HEADER_BYTES", "8 * 1024", "header block", "8 KiB"),
    ("core/src/dialect/jsonrpc/decode.rs", "MAX_BATCH", "1024", "members of a batch", "1024"),
    ("core/src/dialect/jsonrpc/handshake.rs", "MAX_DECLARED_METHODS", "64", "declaration names", "64"),
    (
        "core/src/transport/byte_stream.rs",
        "DEFAULT_MAX_FRAME",
        "16 * 1024 * 1024",
        "`max_frame_bytes`",
        "16 MiB",
    ),
    (
        "core/src/transport/partial_frame.rs",
        "UNCOUNTED_BYTES",
        "16 * 1024",
        "although memory is full",
        "16 KiB",
    ),
    (
        "core/src/transport/partial_frame.rs",
        "MAX_WAIT",
        "Duration::from_secs(10)",
        "waiting for memory",
        "10 s",
    ),
    ("core/src/clients.rs", "RESERVE_BYTES", "1024 * 1024", "is let in from a reserve", "1 MiB"),
    ("http/src/server/service.rs", "SMALL_HEAD", "4 * 1024", "is let in from a reserve", "4 KiB"),
    ("http/src/server/body.rs", "OPENING", "64 * 1024", "a POST without a session", "64 KiB"),
    ("http/src/server/full.rs", "UNWATCHED", "4 * 1024", "a response of which", "4 KiB"),
    ("core/src/driver/notifications/mod.rs", "MAX_UNREAD", "1024", "leaves unread", "1024"),
    (
        "core/src/driver/requests/progress_tokens.rs",
        "MAX_TOKENS",
        "8",
        "tokens that one request reports under",
        "8",
    ),
    (
        "core/src/driver/notifications/tasks.rs",
        "FIRST_POLL_TIMEOUT",
        "Duration::from_secs(1)",
        "not polled yet",
        "1 s",
    ),
    ("core/src/machine/bad_frames.rs", "BURST", "100", "without a usable id", "100 at once"),
    (
        "core/src/machine/bad_frames.rs",
        "REFILL_INTERVAL",
        "Duration::from_millis(100)",
        "without a usable id",
        "10 a second",
    ),
    (
        "stdio/src/child/supervisor/termination.rs",
        "GRACE",
        "Duration::from_secs(2)",
        "a child process",
        "2 s each",
    ),
    ("stdio/src/child/ring_buffer.rs", "CAPACITY", "8 * 1024", "stderr of a child", "8 KiB"),
    ("websocket/src/accept.rs", "MAX_HEAD", "16 * 1024", "head of the handshake", "16 KiB"),
    (
        "websocket/src/accept.rs",
        "REFUSAL_TIMEOUT",
        "Duration::from_millis(500)",
        "handshake, either side",
        "500 ms",
    ),
    ("websocket/src/link/expiry.rs", "CLOSE_TIMEOUT", "Duration::from_secs(1)", "close frame", "1 s"),
    ("websocket/src/link.rs", "MAX_PENDING_PONGS", "64", "pongs owed", "64"),
    ("websocket/src/link/keepalive.rs", "MAX_MISSED_PINGS", "2", "| ping |", "two without a sign of life"),
    ("websocket/src/link/sender.rs", "MAX_HELD", "64 * 1024", "held unflushed", "64 KiB"),
    ("websocket/src/link/sender.rs", "MAX_HELD_FOR_DATA", "32 * 1024", "held unflushed", "32 KiB"),
    ("websocket/src/link/sender.rs", "CLOSE_TIMEOUT", "Duration::from_secs(1)", "close frame", "1 s"),
    ("http/src/server/connection.rs", "FIELDS", "64", "a request's head", "64 fields"),
    ("http/src/server/head_timer.rs", "WAIT", "Duration::from_secs(10)", "a request's head", "10 s"),
    ("http/src/server/stall_timer.rs", "WAIT", "Duration::from_secs(30)", "a request's body", "30 s"),
    ("http/src/server/write_timeout.rs", "LIMIT", "Duration::from_secs(30)", "reader takes nothing", "30 s"),
    ("http/src/server/connection.rs", "STREAMS", "1024", "streams of an HTTP/2", "1024"),
    ("http/src/server/connection.rs", "RESETS", "4096", "resets that wait", "4096"),
    ("http/src/inbound_queue.rs", "MESSAGES", "4096", "connection's task", "4096"),
    ("http/src/streamable/link.rs", "EXCHANGES", "4096", "POSTs of a session", "4096"),
    ("http/src/server/exchange_table.rs", "ENDED", "16", "ended streams kept", "16"),
    ("http/src/stateless/link.rs", "OPEN", "16 * 1024", "open POSTs", "16,384"),
    ("http/src/stateless/link.rs", "ROOM", "64 * 1024 * 1024", "wait for all readers", "64 MiB"),
    ("http/src/acp/sessions.rs", "MAX_NAME_BYTES", "256", "bytes of a session's name", "256"),
    ("http/src/acp/sessions.rs", "LANES", "1024", "stream of their own", "1024"),
    ("http/src/acp/client/streams.rs", "STREAMS", "1024", "stream of their own", "1024"),
    ("http/src/acp/connection.rs", "ROUTES", "65_536", "stream is remembered", "65,536"),
    ("http/src/acp/client/streams.rs", "ASKED", "65_536", "stream is remembered", "65,536"),
    ("http/src/acp/link.rs", "MOST", "64 * 1024 * 1024", "all streams of a connection", "64 MiB"),
    ("http/src/acp/client/mod.rs", "WAITING", "64", "the one before them", "64"),
    ("http/src/acp/cookie_store.rs", "MOST", "64", "cookies", "64 of"),
    ("http/src/acp/cookie_store.rs", "MOST_BYTES", "4096", "cookies", "4 KiB each"),
    ("http/src/streamable/client/sender.rs", "MAX_PENDING_DATA", "64", "response has not begun", "64,"),
    (
        "http/src/streamable/client/sender.rs",
        "MAX_PENDING_BYTES",
        "32 * 1024",
        "response has not begun",
        "32 KiB",
    ),
    ("http/src/streamable/client/sender.rs", "MAX_PENDING_FRAMES", "4096", "response has not begun", "4096"),
    ("http/src/stateless/client/sender.rs", "MAX_IN_FLIGHT", "1024", "requests in flight", "1024"),
    ("http/src/stateless/client/state.rs", "RESETS", "200", "resets of cancelled", "200 at once"),
    ("http/src/client/pool.rs", "OPENING", "64", "a client's connections", "64 being opened"),
    ("http/src/client/pool.rs", "IDLE", "Duration::from_secs(60)", "a client's connections", "60 s"),
    ("http/src/client/events.rs", "MOST_NAME", "1024", "id in an event stream", "1 KiB"),
];

#[test]
fn security_md_lists_the_fixed_limits_with_their_values() {
    let page = read("SECURITY.md");
    for (file, name, value, words, as_shown) in FIXED {
        let source = read(&format!("crates/{file}"));
        let lines: Vec<_> = source.lines().filter(|line| line.contains(&format!("const {name}: "))).collect();
        assert!(
            lines.len() == 1 && lines.iter().all(|line| line.ends_with(&format!("= {value};"))),
            "{file}: {name} is not {value}: {lines:?}"
        );
        let rows = rows(&page, words);
        assert!(rows.iter().any(|row| row.contains(as_shown)), "{words}: {as_shown} is not in {rows:?}");
    }
}

/// Constants that do not cause a refusal, drop or cut of anything of a peer: sizes of reads and of caches, pauses,
/// turns, tags.
const NO_BOUNDS: [(&str, &[&str]); 66] = [
    ("core/src/id.rs", &["LOCAL_BIT"]),
    ("core/src/framing/mod.rs", &["MAX_MOVED_BYTES"]),
    ("core/src/driver/connection/negotiate.rs", &["MAX_ATTEMPTS"]),
    ("core/src/driver/interner.rs", &["MAX_NAMES", "MAX_NAME_BYTES"]),
    ("core/src/driver/connection/write.rs", &["MAX_COPIED_BYTES", "MIN_COUNTED_BYTES"]),
    ("core/src/driver/memory.rs", &["REPORT_STEP", "REQUEST_BYTES"]),
    ("core/src/driver/params.rs", &["MAX_COPIED_BYTES"]),
    ("core/src/clients.rs", &["KINDS", "DEFAULT_IPV6_PREFIX"]),
    ("core/src/machine/settled_cache.rs", &["ENTRY_BYTES"]),
    ("core/src/machine/early_cancels.rs", &["ENTRY_BYTES"]),
    ("http/src/server/body.rs", &["SMALL"]),
    ("http/src/server/service.rs", &["REQUEST"]),
    ("http/src/server/response_body.rs", &["PIECE"]),
    ("websocket/src/link/counting_io.rs", &["CONTROL_HEAD"]),
    ("core/src/driver/outbox.rs", &["ENVELOPE_BYTES", "MAX_IDLE_CAPACITY", "MAX_CANCELS_IN_ROW"]),
    ("core/src/driver/connection/mod.rs", &["MAX_FRAMES_PER_ROUND", "MAX_ROUNDS_PER_POLL"]),
    ("core/src/machine/timers.rs", &["NEVER"]),
    ("core/src/machine/mod.rs", &["MAX_TIMERS_PER_STEP"]),
    ("core/src/registry.rs", &["SHARDS", "MAX_IDLE_CAPACITY"]),
    ("core/src/cause.rs", &["MAX_SHOWN_BYTES"]),
    ("core/src/dialect/abp/mod.rs", &["TAG_CALL", "TAG_INITIALIZE"]),
    ("core/src/members.rs", &["MAX_STRING_BYTES"]),
    ("core/src/transport/byte_stream/sender.rs", &["KEPT_ROOM"]),
    ("core/src/transport/byte_stream/receiver.rs", &["READ_BUFFER", "MIN_READ_ROOM", "MAX_READS_PER_POLL"]),
    ("core/src/transport/send_buffer.rs", &["MAX_HELD_FOR_DATA", "MAX_HELD"]),
    ("core/src/transport/memory.rs", &["BACKLOG"]),
    ("core/src/transport/memory/direction.rs", &["FRAME_COST"]),
    ("core/src/tls/pem.rs", &["SETTLED"]),
    ("core/src/tls/reload.rs", &["CHECK_EVERY"]),
    ("core/src/pool.rs", &["MAX_POOLED"]),
    ("core/src/slot_map.rs", &["CHUNK_LEN"]),
    ("http/src/server/listener.rs", &["BACKLOG"]),
    ("http/src/server/json_or_event_stream.rs", &["STREAM_AFTER", "STREAM_AFTER_WAIT"]),
    ("http/src/server/stall_timer.rs", &["SOON"]),
    ("http/src/server/connection.rs", &["LAST_WORDS"]),
    ("http/src/streamable/link.rs", &["HELD_FOR_BULK"]),
    ("http/src/server/exchange_table.rs", &["OWN"]),
    ("http/src/client/client_core.rs", &["DELETE_TIMEOUT"]),
    ("http/src/streamable/client/listen.rs", &["LONGEST"]),
    ("http/src/streamable/client/stream.rs", &["UNREACHED"]),
    ("http/src/lazy_sleep.rs", &["WAIT"]),
    ("http/src/acp/connection.rs", &["FIRST", "OWN"]),
    ("http/src/acp/client/streams.rs", &["RETRY", "REFUSED", "ATTEMPTS"]),
    ("http/src/stateless/client/state.rs", &["RESET_EVERY"]),
    ("http/src/stateless/client/in_flight.rs", &["FOR_THE_HEAD"]),
    ("http/src/client/refusal.rs", &["LONGEST"]),
    ("http/src/client/events.rs", &["FIELD"]),
    ("http/src/client/requester.rs", &["REPEATS"]),
    ("http/src/client/pool.rs", &["KEEP_ALIVE"]),
    ("http/src/client/event_stream.rs", &["AFTER_ANSWER"]),
    ("http/src/shared_delay.rs", &["STEP", "WAIT"]),
    ("named-pipe/src/listener.rs", &["ACCEPT_BACKOFF"]),
    ("named-pipe/src/windows.rs", &["CONNECT_TIMEOUT", "RETRY_INTERVAL"]),
    ("named-pipe/src/unix/mod.rs", &["CONNECT_TIMEOUT", "RETRY_INTERVAL"]),
    ("named-pipe/src/unix/lock_file.rs", &["MAX_ATTEMPTS"]),
    ("stdio/src/threads.rs", &["MAX_BUFFERED"]),
    ("stdio/src/child/supervisor/unix.rs", &["EXIT_POLL_INTERVAL", "MAX_READS_AFTER_EXIT"]),
    ("stdio/src/child/supervisor/other.rs", &["EXIT_POLL_INTERVAL"]),
    ("stdio/src/child/process.rs", &["EXIT_TIMEOUT"]),
    ("websocket/src/accept.rs", &["FAR_FUTURE"]),
    ("websocket/src/listener.rs", &["ACCEPT_BACKOFF"]),
    ("websocket/src/client.rs", &["MAX_SHOWN_BYTES"]),
    ("websocket/src/link/codes.rs", &["MAX_REASON"]),
    ("websocket/src/link/receiver.rs", &["MAX_MESSAGES_PER_POLL"]),
    ("websocket/src/link/keepalive.rs", &["MIN_PROGRESS_BYTES"]),
    ("websocket/src/link.rs", &["READ_BUFFER", "WRITE_BUFFER"]),
];

/// The constants of a file that are numbers or times, without those of tests.
fn constants(source: &str) -> Vec<String> {
    let types = ["usize", "u64", "u32", "u16", "u8", "Duration"];
    let before_tests = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = before_tests.lines().filter_map(|line| line.split_once("const ")?.1.split_once(" = "));
    let declared = lines.filter_map(|(constant, _)| constant.split_once(": "));
    declared.filter(|(_, kind)| types.contains(kind)).map(|(name, _)| name.to_owned()).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// A new constant that is a limit must be added to [`FIXED`] and to the page.
#[test]
fn every_constant_is_listed_or_marked_as_no_limit() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut seen = 0;
    for name in ["core", "http", "named-pipe", "stdio", "websocket"] {
        let mut files = Vec::new();
        sources(&crates.join(name).join("src"), &mut files);
        for path in files {
            let file = path.strip_prefix(&crates).unwrap().to_str().unwrap().replace('\\', "/");
            for constant in constants(&fs::read_to_string(&path).unwrap()) {
                seen += 1;
                let bounds = FIXED.iter().any(|fixed| (fixed.0, fixed.1) == (&*file, &*constant));
                let plain = NO_BOUNDS.iter().any(|(of, names)| *of == file && names.contains(&&*constant));
                assert!(bounds != plain, "crates/{file}: {constant} is in no list, or in both");
            }
        }
    }
    assert!(seen > FIXED.len(), "{seen} constants were found");
}
