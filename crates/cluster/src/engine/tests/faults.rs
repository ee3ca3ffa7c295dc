//! Tests with a server that is away, restarted, stopped, full or behind a password.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::server::Server;
use super::{Heard, LONG, Node, Recorder, connect, names, until};
use crate::engine::{Beat, Engine, EngineError};

/// The time limit of a command, and half a second.
const AWAY_LIMIT: Duration = Duration::from_millis(3500);

pub(super) async fn a_restart_of_the_server_is_reported_and_subscriptions_work_again(mut server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    let all: Vec<Arc<str>> = (0..1300).map(|number| format!("s{number}").into()).collect();
    node.engine.subscribe(&all).await.unwrap();
    for _ in 0..2 {
        server.end();
        server.start_again();
        node.restored().await;
        let other = Node::connect(&server, LONG).await;
        for number in [0, 700, 1299] {
            other.engine.signal(&all[number], "v", LONG).await.unwrap();
            assert_eq!(node.rung().await.0, *all[number]);
        }
        node.engine.signal("another", "v", LONG).await.unwrap();
    }
}

pub(super) async fn a_server_that_kept_nothing_works_again(mut server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    node.engine.subscribe(&names(["s"])).await.unwrap();
    node.engine.signal("s", "first", LONG).await.unwrap();
    server.end();
    server.forget();
    server.start_again();
    node.restored().await;
    assert_eq!(node.engine.look(&names(["s"])).await, Ok(vec![None]));
    node.engine.signal("s", "second", LONG).await.unwrap();
    assert_eq!(node.next().await, Heard::Rung("s".into(), "second".into()));
    assert_eq!(node.engine.look(&names(["s"])).await, Ok(vec![Some("second".into())]));
    assert_eq!(node.engine.beat("n1", "entry", LONG).await, Ok(Beat::Held));
    node.engine.push_job("job").await.unwrap();
    assert_eq!(node.engine.take_job().await, Ok(Some("job".into())));
}

pub(super) async fn names_of_a_failed_subscribe_are_heard_after_the_return(mut server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    server.end();
    until(|| async { node.engine.subscribe(&names(["s"])).await }, Result::is_err).await;
    server.start_again();
    node.restored().await;
    node.engine.signal("s", "v", LONG).await.unwrap();
    assert_eq!(node.rung().await.0, "s");
}

/// Each command fails in time while the server is away, and says so.
async fn check_away(engine: &dyn Engine) {
    let signals = names(["s"]);
    let began = Instant::now();
    let (signal, look, beat, leave, members, push) = tokio::join!(
        engine.signal("s", "v", LONG),
        engine.look(&signals),
        engine.beat("n1", "entry", LONG),
        engine.leave("n1", "entry"),
        engine.members(),
        engine.push_job("late"),
    );
    let took = began.elapsed();
    let answers = [signal, look.map(drop), beat.map(drop), leave, members.map(drop), push];
    for answer in answers {
        assert!(matches!(answer, Err(EngineError::Away(_))), "{answer:?}");
    }
    assert!(took < AWAY_LIMIT, "{took:?}");
}

pub(super) async fn commands_fail_while_the_server_is_gone(mut server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    node.engine.subscribe(&names(["kept"])).await.unwrap();
    server.end();
    check_away(&*node.engine).await;
    check_away(&*node.engine).await;
    until(|| async { node.engine.subscribe(&names(["new"])).await }, Result::is_err).await;
    let began = Instant::now();
    let subscribed = node.engine.subscribe(&names(["new"])).await;
    assert!(matches!(subscribed, Err(EngineError::Away(_))), "{subscribed:?}");
    let taken = node.engine.take_job().await;
    assert!(matches!(taken, Err(EngineError::Away(_))), "{taken:?}");
    assert!(began.elapsed() < AWAY_LIMIT, "{:?}", began.elapsed());
    server.start_again();
    node.restored().await;
    node.engine.signal("kept", "v", LONG).await.unwrap();
    assert_eq!(node.rung().await.0, "kept");
    assert_eq!(node.engine.beat("n1", "entry", LONG).await, Ok(Beat::Held));
}

pub(super) async fn commands_fail_while_the_server_is_stopped(server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    node.engine.subscribe(&names(["kept"])).await.unwrap();
    server.stop();
    check_away(&*node.engine).await;
    check_away(&*node.engine).await;
    server.go_on();
    // The connection without answers to its pings is replaced.
    node.restored().await;
    node.engine.signal("kept", "v", LONG).await.unwrap();
    assert_eq!(node.rung().await.0, "kept");
    let found = node.engine.look(&names(["kept"])).await.unwrap();
    assert_eq!(found, [Some("v".into())]);
}

pub(super) async fn errors_do_not_show_the_password(mut server: Server) {
    let login = "us%25er:p%40ss-hunter2@";
    assert!(Node::connect_as(&server, login, LONG).await.is_ok());
    for login in ["user:wrong-hunter2@", ""] {
        let refused = Node::connect_as(&server, login, LONG).await.err().unwrap();
        assert!(matches!(refused, EngineError::Refused(_)), "{refused:?}");
        assert!(!format!("{refused} {refused:?}").contains("hunter2"), "{refused}");
    }
    server.end();
    let away = Node::connect_as(&server, login, LONG).await.err().unwrap();
    assert!(matches!(away, EngineError::Away(_)), "{away:?}");
    let text = format!("{away} {away:?}");
    assert!(!text.contains("hunter2") && text.contains(&format!("127.0.0.1:{}", server.port)), "{text}");
    let (sender, _heard) = mpsc::unbounded_channel();
    let invalid = connect(server.program, "x://hunter2@[", Arc::new(Recorder(sender)), LONG).await;
    let invalid = invalid.err().unwrap();
    assert!(matches!(invalid, EngineError::Refused(_)), "{invalid:?}");
    assert!(!invalid.to_string().contains("hunter2"), "{invalid}");
}

/// Redis whose memory is full, NATS whose disk is.
pub(super) async fn a_full_server_is_no_silent_success(server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    let value = "v".repeat(64 * 1024);
    let mut refused = None;
    for number in 0..1000 {
        let name = format!("s{number}");
        if let Err(error) = node.engine.signal(&name, &value, LONG).await {
            refused = Some((name, error));
            break;
        }
    }
    let (name, error) = refused.expect("it never was full");
    assert!(matches!(error, EngineError::Refused(_)), "{error:?}");
    let names = [Arc::from(name)];
    assert_eq!(node.engine.look(&names).await, Ok(vec![None]), "it still answers");
    node.engine.subscribe(&names).await.unwrap();
    let again = node.engine.signal(&names[0], &value, LONG).await;
    assert!(matches!(again, Err(EngineError::Refused(_))), "{again:?}");
    node.engine.look(&names).await.unwrap();
    assert!(node.heard.try_recv().is_err(), "what was refused did not ring, and the connection was not lost");
}
