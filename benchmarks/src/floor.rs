//! The floor: the same frames on the same wire, with their envelopes written and read by the codec, and nothing else.

use std::future::poll_fn;

use bytes::Bytes;
use rescind_core::dialect::{ACP, CallFrame, ReplyTo};
use rescind_core::{
    AnswerBody, CallNumber, ExchangeId, FrameKind, Head, Incoming, Lane, Link, Outbound, RequestId,
    TransportError, TransportEvent,
};
use serde_json::value::{RawValue, to_raw_value};

use crate::{CancelTimes, clock};

/// The side that asks, without `Peer`.
#[derive(Debug)]
pub struct FloorClient {
    link: Link,
    scratch: Vec<u8>,
    next: u64,
}

impl FloorClient {
    /// A client on this link.
    #[must_use]
    pub const fn new(link: Link) -> Self {
        Self { link, scratch: Vec::new(), next: 1 }
    }

    pub(crate) async fn echo(&mut self, params: &RawValue) {
        self.next += 1;
        self.scratch.clear();
        let call = CallFrame::new(CallNumber(self.next), 0, "echo", Some(params));
        ACP.codec().encode_request(ACP.rules(), &mut self.scratch, &call);
        let echoed = self.ask(FrameKind::Request).await;
        assert_eq!(echoed.get().len(), params.get().len());
    }

    pub(crate) async fn cancel(&mut self) -> CancelTimes {
        self.next += 1;
        self.scratch.clear();
        let begin = clock();
        let call = CallNumber(self.next);
        ACP.codec().encode_cancel(ACP.rules(), &mut self.scratch, call, call, 0, None);
        let signalled = self.ask(FrameKind::Cancel).await;
        let to_caller = clock() - begin;
        CancelTimes { to_handler: signalled.get().parse::<u64>().expect("a time") - begin, to_caller }
    }

    async fn ask(&mut self, kind: FrameKind) -> Box<RawValue> {
        let id = RequestId::number(self.next.cast_signed());
        send(&mut self.link, &self.scratch, kind, id).await.expect("the wire is open");
        let frame = recv(&mut self.link).await.expect("the server answers");
        match ACP.codec().decode(&frame) {
            Incoming::Answer { call: Some(call), body: AnswerBody::Value(value) } if call.0 == self.next => {
                value.to_owned()
            }
            other => panic!("no answer: {other:?}"),
        }
    }
}

/// Echoes requests, and answers a cancel with the time it came, until the client is gone.
pub async fn serve(mut link: Link) {
    let mut out = Vec::new();
    while let Some(frame) = recv(&mut link).await {
        out.clear();
        let id = match ACP.codec().decode(&frame) {
            Incoming::Request(request) => {
                let to = ReplyTo { id: &request.id, tag: request.tag, server_cancellable: false };
                let params = request.params.expect("an echo has params");
                ACP.codec().encode_value(ACP.rules(), &mut out, &to, params);
                request.id
            }
            Incoming::Cancel(cancel) => {
                let id = cancel.key.expect("a cancel names a request");
                let time = to_raw_value(&clock()).expect("a number is JSON");
                let to = ReplyTo { id: &id, tag: 0, server_cancellable: false };
                ACP.codec().encode_value(ACP.rules(), &mut out, &to, &time);
                id
            }
            other => panic!("nothing to echo: {other:?}"),
        };
        if send(&mut link, &out, FrameKind::Answer, id).await.is_err() {
            return;
        }
    }
}

async fn send(link: &mut Link, frame: &[u8], kind: FrameKind, id: RequestId) -> Result<(), TransportError> {
    let lane = Lane::Bulk;
    poll_fn(|cx| link.tx.as_mut().poll_ready(lane, cx)).await?;
    let head = Head { kind, id: Some(id), method: None };
    let body = Bytes::copy_from_slice(frame);
    let out = Outbound { body, exchange: ExchangeId::NONE, lane, head, last: false };
    link.tx.as_mut().start_send(out)?;
    poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await
}

async fn recv(link: &mut Link) -> Option<Bytes> {
    loop {
        match poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await? {
            Ok(TransportEvent::Message(inbound)) => return Some(inbound.body),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}
