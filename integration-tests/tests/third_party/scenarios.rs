//! The reaction of a program of any protocol to our cancels.

use std::time::Duration;

use rescind::{CancelResult, CauseKind, ErrorCode, Outcome};
use serde_json::json;

use super::program::Program;
use super::run::{Run, Said};

pub(crate) async fn cancel_running(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    assert_eq!(call.canceller().cancel("the user pressed stop"), CancelResult::Sent);
    run.is_cancelled(call, CauseKind::Caller).await;
    run.counts(0, 1).await;
    run.echoes().await;
    run.end().await;
}

/// The request is taken back, or it and its cancel are sent in one write.
pub(crate) async fn cancel_at_once(program: Program) {
    let run = Run::start(program).await;
    let call = run.call("test/wait", &json!({}));
    let said = call.canceller().cancel("");
    assert!(matches!(said, CancelResult::Sent | CancelResult::TakenBack), "{said:?}");
    run.is_cancelled(call, CauseKind::Caller).await;
    run.echoes().await;
    assert_eq!(run.answer("test/stats", json!({})).await["running"], 0);
    run.end().await;
}

pub(crate) async fn cancel_twice(program: Program) {
    let run = Run::start(program).await;
    let (one, other) = (run.running("test/wait", &json!({})).await, run.call("test/wait", &json!({})));
    run.counts(2, 0).await;
    let stop = one.canceller();
    assert_eq!(stop.cancel(""), CancelResult::Sent);
    assert_eq!(stop.clone().cancel(""), CancelResult::AlreadySettled);
    run.is_cancelled(one, CauseKind::Caller).await;
    assert_eq!(stop.cancel(""), CancelResult::AlreadySettled);
    // The other call was not affected.
    run.counts(1, 1).await;
    assert_eq!(other.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(other, CauseKind::Caller).await;
    run.counts(0, 2).await;
    run.end().await;
}

pub(crate) async fn cancel_finished(program: Program) {
    let run = Run::start(program).await;
    let mut call = run.call("test/echo", &json!({"value": 7}));
    assert_eq!((&mut call).await, Ok(json!({"value": 7})));
    assert_eq!(call.canceller().cancel("too late"), CancelResult::AlreadySettled);
    // We send nothing then. A cancel that is on its way has no effect either. Our ids count up from a small number.
    for id in 0..4 {
        run.raw_cancel(id);
    }
    run.echoes().await;
    run.counts(0, 0).await;
    run.end().await;
}

pub(crate) async fn cancel_unknown(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    run.raw_cancel(4_000_000);
    run.echoes().await;
    run.counts(1, 0).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    run.is_cancelled(call, CauseKind::Caller).await;
    run.end().await;
}

pub(crate) async fn partial_result(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/partial", &json!({})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    assert_eq!(call.outcome().await, Outcome::CompletedAfterCancel(json!({"partial": true})));
    run.end().await;
}

pub(crate) async fn deaf_handler(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/ignore", &json!({"ms": 300})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    assert_eq!(call.outcome().await, Outcome::CompletedAfterCancel(json!({"ignored": true})));
    run.counts(0, 0).await;
    run.end().await;
}

/// Both libraries answer -32603 then, so the peer did not confirm the cancel: see docs/interop/frames.md.
pub(crate) async fn fails_after_cancel(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/fail_on_cancel", &json!({})).await;
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    match call.outcome().await {
        Outcome::Failed(error) => assert_eq!(error.code, ErrorCode::INTERNAL_ERROR, "{error:?}"),
        other => panic!("{other:?}"),
    }
    run.counts(0, 1).await;
    run.end().await;
}

pub(crate) async fn nested_requests(program: Program) {
    let mut run = Run::start(program).await;
    let call = run.call("test/nested", &json!({"depth": 1, "width": 2}));
    for _ in 0..2 {
        assert_eq!(run.said.recv().await, Some(Said::Started));
    }
    assert_eq!(call.canceller().cancel(""), CancelResult::Sent);
    for _ in 0..2 {
        assert_eq!(run.said.recv().await, Some(Said::Cancelled(CauseKind::Peer)));
    }
    run.is_cancelled(call, CauseKind::Caller).await;
    run.counts(0, 1).await;
    assert_eq!(run.peer.stats().running, 0);
    run.end().await;
}

pub(crate) async fn dropped_call(program: Program) {
    let run = Run::start(program).await;
    drop(run.running("test/wait", &json!({})).await);
    run.counts(0, 1).await;
    run.end().await;
}

pub(crate) async fn deadline(program: Program) {
    let run = Run::start(program).await;
    let late = run.build("test/wait", &json!({})).timeout(Duration::from_millis(100));
    run.is_cancelled(late.start().expect("a call starts"), CauseKind::Deadline).await;
    run.counts(0, 1).await;
    run.end().await;
}

/// A call without a cancel, and a cancelled one, whose cancel cannot be confirmed any more.
pub(crate) async fn killed_in_the_middle(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    let deaf = run.call("test/ignore", &json!({"ms": 600_000}));
    run.counts(2, 0).await;
    assert_eq!(deaf.canceller().cancel(""), CancelResult::Sent);
    run.echoes().await;
    kill(run.child().pid());
    assert_eq!(call.outcome().await, Outcome::Disconnected { may_have_run: true });
    match deaf.outcome().await {
        Outcome::Cancelled(cancelled) => assert!(!cancelled.confirmed, "{cancelled:?}"),
        other => panic!("{other:?}"),
    }
    let error = run.peer.closed().await.expect_err("a killed program is no end in good order");
    assert!(error.to_string().contains("`node`"), "{error}");
}

/// The connection is closed during the work: the call ends here, and the program, whose input has ended, ends too.
pub(crate) async fn closed_in_the_middle(program: Program) {
    let run = Run::start(program).await;
    let call = run.running("test/wait", &json!({})).await;
    run.peer.shutdown(Duration::ZERO).await;
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Shutdown),
        other => panic!("{other:?}"),
    }
    run.child().wait().await;
}

fn kill(pid: u32) {
    let mut command = std::process::Command::new(if cfg!(windows) { "taskkill" } else { "kill" });
    command.args(if cfg!(windows) { ["/F", "/PID"].as_slice() } else { ["-KILL"].as_slice() });
    assert!(command.arg(pid.to_string()).status().is_ok_and(|status| status.success()));
}
