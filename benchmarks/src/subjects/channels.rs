//! The floor of a program without a transport: a channel to a task, and a channel back for each request.

use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::subject::{
    BURST, BoxFuture, CancelSamples, Carries, Cascade, Competitor, Echo, Name, Saturated, Setup, Subject,
    Told, Tree, Which, in_flight,
};
use crate::{clock, params};

/// The floor without a transport.
pub const COMPETITOR: Competitor = Competitor {
    name: Name {
        library: "channels",
        version: "tokio 1",
        configuration: "mpsc + oneshot, no frames",
        carries: Carries::Values,
    },
    open: |setup| Box::pin(open(setup)),
    serve: None,
};

/// The messages to the task.
enum Ask {
    Echo(Box<RawValue>, oneshot::Sender<Box<RawValue>>),
    Park(Parked),
}

/// A request that waits for its cancel, and answers when it was signalled.
struct Parked {
    token: CancellationToken,
    answer: oneshot::Sender<u64>,
}

/// The caller's part.
struct Held {
    token: CancellationToken,
    answer: oneshot::Receiver<u64>,
}

impl Held {
    async fn cancelled(self) -> u64 {
        self.token.cancel();
        self.answer.await.expect("a parked task answers")
    }
}

#[derive(Debug)]
struct Channels {
    server: mpsc::UnboundedSender<Ask>,
    held: Vec<Held>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

async fn open(_: Setup) -> Box<dyn Subject> {
    let (server, mut asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(ask) = asked.recv().await {
            match ask {
                Ask::Echo(params, answer) => {
                    let _ = answer.send(params);
                }
                Ask::Park(Parked { token, answer }) => {
                    tokio::spawn(async move {
                        token.cancelled().await;
                        let _ = answer.send(clock());
                    });
                }
            }
        }
    });
    Box::new(Channels { server, held: Vec::new() })
}

impl Channels {
    async fn echo_once(&self, params: &RawValue) {
        let (answer, answered) = oneshot::channel();
        let _ = self.server.send(Ask::Echo(params.to_owned(), answer));
        let echoed = answered.await.expect("the task echoes");
        assert_eq!(echoed.get().len(), params.get().len());
    }

    fn park_one(&self, token: CancellationToken) -> Held {
        let (answer, answered) = oneshot::channel();
        let _ = self.server.send(Ask::Park(Parked { token: token.clone(), answer }));
        Held { token, answer: answered }
    }
}

impl Subject for Channels {
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let params = params(echo.bytes);
            in_flight(echo, took, || self.echo_once(&params)).await;
        })
    }

    fn cancel<'a>(&'a mut self, count: usize, took: &'a mut CancelSamples) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let params = params(1);
            for _ in 0..count {
                let held = self.park_one(CancellationToken::new());
                self.echo_once(&params).await;
                let begin = clock();
                let signalled = held.cancelled().await;
                took.to_caller.push(clock() - begin);
                took.to_handler.push(signalled - begin);
            }
            Told::Measured
        })
    }

    fn saturate<'a>(&'a mut self, _: Which, _: usize, _: &'a mut Vec<u64>) -> BoxFuture<'a, Saturated> {
        Box::pin(async { Saturated::NoLimit })
    }

    fn park(&mut self, requests: usize) -> BoxFuture<'_, Told> {
        Box::pin(async move {
            for number in 0..requests {
                let held = self.park_one(CancellationToken::new());
                self.held.push(held);
                if number % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            self.echo_once(&params(1)).await;
            Told::Measured
        })
    }

    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for held in self.held.drain(..) {
                held.cancelled().await;
            }
        })
    }

    fn pairs(&mut self, count: usize) -> BoxFuture<'_, Told> {
        Box::pin(async move {
            let params = params(1);
            for _ in 0..count / BURST {
                self.park(BURST).await;
                self.echo_once(&params).await;
                self.release().await;
            }
            Told::Measured
        })
    }

    fn cascade(&mut self, tree: Tree, meanwhile: bool) -> BoxFuture<'_, Result<Cascade, Told>> {
        Box::pin(async move {
            let root = CancellationToken::new();
            let mut level = vec![root.clone()];
            let mut held = Vec::with_capacity(tree.requests());
            for _ in 0..tree.depth {
                let mut next = Vec::with_capacity(level.len() * tree.fan_out);
                for parent in &level {
                    for _ in 0..tree.fan_out {
                        let token = parent.child_token();
                        held.push(self.park_one(token.clone()));
                        next.push(token);
                    }
                }
                level = next;
                self.echo_once(&params(1)).await;
            }
            let params = params(1);
            let mut told = Cascade::default();
            let begin = clock();
            root.cancel();
            told.to_caller = clock() - begin;
            for one in held {
                if meanwhile && told.meanwhile.len() < 1000 {
                    let asked = clock();
                    self.echo_once(&params).await;
                    told.meanwhile.push(clock() - asked);
                }
                let signalled = one.answer.await.expect("a parked task answers");
                told.to_last = told.to_last.max(signalled - begin);
            }
            Ok(told)
        })
    }

    fn deadlines<'a>(
        &'a mut self,
        count: usize,
        after: Duration,
        late: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let mut waiting = Vec::with_capacity(count);
            for _ in 0..count {
                let held = self.park_one(CancellationToken::new());
                let by = Instant::now() + after;
                let due = clock() + u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                waiting.push(tokio::spawn(async move {
                    tokio::time::sleep_until(by.into()).await;
                    held.cancelled().await;
                    clock().saturating_sub(due)
                }));
            }
            for one in waiting {
                late.push(one.await.expect("a wait ends"));
            }
            Told::Measured
        })
    }
}
