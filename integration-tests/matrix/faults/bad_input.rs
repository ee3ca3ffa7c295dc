//! Frames that are not messages, on each wire: each gets the same error everywhere, and the session continues.

use std::time::Duration;

use libtest_mimic::Trial;
use rescind::dialect::Role;
use serde_json::{Value, json};

use crate::agent::{End, Seen, limits};
use crate::many_connections::say_if_untold;
use crate::raw::Raw;
use crate::wires::resident;
use crate::wires::{Door, Setting, WIRES, Wire, accept};
use crate::{alone, trial};

/// The largest frame here, in bytes. The deepest one fits.
const LIMIT: usize = 256 * 1024;
const SLOW: usize = 200;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in WIRES.into_iter().filter(|wire| is_bare(*wire)) {
        let name = format!("bad_input::each_gets_its_error_and_the_session_goes_on::{}", wire.name);
        trials.push(trial(name, move || refused(wire)));
        // The memory wire moves whole frames. A WebSocket closes after an oversize message; see `covered.toml`.
        if matches!(wire.name, "named-pipe" | "http-streamable") {
            let name = format!("bad_input::an_oversize_frame_is_refused_alone::{}", wire.name);
            trials.push(trial(name, move || oversize(wire)));
        }
        if wire.name != "memory" {
            let name = format!("bad_input::two_hundred_that_write_byte_by_byte_are_answered::{}", wire.name);
            trials.push(alone(name, move || byte_by_byte(wire)));
        }
        if wire.name == "named-pipe" {
            let name = "bad_input::two_hundred_lines_without_end_are_not_held::named-pipe".to_owned();
            trials.push(alone(name, move || endless(wire)));
        }
    }
    trials
}

fn is_bare(wire: Wire) -> bool {
    matches!(wire.name, "memory" | "websocket" | "named-pipe" | "http-streamable")
}

/// A raw client after its handshake, and its agent.
async fn open(wire: Wire, door: &mut Door) -> (Raw, End) {
    let Door { listener, transport, place, .. } = door;
    let asking = async {
        let mut raw = Raw::connect(wire, place, transport()).await.expect("a wire that can be bare");
        raw.shake_hands().await;
        raw
    };
    let serving = async { End::attach(accept(listener).await, Role::Server, limits(), Seen::new()) };
    tokio::join!(asking, serving)
}

async fn echoes(raw: &mut Raw, id: u64) {
    raw.say(echo(id).to_string().as_bytes()).await;
    is_echo(raw, id).await;
}

fn echo(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "echo", "params": {"n": id}})
}

async fn is_echo(raw: &mut Raw, id: u64) {
    let said = raw.hear().await;
    assert_eq!((&said.message["id"], &said.message["result"]), (&json!(id), &json!({"n": id})), "{said:?}");
    assert!(said.status.is_none_or(|status| status == 200), "{said:?}");
}

async fn is_refused(raw: &mut Raw, code: i64, status: u16, shown: &str) {
    let said = raw.hear().await;
    let error = &said.message["error"];
    assert_eq!((&error["code"], &said.message["id"]), (&json!(code), &Value::Null), "{shown}: {said:?}");
    assert!(
        error["message"].as_str().is_some_and(|text| !text.is_empty()),
        "it says what is wrong: {said:?}"
    );
    assert!(said.status.is_none_or(|got| got == status), "{shown}: {said:?}");
}

fn deep(depth: usize) -> String {
    let (open, close) = ("[".repeat(depth), "]".repeat(depth));
    format!(r#"{{"jsonrpc":"2.0","id":5,"method":"echo","params":{{"value":{open}{close}}}}}"#)
}

/// Invalid frames and their errors, which are the same on every wire with any framing.
fn frames() -> Vec<(Vec<u8>, i64)> {
    let broken = [
        "{",
        "nonsense",
        r#"{"jsonrpc":"2.0","id":1,"method":"echo"}}"#,
        "\0",
        r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#,
    ];
    let mut frames: Vec<_> = broken.into_iter().map(|frame| (frame.as_bytes().to_vec(), -32_700)).collect();
    frames.extend([128, 100_000].map(|depth| (deep(depth).into_bytes(), -32_700)));
    frames.extend(["7", "{}", "null", "[]"].map(|frame| (frame.as_bytes().to_vec(), -32_600)));
    for id in ["1.5", "1e-1", "-0.5", "9223372036854775808", "null", "true", "[1]"] {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"echo","params":{{}}}}"#);
        frames.push((frame.into_bytes(), -32_600));
    }
    frames
}

async fn refused(wire: Wire) {
    let mut door = wire.listen(Setting { max_frame: LIMIT, ..Setting::default() }).await;
    let (mut raw, end) = open(wire, &mut door).await;
    let mut frames = frames();
    if wire.name != "websocket" {
        // A text message of a WebSocket cannot contain these; see `covered.toml`.
        frames.push((b"\xff\xfe\x00".to_vec(), -32_700));
        frames.push((b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\x28\"}".to_vec(), -32_700));
    }
    for (number, (frame, code)) in frames.iter().enumerate() {
        let shown = String::from_utf8_lossy(&frame[..frame.len().min(80)]).into_owned();
        raw.say(frame).await;
        is_refused(&mut raw, *code, 400, &shown).await;
        echoes(&mut raw, number as u64).await;
    }
    assert!(!end.peer.is_closed());
    end.is_clean("the agent").await;
    raw.close().await;
    end.valve.cut();
}

async fn oversize(wire: Wire) {
    let mut door = wire.listen(Setting { max_frame: LIMIT, ..Setting::default() }).await;
    let (mut raw, end) = open(wire, &mut door).await;
    if wire.name == "http-streamable" {
        // The session continues. A connection whose body is not read completely does not.
        let session = raw.session();
        raw.say(&vec![b'x'; LIMIT + 1]).await;
        is_refused(&mut raw, -32_600, 413, "a body over the limit").await;
        let mut again = Raw::connect(wire, &door.place, (door.transport)()).await.unwrap();
        again.take_up(session);
        echoes(&mut again, 1).await;
    } else {
        raw.say(&vec![b'x'; 4 * LIMIT]).await;
        is_refused(&mut raw, -32_700, 0, "a line over the limit").await;
        echoes(&mut raw, 1).await;
    }
    end.is_clean("the agent").await;
    end.valve.cut();
}

/// Each client writes one byte in turn. No client waits for another one, and every answer arrives.
async fn byte_by_byte(wire: Wire) {
    // On a busy machine two hundred heads, byte by byte, take longer than the server gives to one.
    let patient = Duration::from_secs(300);
    let setting = Setting { max_frame: LIMIT, idle: patient, sending: Some(patient), ..Setting::default() };
    let mut door = wire.listen(setting).await;
    let mut all = Vec::new();
    for _ in 0..SLOW {
        all.push(open(wire, &mut door).await);
    }
    let mut rest: Vec<_> = all
        .iter()
        .enumerate()
        .map(|(number, (raw, _))| raw.framed(echo(number as u64).to_string().as_bytes()))
        .collect();
    let longest = rest.iter().map(Vec::len).max().unwrap_or(0);
    for at in 0..longest {
        for (bytes, (raw, _)) in rest.iter().zip(&mut all) {
            if let Some(byte) = bytes.get(at) {
                raw.write(&[*byte]).await;
            }
        }
        tokio::task::yield_now().await;
    }
    rest.clear();
    for (number, (raw, _)) in all.iter_mut().enumerate() {
        is_echo(raw, number as u64).await;
    }
    for (raw, end) in all {
        end.is_clean("the agent").await;
        end.valve.cut();
        raw.close().await;
    }
}

/// A line without an end is dropped while it arrives (I11). When it ends, its error is sent and the next line is
/// read.
async fn endless(wire: Wire) {
    let mut door = wire.listen(Setting { max_frame: LIMIT, ..Setting::default() }).await;
    let mut all = Vec::new();
    for _ in 0..SLOW {
        all.push(open(wire, &mut door).await);
    }
    say_if_untold("lines without an end");
    let before = resident();
    let chunk = vec![b' '; 64 * 1024];
    for round in 0..16 {
        for (raw, _) in &mut all {
            raw.write(if round == 0 { b"{" } else { &chunk }).await;
            tokio::task::yield_now().await;
        }
    }
    let grown = resident().saturating_sub(before);
    eprintln!("counted: {SLOW} lines of 960 KiB without an end: {} KiB more", grown / 1024);
    assert!(grown <= SLOW * 2 * LIMIT, "I11: {grown} bytes more");
    for (number, (raw, end)) in all.iter_mut().enumerate() {
        raw.write(b"\n").await;
        is_refused(raw, -32_700, 0, "a line without end").await;
        echoes(raw, number as u64).await;
        end.valve.cut();
    }
}
