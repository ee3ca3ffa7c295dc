//! Every vector of MCP 2026-07-28 over real sockets.

use std::sync::{Arc, Mutex};

use rescind_core::{BoxFuture, Link, Listener, Transport};
use rescind_http::{HttpClient, HttpListener, HttpServer, Stateless, StatelessTransport};
use rescind_testkit::fixture::Fixture;
use rescind_testkit::runner::{CallingSubject, LinkSubject, PeerCaller, Played, Settings, Verdict, play};
use rescind_testkit::{Part, Scenario, scenarios_of};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const AT_ONCE: usize = 8;

async fn accept(listener: &mut HttpListener) -> Link {
    listener.accept().await.unwrap().unwrap()
}

async fn bind() -> (HttpListener, Link, StatelessTransport) {
    let mut listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    let link = accept(&mut listener).await;
    (listener, link, StatelessTransport::new(HttpClient::new(&url).unwrap()))
}

async fn play_over(scenario: &'static Scenario) -> Played {
    let settings = Settings::default();
    let fixture = Fixture::new(scenario.dialect, scenario.vector.options.clone()).unwrap();
    match scenario.vector.role {
        Part::Serve => {
            // Without sessions, each connection of a vector is a separate server of the same fixture.
            let listeners: Arc<Mutex<Vec<HttpListener>>> = Arc::default();
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let (fixture, listeners) = (fixture.clone(), Arc::clone(&listeners));
                Box::pin(async move {
                    let (listener, link, transport) = bind().await;
                    listeners.lock().unwrap().push(listener);
                    fixture.serve(link).map_err(|error| error.to_string())?;
                    Box::new(transport).open().await.map_err(|error| error.to_string())
                })
            };
            let mut subject = LinkSubject::new(Box::new(connect)).with_many_lines().with_options();
            play(scenario, &mut subject, &settings).await
        }
        Part::Call => {
            let (_listener, served, transport) = bind().await;
            let link = Box::new(transport).open().await.unwrap();
            let caller = PeerCaller::open(fixture, link).unwrap();
            let mut served = Some(served);
            let wire = LinkSubject::new(Box::new(move || {
                let served = served.take().ok_or_else(|| "there is one link".to_owned());
                Box::pin(async move { served })
            }));
            play(scenario, &mut CallingSubject::new(wire, caller), &settings).await
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_holds() {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut plays = JoinSet::new();
    for scenario in scenarios_of("mcp-2026") {
        let permits = Arc::clone(&permits);
        plays.spawn(async move {
            let _permit = permits.acquire_owned().await.unwrap();
            (scenario, play_over(scenario).await)
        });
    }
    let played = plays.join_all().await;
    let (mut held, mut broken) = (0, Vec::new());
    for (scenario, played) in &played {
        let half_closes = scenario.vector.requirements(scenario.dialect).half_close;
        match &played.verdict {
            Verdict::Held => held += 1,
            Verdict::NotAsked { .. } if half_closes || !scenario.vector.needs.is_empty() => {}
            Verdict::NotAsked { why } | Verdict::Unsure { why } => {
                panic!("{}: not asked: {why}", scenario.vector.name)
            }
            Verdict::Broke { why, step, .. } => {
                broken.push(format!("{} step {step}: {why}\n{:?}", scenario.vector.name, played.trace));
            }
        }
    }
    assert!(broken.is_empty(), "{} did not hold:\n{}", broken.len(), broken.join("\n"));
    assert!(held >= 50, "only {held} vectors were played");
}
