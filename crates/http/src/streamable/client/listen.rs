//! The stream for messages that the server sends outside of a request.

use std::sync::Arc;
use std::time::Duration;

use rescind_core::{ExchangeId, Inbound};
use tokio::time::Instant;

use super::state::{Client, InFlight, Standing, State};
use super::stream::{self, Reading, Retry};

use crate::sync::spawn;

/// The longest wait between two attempts.
const LONGEST: Duration = Duration::from_secs(10);

/// Opens the stream, once.
pub(super) fn begin(client: &Arc<Client>) {
    let mut state = client.state();
    // Without a session there is no stream to open.
    if state.listens || state.id.is_none() || state.closed || !matches!(state.standing, Standing::Open) {
        return;
    }
    state.listens = true;
    launch(&mut state, listen(Arc::clone(client)));
}

/// Opens the stream when the client has reported that it is ready, which is its next message, or after a short time.
pub(super) fn begin_soon(client: &Arc<Client>) {
    let later = Arc::clone(client);
    let wait = client.settings.cancel_after;
    launch(&mut client.state(), async move {
        tokio::time::sleep(wait).await;
        begin(&later);
    });
}

/// Runs a task that ends with the client.
fn launch(state: &mut State, task: impl Future<Output = ()> + Send + 'static) {
    let number = state.next;
    state.next += 1;
    let task = spawn(task).abort_handle();
    let flight = InFlight {
        task: Some(task),
        exchange: None,
        id: None,
        pending: false,
        cancel: None,
        cancelled: false,
    };
    state.in_flight.insert(number, flight);
}

async fn listen(client: Arc<Client>) {
    let mut reading = Reading::of_session(client.settings.retry);
    let mut failing: Option<Instant> = None;
    let mut unreached = 0;
    loop {
        match stream::get(&client, reading.last.as_ref()).await {
            Retry::Reads(body) => {
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
                reading.drain(&client, body, each).await;
                tokio::time::sleep(reading.retry).await;
            }
            // The missed events are lost, but new ones can still be read.
            Retry::Never if reading.last.is_some() && !client.inbound_queue.is_closed() => {
                reading.last = None;
            }
            Retry::Never => return,
            again @ (Retry::Later | Retry::Unreached) => {
                unreached += usize::from(matches!(again, Retry::Unreached));
                let since = *failing.get_or_insert_with(Instant::now);
                if unreached >= stream::UNREACHED || since.elapsed() >= client.settings.give_up_after {
                    client.lose("the server's event stream could not be opened again");
                    return;
                }
                let wait = reading.retry.max(since.elapsed() / 2).min(LONGEST);
                tokio::time::sleep(wait).await;
            }
        }
    }
}
