//! An ACP agent made with agent-client-protocol, as its page on cancellation shows: a prompt runs in a task of the connection and
//! ends for `$/cancel_request` (the request's own marker) and for `session/cancel` (a signal of the session).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use agent_client_protocol::v1::schema::{
    AgentCapabilities, CancelNotification, ContentBlock, ContentChunk, InitializeRequest, InitializeResponse,
    NewSessionRequest, NewSessionResponse, PromptRequest, PromptResponse, SessionNotification, SessionUpdate,
    StopReason,
};
use agent_client_protocol::{Agent, Error, Result, Stdio, on_receive_notification, on_receive_request};
use tokio::sync::watch;

type Sessions = Arc<Mutex<HashMap<String, watch::Sender<u64>>>>;

fn text(prompt: &PromptRequest) -> String {
    prompt
        .prompt
        .iter()
        .find_map(|block| if let ContentBlock::Text(text) = block { Some(text.text.clone()) } else { None })
        .unwrap_or_default()
}

#[tokio::main]
async fn main() -> Result<()> {
    let sessions = Sessions::default();
    let (opened, prompted, cancelled) = (sessions.clone(), sessions.clone(), sessions);
    Agent
        .v1()
        .name("scoreboard-agent")
        .on_receive_request(
            async move |initialize: InitializeRequest, responder, _connection| {
                let answer = InitializeResponse::new(initialize.protocol_version);
                responder.respond(answer.agent_capabilities(AgentCapabilities::new()))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |_request: NewSessionRequest, responder, _connection| {
                let id = {
                    let mut all = opened.lock().map_err(|_| Error::internal_error())?;
                    let id = format!("session-{}", all.len() + 1);
                    all.insert(id.clone(), watch::Sender::new(0));
                    id
                };
                responder.respond(NewSessionResponse::new(id))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, connection| {
                let id = request.session_id.clone();
                let turn = {
                    let all = prompted.lock().map_err(|_| Error::internal_error())?;
                    all.get(&id.to_string()).map(watch::Sender::subscribe)
                };
                let Some(mut turn) = turn else {
                    return responder.respond_with_error(Error::invalid_params());
                };
                let words = text(&request);
                let mut words = words.split(' ');
                let (name, number) = (words.next().unwrap_or_default().to_owned(), words.next());
                let number: u64 = number.and_then(|word| word.parse().ok()).unwrap_or(0);
                let marker = responder.cancellation();
                let updates = connection.clone();
                connection.spawn(async move {
                    let work = async {
                        match name.as_str() {
                            "wait" => tokio::time::sleep(Duration::from_secs(number)).await,
                            "count" => {
                                for step in 1..=number {
                                    tokio::time::sleep(Duration::from_millis(200)).await;
                                    let chunk = ContentChunk::new(ContentBlock::from(step.to_string()));
                                    let update = SessionUpdate::AgentMessageChunk(chunk);
                                    updates
                                        .send_notification(SessionNotification::new(id.clone(), update))?;
                                }
                            }
                            _ => {}
                        }
                        Ok::<_, Error>(StopReason::EndTurn)
                    };
                    let work = async {
                        tokio::select! {
                            ended = work => ended,
                            _ = turn.changed() => Ok(StopReason::Cancelled),
                        }
                    };
                    let ended = marker.run_until_cancelled(work).await;
                    responder.respond_with_result(ended.map(PromptResponse::new))
                })
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |cancel: CancelNotification, _connection| {
                let all = cancelled.lock().map_err(|_| Error::internal_error())?;
                if let Some(turn) = all.get(&cancel.session_id.to_string()) {
                    turn.send_modify(|count| *count += 1);
                }
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_to(Stdio::new())
        .await
}
