//! Messages other than cancels pass unchanged.

use std::time::Duration;

use rescind_bridge::{Bridge, NotBridged, Upstream};
use rescind_core::dialect::{ABP, ACP, ALL, LSP, MCP, MCP_2026};
use rescind_core::{Limits, Peer, memory_listener, memory_pair};
use tokio::sync::oneshot;

use crate::{End, Ends};

/// JSON that a program changes when it reads and writes it.
const ODD: [&str; 9] = [
    r#"{"z":1,"a":2,"m":3}"#,
    r#"{"n":[1.0,1e3,1E+3,-0,-0.0,0.10,100000000000000000000000000000,1.7976931348623157e400]}"#,
    r#"{"u":9007199254740993,"i":-9223372036854775809}"#,
    r#"{"s":"\u00e9\u0041\/\b\ud83d\ude00 \ud800"}"#,
    r#"{"é":"é😀","":[],"nested":{"":{"b":null,"a":[{},[]]}}}"#,
    r#"{ "spaces" : [ 1 , 2 ] }"#,
    r#"{"twice":1,"twice":2}"#,
    "[]",
    r#"["1",1,null,true]"#,
];

#[tokio::test]
async fn params_and_results_pass_byte_for_byte_in_both_directions() {
    for dialect in ALL.iter().filter(|dialect| dialect.name() != "abp" && dialect.name() != "lsp") {
        let mut ends = Ends::in_dialect(dialect.clone()).await;
        for (number, odd) in (1..).zip(ODD) {
            let request = format!(r#"{{"jsonrpc":"2.0","id":"c{number}","method":"do/it","params":{odd}}}"#);
            ends.client.send(&request).await;
            let passed = format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"do/it","params":{odd}}}"#);
            ends.server.expect(&passed).await;
            ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{odd}}}"#)).await;
            ends.client.expect(&format!(r#"{{"jsonrpc":"2.0","id":"c{number}","result":{odd}}}"#)).await;

            let request = format!(r#"{{"jsonrpc":"2.0","id":"s{number}","method":"ask","params":{odd}}}"#);
            ends.server.send(&request).await;
            let passed = format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"ask","params":{odd}}}"#);
            ends.client.expect(&passed).await;
            ends.client.send(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{odd}}}"#)).await;
            ends.server.expect(&format!(r#"{{"jsonrpc":"2.0","id":"s{number}","result":{odd}}}"#)).await;

            let notification = format!(r#"{{"jsonrpc":"2.0","method":"note","params":{odd}}}"#);
            ends.client.send(&notification).await;
            ends.server.expect(&notification).await;
            ends.server.send(&notification).await;
            ends.client.expect(&notification).await;
        }
    }
}

/// MCP 2026-07-28, "Receiving Notifications" and "Graceful Closure": each message of a subscription names the listen request by its
/// id, which is another one on each side of a bridge.
#[tokio::test]
async fn the_messages_of_a_subscription_have_the_id_that_its_request_has_on_each_side() {
    let mut ends = Ends::in_dialect(MCP_2026).await;
    let member = "io.modelcontextprotocol/subscriptionId";
    let listen = |id: &str| {
        let meta = r#"{"io.modelcontextprotocol/clientCapabilities":{}}"#;
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{{"_meta":{meta},"notifications":{{}}}}}}"#
        )
    };
    // On the other side the second one is request 2, and there is a request with the name "1" on this side only.
    for (own, other) in [("\"mine\"", "1"), ("\"1\"", "2")] {
        ends.client.send(&listen(own)).await;
        ends.server.expect(&listen(other)).await;
    }
    let told = |method: &str, id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"{method}","params":{{ "uri":1.0, "_meta":{{"{member}" : {id}}}, "{member}":1 }}}}"#
        )
    };
    for method in ["notifications/subscriptions/acknowledged", "notifications/resources/updated"] {
        for (own, other) in [("\"1\"", "2"), ("\"mine\"", "1")] {
            ends.server.send(&told(method, other)).await;
            ends.client.expect(&told(method, own)).await;
        }
    }
    // Of no request: unchanged.
    for odd in ["3", "\"2\"", "null", "[1]"] {
        ends.server.send(&told("notifications/resources/updated", odd)).await;
        ends.client.expect(&told("notifications/resources/updated", odd)).await;
    }
    let ended = |id: &str, named: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"{member}":{named}}}}}}}"#
        )
    };
    ends.server.send(&ended("1", "1")).await;
    ends.client.expect(&ended("\"mine\"", "\"mine\"")).await;
    // It has ended. The client may have another listen request with that id, so its messages are dropped.
    ends.server.send(&told("notifications/resources/updated", "1")).await;
    ends.server.send(&told("notifications/resources/updated", "2")).await;
    ends.client.expect(&told("notifications/resources/updated", "\"1\"")).await;
    ends.server.send(&ended("2", "3")).await;
    ends.client.expect(&ended("\"1\"", "3")).await;
}

#[tokio::test]
async fn results_that_are_no_objects_and_missing_params_pass() {
    let mut ends = Ends::in_dialect(ACP).await;
    for (number, result) in (1..).zip(["null", "1.50", r#""text""#, "[ ]", "false"]) {
        ends.client.send(&format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"bare"}}"#)).await;
        ends.server.expect(&format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"bare"}}"#)).await;
        ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{result}}}"#)).await;
        ends.client.expect(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{result}}}"#)).await;
    }
    ends.client.send(r#"{"jsonrpc":"2.0","method":"bare"}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","method":"bare"}"#).await;
}

#[tokio::test]
async fn errors_pass_with_their_code_message_and_data_in_both_directions() {
    let mut ends = Ends::in_dialect(ACP).await;
    let errors = [
        r#"{"code":-32601,"message":"no such method"}"#,
        r#"{"code":-32800,"message":"stopped by its own decision","data":{"at":3}}"#,
        r#"{"code":1,"message":"é \"quoted\"","data":[1.0,null]}"#,
        r#"{"code":-32603,"message":"","data":"text"}"#,
    ];
    for (number, error) in (1..).zip(errors) {
        ends.client.send(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{}}"#).await;
        ends.server.frame().await;
        ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":{number},"error":{error}}}"#)).await;
        ends.client.expect(&format!(r#"{{"jsonrpc":"2.0","id":7,"error":{error}}}"#)).await;
        ends.server.send(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{}}"#).await;
        ends.client.frame().await;
        ends.client.send(&format!(r#"{{"jsonrpc":"2.0","id":{number},"error":{error}}}"#)).await;
        ends.server.expect(&format!(r#"{{"jsonrpc":"2.0","id":7,"error":{error}}}"#)).await;
    }
}

#[tokio::test]
async fn the_ids_1_and_text_1_are_two_requests_and_both_are_renumbered() {
    let mut ends = Ends::in_dialect(ACP).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"number","params":{}}"#).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":"1","method":"text","params":{}}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","id":1,"method":"number","params":{}}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","id":2,"method":"text","params":{}}"#).await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":2,"result":"of text"}"#).await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":"of number"}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":"1","result":"of text"}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":1,"result":"of number"}"#).await;
}

#[tokio::test]
async fn late_second_and_unknown_answers_are_stopped_and_the_session_goes_on() {
    let mut ends = Ends::in_dialect(ACP).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{}}"#).await;
    ends.server.frame().await;
    for answer in
        [r#""id":99,"result":0"#, r#""id":"01","result":0"#, r#""id":1,"result":1"#, r#""id":1,"result":2"#]
    {
        ends.server.send(&format!(r#"{{"jsonrpc":"2.0",{answer}}}"#)).await;
    }
    ends.server.send("no JSON").await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":1,"result":1}"#).await;
    ends.client.is_silent().await;
    // A server may print something: it is dropped, and not answered.
    ends.server.is_silent().await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":2,"method":"m","params":{}}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","id":2,"method":"m","params":{}}"#).await;
}

#[tokio::test]
async fn a_second_request_with_an_id_in_use_is_refused_and_not_passed_on() {
    let mut ends = Ends::in_dialect(ACP).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"first","params":{}}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","id":1,"method":"first","params":{}}"#).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"second","params":{}}"#).await;
    assert!(ends.client.frame().await.contains(r#""id":null"#));
    ends.server.is_silent().await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":"first"}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":1,"result":"first"}"#).await;
}

#[tokio::test]
async fn the_handshake_passes_untouched_with_capabilities_and_meta() {
    let mut ends = Ends::in_dialect(MCP).await;
    let params = r#"{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}, "x":1.0},"_meta":{"a":[]},"clientInfo":{"name":"é","version":"1"}}"#;
    ends.client.send(&format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#)).await;
    ends.server
        .expect(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#))
        .await;
    let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"2"}}"#;
    ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)).await;
    ends.client.expect(&format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#)).await;
    // The draft of ACP has a declaration of cancels. A bridge declares nothing of its own.
    let mut ends = Ends::in_dialect(rescind_core::dialect::ACP_DRAFT).await;
    let params = r#"{"protocolVersion":1,"clientCapabilities":{"fs":{}}}"#;
    ends.client.send(&format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#)).await;
    ends.server
        .expect(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#))
        .await;
    let result = r#"{"protocolVersion":1,"agentCapabilities":{}}"#;
    ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)).await;
    ends.client.expect(&format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#)).await;
}

#[tokio::test]
async fn progress_tokens_pass_untouched_there_and_back() {
    for (dialect, token) in [(MCP, "7"), (MCP, r#""a b""#), (MCP_2026, "1.50"), (MCP, "99999999999999999999")]
    {
        let mut ends = Ends::in_dialect(dialect).await;
        let params = format!(r#"{{"name":"t","_meta":{{"progressToken":{token}}}}}"#);
        ends.client
            .send(&format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{params}}}"#))
            .await;
        ends.server
            .expect(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#))
            .await;
        let progress = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        );
        ends.server.send(&progress).await;
        ends.client.expect(&progress).await;
        ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
        ends.client.expect(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#).await;
    }
}

#[tokio::test]
async fn a_language_server_is_opened_used_and_ended_through_a_bridge() {
    let mut ends = Ends::in_dialect(LSP).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"capabilities":{}}}"#).await;
    ends.server
        .expect(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}"#)
        .await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":0,"result":{"capabilities":{}}}"#).await;
    for token in [
        r#"{"jsonrpc":"2.0","method":"window/workDoneProgress/cancel","params":{"token":"t"}}"#,
        r#"{"jsonrpc":"2.0","method":"initialized","params":{}}"#,
    ] {
        ends.client.send(token).await;
        ends.server.expect(token).await;
    }
    // The server's own cancel keeps its data, by which the client decides whether to ask again.
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"textDocument/diagnostic","params":{}}"#).await;
    ends.server.frame().await;
    let error = r#"{"code":-32802,"message":"changed","data":{"retriggerRequest":true}}"#;
    ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":2,"error":{error}}}"#)).await;
    ends.client.expect(&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#)).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":2,"method":"shutdown"}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","id":3,"method":"shutdown"}"#).await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":3,"result":null}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":2,"result":null}"#).await;
    ends.client.send(r#"{"jsonrpc":"2.0","method":"exit"}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","method":"exit"}"#).await;
    ends.server.closed().await;
    assert_eq!(ends.downstream.exit_code(), Some(0));
    ends.bridge.ended().await;
}

#[test]
fn what_a_bridge_does_not_carry_is_refused_with_a_sentence() {
    let refused = Bridge::new(ABP).unwrap_err();
    assert_eq!(refused, NotBridged::Envelope { dialect: "abp" });
    assert_eq!(
        refused.to_string(),
        "a bridge does not carry abp: options of its calls are part of its envelope"
    );
    let refused = Bridge::new(MCP).unwrap().to(MCP_2026).unwrap_err();
    assert_eq!(refused, NotBridged::Pair { from: "mcp", to: "mcp-2026" });
    assert!(Bridge::new(ACP).unwrap().to(ABP).is_err());
    let bridge = Bridge::new(MCP).unwrap();
    assert_eq!(
        format!("{bridge:?}"),
        r#"Bridge { downstream: Dialect("mcp"), upstream: Dialect("mcp"), sessions: 0, .. }"#
    );
}

// The order of messages, and sides that do not read.

fn note(number: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"note","params":[{number}]}}"#)
}

async fn updates_come_before_the_answer() {
    let mut ends = Ends::in_dialect(ACP).await;
    for round in 1..=30 {
        ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#).await;
        ends.server.frame().await;
        for number in 0..20 {
            ends.server.send(&note(number)).await;
        }
        ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":{round},"result":{{}}}}"#)).await;
        for number in 0..20 {
            ends.client.expect(&note(number)).await;
        }
        ends.client.expect(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    }
}

#[tokio::test]
async fn the_updates_of_a_server_come_before_the_answer_that_follows_them() {
    updates_come_before_the_answer().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_updates_of_a_server_come_before_its_answer_on_several_threads_too() {
    updates_come_before_the_answer().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notifications_keep_their_order_and_come_before_the_request_that_follows_them() {
    let mut ends = Ends::in_dialect(ACP).await;
    for round in 1..=30 {
        for number in 0..20 {
            ends.client.send(&note(number)).await;
        }
        ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#).await;
        for number in 0..20 {
            ends.server.expect(&note(number)).await;
        }
        ends.server
            .expect(&format!(r#"{{"jsonrpc":"2.0","id":{round},"method":"work","params":{{}}}}"#))
            .await;
        ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":{round},"result":{{}}}}"#)).await;
        ends.client.frame().await;
    }
}

#[tokio::test]
async fn messages_that_wait_for_a_slow_upstream_keep_their_order() {
    let (listener, transport) = memory_listener();
    let (opens, open) = oneshot::channel::<Upstream>();
    let open = std::sync::Mutex::new(Some(open));
    let bridge = Bridge::new(ACP).unwrap();
    let server = bridge.serve(move || open.lock().unwrap().take().unwrap());
    let serving = tokio::spawn(server.listen(listener).run());
    let link = rescind_core::Transport::open(Box::new(transport)).await.unwrap();
    let mut client = End(link);
    for round in 0..10 {
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":{round},"method":"work","params":{{}}}}"#)).await;
        client.send(&note(round)).await;
    }
    client.is_silent().await;
    let (upstream, far) = memory_pair();
    opens.send(Upstream::new("slow", upstream)).unwrap();
    let mut server = End(far);
    for round in 0..10 {
        let id = round + 1;
        server.expect(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","params":{{}}}}"#)).await;
        server.expect(&note(round)).await;
    }
    serving.abort();
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_its_server_down_and_loses_nothing() {
    const MANY: usize = 30_000;
    let mut ends = Ends::in_dialect(MCP).await;
    let mut server = ends.server;
    let flood = tokio::spawn(async move {
        for number in 0..MANY {
            server.send(&note(number)).await;
        }
        server
    });
    ends.client.send(r#"{"jsonrpc":"2.0","method":"go"}"#).await;
    for _ in 0..20_000 {
        tokio::task::yield_now().await;
    }
    assert!(!flood.is_finished(), "the bridge holds what nobody reads");
    let held = ends.downstream.queue_stats();
    assert!(held.outbox_frames <= Limits::default().max_outbox_frames, "{held:?}");
    // Another session of the same bridge goes on meanwhile.
    let mut other = Ends::of(ends.bridge.clone()).await;
    other.server.send(&note(1)).await;
    other.client.expect(&note(1)).await;
    for number in 0..MANY {
        ends.client.expect(&note(number)).await;
    }
    flood.await.unwrap().expect(r#"{"jsonrpc":"2.0","method":"go"}"#).await;
}

#[tokio::test]
async fn a_server_that_does_not_read_ends_its_session_before_a_notification_is_lost() {
    let limits = Limits::default().max_queued_notifications(50).max_outbox_frames(50);
    let mut ends = Ends::of(Bridge::new(ACP).unwrap().limits(limits)).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#).await;
    ends.client.is_silent().await;
    let big = "x".repeat(2_000);
    let flood = format!(r#"{{"jsonrpc":"2.0","method":"note","params":["{big}"]}}"#);
    let mut sent = 0;
    // Until the bridge closes.
    while !ends.downstream.is_closed() && sent < 5_000 {
        let open = tokio::time::timeout(
            Duration::from_secs(20),
            rescind_testkit::support::frames::send(&mut ends.client.0, flood.clone()),
        );
        sent += 1;
        if open.await.unwrap().is_err() {
            break;
        }
    }
    assert!(sent < 5_000, "it has no bound");
    let answer = ends.client.frame().await;
    assert!(
        answer.contains(r#""id":1,"error":{"code":-32603,"message":"the server does not read"#),
        "{answer}"
    );
    ends.client.closed().await;
    ends.bridge.ended().await;
    assert!(Peer::is_closed(&ends.downstream));
}
