//! tarpc.

use rescind::dialect::{ACP, Role};
use rescind::{Outcome, Peer, memory_pair};
use serde_json::{Value, json};

use crate::raw_peer::{agent, in_time, is_about};

/// tarpc never ends the waits of pending calls.
#[tokio::test]
async fn tarpc_415_pending_calls_hang_when_the_driver_dies() {
    is_about!("I13");
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let held = runtime.block_on(async {
            let (near, far) = memory_pair();
            let (router, mut reported) = agent();
            let server = Peer::builder(ACP).role(Role::Server).serve(router).attach(far).unwrap();
            let client = Peer::builder(ACP).role(Role::Client).attach(near).unwrap();
            let calls: Vec<_> =
                (0..3).map(|n| client.call::<_, Value>("wait", &json!({"n": n})).start().unwrap()).collect();
            for n in 0..3 {
                reported.hears(&format!("wait {n} began")).await;
            }
            (client, server, calls)
        });
        // The driver ends with its runtime, without a message.
        drop(runtime);
        held
    });
    let (client, server, calls) = thread.join().unwrap();
    for call in calls {
        let outcome = in_time("I13: a call", call.outcome()).await;
        assert!(matches!(outcome, Outcome::Disconnected { may_have_run: true }), "I13: {outcome:?}");
    }
    assert!(in_time("L3: the end", client.closed()).await.is_err());
    let late = client.call::<_, Value>("echo", &json!([])).start().unwrap();
    let outcome = in_time("I13: a call after it", late.outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { may_have_run: false }), "{outcome:?}");
    assert_eq!((server.stats().slots, client.stats().calls), (0, 0), "I3");
}
