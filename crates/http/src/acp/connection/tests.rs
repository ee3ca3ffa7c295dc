use std::time::Duration;

use rescind_core::{ACP_BODIES, FrameInfo, Lane};

use super::*;

/// Puts more messages on a session's stream than its limit.
fn fill(connection: &Connection, session: &str) {
    let body = Bytes::from(format!(r#"{{"method":"said","params":{{"sessionId":"{session}"}}}}"#));
    for _ in 0..=connection.settings.unread_limit.0 {
        let head = FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None };
        let (exchange, lane) = (ExchangeId::NONE, Lane::Data);
        connection.send(Outbound { body: body.clone(), exchange, lane, head, last: false }).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_stream_that_was_full_all_the_time_is_cut() {
    let connection = Connection::new("c".into(), None, None, &Arc::default(), Weak::new(), &ACP_BODIES);
    let wait = Duration::from_secs(30);
    let [stalled, late] =
        ["stalled", "late"].map(|session| connection.listen(Some(session), UnknownSessions::Opened).unwrap());
    fill(&connection, "stalled");
    let since = Instant::now();
    tokio::time::advance(wait).await;
    fill(&connection, "late");
    connection.cut_stalled(since);
    let is_read = |(lane, token): (u64, u64)| {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(connection.poll_event(lane, token, &mut cx), Poll::Ready(Some(_)))
    };
    assert_eq!((is_read(stalled), is_read(late)), (false, true));
}

#[tokio::test(start_paused = true)]
async fn idle_session_names_are_replaced_by_new_ones() {
    let settings = Arc::<Settings>::default();
    let connection = Connection::new("c".into(), None, None, &settings, Weak::new(), &ACP_BODIES);
    let named = |n: usize| format!("s{n}");
    let (_read, _) = connection.listen(Some(&named(0)), UnknownSessions::Opened).unwrap();
    let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"sessionId":"s1"}}"#);
    let message = Message::of(&body, &ACP_BODIES);
    connection
        .post((body.clone(), connection.budget.hold(0)), &message, None, None, Some(&named(1)))
        .unwrap();
    for n in 2..5000 {
        let body =
            Bytes::from(format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"sessionId":"s{n}"}}}}"#));
        let _ = connection.post(
            (body.clone(), connection.budget.hold(0)),
            &Message::of(&body, &ACP_BODIES),
            None,
            None,
            Some(&named(n)),
        );
    }
    let state = connection.state();
    let is_kept = |n: usize| state.sessions.lane(&named(n)).is_some();
    assert_eq!((is_kept(0), is_kept(1), is_kept(2), is_kept(4999)), (true, true, false, true), "I11");
    assert_eq!(state.lanes.len(), 1024 + 1, "I11");
    assert_eq!(settings.counts.forgotten_sessions(), 5000 - 1024);
}
