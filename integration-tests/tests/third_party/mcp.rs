//! The reaction of MCP's servers to our cancels. Their protocol sends no answer to a cancelled request: the call ends
//! at once, unconfirmed, and the program's counts show that the work has stopped (their `AbortSignal`).

use rescind::{CancelResult, CauseKind, Outcome};
use serde_json::{Value, json};

use super::program::Program;
use super::run::Run;

pub(crate) async fn cancel_one_of_two(program: Program) {
    let run = Run::start(program).await;
    let (one, other) = (run.running("test/wait", &json!({})).await, run.call("test/wait", &json!({})));
    run.counts(2, 0).await;
    assert_eq!(one.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(one, CauseKind::Caller).await;
    run.counts(1, 1).await;
    drop(other);
    run.counts(0, 2).await;
    run.end().await;
}

pub(crate) async fn cancel_tool(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("tools/call", &json!({"name": "wait", "arguments": {}})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(call, CauseKind::Caller).await;
    run.counts(0, 1).await;
    run.end().await;
}

pub(crate) async fn cancel_finished_and_unknown(program: Program) {
    let run = Run::start(program).await;
    let mut call = run.call("test/echo", &json!({"value": 7}));
    assert!((&mut call).await.is_ok());
    assert_eq!(call.canceller().cancel("too late"), CancelResult::AlreadySettled);
    let waits = run.running("test/wait", &json!({})).await;
    for id in [0, 1, 4_000_000] {
        run.raw_cancel(id);
    }
    run.echoes().await;
    run.counts(1, 0).await;
    drop(waits);
    run.counts(0, 1).await;
    run.end().await;
}

pub(crate) async fn progress(program: Program) {
    let run = Run::start(program).await;
    let arguments = json!({"count": 3, "every_ms": 1});
    let call = run.build("tools/call", &json!({"name": "progress", "arguments": arguments})).progress();
    let call = call.start().expect("a call starts");
    let mut reported = call.notifications();
    for n in 1..=3 {
        let params: Value =
            reported.next().await.expect("its progress is reported").params().expect("it is JSON");
        assert_eq!((&params["progress"], &params["total"]), (&json!(n), &json!(3)));
    }
    assert!(matches!(call.outcome().await, Outcome::Completed(_)));
    assert!(reported.next().await.is_none(), "progress after the answer");
    run.end().await;
}

/// The program answers although it was cancelled. The answer is ignored.
pub(crate) async fn deaf_handler(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/ignore", &json!({"ms": 300})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(call, CauseKind::Caller).await;
    run.counts(0, 0).await;
    run.echoes().await;
    run.end().await;
}
