//! Snapshots of requests, the watch of their changes, and the log of several connections.
//!
//! An operator stops a request: its caller gets an error that says so, in every dialect.

use std::sync::Arc;
use std::time::Duration;

use rescind_core::dialect::{self, ACP, ACP_DRAFT, ACP_V2, Dialect, MCP, MCP_2026, Role};
use rescind_core::{
    ApiMisuse, ByteStream, CallContext, Cause, CauseKind, ConnectionError, Declaration, Direction, ErrorCode,
    ErrorObject, Framing, HandlerError, Limits, MAX_ENDED_REQUESTS, MAX_RECORDED_METHOD_BYTES, Outcome, Peer,
    RequestEvent, RequestId, RequestInfo, RequestLog, RequestOutcome, RequestStatus, RequestWatch, Router,
    Server, memory_listener, memory_pair,
};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};

use crate::driver::calls::{Lines, meet};
use crate::driver::wire::{self, TRAITS};

/// Handlers that end only when they are released, also after a cancel.
pub(crate) fn held(release: &Arc<Semaphore>) -> Router {
    let (plain, shielded) = (Arc::clone(release), Arc::clone(release));
    Router::new()
        .method("hold", move |_: CallContext, _: Value| {
            let release = Arc::clone(&plain);
            async move {
                release.acquire().await?.forget();
                Ok(json!("done"))
            }
        })
        .method("shield", move |ctx: CallContext, _: Value| {
            let release = Arc::clone(&shielded);
            async move {
                ctx.shield(release.acquire()).await?.forget();
                let cause = ctx.cancelled().await;
                ctx.stopped::<Value>(cause)
            }
        })
        .method("echo", |_: CallContext, params: Value| async move { Ok(params) })
        .method("fail", |_: CallContext, _: Value| async {
            Err::<Value, _>(HandlerError::from(ErrorObject::new(ErrorCode(7), "no")))
        })
}

pub(crate) fn pair(router: Router, limits: Limits) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP_V2).serve(router).limits(limits).attach(far).unwrap();
    (Peer::builder(ACP_V2).attach(near).unwrap(), server)
}

pub(crate) fn of<'a>(requests: &'a [RequestInfo], method: &str) -> &'a RequestInfo {
    let named = |request: &&RequestInfo| request.method.as_deref() == Some(method);
    requests.iter().find(named).unwrap_or_else(|| panic!("{method} is in flight: {requests:?}"))
}

/// Reads changes until this one.
async fn until(watch: &mut RequestWatch, wanted: impl Fn(&RequestEvent) -> bool) -> RequestEvent {
    loop {
        let event = watch.next().await;
        if wanted(&event) {
            return event;
        }
    }
}

/// Yields to other tasks until this is true.
pub(crate) async fn yield_until(done: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it does not come");
}

fn started(count: usize) -> impl Fn(&RequestEvent) -> bool {
    let left = std::cell::Cell::new(count);
    move |event| {
        left.set(left.get() - usize::from(matches!(event, RequestEvent::Started(_))));
        left.get() == 0
    }
}

const fn is_ended(event: &RequestEvent) -> bool {
    matches!(event, RequestEvent::Ended(_))
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_each_status_with_age_and_cancel() {
    let release = Arc::new(Semaphore::new(0));
    let limits = Limits::default().max_running_handlers(2).cancel_grace(Duration::from_secs(3600));
    let (client, server) = pair(held(&release), limits);
    let mut watch = server.watch_requests();
    let calls =
        ["hold", "shield", "echo"].map(|method| client.call::<_, Value>(method, &json!({})).start().unwrap());
    until(&mut watch, started(3)).await;
    tokio::time::advance(Duration::from_secs(5)).await;
    let requests = server.requests();
    let shown = ["hold", "shield", "echo"].map(|method| of(&requests, method));
    let (running, queued) = (RequestStatus::Running, RequestStatus::Queued);
    assert_eq!(shown.map(|request| request.status), [running, running, queued]);
    assert_eq!(shown.map(|request| request.id.clone()), [1, 2, 3].map(RequestId::number));
    let now = tokio::time::Instant::now().into_std();
    for request in shown {
        assert_eq!(now - request.started, Duration::from_secs(5));
        assert_eq!((request.cancel.as_ref(), request.parent), (None, None));
        assert_eq!((request.key.direction(), &request.session), (Direction::Received, server.session()));
    }
    for call in &calls[..2] {
        let _ = call.canceller().cancel("the user pressed Stop");
    }
    until(&mut watch, |event| matches!(event, RequestEvent::Changed(_))).await;
    tokio::task::yield_now().await;
    let requests = server.requests();
    let [hold, shield] = ["hold", "shield"].map(|method| of(&requests, method));
    assert_eq!((hold.status, shield.status), (RequestStatus::Cancelling, RequestStatus::Shielded));
    for request in [hold, shield] {
        let cancel = request.cancel.as_ref().unwrap();
        assert_eq!((cancel.cause.kind(), cancel.at), (CauseKind::Peer, now));
    }
    let made = client.requests();
    assert_eq!(of(&made, "hold").status, RequestStatus::Cancelling);
    assert_eq!(of(&made, "hold").cancel.as_ref().map(|cancel| cancel.cause.kind()), Some(CauseKind::Caller));
    assert_eq!(of(&made, "echo").status, RequestStatus::Running);
    release.add_permits(2);
    let ended = calls.map(rescind_core::Call::outcome);
    let [hold, shield, echo] = ended;
    assert_eq!(hold.await, Outcome::CompletedAfterCancel(json!("done")));
    assert!(shield.await.is_cancelled());
    assert_eq!(echo.await, Outcome::Completed(json!({})));
    assert_eq!((server.requests(), client.requests()), (vec![], vec![]), "I3");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_runs_after_its_answer_is_shown_as_draining() {
    let release = Arc::new(Semaphore::new(0));
    let (near, far) = memory_pair();
    let server = Peer::builder(MCP_2026).serve(held(&release)).attach(far).unwrap();
    let client = Peer::builder(MCP_2026).attach(near).unwrap();
    let mut watch = server.watch_requests();
    let call = client.call::<_, Value>("hold", &json!({})).start().unwrap();
    until(&mut watch, started(1)).await;
    drop(call);
    until(&mut watch, |event| matches!(event, RequestEvent::Changed(_))).await;
    let [request] = &*server.requests() else { panic!("it still runs") };
    assert_eq!(request.status, RequestStatus::Draining);
    assert_eq!(request.cancel.as_ref().map(|cancel| cancel.cause.kind()), Some(CauseKind::Peer));
    tokio::time::advance(Duration::from_secs(1)).await;
    release.add_permits(1);
    let RequestEvent::Ended(ended) = until(&mut watch, is_ended).await else { unreachable!() };
    assert_eq!(ended.outcome, RequestOutcome::Cancelled);
    assert_eq!((ended.took(), ended.cancel_took()), (Duration::from_secs(1), Some(Duration::from_secs(1))));
}

#[tokio::test(start_paused = true)]
async fn both_directions_are_shown_and_a_call_names_its_parent_here_and_on_another_connection() {
    let gone = Arc::new(Notify::new());
    let answers = {
        let gone = Arc::clone(&gone);
        move || {
            let gone = Arc::clone(&gone);
            Router::new().method("ask", move |_: CallContext, _: Value| {
                let gone = Arc::clone(&gone);
                async move {
                    gone.notified().await;
                    Ok(Value::Null)
                }
            })
        }
    };
    let (upstream_near, upstream_far) = memory_pair();
    let _upstream = Peer::builder(ACP_V2).serve(answers()).attach(upstream_far).unwrap();
    let upstream = Peer::builder(ACP_V2).attach(upstream_near).unwrap();
    let gateway = upstream.clone();
    let router = Router::new().method("work", move |ctx: CallContext, _: Value| {
        let here = ctx.call::<_, Value>("ask", &json!({})).start();
        let there = gateway.call::<_, Value>("ask", &json!({})).child_of(&ctx).start();
        async move {
            let (here, there) = (here?, there?);
            let cause = ctx.cancelled().await;
            drop((here, there));
            ctx.stopped::<Value>(cause)
        }
    });
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP_V2).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP_V2).serve(answers()).attach(near).unwrap();
    let log = RequestLog::new();
    let mut watch = log.watch();
    for peer in [&server, &upstream] {
        peer.record_in(&log);
        peer.record_in(&log);
    }
    let call = client.call::<_, Value>("work", &json!({})).start().unwrap();
    until(&mut watch, started(3)).await;
    let requests = server.requests();
    let (work, ask) = (of(&requests, "work"), of(&requests, "ask"));
    assert_eq!((requests.len(), work.parent, ask.parent), (2, None, Some(work.key)));
    assert_eq!((ask.key.direction(), &ask.id), (Direction::Made, &RequestId::number(1)));
    let there = upstream.requests();
    assert_eq!(
        (there.len(), of(&there, "ask").parent),
        (1, Some(work.key)),
        "its parent is on another connection"
    );
    assert_eq!(log.requests(100).len(), 3);
    assert_eq!(log.requests(2).len(), 2);
    // The client shows the same two from the other side, with no log.
    let seen = client.requests();
    assert_eq!(of(&seen, "work").key.direction(), Direction::Made);
    yield_until(|| client.requests().len() == 2).await;
    assert!(log.stop(work.key, ""));
    drop(call);
    for _ in 0..2 {
        // The parent is known also after the cascade has unlinked its children.
        let RequestEvent::Ended(child) = until(&mut watch, is_ended).await else { unreachable!() };
        assert_eq!((child.request.parent, child.outcome), (Some(work.key), RequestOutcome::Cancelled));
    }
    gone.notify_waiters();
}

#[tokio::test(start_paused = true)]
async fn each_outcome_is_reported_once_with_its_times_and_counted() {
    let release = Arc::new(Semaphore::new(0));
    let (near, far) = memory_pair();
    let log = RequestLog::new();
    let limits = Limits::default().max_running_handlers(1).queue_timeout(Duration::from_secs(1));
    let server =
        Peer::builder(ACP_V2).serve(held(&release)).limits(limits).request_log(&log).attach(far).unwrap();
    let client = Peer::builder(ACP_V2).request_log(&log).attach(near).unwrap();
    let call = |method: &'static str| client.call::<_, Value>(method, &json!({}));
    let _: Value = call("echo").await.unwrap();
    assert!(call("fail").await.is_err());
    assert!(call("unknown").await.is_err());
    let hold = call("hold").start().unwrap();
    let refused = call("echo").await;
    assert!(refused.is_err(), "it waited for too long: {refused:?}");
    drop(hold);
    yield_until(|| server.requests().iter().any(|request| request.cancel.is_some())).await;
    release.add_permits(1);
    yield_until(|| log.ended().len() == 10).await;
    let of = |direction: Direction| {
        let ended = log.ended().into_iter().filter(move |ended| ended.request.key.direction() == direction);
        ended.map(|ended| (ended.request.method.unwrap().to_string(), ended.outcome)).collect::<Vec<_>>()
    };
    let failed = |code: i64| RequestOutcome::Failed(ErrorCode(code));
    let expected = |method: &str, outcome| (method.to_owned(), outcome);
    assert_eq!(
        of(Direction::Received),
        [
            expected("echo", RequestOutcome::Completed),
            expected("fail", failed(7)),
            expected("unknown", failed(-32601)),
            expected("echo", RequestOutcome::Refused),
            expected("hold", RequestOutcome::Completed),
        ]
    );
    let made = of(Direction::Made);
    assert_eq!(made.first(), Some(&expected("echo", RequestOutcome::Completed)));
    assert_eq!(made.last(), Some(&expected("hold", RequestOutcome::Cancelled)));
    let counts = log.counts();
    let received = counts.received;
    assert_eq!((received.started, received.completed, received.failed, received.refused), (5, 2, 2, 1));
    assert_eq!(
        (received.ended_after_cancel, counts.made.cancelled, counts.made.ended_after_cancel),
        (1, 1, 1)
    );
    assert_eq!(counts.made.started, 5);
    let last = log.ended().pop().unwrap();
    assert!(last.took() >= Duration::from_secs(1), "{last:?}");
    drop(server);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_ends_its_requests_as_disconnected() {
    let release = Arc::new(Semaphore::new(0));
    let (server, mut lines) = meet(ACP_V2, Role::Server, held(&release)).await;
    let log = RequestLog::new();
    let mut watch = log.watch();
    server.record_in(&log);
    lines.send(json!({"jsonrpc": "2.0", "id": 7, "method": "hold", "params": {}})).await;
    until(&mut watch, started(1)).await;
    assert_eq!(log.sessions().len(), 1);
    drop(lines);
    // The loss is noticed when something is written.
    server.try_notify("anybody/there", &json!({})).unwrap();
    let RequestEvent::Ended(ended) = until(&mut watch, is_ended).await else { unreachable!() };
    assert_eq!(ended.outcome, RequestOutcome::Disconnected);
    assert_eq!(ended.request.cancel.map(|cancel| cancel.cause.kind()), Some(CauseKind::Disconnected));
    let _ = server.closed().await;
    yield_until(|| log.sessions().is_empty()).await;
    assert_eq!((log.requests(10), log.ended().len()), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_learns_how_many_changes_it_missed_and_a_new_snapshot_is_right() {
    let release = Arc::new(Semaphore::new(0));
    let (client, server) = pair(held(&release), Limits::default());
    let log = RequestLog::new();
    let (mut slow, mut never) = (log.watch(), log.watch());
    server.record_in(&log);
    for _ in 0..1000 {
        let _: Value = client.call("echo", &json!({})).await.unwrap();
    }
    let hold = client.call::<_, Value>("hold", &json!({})).start().unwrap();
    let mut quick = log.watch();
    until(&mut quick, started(1)).await;
    let RequestEvent::Missed(missed) = slow.next().await else { panic!("it read too late") };
    assert!(missed >= 1000, "{missed}");
    let mut read = 0;
    while let Some(event) = slow.try_next() {
        assert!(!matches!(event, RequestEvent::Missed(_)), "it misses once");
        read += 1;
    }
    assert_eq!(missed + read, log.version(), "each change was read or is known to be missed");
    assert_eq!(of(&log.requests(10), "hold").status, RequestStatus::Running);
    drop(hold);
    assert!(matches!(never.try_next(), Some(RequestEvent::Missed(_))));
    assert_eq!(log.counts().received.completed, 1000);
}

#[tokio::test(start_paused = true)]
async fn the_last_200_ended_requests_are_kept() {
    let (client, server) = pair(held(&Arc::new(Semaphore::new(0))), Limits::default());
    let log = RequestLog::new();
    server.record_in(&log);
    for number in 0..MAX_ENDED_REQUESTS + 50 {
        let _: Value = client.call("echo", &json!({"number": number})).await.unwrap();
    }
    let ended = log.ended();
    let ids: Vec<_> = ended.iter().map(|ended| ended.request.id.as_number().unwrap()).collect();
    assert_eq!(ids, (51..=250).collect::<Vec<i64>>(), "I11: the oldest first");
}

#[tokio::test(start_paused = true)]
async fn a_servers_log_has_its_sessions_from_before_and_after_and_stops_requests_on_each() {
    let release = Arc::new(Semaphore::new(0));
    let (listener, connector) = memory_listener();
    let server = Server::builder([ACP_V2]).serve(held(&release)).listen(listener);
    let handle = server.handle();
    tokio::spawn(server.run());
    let connect = async || Peer::builder(ACP_V2).connect(connector.clone()).await.unwrap();
    let hello = json!({"protocolVersion": 2});
    let first = connect().await;
    let of_first = first.call::<_, Value>("hold", &hello).start().unwrap();
    yield_until(|| handle.counts().running() == 1).await;
    let log = handle.request_log();
    assert_eq!(log.requests(10).len(), 1, "a request from before is known");
    let mut watch = handle.request_log().watch();
    let second = connect().await;
    let of_second = second.call::<_, Value>("hold", &hello).start().unwrap();
    until(&mut watch, started(1)).await;
    let sessions = log.sessions();
    assert_eq!(sessions.len(), 2);
    let requests = log.requests(10);
    let mut connections: Vec<_> = requests.iter().map(|request| request.key.connection()).collect();
    connections.dedup();
    assert_eq!(connections, sessions.iter().map(|session| session.connection).collect::<Vec<_>>());
    assert!(sessions.iter().all(|session| session.stats.running == 1 && session.dialect.starts_with("acp")));
    assert!(!handle.is_draining());
    for request in &requests {
        assert!(log.stop(request.key, "the operator went home"));
        assert_eq!(request.key.to_string().parse(), Ok(request.key));
    }
    release.add_permits(2);
    drop((of_first, of_second, first, second));
    yield_until(|| log.sessions().is_empty()).await;
    assert_eq!(log.ended().len(), 2);
    assert!(!log.stop(requests[0].key, ""), "its connection is gone");
    drop((log, watch));
    assert_eq!(handle.request_log().counts().received.started, 0, "the log that nobody held is gone");
    handle.drain(Duration::ZERO).await;
    assert!(handle.is_draining());
}

#[tokio::test(start_paused = true)]
async fn a_hostile_method_is_kept_at_most_256_bytes_long() {
    let (client, server) = pair(held(&Arc::new(Semaphore::new(0))), Limits::default());
    let log = RequestLog::new();
    server.record_in(&log);
    let name = format!("<script>{}", "é".repeat(100_000));
    assert!(client.call::<_, Value>(name, &json!({})).await.is_err());
    let [ended] = &*log.ended() else { panic!("one has ended") };
    let kept = ended.request.method.as_deref().unwrap();
    assert!(kept.starts_with("<script>é") && kept.len() <= MAX_RECORDED_METHOD_BYTES, "{} bytes", kept.len());
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_log_knows_its_calls_by_kept_names() {
    let release = Arc::new(Semaphore::new(0));
    let (client, server) = pair(held(&release), Limits::default());
    let call = client.call::<_, Value>("hold", &json!({})).start().unwrap();
    yield_until(|| !server.requests().is_empty()).await;
    tokio::time::advance(Duration::from_millis(1500)).await;
    let now = tokio::time::Instant::now().into_std();
    for requests in [server.requests(), client.requests()] {
        let hold = of(&requests, "hold");
        assert_eq!((hold.status, now - hold.started), (RequestStatus::Running, Duration::from_millis(1500)));
    }
    // A name that is too long to be kept is forgotten when the call is written.
    let long = client.call::<_, Value>("x".repeat(1000), &json!({})).start().unwrap();
    assert!(
        client
            .requests()
            .iter()
            .any(|request| request.method.as_ref().is_some_and(|name| name.len() == 1000))
    );
    drop((call, long));
}

#[tokio::test]
async fn attach_needs_exactly_one_dialect() {
    let open = |dialects: &[_]| {
        let (near, _far) = memory_pair();
        match Peer::builder(dialects.iter().cloned()).attach(near) {
            Ok(_) => Ok(()),
            Err(ConnectionError::Misuse(misuse)) => Err(misuse),
            Err(other) => panic!("{other}"),
        }
    };
    assert!(matches!(open(&[]), Err(ApiMisuse::NoDialect)));
    assert!(matches!(open(&[ACP]), Ok(())));
    assert!(matches!(open(&[ACP, MCP]), Err(ApiMisuse::SeveralDialects)));
}

#[tokio::test(start_paused = true)]
async fn a_side_declares_that_it_handles_cancels_unless_that_is_withheld() {
    let declared = json!({"protocolVersion": 1, "clientCapabilities": {"cancellation": {"request": true}}});
    let bare = json!({"protocolVersion": 1, "clientCapabilities": {}});
    for (declaration, expected) in [(Declaration::Declared, &declared), (Declaration::Withheld, &bare)] {
        let (near, far) = memory_pair();
        let reported =
            Router::new().method("initialize", |_: CallContext, reported: Value| async move { Ok(reported) });
        let _server = Peer::builder(ACP_DRAFT).serve(reported).attach(far).unwrap();
        let client = Peer::builder(ACP_DRAFT).declare_cancellation(declaration).attach(near).unwrap();
        // The server's part contains the client's declaration, and its own one next to it.
        let reported: Value = client.call("initialize", &bare).await.unwrap();
        assert_eq!(reported.get("clientCapabilities"), expected.get("clientCapabilities"), "{declaration:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_cancel_is_sent_for_a_call_with_task_params() {
    for (params, expected) in [
        (json!({"name": "slow"}), &["Control Cancel 1 on ours 2"][..]),
        (json!({"name": "task"}), &["Control Cancel 1 on ours 2"]),
        (json!({"name": "slow", "task": {"ttl": 1}}), &[]),
    ] {
        let (peer, wire) = wire::open(MCP, TRAITS, Limits::default());
        let call = peer.call::<_, Value>("tools/call", &params).start().unwrap();
        assert_eq!(wire.recorded().await, ["Data Request 1 tools/call on ours 1"]);
        drop(call);
        assert_eq!(wire.recorded().await, expected, "{params}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_counts_cancelled_requests_and_has_the_peer_info_of_its_transport() {
    let (peer, wire) = wire::open(ACP, TRAITS, Limits::default());
    wire.says(0, &wire::request(1, "deaf", &json!({})));
    wire.recorded().await;
    let cancelled = || peer.registry().is_cancelled(peer.session(), &RequestId::number(1));
    assert!(!cancelled());
    wire.says(0, &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}}));
    wire.recorded().await;
    assert!(cancelled());
    let (near, _far) = memory_pair();
    let peer = Peer::builder(ACP).attach(near).unwrap();
    assert_eq!(peer.meta().peer.as_deref(), Some("memory client"));
}

// An operator stops a request: its caller gets an error that says so, in every dialect.

const SAYS_SO: &str = "Request cancelled by an operator";

fn waiting(signals: UnboundedSender<Cause>) -> Router {
    Router::new()
        .method("initialize", |_: CallContext, params: Value| async move {
            Ok(json!({"protocolVersion": params.get("protocolVersion"), "capabilities": {}}))
        })
        .method("wait", move |ctx: CallContext, _: Value| {
            let signals = signals.clone();
            async move {
                let cause = ctx.cancelled().await;
                signals.send(cause.clone())?;
                ctx.stopped::<Value>(cause)
            }
        })
}

/// Opens a session where the dialect has one, asks for `wait` under the id 7, and returns the peer once it runs.
async fn ask(dialect: &Dialect, signals: UnboundedSender<Cause>) -> (Peer, Lines) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (from, to) = tokio::io::split(ours);
    // LSP too: the lines are the test's.
    let wire = ByteStream::new(from, to).framing(Framing::Newline);
    let builder = Peer::builder(dialect.clone()).role(Role::Server).serve(waiting(signals));
    let (peer, mut lines) = (builder.connect(wire).await.unwrap(), Lines::new(theirs));
    let mut log = peer.watch_requests();
    if dialect.name() == "abp" {
        let hello = json!({"protocolVersion": "0.1", "app": {"id": "a", "name": "a", "version": "1"}, "features": {}});
        lines.send(json!({"type": "initialize", "id": "1", "timestamp": 1, "payload": hello})).await;
        lines.next().await;
        let call = json!({"capability": "wait", "params": {}, "options": {}});
        lines.send(json!({"type": "capabilities/call", "id": "7", "timestamp": 1, "payload": call})).await;
    } else {
        if dialect.rules().handshake.is_some() {
            let capabilities = json!({"$/cancel_request": true, "cancelRequest": true});
            let hello = json!({"protocolVersion": 1, "capabilities": {}, "clientCapabilities": capabilities});
            lines.send(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})).await;
            lines.next().await;
        }
        lines.send(json!({"jsonrpc": "2.0", "id": 7, "method": "wait", "params": {}})).await;
    }
    while !peer.requests().iter().any(|request| request.method.as_deref() == Some("wait")) {
        log.next().await;
    }
    (peer, lines)
}

#[tokio::test(start_paused = true)]
async fn a_stopped_request_is_answered_with_an_error_that_names_an_operator_in_each_dialect() {
    for dialect in &dialect::ALL {
        let (signals, mut signalled) = unbounded_channel();
        let (peer, mut lines) = ask(dialect, signals).await;
        let [request] = &*peer.requests() else { panic!("{}: one request runs", dialect.name()) };
        assert_eq!((request.key.direction(), request.status), (Direction::Received, RequestStatus::Running));
        assert!(peer.stop_request(request.key, "too slow"), "{}", dialect.name());
        assert!(!peer.stop_request(request.key, "again"), "{}: I7", dialect.name());
        let answer = lines.next().await;
        let error = answer.get("error").or_else(|| answer.pointer("/payload/error"));
        let said = error.and_then(|error| error.get("message")).and_then(Value::as_str);
        assert_eq!(said, Some(SAYS_SO), "{}: {answer}", dialect.name());
        assert_eq!(answer["id"], if dialect.name() == "abp" { json!("7") } else { json!(7) });
        let cause = signalled.recv().await.unwrap();
        assert_eq!(
            (cause.kind(), cause.reason()),
            (CauseKind::Operator, Some("too slow")),
            "{}",
            dialect.name()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_caller_of_a_stopped_request_sees_it_cancelled_or_failed_in_each_dialect() {
    for dialect in &dialect::ALL {
        let (signals, _signalled) = unbounded_channel();
        let (near, far) = memory_pair();
        let server = Peer::builder(dialect.clone()).serve(waiting(signals)).attach(far).unwrap();
        let client = Peer::builder(dialect.clone()).attach(near).unwrap();
        let mut log = server.watch_requests();
        if let Some(handshake) = dialect.rules().handshake {
            let hello = json!({"protocolVersion": 1, "capabilities": {}, "clientCapabilities": {}});
            let _: Value = client.call(handshake, &hello).await.unwrap();
        }
        let call = client.call::<_, Value>("wait", &json!({})).start().unwrap();
        let key = loop {
            let running = server.requests();
            if let Some(request) = running.iter().find(|request| request.method.as_deref() == Some("wait")) {
                break request.key;
            }
            log.next().await;
        };
        assert!(server.stop_request(key, ""));
        match call.outcome().await {
            // LSP reserves -32800 for the client's cancels.
            Outcome::Failed(error) => {
                assert_eq!((dialect.name(), &*error.message), ("lsp", SAYS_SO));
            }
            Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed, "{}", dialect.name()),
            ended => panic!("{}: {ended:?}", dialect.name()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_prompt_of_acp_is_an_error_and_not_the_stop_reason_of_its_users_cancel() {
    let prompt = |_: CallContext, _: Value| std::future::pending::<Result<Value, HandlerError>>();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("session/prompt", prompt);
    let (peer, mut lines) = meet(dialect::ACP, Role::Server, router).await;
    lines
        .send(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}))
        .await;
    lines.next().await;
    let mut log = peer.watch_requests();
    lines.send(json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {}})).await;
    log.next().await;
    let [prompt] = &*peer.requests() else { panic!("the prompt runs") };
    assert!(peer.stop_request(prompt.key, ""));
    let answer = lines.next().await;
    assert_eq!(answer["error"], json!({"code": -32800, "message": SAYS_SO, "data": {"reason": "operator"}}));
}

#[tokio::test(start_paused = true)]
async fn a_request_in_the_queue_is_stopped_and_its_handler_never_runs() {
    let (signals, mut signalled) = unbounded_channel();
    let (near, far) = memory_pair();
    let limits = Limits::default().max_running_handlers(1);
    let server = Peer::builder(dialect::MCP_2026).serve(waiting(signals)).limits(limits).attach(far).unwrap();
    let client = Peer::builder(dialect::MCP_2026).attach(near).unwrap();
    let mut log = server.watch_requests();
    let first = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    let second = client.call::<_, Value>("wait", &json!({})).start().unwrap();
    for _ in 0..2 {
        log.next().await;
    }
    let queued =
        server.requests().into_iter().find(|request| request.status == RequestStatus::Queued).unwrap();
    assert!(server.stop_request(queued.key, ""));
    assert!(matches!(second.outcome().await, Outcome::Cancelled(_)));
    assert!(signalled.try_recv().is_err(), "no handler was signalled");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn neither_a_call_nor_a_handshake_nor_another_connections_request_can_be_stopped() {
    let (signals, _signalled) = unbounded_channel();
    let router = waiting(signals).method("initialize", |_: CallContext, _: Value| {
        std::future::pending::<Result<Value, HandlerError>>()
    });
    let (near, far) = memory_pair();
    let server = Peer::builder(dialect::ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(dialect::ACP).attach(near).unwrap();
    let mut log = server.watch_requests();
    let call = client.call::<_, Value>("initialize", &json!({})).start().unwrap();
    log.next().await;
    let [handshake] = &*server.requests() else { panic!("the handshake runs") };
    assert!(!server.stop_request(handshake.key, ""), "I9");
    let [made] = &*client.requests() else { panic!("the call is open") };
    assert_eq!(made.key.direction(), Direction::Made);
    assert!(!client.stop_request(made.key, ""), "a call is its caller's");
    assert!(!client.stop_request(handshake.key, ""), "it is another connection's");
    drop(call);
}

/// A client of a gateway whose only method passes on the task of another server. Its handler then reports a cancel of that task,
/// or returns the handle if it cannot be passed on.
fn gateway(dialect: &Dialect, log: &RequestLog) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let router = Router::new().method("tools/call", async |ctx: CallContext, params: Value| {
        let handle = to_raw_value(&json!({ "task": {"taskId": "t"} })).unwrap();
        if params.get("late").is_some() {
            ctx.cancelled().await;
            assert!(ctx.pass_task(handle.clone()).is_err(), "it is cancelled");
        }
        if let Err(handle) = ctx.pass_task(handle) {
            return Ok(handle);
        }
        assert!(ctx.pass_task(to_raw_value(&1).unwrap()).is_err(), "it is a task already");
        ctx.passed_task_cancelled(Cause::new(CauseKind::Peer));
        ctx.passed_task_cancelled(Cause::new(CauseKind::Shutdown));
        let cause = ctx.cancelled().await;
        ctx.stopped(cause)
    });
    let server = Peer::builder(dialect.clone()).serve(router).request_log(log).attach(far).unwrap();
    (Peer::builder(dialect.clone()).attach(near).unwrap(), server)
}

#[tokio::test]
async fn a_task_of_another_server_is_passed_on_only_where_there_are_tasks_and_before_a_cancel() {
    for (dialect, outcome) in [(MCP, RequestOutcome::Cancelled), (ACP, RequestOutcome::Completed)] {
        let log = RequestLog::new();
        let (client, _server) = gateway(&dialect, &log);
        let answer: Value = client.call("tools/call", &json!({})).await.unwrap();
        assert_eq!(answer, json!({ "task": {"taskId": "t"} }), "{dialect:?}");
        while log.ended().is_empty() {
            tokio::task::yield_now().await;
        }
        let ended = log.ended().remove(0);
        let cause = ended.request.cancel.map(|cancel| cancel.cause.kind());
        let by_peer = (outcome == RequestOutcome::Cancelled).then_some(CauseKind::Peer);
        assert_eq!((ended.outcome, cause), (outcome, by_peer), "the first cause counts");
    }
    let log = RequestLog::new();
    let (client, server) = gateway(&MCP, &log);
    let call = client.call::<_, Value>("tools/call", &json!({"late": 1})).start().unwrap();
    while server.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    call.canceller().cancel("");
    drop(call.outcome().await);
    while log.ended().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!((server.stats().cancelled, server.stats().tasks, server.stats().panics), (1, 0, 0));
}
