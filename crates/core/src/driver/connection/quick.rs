//! The first polls of quick handlers.
//!
//! They are made after the frames that could be read with their requests, as the tasks of other handlers run after them
//! on the same thread. So a cancel that has already arrived reaches its request before the handler runs, and the outcome
//! is that of a handler which is a task from the beginning. Requests that wait for a permit start as tasks.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::driver::admission::permits::Task;
use crate::driver::connection::ConnectionTask;
use crate::driver::effects::start_one;
use crate::driver::json_text::JsonText;
use crate::driver::state::{Start, State, Waiting};
use crate::id::InboundKey;

impl State {
    /// Keeps a request that has arrived in this step and whose handler is not on its way to a task: it waits for a
    /// permit, or it has started and is quick.
    pub(crate) fn keep_waiting(&mut self, key: InboundKey, waiting: Waiting, quick: &mut VecDeque<Start>) {
        let Some(slot) = self.inbound.get(key.0) else { return };
        match waiting {
            Waiting { handler: Some(handler), params } if slot.task != Task::NotStarted => {
                quick.push_back(Start { handler, request: Arc::clone(&slot.request), params });
            }
            Waiting { handler, params } => {
                self.queued.insert(key.0, Waiting { handler, params: params.map(JsonText::unpinned) });
            }
        }
    }
}

impl ConnectionTask {
    /// Polls the quick handlers of the requests that were just read, each once, in the order of their requests.
    #[inline]
    pub(crate) fn poll_quick(&mut self) {
        while let Some(start) = self.own.quick.pop_front() {
            start.handler.poll_first(start.request, start.params);
        }
    }

    /// Starts those that were not polled as tasks: the connection's task is dropped, with its runtime or by a panic of
    /// its transport. Each request then ends as one whose handler is a task (I10).
    pub(crate) fn start_rest(&mut self) {
        self.own.quick.drain(..).for_each(start_one);
    }
}
