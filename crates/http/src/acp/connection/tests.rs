use std::time::Duration;

use rescind_core::{ACP_BODIES, FrameInfo, Lane};

use super::*;
use crate::server::replay_buffer::Retention;

/// Puts a notification on a session's stream, and returns its size.
fn say(connection: &Connection, session: &str) -> usize {
    let body = Bytes::from(format!(r#"{{"method":"said","params":{{"sessionId":"{session}"}}}}"#));
    let size = body.len();
    let head = FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None };
    let (exchange, lane) = (ExchangeId::NONE, Lane::Data);
    connection.send(Outbound { body, exchange, lane, head, last: false }).unwrap();
    size
}

/// Puts more messages on a session's stream than its limit.
fn fill(connection: &Connection, session: &str) {
    for _ in 0..=connection.settings.unread_limit.0 {
        say(connection, session);
    }
}

fn is_read(connection: &Connection, (lane, token): (u64, u64)) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    matches!(connection.poll_event(lane, token, &mut cx), Poll::Ready(Some(_)))
}

#[tokio::test(start_paused = true)]
async fn only_a_stream_that_was_full_all_the_time_is_cut() {
    let connection = Connection::new("c".into(), None, None, &Arc::default(), Weak::new(), &ACP_BODIES);
    let wait = Duration::from_secs(30);
    let [stalled, late] = ["stalled", "late"]
        .map(|session| connection.listen(Some(session), UnknownSessions::Opened, Start::Waiting).unwrap());
    fill(&connection, "stalled");
    let since = Instant::now();
    tokio::time::advance(wait).await;
    fill(&connection, "late");
    connection.cut_stalled(since);
    assert_eq!((is_read(&connection, stalled), is_read(&connection, late)), (false, true));
}

#[tokio::test]
async fn kept_events_count_in_the_budget_until_the_connection_ends() {
    let settings = Settings { kept: Retention { events: 2, bytes: 1024 }, ..Settings::default() };
    let connection = Connection::new("c".into(), None, None, &Arc::new(settings), Weak::new(), &ACP_BODIES);
    let reader = connection.listen(Some("s1"), UnknownSessions::Opened, Start::Waiting).unwrap();
    assert!(is_read(&connection, reader), "the event with only an id");
    let size = say(&connection, "s1");
    for _ in 0..2 {
        say(&connection, "s1");
    }
    assert_eq!(connection.budget.used(), 3 * size, "they wait");
    for _ in 0..3 {
        assert!(is_read(&connection, reader));
    }
    assert_eq!(connection.budget.used(), 2 * size, "two are kept");
    say(&connection, "s1");
    connection.end();
    assert_eq!(connection.budget.used(), size, "what waits can still be read");
    assert!(is_read(&connection, reader));
    assert_eq!(connection.budget.used(), 0);
}

#[tokio::test]
async fn what_all_streams_keep_is_a_part_of_the_connections_memory() {
    let connection = Connection::new("c".into(), None, None, &Arc::default(), Weak::new(), &ACP_BODIES);
    connection.budget.set_limit(64 * 1024);
    for n in 0..100 {
        let session = format!("s{n}");
        let reader = connection.listen(Some(&session), UnknownSessions::Opened, Start::Waiting).unwrap();
        assert!(is_read(&connection, reader), "the event with only an id");
        for _ in 0..10 {
            say(&connection, &session);
            assert!(is_read(&connection, reader));
        }
    }
    let used = connection.budget.used();
    assert!(used > 0 && used <= 16 * 1024, "a quarter at most: {used}");
}

#[tokio::test]
async fn only_an_id_of_the_same_stream_resumes_it() {
    let connection = Connection::new("c".into(), None, None, &Arc::default(), Weak::new(), &ACP_BODIES);
    let listen = |session: &str, start| connection.listen(Some(session), UnknownSessions::Opened, start);
    let after = |stream, number| Start::After { stream, number };
    let [(one, _), (two, _)] = ["s1", "s2"].map(|session| listen(session, Start::Waiting).unwrap());
    let size = say(&connection, "s1");
    assert_eq!(listen("s1", after(two, 0)), Err(NoStream::Foreign));
    assert_eq!(listen("s2", after(one, 0)), Err(NoStream::Foreign));
    assert_eq!(listen("s1", after(OWN, 0)), Err(NoStream::Foreign));
    assert_eq!(listen("s1", after(one, 2)), Err(NoStream::Forgotten), "it was never sent");
    let reader = listen("s1", after(one, 0)).unwrap();
    assert!(is_read(&connection, reader));
    assert_eq!(connection.budget.used(), size, "it was not doubled");
}

#[tokio::test(start_paused = true)]
async fn idle_session_names_are_replaced_by_new_ones() {
    let settings = Arc::<Settings>::default();
    let connection = Connection::new("c".into(), None, None, &settings, Weak::new(), &ACP_BODIES);
    let named = |n: usize| format!("s{n}");
    let (_read, _) = connection.listen(Some(&named(0)), UnknownSessions::Opened, Start::Waiting).unwrap();
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
    assert_eq!(state.lanes.all().count(), 1024 + 1, "I11");
    assert_eq!(settings.counts.forgotten_sessions(), 5000 - 1024);
}
