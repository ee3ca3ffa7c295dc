//! Tasks and the client that began them: a session that ends, a credential that expires, a token that changes, and others who
//! know the task's id.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rescind_core::dialect::{MCP, MCP_2026};
use rescind_core::{CallContext, Listener as _, Principal, Router, Server, Tasks};
use rescind_http::{HttpServer, ServerBinding, Stateless, Streamable};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use rescind_testkit::support::{HANG, Serving, mcp_meta, until};
use serde_json::{Value, json};

use crate::auth::{Binding, Client, Http, request};

struct Served {
    address: String,
    running: Arc<AtomicUsize>,
    /// The first token of Ada is valid for a moment only.
    expires_soon: Arc<AtomicBool>,
    /// It is not valid any more.
    is_revoked: Arc<AtomicBool>,
    _serving: Serving,
}

/// How long the first token of Ada is valid for a request then.
const VALID: Duration = Duration::from_millis(300);

/// Ada has two tokens, Bob has one.
fn guarded<B: ServerBinding>(
    server: HttpServer<B>,
    [expires_soon, is_revoked]: [&Arc<AtomicBool>; 2],
) -> HttpServer<B> {
    let (expires_soon, is_revoked) = (Arc::clone(expires_soon), Arc::clone(is_revoked));
    server.auth(move |request: AuthRequest| {
        let of = |name: &str| Credential::of(Principal(name.into()));
        let credential = match request.header("Authorization") {
            Some("Bearer ada-1") if is_revoked.load(Ordering::SeqCst) => None,
            Some("Bearer ada-1") if expires_soon.load(Ordering::SeqCst) => Some(of("ada").expires_in(VALID)),
            Some("Bearer ada-1" | "Bearer ada-2") => Some(of("ada")),
            Some("Bearer bob") => Some(of("bob")),
            _ => None,
        };
        std::future::ready(credential.ok_or_else(|| AuthRefusal::unauthorized("Bearer")))
    })
}

/// A server whose tool calls are tasks that wait for their cancel.
async fn serve(binding: Binding) -> Served {
    let (expires_soon, is_revoked) = (Arc::default(), Arc::default());
    let flags = [&expires_soon, &is_revoked];
    let listener = match binding {
        Binding::Stateless => guarded(HttpServer::new(Stateless::new()), flags).bind("127.0.0.1:0").await,
        _ => guarded(HttpServer::new(Streamable::new()), flags).bind("127.0.0.1:0").await,
    };
    let listener = listener.unwrap();
    let address = listener.endpoint().0.split('/').nth(2).unwrap().to_owned();
    let running = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&running);
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            let declared = json!({ "list": {}, "cancel": {}, "requests": {"tools": {"call": {}}} });
            Ok(json!({ "protocolVersion": "2025-11-25", "capabilities": {"tasks": declared} }))
        })
        .tasks(&Tasks::default())
        .task("tools/call", move |ctx: CallContext, _: Value| {
            let counts = Arc::clone(&counts);
            async move {
                counts.fetch_add(1, Ordering::SeqCst);
                let cause = ctx.cancelled().await;
                counts.fetch_sub(1, Ordering::SeqCst);
                ctx.stopped::<Value>(cause)
            }
        });
    let server = Server::builder([MCP_2026, MCP]).serve(router).listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { address, running, expires_soon, is_revoked, _serving: serving }
}

/// A client with a token, and its session where the binding has sessions.
struct User<'a> {
    served: &'a Served,
    binding: Binding,
    authorization: String,
    session: Option<String>,
}

impl<'a> User<'a> {
    async fn open(served: &'a Served, binding: Binding, token: &str) -> Self {
        let mut user = Self { served, binding, authorization: format!("Bearer {token}"), session: None };
        if binding == Binding::Streamable {
            let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
            let answer = user.post("initialize", params).await;
            assert_eq!(answer.status, 200, "{token}");
            user.session = Some(answer.header("mcp-session-id")[0].to_owned());
            answer.text().await;
        }
        user
    }

    async fn post(&self, method: &str, mut params: Value) -> crate::auth::Answer {
        let name = params["taskId"].as_str().or(params["name"].as_str()).unwrap_or_default().to_owned();
        if self.binding == Binding::Stateless {
            let mut meta = mcp_meta();
            let declared = json!({ "extensions": {"io.modelcontextprotocol/tasks": {}} });
            meta["io.modelcontextprotocol/clientCapabilities"] = declared;
            params["_meta"] = meta;
        }
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        self.send("POST", &name, &body).await
    }

    async fn send(&self, verb: &str, name: &str, body: &Value) -> crate::auth::Answer {
        let mut headers = vec![("Authorization", self.authorization.as_str())];
        if self.binding == Binding::Stateless {
            headers.push(("Mcp-Name", name));
        }
        headers.extend(self.session.as_deref().map(|session| ("Mcp-Session-Id", session)));
        let mut client = Client::connect(&self.served.address, Http::One).await;
        client.ask(request((self.binding, Http::One), verb, &headers, body)).await
    }

    /// The status, and the answer as JSON or as the last event of a stream.
    async fn ask(&self, method: &str, params: &Value) -> (u16, Value) {
        let answer = self.post(method, params.clone()).await;
        let status = answer.status.as_u16();
        let text = answer.text().await;
        let message =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or(&text);
        (status, serde_json::from_str(message).unwrap_or_default())
    }

    async fn status_of(&self, task: &Value) -> Value {
        let (status, answer) = self.ask("tasks/get", task).await;
        assert_eq!(status, 200, "{answer}");
        answer["result"]["status"].clone()
    }
}

#[tokio::test]
async fn a_task_outlives_the_session_and_the_token_that_began_it_and_stays_its_principals() {
    for binding in [Binding::Streamable, Binding::Stateless] {
        let served = serve(binding).await;
        let first = User::open(&served, binding, "ada-1").await;
        let (status, begun) = first.ask("tools/call", &json!({ "name": "wait", "task": {} })).await;
        assert_eq!(status, 200, "{binding:?}: {begun}");
        let id = begun.pointer("/result/task/taskId").or(begun.pointer("/result/taskId"));
        let task = json!({ "taskId": id.unwrap_or_else(|| panic!("{binding:?}: {begun}")) });
        until(HANG, "it runs", || served.running.load(Ordering::SeqCst) == 1).await;
        if let Some(session) = &first.session {
            // The credential expires while its client waits for the result: the stream ends without an answer.
            served.expires_soon.store(true, Ordering::SeqCst);
            let waits = first.post("tasks/result", task.clone()).await;
            served.expires_soon.store(false, Ordering::SeqCst);
            assert_eq!(waits.header("content-type"), ["text/event-stream"]);
            let text = waits.text().await;
            assert!(!text.contains("\"result\"") && !text.contains("\"error\""), "{text}");
            let ended = first.send("DELETE", "", &Value::Null).await;
            assert!(ended.status.is_success(), "{}", ended.status);
            let (status, answer) = first.ask("tasks/get", &task).await;
            assert_eq!(status, 404, "the session {session} has ended: {answer}");
        }
        served.is_revoked.store(true, Ordering::SeqCst);
        assert_eq!(first.ask("tasks/get", &task).await.0, 401, "{binding:?}");

        let bob = User::open(&served, binding, "bob").await;
        for method in ["tasks/get", "tasks/cancel"] {
            let (_, answer) = bob.ask(method, &task).await;
            assert_eq!(answer["error"]["code"], -32602, "{binding:?} {method}: {answer}");
        }
        if binding == Binding::Streamable {
            let (_, listed) = bob.ask("tasks/list", &json!({})).await;
            assert_eq!(listed["result"]["tasks"], json!([]), "{listed}");
        }
        let second = User::open(&served, binding, "ada-2").await;
        assert_eq!(second.status_of(&task).await, "working", "{binding:?}");
        assert_eq!(served.running.load(Ordering::SeqCst), 1);
        let (status, told) = second.ask("tasks/cancel", &task).await;
        assert_eq!((status, told["error"].is_null()), (200, true), "{binding:?}: {told}");
        assert_eq!(second.status_of(&task).await, "cancelled", "I17: {binding:?}");
        until(HANG, "its work stops", || served.running.load(Ordering::SeqCst) == 0).await;
        let (_, answer) = bob.ask("tasks/get", &task).await;
        assert_eq!(answer["error"]["code"], -32602, "{binding:?}: {answer}");
    }
}
