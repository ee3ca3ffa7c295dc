//! How a client ends (B4).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;

use super::state::Client;
use crate::client::Failed;

/// The server has so long to hear of the end.
const FAREWELL: Duration = Duration::from_secs(1);

impl Client {
    /// Ends all tasks but the one that posts.
    pub(super) fn close(&self) {
        let tasks = {
            let mut state = self.state();
            state.closed = true;
            (std::mem::take(&mut state.streams), std::mem::take(&mut state.cancels))
        };
        drop(tasks);
        self.inbound_queue.end();
    }

    /// Tells the server that the connection ends.
    pub(super) async fn send_delete(self: Arc<Self>) {
        if self.state().connection.is_none() {
            return;
        }
        let headers = self.headers(None);
        let end = self.send(Method::DELETE, headers, Bytes::new());
        match tokio::time::timeout(FAREWELL, end).await {
            Ok(Ok(_)) => {}
            Ok(Err(Failed { error, .. })) => {
                tracing::debug!(error = %rescind_core::Shown::text(&error), "the server did not hear of the end");
            }
            Err(_) => tracing::debug!("the server did not hear of the end in time"),
        }
    }
}
