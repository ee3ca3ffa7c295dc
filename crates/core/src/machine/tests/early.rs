//! Cancels that come before their request, and those that only look so.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ACP, MCP};

impl Bench {
    fn arrive(&mut self, arrival: Arrival<'_>) -> (Option<InboundKey>, Vec<Output>) {
        let key = self.session.recv_request(self.now, arrival);
        (key, self.outputs())
    }

    fn cancel_as(&mut self, id: i64, who: &str) -> Vec<Output> {
        self.session.recv_cancel(self.now, Some(id.into()), None, None, &principal(who));
        self.outputs()
    }
}

