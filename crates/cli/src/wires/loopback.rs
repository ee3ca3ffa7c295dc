//! A wire that listens: a fresh listener for each scenario, on a free port or in a place of this user's own.

use std::future::poll_fn;
use std::process::id;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind::dialect::Dialect;
use rescind::{BoxFuture, Link};
use rescind_testkit::Scenario;
use rescind_testkit::fixture::Fixture;
use rescind_testkit::runner::{LinkSubject, Played, Settings, play};
use tokio::task::JoinHandle;

use crate::Failure;
use crate::endpoint::{Endpoint, Flags, Place, Side};
use crate::open::{self, AnyListener};

/// Both ends of a wire in this process.
pub(super) struct Loopback {
    listener: AnyListener,
    /// Where it listens.
    place: Place,
}

impl Loopback {
    /// Listens for one scenario.
    pub(super) async fn new(wire: &str, scenario: &Scenario) -> Result<Self, Failure> {
        let dialect = Dialect::by_name(scenario.dialect).ok_or("there is no such dialect")?;
        let endpoint = anywhere(wire)?;
        let mut place = Place::new(endpoint, &dialect, Flags::default(), Side::Server)?;
        let listener = open::listen(&place).await?;
        place.endpoint = listener.endpoint().0.parse()?;
        Ok(Self { listener, place })
    }

    /// The fixture behind the listener, the scenario before it.
    pub(super) async fn serve(self, scenario: &Scenario, settings: &Settings) -> Result<Played, Failure> {
        let fixture = Fixture::new(scenario.dialect, scenario.vector.options.clone())
            .ok_or("there is no such dialect")?;
        let half_closes = half_closes(&self.place.endpoint);
        let place = self.place;
        let serving = Serving(tokio::spawn(serve_all(fixture, self.listener)));
        let connect = move || -> BoxFuture<'static, Result<Link, String>> {
            let place = place.clone();
            Box::pin(async move { open::connect(&place).await })
        };
        let subject = LinkSubject::new(Box::new(connect)).with_many_lines().with_options();
        let mut subject = if half_closes { subject.with_half_close() } else { subject };
        let played = play(scenario, &mut subject, settings).await;
        drop(subject);
        drop(serving);
        Ok(played)
    }

    /// The two ends of one connection: the client's, then the server's.
    pub(super) async fn pair(mut self) -> Result<(Link, Link), Failure> {
        let accepted = poll_fn(|cx| self.listener.as_mut().poll_accept(cx));
        let (near, far) = tokio::join!(open::connect(&self.place), accepted);
        let far = far.ok_or("the listener ended")?.map_err(|error| error.to_string())?;
        Ok((near?, far))
    }
}

/// Whether one direction can be closed alone. A Windows pipe closes both ways, and so does a WebSocket.
pub(crate) const fn half_closes(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Stdio => true,
        Endpoint::Pipe(_) => cfg!(unix),
        Endpoint::WebSocket(_) | Endpoint::Http(_) => false,
    }
}

/// An endpoint of this wire that nobody else has.
fn anywhere(wire: &str) -> Result<Endpoint, Failure> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    match wire {
        "named-pipe" => {
            format!("pipe:rescind-matrix-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed)).parse()
        }
        "websocket" => "ws://127.0.0.1:0/".parse(),
        _ => Err(format!("nothing listens on the wire {wire}")),
    }
}

async fn serve_all(fixture: Fixture, mut listener: AnyListener) {
    while let Some(accepted) = poll_fn(|cx| listener.as_mut().poll_accept(cx)).await {
        match accepted.map(|link| fixture.serve(link)) {
            Ok(Ok(_peer)) => {}
            // What it means for the scenario, the scenario says.
            Ok(Err(error)) => tracing::debug!(%error, "a connection did not open"),
            Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
        }
    }
}

/// Ends with this.
struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}
