//! Programs behind a bridge that fail, and clients and bridges that leave.

use rescind::dialect::TaskStatus;
use rescind::{Outcome, Peer};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bridge::{Bridge, Lives, error_of, fixture, fixture_script, hello, soon, words};

const HTTP: &str = "http://127.0.0.1:0/mcp";
const WS: &str = "ws://127.0.0.1:0/acp";

async fn echo(client: &Peer, value: &Value) {
    let answer: Value = soon("an echo", client.call("test/echo", &json!({"value": value}))).await.unwrap();
    assert_eq!(answer["value"], *value);
}

/// Until a request of this client runs at the fixture.
async fn until_running(client: &Peer, many: u64) {
    loop {
        let stats: Value = soon("the stats", client.call("test/stats", &json!({}))).await.unwrap();
        if stats["running"] == many {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stdio_server_behind_http_is_cancelled_by_each_client_alone() {
    let bridge = Bridge::listen("mcp", HTTP, &words(&fixture("mcp")));
    let (first, second) = (bridge.client("mcp").await, bridge.client("mcp").await);
    // Both have the same id on their own connection, and each has a child of its own.
    let wait = |client: &Peer| client.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    let (cancelled, kept) = (wait(&first), wait(&second));
    until_running(&first, 1).await;
    until_running(&second, 1).await;
    cancelled.canceller().cancel("stop");
    assert!(soon("the end", cancelled.outcome()).await.is_cancelled());
    until_running(&first, 0).await;
    until_running(&second, 1).await;
    echo(&first, &json!("é")).await;
    drop(kept);
    until_running(&second, 0).await;
    bridge.signal(Signal::TERM);
    assert_eq!(bridge.ended().await, (Some(0), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_start_is_named_in_the_answer() {
    let bridge = Bridge::listen("acp", WS, &["--", "/nowhere/my-agent", "--stdio"]);
    let client = bridge.stranger("acp").await;
    let error = error_of(&client, "initialize", &hello("acp")).await;
    assert_eq!(error.code.0, -32603);
    for part in ["`/nowhere/my-agent`", "could not be started", "No such file"] {
        assert!(error.message.contains(part), "{error}");
    }
    drop(soon("the close", client.closed()).await);
    // The bridge serves the next client in the same way.
    error_of(&bridge.stranger("acp").await, "initialize", &hello("acp")).await;
    bridge.signal(Signal::INT);
    assert_eq!(bridge.ended().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_exits_at_once_is_answered_with_its_status_and_its_last_words_on_stderr() {
    for (script, status) in
        [("exit 3", "exit status: 3"), ("exit 0", "exit status: 0"), ("kill -9 $$", "signal: 9")]
    {
        let script = format!("echo starting >&2; echo 'no licence for é' >&2; {script}");
        let bridge = Bridge::listen("mcp", HTTP, &["--", "sh", "-c", &script]);
        let error = error_of(&bridge.stranger("mcp").await, "initialize", &hello("mcp")).await;
        for part in ["`sh` ended", status, "no licence for é"] {
            assert!(error.message.contains(part), "{script}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_on_stdout_and_a_flood_on_stderr_disturb_no_answer() {
    let lives = Lives::new();
    let noise = "echo 'Server v1 starting'; echo '{\"half\":'; echo '[]'; echo 'null'";
    let script = format!("{noise}; (while :; do echo flood; done >&2) & {}", fixture_script("mcp"));
    let bridge = Bridge::listen("mcp", HTTP, &words(&lives.child(&script)));
    let (client, life) = tokio::join!(bridge.client("mcp"), lives.begun());
    for number in 0..20 {
        echo(&client, &json!(number)).await;
    }
    drop(client);
    life.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_closes_its_output_and_runs_on_is_ended_and_its_requests_are_answered() {
    let lives = Lives::new();
    let script = "read -r line; exec 1>&-; while read -r line; do :; done; exec sleep 1000";
    let bridge = Bridge::listen("acp", WS, &words(&lives.child(script)));
    let client = bridge.stranger("acp").await;
    let (error, life) = tokio::join!(error_of_work(&client), lives.begun());
    assert!(error.message.starts_with("`sh` ended: it closed its stdout and did not exit"), "{error}");
    drop(soon("the close", client.closed()).await);
    life.ended().await;
}

async fn error_of_work(client: &Peer) -> rescind::ErrorObject {
    error_of(client, "work", &json!({})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_8_mib_passes_and_one_above_the_limit_ends_nothing() {
    let bridge = Bridge::listen("acp", WS, &words(&fixture("acp")));
    echo(&bridge.client("acp").await, &json!("x".repeat(8 << 20))).await;

    let answer = r#"'{"jsonrpc":"2.0","id":2,"result":"small"}'"#;
    let script = format!(
        "read -r one; head -c 17000000 /dev/zero | tr '\\0' x; echo; read -r two; echo {answer}; cat >&2"
    );
    let bridge = Bridge::listen("acp", WS, &["--", "sh", "-c", &script]);
    let client = bridge.stranger("acp").await;
    let large = client.call::<_, Value>("large", &json!({})).start().unwrap();
    let small: String = soon("the answer", client.call("small", &json!({}))).await.unwrap();
    assert_eq!(small, "small");
    large.canceller().cancel("");
    assert!(soon("the cancelled answer", large.outcome()).await.is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_never_reads_is_answered_for_after_the_grace_and_ended() {
    let lives = Lives::new();
    let bridge = Bridge::listen("acp", WS, &words(&lives.child("exec sleep 1000")));
    let client = bridge.stranger("acp").await;
    let call = client.call::<_, Value>("work", &json!({})).start().unwrap();
    let life = lives.begun().await;
    call.canceller().cancel("");
    match soon("the cancelled answer", call.outcome()).await {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
        other => panic!("{other:?}"),
    }
    drop(client);
    life.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_killed_in_the_middle_answers_each_open_request_with_an_error() {
    let lives = Lives::new();
    let script = format!("echo working >&2; {}", fixture_script("acp"));
    let bridge = Bridge::listen("acp", WS, &words(&lives.child(&script)));
    let (client, life) = tokio::join!(bridge.client("acp"), lives.begun());
    let calls = [(); 3].map(|()| client.call::<_, Value>("test/wait", &json!({})).start().unwrap());
    until_running(&client, 3).await;
    life.kill();
    for call in calls {
        match soon("the error", call.outcome()).await {
            Outcome::Failed(error) => {
                assert!(error.message.contains("`sh` ended: signal: 9"), "{error}");
                assert!(error.message.contains("stderr ends: working"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    drop(soon("the close", client.closed()).await);
    life.ended().await;
    // A new session gets a new child.
    let (next, life) = tokio::join!(bridge.client("acp"), lives.begun());
    echo(&next, &json!(1)).await;
    drop(next);
    life.ended().await;
    bridge.signal(Signal::TERM);
    let (_, stderr) = bridge.ended().await;
    let said: Vec<_> = stderr.lines().filter(|line| line.starts_with("rescind: `sh`")).collect();
    assert!(said.len() == 2 && said[0].contains("ended: signal: 9"), "{stderr}");
    assert_eq!(said[1], "rescind: `sh` was started again, for a new session");
}

/// Ends only by SIGKILL.
const DEAF: &str = "trap '' TERM HUP INT; while read -r line; do :; done; while :; do sleep 1; done";

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ignores_the_end_of_its_input_and_sigterm_is_killed_with_what_it_started() {
    let lives = Lives::new();
    let script = format!("(trap '' TERM; sleep 1000) & {DEAF}");
    let bridge = Bridge::listen("acp", WS, &words(&lives.child(&script)));
    let client = bridge.stranger("acp").await;
    client.notify("hello", &json!({})).await.unwrap();
    let life = lives.begun().await;
    drop(client);
    life.ended().await;
    bridge.signal(Signal::TERM);
    assert_eq!(bridge.ended().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_at_any_point_leaves_no_child() {
    let lives = Lives::new();
    let bridge = Bridge::listen("acp", WS, &words(&lives.child(&fixture_script("acp"))));
    // Before its first message: no child is started.
    drop(bridge.stranger("acp").await);
    // In its handshake.
    let client = bridge.stranger("acp").await;
    let call = client.call::<_, Value>("initialize", &hello("acp")).start().unwrap();
    let life = lives.begun().await;
    drop((call, client));
    life.ended().await;
    // Between two calls, and in a call.
    for in_call in [false, true] {
        let (client, life) = tokio::join!(bridge.client("acp"), lives.begun());
        let call = in_call.then(|| client.call::<_, Value>("test/wait", &json!({})).start().unwrap());
        until_running(&client, u64::from(in_call)).await;
        drop((call, client));
        life.ended().await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_is_killed_leaves_no_child_even_one_that_ignores_everything() {
    let lives = Lives::new();
    let bridge = Bridge::listen("acp", WS, &words(&lives.child(DEAF)));
    let client = bridge.stranger("acp").await;
    client.notify("hello", &json!({})).await.unwrap();
    let life = lives.begun().await;
    bridge.signal(Signal::KILL);
    assert_eq!(bridge.ended().await.0, None);
    life.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_requests_end_within_the_drain_and_cancels_the_others() {
    let lives = Lives::new();
    let child = lives.child(&fixture_script("acp"));
    let more = [&["--drain", "2"], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("acp", WS, &more);
    let (client, life) = tokio::join!(bridge.client("acp"), lives.begun());
    let ends =
        client.call::<_, Value>("test/sleep", &json!({"ms": 300, "value": "in time"})).start().unwrap();
    let waits = client.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    until_running(&client, 2).await;
    bridge.signal(Signal::TERM);
    assert_eq!(soon("the answer", ends).await.unwrap()["value"], "in time");
    assert!(soon("the cancelled answer", waits.outcome()).await.is_cancelled());
    life.ended().await;
    assert_eq!(bridge.ended().await, (Some(0), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_drain() {
    let child = fixture("acp");
    let more = [&["--drain", "3600"], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("acp", WS, &more);
    let client = bridge.client("acp").await;
    let waits = client.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    until_running(&client, 1).await;
    bridge.signal(Signal::TERM);
    // The first signal is handled once new requests are refused.
    loop {
        let call = client.call::<_, Value>("test/stats", &json!({})).start();
        let Ok(call) = call else { break };
        match soon("the refusal", call.outcome()).await {
            Outcome::Completed(_) => {}
            _ => break,
        }
    }
    bridge.signal(Signal::INT);
    assert!(soon("the cancelled answer", waits.outcome()).await.is_cancelled());
    assert_eq!(bridge.ended().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_named_and_plain_variables_reach_the_program() {
    let show = "env | sort >&2; exit 1";
    let variables = [("SECRET_KEY", "s3cret"), ("PASSED", "on"), ("LANG", "C")];
    let run = async |more: &[&str]| {
        let more = [more, &["--", "sh", "-c", show]].concat();
        let bridge = Bridge::with_environment("acp", WS, &more, &variables);
        error_of(&bridge.stranger("acp").await, "initialize", &hello("acp")).await.message
    };
    let clean = run(&["--env", "PASSED", "--env", "SET=a b"]).await;
    for (part, is_there) in
        [("s3cret", false), ("PASSED=on", true), ("SET=a b", true), ("PATH=", true), ("LANG=C", true)]
    {
        assert_eq!(clean.contains(part), is_there, "{part}: {clean}");
    }
    let all = run(&["--inherit-env"]).await;
    assert!(all.contains("SECRET_KEY=s3cret"), "{all}");
}

/// `RESCIND_BRIDGE_SESSIONS` is the number of sessions over each transport: 1,000 in the nightly run.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_came_and_went_leave_no_descriptor_no_process_and_no_memory() {
    let sessions = std::env::var("RESCIND_BRIDGE_SESSIONS").map_or(100, |number| number.parse().unwrap());
    let warm = 25;
    for (dialect, listen) in [("acp", WS), ("mcp", HTTP)] {
        let lives = Lives::new();
        let bridge = Bridge::listen(dialect, listen, &words(&lives.child(&fixture_script(dialect))));
        let (mut descriptors, mut memory) = (0, 0);
        for round in 0..warm + sessions {
            if round == warm {
                (descriptors, memory) = (bridge.descriptors(), bridge.resident_bytes());
            }
            let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
            echo(&client, &json!(round)).await;
            // A call in flight, and one that was cancelled.
            let calls = [(); 2].map(|()| client.call::<_, Value>("test/wait", &json!({})).start().unwrap());
            calls[0].canceller().cancel("");
            drop((calls, client));
            life.ended().await;
        }
        // The last session may be about to close its own.
        while bridge.descriptors() > descriptors {
            tokio::task::yield_now().await;
        }
        let grown = bridge.resident_bytes().saturating_sub(memory);
        println!("{dialect}: {sessions} sessions, {grown} bytes more");
        // The allocator keeps pages. A session that is left takes many times 1 KiB.
        assert!(grown < (512 << 10) + sessions * 1024, "{dialect}: {grown} bytes after {sessions} sessions");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_above_the_limit_is_refused_and_the_others_go_on() {
    let child = fixture("acp");
    let more = [&["--max-sessions", "1"], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("acp", WS, &more);
    let first = bridge.client("acp").await;
    echo(&first, &json!(1)).await;
    let wait = first.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    let second = bridge.stranger("acp").await;
    drop(soon("the refusal", second.closed()).await);
    echo(&first, &json!(2)).await;
    drop(wait);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_ends_with_its_child() {
    let lives = Lives::new();
    let child = lives.child(&fixture_script("acp"));
    let more = [&["--idle", "1"], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("acp", WS, &more);
    let (client, life) = tokio::join!(bridge.client("acp"), lives.begun());
    life.ended().await;
    drop(soon("the close", client.closed()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_its_idle_time_while_a_task_of_its_child_runs() {
    let lives = Lives::new();
    let child = lives.child(&fixture_script("mcp"));
    let more = [&["--idle", "2"], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("mcp", WS, &more);
    let (client, life) = tokio::join!(bridge.client("mcp"), lives.begun());
    let wait = client.call::<_, Value>("tools/call", &json!({"name": "wait", "arguments": {}}));
    let task = soon("the task", wait.task(None)).await.unwrap();
    // A request at another bridge is the clock.
    let other = Bridge::listen("mcp", WS, &words(&fixture("mcp")));
    let clock = other.client("mcp").await;
    let sleep = json!({"ms": 6000, "value": 1});
    soon("six seconds", clock.call::<_, Value>("test/sleep", &sleep)).await.unwrap();
    let status = soon("the status", task.status()).await.unwrap().status;
    assert_eq!(status, TaskStatus::Working);
    soon("the cancel", task.cancel()).await.unwrap();
    life.ended().await;
    drop(soon("the close", client.closed()).await);
}

// A child that dies, at every point of a call, and what follows.

/// What the caller of the request sees.
#[derive(Clone, Copy, Debug)]
enum Sees {
    /// An error that names the program and its end.
    Error,
    /// The answer, which the child wrote before its end.
    Answer,
}

/// Lines of a shell script after the handshake, and what the caller sees of the request.
const POINTS: &[(&str, &str, Sees)] = &[
    ("before it reads the request", "kill -9 $$", Sees::Error),
    ("after it has read the request", "read -r request; kill -9 $$", Sees::Error),
    (
        "after an update",
        "read -r request; echo '{\"jsonrpc\":\"2.0\",\"method\":\"update\"}'; kill -9 $$",
        Sees::Error,
    ),
    (
        "in the middle of its answer",
        "read -r request; printf '{\"jsonrpc\":\"2.0\",\"id\":2,\"resu'; kill -9 $$",
        Sees::Error,
    ),
    (
        "before the newline of its answer",
        "read -r request; printf '{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":1}'; kill -9 $$",
        Sees::Answer,
    ),
    (
        "after its answer",
        "read -r request; echo '{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":1}'; kill -9 $$",
        Sees::Answer,
    ),
    (
        "between a request of its own and the answer to it",
        "read -r request; echo '{\"jsonrpc\":\"2.0\",\"id\":\"mine\",\"method\":\"ask\"}'; kill -9 $$",
        Sees::Error,
    ),
];

/// The handshake in a shell.
const HANDSHAKE: &str =
    "read -r hello; echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\"}}'";

fn is_end_of_the_child(error: &rescind::ErrorObject) -> bool {
    error.code.0 == -32603 && error.message.starts_with("`sh` ended: signal: 9")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_killed_at_any_point_of_a_call_is_reported_and_leaves_nothing() {
    for (dialect, listen) in [("acp", "ws://127.0.0.1:0/acp"), ("mcp", "http://127.0.0.1:0/mcp")] {
        for (point, script, sees) in POINTS {
            let lives = Lives::new();
            let child = lives.child(&format!("{HANDSHAKE}; {script}"));
            let bridge = Bridge::listen(dialect, listen, &words(&child));
            // The second client shows that the bridge goes on.
            for round in 0..2 {
                let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
                let call = client.call::<_, Value>("work", &json!({})).start().unwrap();
                let outcome = soon("the outcome", call.outcome()).await;
                let at = format!("{dialect}, {point}, round {round}: {outcome:?}");
                match (sees, &outcome) {
                    (Sees::Answer, Outcome::Completed(value)) => assert_eq!(value, &json!(1), "{at}"),
                    (Sees::Error, Outcome::Failed(error)) => assert!(is_end_of_the_child(error), "{at}"),
                    // The handshake's answer and the child's end may come before the request is sent.
                    (Sees::Error, Outcome::Disconnected { .. }) if script.starts_with("kill") => {}
                    _ => panic!("{at}"),
                }
                life.ended().await;
                ends(&client).await;
            }
        }
    }
}

/// Its session has ended: the next call is not answered, and nobody waits.
async fn ends(client: &Peer) {
    let call = client.call::<_, Value>("work", &json!({})).start().unwrap();
    match soon("the next call", call.outcome()).await {
        Outcome::Disconnected { .. } => {}
        Outcome::Failed(error) => assert!(is_end_of_the_child(&error), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_killed_after_the_cancel_of_a_call_leaves_nobody_waiting() {
    for (dialect, listen) in [("acp", "ws://127.0.0.1:0/acp"), ("mcp", "http://127.0.0.1:0/mcp")] {
        let lives = Lives::new();
        let update = "read -r request; echo '{\"jsonrpc\":\"2.0\",\"method\":\"update\"}'";
        let child = lives.child(&format!("{HANDSHAKE}; {update}; read -r cancel; kill -9 $$"));
        let bridge = Bridge::listen(dialect, listen, &words(&child));
        let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
        let call = client.call::<_, Value>("work", &json!({})).notifications_where(|_| true).start().unwrap();
        soon("the update", call.notifications().next()).await.unwrap();
        call.canceller().cancel("");
        let outcome = soon("the outcome", call.outcome()).await;
        assert!(outcome.is_cancelled(), "{dialect}: {outcome:?}");
        life.ended().await;
        ends(&client).await;
    }
}

/// A gateway that lives on with a dead child would answer nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_dies_between_two_calls_ends_its_session_and_the_next_session_is_served() {
    for (dialect, listen) in [("acp", "ws://127.0.0.1:0/acp"), ("mcp", "http://127.0.0.1:0/mcp")] {
        let lives = Lives::new();
        let bridge = Bridge::listen(dialect, listen, &words(&lives.child(&fixture_script(dialect))));
        for _ in 0..2 {
            let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
            let echo: Value = soon("an echo", client.call("test/echo", &json!({"value": 1}))).await.unwrap();
            assert_eq!(echo["value"], 1);
            life.kill();
            life.ended().await;
            ends(&client).await;
        }
    }
}
