//! One client uses everything that it may, and another one is served meanwhile.

use std::time::Instant;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::honest_client::{Honest, hello};
use crate::http2::Http2;
use crate::raw_stream::{Stream, request};
use crate::target::{Target, Wire};
use crate::{in_time, play};

/// Above the default share of one client of a server in every counted resource.
const MANY: u64 = 1100;
/// How many streams one HTTP/2 connection carries at once.
const STREAMS: u64 = 1000;
const WINDOW: u32 = 1 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        row("hanging_calls", Wire::Stateless, hanging_calls),
        row("sessions", Wire::Streamable, sessions),
        row("sessions", Wire::Acp, sessions),
        row("idle_connections", Wire::WebSocket, idle_connections),
    ]
}

fn row<A>(attack: &'static str, wire: Wire, play_it: A) -> Trial
where
    A: AsyncFn(&mut Target) -> Box<dyn std::any::Any> + Send + 'static,
{
    Trial::test(format!("lockout::{attack}::{}", wire.name()), move || {
        play(async {
            let mut target = Target::speaking(wire, wire.dialect(), &[]);
            let held = play_it(&mut target).await;
            let since = Instant::now();
            let honest = Honest::connect(&target).await;
            honest.is_served().await;
            println!("{attack} | {} | another client is served in {:.1?}", wire.name(), since.elapsed());
            drop(held);
            target.assert_runs();
            target.end();
        })
    })
}

/// Calls that hang, over several connections. Those above its share wait or are refused.
async fn hanging_calls(target: &mut Target) -> Box<dyn std::any::Any> {
    let mut held = Vec::new();
    for connection in 0..2 {
        let client = Http2::connect(target, WINDOW).await;
        for id in 0..STREAMS {
            let params = crate::honest_client::with_meta(json!({}));
            let wait = request(connection * STREAMS + id + 1, "test/wait", &params);
            let (response, mut body) = client.begin("test/wait", wait.len()).await.unwrap();
            body.send_data(wait.into(), true).unwrap();
            held.push((response, body));
        }
        // Each call runs or is refused when a later request of the same connection is answered.
        let params = crate::honest_client::with_meta(json!({}));
        let unserved = request(0, "unserved", &params);
        let answered = client.post("unserved", vec![unserved.into()]);
        in_time("a request behind the calls", answered).await.unwrap();
    }
    Box::new(held)
}

/// As many sessions as the server grants.
async fn sessions(target: &mut Target) -> Box<dyn std::any::Any> {
    let client = Http2::connect(target, WINDOW).await;
    let mut refused = 0;
    for _ in 0..MANY {
        let opening = request(0, "initialize", &hello(target.dialect.name()));
        let response = in_time("an opening", client.post("initialize", vec![opening.into()])).await.unwrap();
        match response.status {
            200 => {}
            429 => {
                assert_eq!(response.headers["retry-after"], "1");
                refused += 1;
            }
            _ => panic!("{response:?}"),
        }
    }
    // The client's unused sessions are closed for its next one, as long as there are any.
    println!("{refused} of {MANY} sessions are refused");
    Box::new(client)
}

/// Open connections without messages after their handshake.
async fn idle_connections(target: &mut Target) -> Box<dyn std::any::Any> {
    let mut held: Vec<Stream> = Vec::new();
    for _ in 0..MANY {
        let mut stream = Stream::connect(target).await;
        let opening: Value = hello(target.dialect.name());
        stream.writer.send(&[request(0, "initialize", &opening).into()]).await.unwrap();
        held.push(stream);
    }
    Box::new(held)
}
