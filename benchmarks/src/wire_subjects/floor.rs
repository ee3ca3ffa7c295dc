//! The floors between two processes: an echo of the same bytes, and an echo that reads and writes both envelopes.

use bytes::Bytes;
use rescind_core::dialect::{ACP, CallFrame};
use rescind_core::{AnswerBody, CallNumber, Incoming};

use super::ours::WIRES;
use super::{Kind, WireSubject, raw_params};
use crate::clock;
use crate::cross_process::{Far, Wire};
use crate::raw::{self, Answers, RawClient};
use crate::subject::{BoxFuture, Carries, Echo, Name, Subject};
use crate::subjects;

/// An echo of the same bytes, with the same underlying library and no codec.
pub const FLOOR: WireSubject = WireSubject {
    name: subjects::FLOOR.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(opened(wire, far, Answers::Same)),
        serve: |wire, listens| Box::pin(raw::serve(wire, Answers::Same, listens)),
    },
};

/// The same, in which both sides write and read the envelopes, as any library must.
pub const ENVELOPES: WireSubject = WireSubject {
    name: Name {
        library: "floor",
        version: "",
        configuration: "with both envelopes read",
        carries: Carries::Bytes,
    },
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(opened(wire, far, Answers::Envelope)),
        serve: |wire, listens| Box::pin(raw::serve(wire, Answers::Envelope, listens)),
    },
};

struct Floor {
    wire: Wire,
    client: RawClient,
    answers: Answers,
    /// The last size, and a frame of it.
    frame: (usize, Bytes),
    next: u64,
}

async fn opened(wire: Wire, far: &mut Far, answers: Answers) -> Box<dyn Subject> {
    let client = RawClient::open(wire, far).await;
    Box::new(Floor { wire, client, answers, frame: (0, Bytes::new()), next: 0 })
}

impl Floor {
    /// Writes the envelope of a request, and reads that of its answer.
    async fn with_envelopes(&mut self, bytes: usize) {
        let params = raw_params(self.wire, bytes);
        self.next += 1;
        let mut frame = Vec::with_capacity(params.get().len() + 128);
        let call = CallFrame::new(CallNumber(self.next), 0, "echo", Some(params));
        ACP.codec().encode_request(ACP.rules(), &mut frame, &call);
        let echoed = self.client.exchange(Bytes::from(frame)).await;
        match ACP.codec().decode(&echoed) {
            Incoming::Answer { body: AnswerBody::Value(value), .. } => {
                assert_eq!(value.get().len(), params.get().len());
            }
            other => panic!("no answer: {other:?}"),
        }
    }
}

impl Subject for Floor {
    /// One at a time only.
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            assert_eq!(echo.in_flight, 1, "the floor has one request in flight");
            for _ in 0..echo.count {
                let begin = clock();
                match self.answers {
                    Answers::Envelope => self.with_envelopes(echo.bytes).await,
                    Answers::Same => {
                        if self.frame.0 != echo.bytes {
                            self.frame = (echo.bytes, raw::frame(self.wire, echo.bytes));
                        }
                        took.push(self.client.echo(&self.frame.1).await);
                        continue;
                    }
                }
                took.push(clock() - begin);
            }
        })
    }
}
