//! agent-client-protocol, a client and an agent of its v1. It has no limit of handlers.

use std::borrow::Cow;
use std::sync::Arc;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{InitializeRequest, InitializeResponse};
use agent_client_protocol::{
    Agent, ByteStreams, Channel, Client, ConnectTo, Error, JsonRpcRequest, JsonRpcResponse, SentRequest, V1,
    on_receive_request,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};

use crate::generic_driver::{
    Driven, End, Halves, Library, Returned, Signals, Slots, Tasks, Watch, one_by_one,
};
use crate::subject::{BoxFuture, Carries, Competitor, Name, Setup, Subject, Told};

const fn name(configuration: &'static str, carries: Carries) -> Name {
    Name { library: "agent-client-protocol", version: "5.0.0", configuration, carries }
}

/// Lines over a stream (`ByteStreams`). A waiting handler waits in `ConnectionTo::spawn`, as the chapter about
/// cancelling in its docs shows.
pub const DEFAULT: Competitor = halves!(name("default", Carries::Bytes), Handlers::Spawned);

/// The same handlers, with its own transport in memory (`Channel::duplex`), which passes messages without serializing
/// them.
pub const BEST: Competitor = Competitor { name: name("best", Carries::Values), open: open_best, serve: None };

/// A handler waits inline, against the advice of that chapter: nothing is read meanwhile, not even a cancel.
pub const INLINE: Competitor = halves!(name("handlers wait inline", Carries::Bytes), Handlers::Inline);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handlers {
    Spawned,
    Inline,
}

impl Halves for Handlers {
    async fn serve<E: End>(self, end: E, _: usize, signals: Arc<Signals>) {
        let _ = agent(self, signals).connect_to(streams(end)).await;
    }

    async fn connect<E: End>(self, end: E, _: usize) -> (impl Library, Tasks) {
        client(streams(end), self).await
    }
}

fn open_best(_: Setup) -> BoxFuture<'static, Box<dyn Subject>> {
    Box::pin(async {
        let (near, far) = Channel::duplex();
        let signals = Arc::new(Signals::default());
        let mut serving = Tasks::default();
        serving.spawn(agent(Handlers::Spawned, Arc::clone(&signals)).connect_to(far));
        let (client, tasks) = client(near, Handlers::Spawned).await;
        Driven::boxed(client, Watch::Here(signals), serving.and(tasks))
    })
}

fn streams(end: impl End) -> impl ConnectTo<Client> + ConnectTo<Agent> {
    let (input, output) = end.split();
    ByteStreams::new(output.compat_write(), input.compat())
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonRpcRequest)]
#[request(method = "_echo", response = Text)]
struct Echo {
    text: Cow<'static, str>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonRpcRequest)]
#[request(method = "_park", response = Text)]
struct Park {
    text: Cow<'static, str>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonRpcResponse)]
pub(super) struct Text {
    text: Cow<'static, str>,
}

/// The agent of one connection.
pub(super) fn agent(handlers: Handlers, signals: Arc<Signals>) -> impl ConnectTo<Client> {
    Agent
        .v1()
        .on_receive_request(
            async |initialize: InitializeRequest, responder, _| {
                responder.respond(InitializeResponse::new(initialize.protocol_version))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |echo: Echo, responder, _| responder.respond(Text { text: echo.text }),
            on_receive_request!(),
        )
        .on_receive_request(
            async move |_: Park, responder, connection| {
                let cancellation = responder.cancellation();
                let signals = Arc::clone(&signals);
                let waiting = async move {
                    let parked = async {
                        // A cancelled one is dropped.
                        let _waiting = signals.wait();
                        std::future::pending::<Result<Text, Error>>().await
                    };
                    let parked = cancellation.run_until_cancelled(parked).await;
                    responder.respond_with_result(parked)
                };
                match handlers {
                    Handlers::Spawned => connection.spawn(waiting),
                    Handlers::Inline => waiting.await,
                }
            },
            on_receive_request!(),
        )
}

/// A client, and the task that drives its connection.
pub(super) async fn client(near: impl ConnectTo<Client>, handlers: Handlers) -> (Connected, Tasks) {
    let mut tasks = Tasks::default();
    let (told, connected) = oneshot::channel();
    // The connection is driven until the task is aborted with its subject.
    tasks.spawn(Client.v1().connect_with(near, async move |connection| {
        let _ = told.send(connection.clone());
        std::future::pending::<Result<(), Error>>().await
    }));
    let agent = connected.await.expect("the client is connected");
    let initialize = InitializeRequest::new(ProtocolVersion::V1);
    agent.send_request(initialize).block_task().await.expect("the agent is initialized");
    (Connected { agent, handlers }, tasks)
}

pub(super) struct Connected {
    agent: ConnectionTo<Agent>,
    handlers: Handlers,
}

impl Library for Connected {
    type Text = &'static str;
    type Parked = SentRequest<Text, V1>;

    fn slots(&self) -> Slots {
        match self.handlers {
            Handlers::Spawned => Slots::Unlimited,
            Handlers::Inline => Slots::Wait(1),
        }
    }

    async fn echo(&self, text: &'static str) -> usize {
        let echo = Echo { text: Cow::Borrowed(text) };
        self.agent.send_request(echo).block_task().await.expect("the agent echoes").text.len()
    }

    async fn park(&self) -> Self::Parked {
        self.agent.send_request(Park { text: Cow::Borrowed("x") })
    }

    async fn cancel(&self, parked: Self::Parked) -> Returned {
        parked.cancel().expect("the connection is driven");
        let answer = parked.block_task().await;
        assert!(answer.is_err(), "a cancelled request is answered so: {answer:?}");
        Returned::default()
    }

    async fn unknown_cancels(&self, count: usize) -> Told {
        one_by_one(self, count, || async {
            self.agent.clone().into_raw().send_cancel_request("unknown".to_owned()).expect("it is driven");
        })
        .await
    }
}
