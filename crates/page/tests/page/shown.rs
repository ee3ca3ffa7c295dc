//! What the page shows.

use std::time::Duration;

use serde_json::{Value, json};

use rescind_core::dialect::MCP;
use rescind_core::{CallContext, Peer, Router, TaskHandle, Tasks};

use crate::{serve, serve_in};

#[tokio::test]
async fn a_viewer_sees_a_request_its_child_its_stop_and_its_end() {
    let shown = serve().await;
    let mut events = shown.events().await;
    let first = events.next().await;
    assert!(first["now"].as_u64().unwrap() > 1_600_000_000_000);
    assert_eq!((&first["view"]["requests"], &first["view"]["sessions"]), (&json!([]), &json!([])));
    let client = shown.client().await;
    let call = shown.wait(&client).await;
    let view =
        events.until(|view| view["requests"].as_array().is_some_and(|requests| requests.len() == 2)).await;
    let [wait, ask] = ["wait", "ask"].map(|method| {
        view["requests"]
            .as_array()
            .unwrap()
            .iter()
            .find(|request| request["method"] == method)
            .unwrap()
            .clone()
    });
    assert_eq!(
        (&wait["status"], &wait["direction"], &wait["stoppable"]),
        (&json!("running"), &json!("received"), &json!(true))
    );
    assert_eq!(
        (&ask["parent"], &ask["direction"], &ask["stoppable"]),
        (&wait["key"], &json!("made"), &json!(false))
    );
    assert_eq!(view["title"], "the <b>test</b>", "the page shows it as text");
    let session = &view["sessions"][0];
    assert_eq!(
        (&session["dialect"], &session["running"], &session["calls"]),
        (&json!("acp-v2"), &json!(1), &json!(1))
    );
    assert_eq!(shown.stop(wait["key"].as_str().unwrap()).await.status, 204);
    assert!(call.outcome().await.is_cancelled());
    let view = events.until(|view| view["ended"].as_array().is_some_and(|ended| ended.len() == 2)).await;
    assert_eq!(view["requests"], json!([]));
    let ended = view["ended"].as_array().unwrap();
    let wait = ended.iter().find(|ended| ended["request"]["method"] == "wait").unwrap();
    assert_eq!(wait["outcome"], "cancelled");
    let cancel = &wait["request"]["cancel"];
    assert_eq!((&cancel["by"], &cancel["reason"]), (&json!("operator"), &json!("stopped on the live page")));
    assert!(wait["ended"].as_u64() >= cancel["at"].as_u64());
    let ask = ended.iter().find(|ended| ended["request"]["method"] == "ask").unwrap();
    assert_eq!((&ask["outcome"], &ask["request"]["cancel"]["by"]), (&json!("cancelled"), &json!("parent")));
    assert_eq!(
        view["received"],
        json!({"started": 1, "completed": 0, "failed": 0, "cancelled": 1, "other": 0})
    );
}

#[tokio::test]
async fn a_viewer_sees_the_client_its_tool_its_progress_and_its_task_and_stops_the_task() {
    let tasks = Tasks::default();
    let declared = json!({ "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}} });
    let opened = json!({ "protocolVersion": "2025-11-25", "capabilities": declared, "serverInfo": {} });
    let router = Router::new()
        .tasks(&tasks)
        .method("initialize", move |_: CallContext, _: Value| {
            let opened = opened.clone();
            async move { Ok(opened) }
        })
        .task("tools/call", |ctx: CallContext, _: Value| async move {
            let report = json!({ "progressToken": 1, "progress": 3, "total": 4 });
            ctx.notify("notifications/progress", &report).await?;
            Err::<Value, _>(ctx.cancelled().await.into())
        });
    let shown = serve_in(MCP, router).await;
    let mut events = shown.events().await;
    let client = Peer::builder(MCP).connect(shown.transport.clone()).await.unwrap();
    let info = json!({ "name": "an-editor", "version": "1.2" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    let _: Value = client.call("initialize", &params).await.unwrap();
    client.notify("notifications/initialized", &json!({})).await.unwrap();
    let call = client.call("tools/call", &json!({ "name": "build", "arguments": {} }));
    let task: TaskHandle<Value> = call.task(None).await.unwrap();

    let view = events.until(|view| view["requests"][0]["progress"] != Value::Null).await;
    let request = &view["requests"][0];
    assert_eq!(
        [
            &request["method"],
            &request["about"],
            &request["client"],
            &request["status"],
            &request["stoppable"]
        ],
        [&json!("tools/call"), &json!("build"), &json!("an-editor 1.2"), &json!("task"), &json!(true)]
    );
    assert_eq!(request["progress"], json!({ "done": 3.0, "total": 4.0 }));
    assert_eq!(view["sessions"][0]["client"], "an-editor 1.2");
    let key = request["key"].as_str().unwrap().to_owned();
    assert_eq!(shown.stop(&key).await.status, 204);
    let is_task = |ended: &&Value| ended["request"]["about"] == "build";
    let view =
        events.until(|view| view["ended"].as_array().unwrap().iter().any(|ended| is_task(&ended))).await;
    let ended = view["ended"].as_array().unwrap().iter().find(is_task).unwrap();
    assert_eq!(
        (&ended["outcome"], &ended["request"]["cancel"]["by"]),
        (&json!("cancelled"), &json!("operator"))
    );
    assert_eq!(task.status().await.unwrap().status, rescind_core::dialect::TaskStatus::Cancelled);
    assert_eq!(shown.stop(&key).await.status, 409);
}

#[tokio::test]
async fn metrics_can_be_parsed_and_count_what_happened() {
    let shown = serve().await;
    let client = shown.client().await;
    let _: Value = client.call("echo", &json!({})).await.unwrap();
    assert!(client.call::<_, Value>("no/such\"method\n", &json!({})).await.is_err());
    let call = shown.wait(&client).await;
    let response = shown.get("/metrics").await;
    assert_eq!(response.status, 200);
    assert!(response.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    let text = response.body;
    assert!(text.ends_with("# EOF\n"));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
        let (bare, labels) = name.split_once('{').map_or((name, None), |(bare, labels)| (bare, Some(labels)));
        assert!(
            bare.starts_with("rescind_")
                && bare.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
            "{line}"
        );
        if let Some(labels) = labels {
            let labels = labels.strip_suffix('}').unwrap();
            assert!(
                labels
                    .split(',')
                    .all(|label| label.split_once("=\"").is_some_and(|(_, value)| value.ends_with('"'))),
                "{line}"
            );
        }
    }
    for wanted in [
        "rescind_requests_started_total{direction=\"received\"} 3\n",
        "rescind_requests_ended_total{direction=\"received\",outcome=\"completed\"} 1\n",
        "rescind_requests_ended_total{direction=\"received\",outcome=\"failed\"} 1\n",
        "rescind_in_flight{state=\"running\"} 1\n",
        "rescind_in_flight{state=\"calls\"} 1\n",
        "rescind_sessions 1\n",
        "rescind_draining 0\n",
    ] {
        assert!(text.contains(wanted), "{wanted}{text}");
    }
    assert!(!text.contains("method"), "no text of a peer is a label");
    drop(call);
}

#[tokio::test]
async fn a_server_that_drains_is_healthy_and_not_ready() {
    let shown = serve().await;
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let answer = shown.get(path).await;
        assert_eq!((answer.status, &*answer.body), (200, body));
    }
    let mut events = shown.events().await;
    events.until(|view| view["draining"] == false).await;
    let client = shown.client().await;
    let _call = shown.wait(&client).await;
    let handle = shown.handle.clone();
    let drain = tokio::spawn(async move { handle.drain(Duration::from_secs(60)).await });
    let view = events.until(|view| view["draining"] == true).await;
    assert_eq!(view["requests"].as_array().unwrap().len(), 2, "what runs is shown until its end");
    assert_eq!(shown.get("/readyz").await.status, 503);
    assert_eq!(shown.get("/healthz").await.status, 200);
    drain.abort();
}
