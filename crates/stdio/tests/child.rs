//! Real child processes: how they are terminated, how their end is reported, and the environment that they inherit.
#![cfg(unix)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "what the tests share is part of them")]

use std::future::{Future, poll_fn};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use rescind_core::{
    CloseReason, Framing, Link, Transport, TransportError, TransportErrorKind, TransportEvent,
};
use rescind_stdio::{ChildError, ChildHandle, Command};
use rescind_testkit::support::{frames, in_time};

/// Only tests use a shell.
fn shell(script: &str) -> Command {
    Command::new("sh").arg("-c").arg(script).child_kill_grace(Duration::from_millis(100))
}

async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    in_time("an event", frames::event(link)).await
}

async fn assert_nothing_to_read(link: &mut Link) {
    let event = poll_fn(|cx| std::task::Poll::Ready(link.rx.as_mut().poll_event(cx))).await;
    assert!(event.is_pending(), "{event:?}");
}

async fn body(link: &mut Link) -> String {
    String::from_utf8(in_time("a frame", frames::body(link)).await.to_vec()).unwrap()
}

async fn send(link: &mut Link, body: impl Into<bytes::Bytes>) -> Result<(), TransportError> {
    in_time("sending", frames::send(link, body)).await
}

async fn close(link: &mut Link) -> Result<(), TransportError> {
    in_time("closing", poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx))).await
}

fn child_error(event: Option<Result<TransportEvent, TransportError>>) -> ChildError {
    let Some(Err(error)) = event else { panic!("expected an error, got {event:?}") };
    error.source.downcast_ref::<ChildError>().expect("it is the child's").clone()
}

/// Whether the process is neither running nor a zombie.
fn is_gone(pid: &str) -> bool {
    rustix::process::test_kill_process(rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap()).is_err()
}

/// A killed orphan is reaped by another process, at a time that this test does not control.
async fn until_gone(pid: String) {
    in_time("the event", async {
        while !is_gone(&pid) && !is_zombie(&pid) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn is_zombie(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

async fn is_reaped(child: &ChildHandle) {
    in_time("the end of the child", child.wait()).await;
    assert!(is_gone(&child.pid().to_string()), "a zombie is left");
}

#[tokio::test]
async fn frames_go_to_a_child_and_back_and_closing_ends_it() {
    let (mut link, child) = Command::new("cat").start().unwrap();
    send(&mut link, "{\"id\":1}").await.unwrap();
    assert_eq!(body(&mut link).await, "{\"id\":1}");
    assert_eq!(child.exit_status(), None);
    close(&mut link).await.unwrap();
    assert!(event(&mut link).await.is_none());
    assert!(child.exit_status().unwrap().success());
    is_reaped(&child).await;
}

#[tokio::test]
async fn a_command_is_a_transport_with_arguments_and_environment() {
    let command = Command::new("sh")
        .args(["-c", "printf 'Content-Length: 2\r\n\r\n%s' \"$A\"; cat"])
        .env("A", "[]")
        .framing(Framing::ContentLength);
    let mut link = Box::new(command).open().await.unwrap();
    assert_eq!(body(&mut link).await, "[]");
    send(&mut link, "{}").await.unwrap();
    assert_eq!(body(&mut link).await, "{}");
}

#[tokio::test]
async fn the_error_for_a_missing_program_contains_its_name() {
    let error = Command::new("no-such-program-here").start().unwrap_err();
    assert_eq!(error.kind, TransportErrorKind::Open);
    assert!(error.to_string().contains("no-such-program-here"), "{error}");
}

#[test]
fn without_a_runtime_nothing_is_started() {
    let error = Command::new("cat").start().unwrap_err();
    assert!(error.to_string().contains("cat"), "{error}");
}

#[tokio::test]
async fn the_error_for_a_child_that_exits_at_once_has_its_status_and_stderr() {
    let (mut link, child) = shell("echo no licence >&2; exit 3").start().unwrap();
    let error = child_error(event(&mut link).await);
    assert_eq!(error.command, "sh");
    assert_eq!(error.status.and_then(|status| status.code()), Some(3));
    assert_eq!(error.stderr_tail, "no licence\n");
    assert!(error.to_string().contains("no licence"), "{error}");
    assert!(event(&mut link).await.is_none());
    is_reaped(&child).await;
}

#[tokio::test]
async fn a_child_that_exits_with_success_before_its_first_frame_is_an_error() {
    let (mut link, _child) = shell("exit 0").start().unwrap();
    assert!(child_error(event(&mut link).await).status.unwrap().success());
}

#[tokio::test]
async fn a_child_that_exits_with_success_after_a_frame_ends_without_error() {
    let (mut link, child) = shell("echo '{}'").start().unwrap();
    assert_eq!(body(&mut link).await, "{}");
    assert!(event(&mut link).await.is_none());
    is_reaped(&child).await;
}

#[tokio::test]
async fn what_a_child_wrote_before_its_exit_is_read_after_it() {
    let (mut link, child) =
        shell("i=0; while [ $i -lt 500 ]; do echo \"[$i]\"; i=$((i+1)); done").start().unwrap();
    in_time("the end of the child", child.wait()).await;
    for number in 0..500 {
        assert_eq!(body(&mut link).await, format!("[{number}]"));
    }
    assert!(event(&mut link).await.is_none());
}

/// The reactor is asked only after the task has been polled: the pipe seems to be empty then.
#[tokio::test]
async fn what_a_child_wrote_while_the_runtime_was_blocked_is_read() {
    let (mut link, child) = shell("echo '{}'; read line; echo '[1]'; echo '[2]'").start().unwrap();
    assert_eq!(body(&mut link).await, "{}");
    assert_nothing_to_read(&mut link).await;
    send(&mut link, "go on").await.unwrap();
    while child.exit_status().is_none() {
        std::thread::yield_now();
    }
    assert_eq!((body(&mut link).await, body(&mut link).await), ("[1]".to_owned(), "[2]".to_owned()));
    assert!(event(&mut link).await.is_none());
}

/// The error of a write ends the connection. The child has answered and exited before this side knows that its request is
/// written.
#[tokio::test]
async fn a_write_to_a_dead_child_fails_after_its_answer_is_read() {
    let (mut link, child) = shell("read line; echo '[1]'; echo '[2]'; exit 4").start().unwrap();
    assert_nothing_to_read(&mut link).await;
    send(&mut link, "{}").await.unwrap();
    in_time("the end of the child", child.wait()).await;
    for expected in ["[1]", "[2]"] {
        send(&mut link, "{}").await.unwrap();
        assert_eq!(body(&mut link).await, expected);
    }
    send(&mut link, "{}").await.unwrap();
    let error = child_error(event(&mut link).await);
    assert_eq!(error.status.and_then(|status| status.code()), Some(4));
    let written = send(&mut link, "{}").await.unwrap_err();
    assert!(written.to_string().contains("exit status: 4"), "{written}");
}

/// The child may exit before the write returns on this side.
#[tokio::test]
async fn a_write_that_a_child_reads_before_its_exit_succeeds() {
    for _ in 0..50 {
        let (mut link, _child) = shell("echo '{}'; read line").start().unwrap();
        assert_eq!(body(&mut link).await, "{}");
        send(&mut link, "go on").await.unwrap();
        assert!(event(&mut link).await.is_none());
    }
}

#[tokio::test]
async fn the_error_for_a_child_that_dies_has_its_signal() {
    let (mut link, _child) = shell("echo '{}'; echo oops >&2; kill -9 $$").start().unwrap();
    assert_eq!(body(&mut link).await, "{}");
    let error = child_error(event(&mut link).await);
    assert_eq!(error.status.and_then(|status| status.signal()), Some(9));
    assert_eq!(error.stderr_tail, "oops\n");
}

#[tokio::test]
async fn the_error_of_a_write_to_a_dead_child_contains_its_name() {
    let (mut link, child) = shell("echo too old >&2; exit 4").start().unwrap();
    in_time("the end of the child", child.wait()).await;
    let error = send(&mut link, "{}").await.unwrap_err();
    assert!(error.to_string().contains("too old"), "{error}");
    assert!(close(&mut link).await.is_err());
}

/// A script that prints the id of a process outside the child's group, which holds the child's pipes open.
#[cfg(target_os = "linux")]
const WITH_HOLDER: &str = "exec 3<&0; setsid sleep 1000 <&3 & echo $!; echo too old >&2;";

#[cfg(target_os = "linux")]
async fn kill(pid: String) {
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    until_gone(pid).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_child_whose_pipes_another_process_holds_is_dead_after_its_exit() {
    let (mut link, child) = shell(&format!("{WITH_HOLDER} exit 4")).start().unwrap();
    let holder = body(&mut link).await;
    in_time("the end of the child", child.wait()).await;
    let read = child_error(event(&mut link).await);
    let written = send(&mut link, "{}").await.unwrap_err();
    assert!(event(&mut link).await.is_none());
    kill(holder).await;
    assert!(written.to_string().contains("too old"), "{written}");
    assert_eq!(read.status.and_then(|status| status.code()), Some(4));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_write_that_waits_for_a_child_fails_at_its_exit_while_another_process_holds_its_pipe() {
    let (mut link, child) = shell(&format!("{WITH_HOLDER} head -c 100000 >&2; exit 4")).start().unwrap();
    let holder = body(&mut link).await;
    assert_nothing_to_read(&mut link).await;
    let frame = format!("\"{}\"", "a".repeat(1024 * 1024));
    let written = send(&mut link, frame).await.unwrap_err();
    kill(holder).await;
    assert_eq!(child.exit_status().and_then(|status| status.code()), Some(4));
    assert!(written.to_string().contains("exit status: 4"), "{written}");
}

#[tokio::test]
async fn lines_that_are_not_json_are_passed_on_to_the_codec() {
    let (mut link, _child) = shell("echo Starting...; cat").start().unwrap();
    assert_eq!(body(&mut link).await, "Starting...");
    send(&mut link, "{}").await.unwrap();
    assert_eq!(body(&mut link).await, "{}");
}

#[tokio::test]
async fn a_bad_length_after_noise_ends_with_an_error_with_stderr() {
    let (mut link, _child) =
        shell("echo deprecated >&2; echo Starting...; printf 'Content-Length: x\\r\\n'; cat")
            .framing(Framing::ContentLength)
            .start()
            .unwrap();
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::Deviation { .. }))));
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::Rejected { .. }))));
    let error = event(&mut link).await;
    assert!(matches!(&error, Some(Err(error)) if error.kind == TransportErrorKind::Framing), "{error:?}");
    assert_eq!(child_error(error).command, "sh");
}

#[tokio::test]
async fn a_child_that_closes_stdin_and_continues_is_known_to_have_done_so() {
    let (mut link, child) = shell("exec <&-; echo closed; exec sleep 1000").start().unwrap();
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::Deviation { .. }))));
    assert!(!child.has_closed_stdin());
    // A child that another test is starting may hold the pipe for a moment.
    let error = loop {
        if let Err(error) = send(&mut link, "unread").await {
            break error;
        }
    };
    assert!(error.source.to_string().contains("it does not read its stdin any more"), "{error:?}");
    assert_eq!((child.has_closed_stdin(), child.exit_status()), (true, None));
    drop(link);
    child.wait().await;
}

#[tokio::test]
async fn a_child_that_closes_stdout_and_continues_is_half_closed() {
    let (mut link, child) = shell("exec >&-; cat >&2").start().unwrap();
    assert!(!child.has_closed_stdout());
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::HalfClosed))));
    assert!(child.has_closed_stdout());
    send(&mut link, "still read").await.unwrap();
    close(&mut link).await.unwrap();
    assert!(event(&mut link).await.is_none());
    assert_eq!(child.stderr_tail(), "still read\n");
}

#[tokio::test]
async fn a_flood_on_stderr_does_not_block_and_only_its_tail_is_kept() {
    let script = "i=0; while [ $i -lt 4000 ]; do echo 0123456789012345678901234567890123456789 >&2; i=$((i+1)); done; \
                  echo last >&2; echo '{}'; cat";
    let (mut link, child) = shell(script).start().unwrap();
    assert_eq!(body(&mut link).await, "{}");
    close(&mut link).await.unwrap();
    let tail = child.stderr_tail();
    assert!(tail.len() <= 8 * 1024 && tail.ends_with("9\nlast\n"), "{tail}");
}

#[tokio::test]
async fn a_child_that_ignores_the_end_of_its_input_gets_sigterm() {
    let (mut link, child) =
        shell("trap 'echo asked >&2; exit 0' TERM; echo '{}'; while :; do sleep 0.01; done").start().unwrap();
    assert_eq!(body(&mut link).await, "{}");
    close(&mut link).await.unwrap();
    assert!(child.exit_status().unwrap().success());
    assert!(child.stderr_tail().ends_with("asked\n"));
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_killed_after_two_graces() {
    let (mut link, child) = shell("trap '' TERM; echo '{}'; while :; do sleep 0.01; done").start().unwrap();
    assert_eq!(body(&mut link).await, "{}");
    let start = Instant::now();
    close(&mut link).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(200), "it had both graces");
    assert_eq!(child.exit_status().unwrap().signal(), Some(9));
    is_reaped(&child).await;
}

#[tokio::test]
async fn the_whole_process_group_of_a_child_is_killed() {
    let (mut link, child) = shell("sh -c 'trap \"\" TERM; echo $$; sleep 1000' & wait").start().unwrap();
    let grandchild = body(&mut link).await;
    close(&mut link).await.unwrap();
    is_reaped(&child).await;
    until_gone(grandchild).await;
}

#[tokio::test]
async fn dropping_the_connection_kills_the_group_at_once() {
    let (mut link, child) = shell("trap '' TERM; (echo '{}'; sleep 1000) & wait; sleep 1000")
        .child_kill_grace(Duration::from_secs(1000))
        .start()
        .unwrap();
    body(&mut link).await;
    drop(link);
    assert_eq!(in_time("the end of the child", child.wait()).await.signal(), Some(9));
    is_reaped(&child).await;
}

#[tokio::test]
async fn dropping_one_half_does_not_kill_the_child() {
    let (link, child) = Command::new("cat").start().unwrap();
    let Link { rx, tx, .. } = link;
    drop(tx);
    assert!(in_time("the end of the child", child.wait()).await.success(), "the end of its input ended it");
    drop(rx);
}

#[test]
fn a_child_is_killed_and_reaped_after_its_runtime_is_gone() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (link, child) = runtime.block_on(async { shell("trap '' TERM; sleep 1000").start().unwrap() });
    drop(runtime);
    drop(link);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(is_reaped(&child));
}

#[test]
fn a_child_that_was_being_closed_gets_its_graces_after_the_runtime_is_gone() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let child = runtime.block_on(async {
        let script = "trap 'echo asked >&2; exit 0' TERM; echo '{}'; while :; do sleep 0.01; done";
        let (mut link, child) = shell(script).start().unwrap();
        body(&mut link).await;
        let mut pending = std::pin::pin!(poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)));
        poll_fn(|cx| std::task::Poll::Ready(pending.as_mut().poll(cx).is_pending())).await;
        child
    });
    drop(runtime);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert!(runtime.block_on(in_time("the end of the child", child.wait())).success());
    assert!(child.stderr_tail().ends_with("asked\n"));
}

/// The first line of a child.
async fn says(command: Command) -> String {
    body(&mut Box::new(command).open().await.unwrap()).await
}

#[tokio::test]
async fn a_child_gets_only_the_environment_that_it_is_given() {
    let script = r#"echo "[${CARGO_MANIFEST_DIR-}] [${GIVEN-}] [${EARLIER-}]""#;
    let shell = || Command::new("/bin/sh").arg("-c").arg(script);
    let ours = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    assert_eq!(says(shell().env("GIVEN", "1")).await, format!("[{ours}] [1] []"));
    assert_eq!(says(shell().env("EARLIER", "2").env_clear().env("GIVEN", "1")).await, "[] [1] []");
    assert_eq!(says(shell().env_remove("CARGO_MANIFEST_DIR")).await, "[] [] []");
}
