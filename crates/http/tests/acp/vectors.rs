//! Every vector of ACP's three versions over real sockets.

use std::sync::{Arc, Mutex};

use rescind_core::{BoxFuture, Capabilities, Link, Listener, Transport};
use rescind_http::{Acp, AcpTransport, HttpClient, HttpListener, HttpServer};
use rescind_testkit::fixture::Fixture;
use rescind_testkit::runner::{CallingSubject, LinkSubject, PeerCaller, Played, Settings, Verdict, play};
use rescind_testkit::{Part, Scenario, scenarios};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const AT_ONCE: usize = 8;

const TRAITS: Capabilities = Capabilities {
    ordered: false,
    opens_exchanges: false,
    exchange_scoped: false,
    batches: false,
    max_frame: 1 << 24,
};

async fn bind() -> (HttpListener, AcpTransport) {
    let listener = HttpServer::new(Acp::new()).path("/acp").bind("127.0.0.1:0").await.unwrap();
    let transport = AcpTransport::new(HttpClient::new(&listener.endpoint().to_string()).unwrap());
    (listener, transport)
}

async fn accept(listener: &mut HttpListener) -> Result<Link, String> {
    let link = listener.accept().await;
    link.ok_or_else(|| "the listener has ended".to_owned())?.map_err(|error| error.to_string())
}

async fn play_over(scenario: &'static Scenario) -> Played {
    let settings = Settings::default();
    let fixture = Fixture::new(scenario.dialect, scenario.vector.options.clone()).unwrap();
    let (mut listener, transport) = bind().await;
    match scenario.vector.role {
        Part::Serve => {
            let serving = tokio::spawn(async move {
                let peers = Mutex::new(Vec::new());
                while let Ok(link) = accept(&mut listener).await {
                    peers.lock().unwrap().push(fixture.serve(link).unwrap());
                }
            });
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let transport = Box::new(transport.clone());
                Box::pin(async move { transport.open().await.map_err(|error| error.to_string()) })
            };
            let subject = LinkSubject::new(Box::new(connect)).with_many_lines().with_options();
            let mut subject = subject.with_usual_opening_only();
            let played = play(scenario, &mut subject, &settings).await;
            serving.abort();
            played
        }
        Part::Call => {
            let link = Box::new(transport).open().await.unwrap();
            let caller = PeerCaller::open(fixture, link).unwrap();
            let listener = Arc::new(tokio::sync::Mutex::new(listener));
            let kept = Arc::clone(&listener);
            let wire = LinkSubject::new(Box::new(move || {
                let listener = Arc::clone(&listener);
                Box::pin(async move { accept(&mut *listener.lock().await).await })
            }));
            let wire = wire.with_late_lines(TRAITS).with_usual_opening_only();
            let played = play(scenario, &mut CallingSubject::new(wire, caller), &settings).await;
            drop(kept);
            played
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_holds() {
    let only = std::env::var("VECTOR").ok();
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut plays = JoinSet::new();
    let carried = |scenario: &&Scenario| scenario.dialect.starts_with("acp");
    for scenario in scenarios().iter().filter(carried) {
        if only.as_ref().is_some_and(|name| scenario.vector.name != *name) {
            continue;
        }
        let permits = Arc::clone(&permits);
        plays.spawn(async move {
            let _permit = permits.acquire_owned().await.unwrap();
            (scenario, play_over(scenario).await)
        });
    }
    let played = plays.join_all().await;
    let (mut held, mut broken) = (0, Vec::new());
    for (scenario, played) in &played {
        let vector = &scenario.vector;
        let expected = vector.requirements(scenario.dialect).half_close
            || !vector.needs.is_empty()
            || vector.handshake != rescind_testkit::HandshakeMode::Default;
        let name = format!("{}/{}", scenario.dialect, vector.name);
        match &played.verdict {
            Verdict::Held => held += 1,
            Verdict::NotAsked { .. } if expected => {}
            Verdict::NotAsked { why } | Verdict::Unsure { why } => {
                broken.push(format!("{name}: not asked: {why}"));
            }
            Verdict::Broke { why, step, .. } => {
                broken.push(format!("{name} step {step}: {why}\n{:?}", played.trace));
            }
        }
    }
    assert!(broken.is_empty(), "{} did not hold:\n{}", broken.len(), broken.join("\n"));
    assert!(held >= 130 || only.is_some(), "only {held} vectors were played");
}
