//! The stream for messages that the server sends outside of a request.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use rescind_core::{ExchangeId, Inbound};
use tokio::time::Instant;

use super::state::{Client, InFlight, Standing, State};
use super::stream::{self, Reading, Retry};

use crate::sync::spawn;

/// The longest wait between two attempts.
const LONGEST: Duration = Duration::from_secs(10);

/// Opens the stream, once in a session.
pub(super) fn begin(client: &Arc<Client>) {
    let mut state = client.state();
    // Without a session there is no stream to open.
    if state.listens || state.id.is_none() || state.closed || !matches!(state.standing, Standing::Open) {
        return;
    }
    state.listens = true;
    let session = state.record.number;
    launch(client, &mut state, Some(session), listen(Arc::clone(client)));
}

/// Opens the stream when the client has reported that it is ready, which is its next message, or after a short time.
pub(super) fn begin_soon(client: &Arc<Client>) {
    let later = Arc::clone(client);
    let wait = client.settings.cancel_after;
    launch(client, &mut client.state(), None, async move {
        tokio::time::sleep(wait).await;
        begin(&later);
    });
}

/// Runs a task that ends with the client, and with the session if it belongs to one.
pub(super) fn launch(
    client: &Arc<Client>,
    state: &mut State,
    session: Option<u64>,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let number = state.next;
    state.next += 1;
    let launched = Launched { client: Arc::clone(client), number };
    let task = spawn(async move {
        let _launched = launched;
        task.await;
    });
    let flight = InFlight {
        task: Some(task.abort_handle()),
        exchange: None,
        id: None,
        pending: false,
        cancel: None,
        cancelled: false,
        sent_in: None,
        session,
    };
    state.in_flight.insert(number, flight);
}

/// A task of the client until it ends.
struct Launched {
    client: Arc<Client>,
    number: u64,
}

impl Drop for Launched {
    fn drop(&mut self) {
        let removed = self.client.state().in_flight.remove(&self.number);
        drop(removed);
    }
}

async fn listen(client: Arc<Client>) {
    let mut reading = Reading::of_session(client.settings.retry);
    let mut failing: Option<Instant> = None;
    let mut unreached = 0;
    let mut was_read = false;
    loop {
        match stream::get(&client, reading.last.as_ref()).await {
            Retry::Reads(body) => {
                was_read = true;
                failing = None;
                unreached = 0;
                let each = |body| {
                    let client = Arc::clone(&client);
                    async move {
                        let inbound = Inbound {
                            body,
                            exchange: ExchangeId::NONE,
                            principal: None,
                            address: None,
                            trace: None,
                        };
                        let _ = client.inbound_queue.send(inbound).await;
                    }
                };
                reading.drain(&client, None, body, each).await;
                tokio::time::sleep(reading.retry).await;
            }
            // The missed events are lost, but new ones can still be read.
            Retry::Never(_) if reading.last.is_some() && !client.inbound_queue.is_closed() => {
                reading.last = None;
            }
            Retry::Never(Some(StatusCode::NOT_FOUND)) if is_lost(&client, was_read) => {
                client.lose("the server does not know the session any more");
                return;
            }
            Retry::Never(status) => return without_stream(status),
            again @ (Retry::Later(_) | Retry::Unreached) => {
                let since = *failing.get_or_insert_with(Instant::now);
                let is_late = since.elapsed() >= client.settings.give_up_after;
                match again {
                    Retry::Later(status) if is_late => return without_stream(status),
                    Retry::Unreached if is_late || unreached + 1 >= stream::UNREACHED => {
                        client.lose("the server's event stream could not be opened again");
                        return;
                    }
                    Retry::Unreached => unreached += 1,
                    _ => unreached = 0,
                }
                let wait = reading.retry.max(since.elapsed() / 2).min(LONGEST);
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Whether 404 for the stream means that the link has ended: the next request cannot open the session again, and the
/// server has such streams. Of servers of MCP that is known only after one was read; other protocols have no servers without.
fn is_lost(client: &Client, was_read: bool) -> bool {
    let record = &client.state().record;
    !record.may_renew() && (was_read || !record.is_open())
}

/// The client goes on without the stream.
fn without_stream(status: Option<StatusCode>) {
    let status = status.map(tracing::field::display);
    tracing::info!(status, "the server has no event stream of its own; calls go on without it");
}
