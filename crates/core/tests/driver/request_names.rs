//! The names of methods in snapshots and logs.

use std::sync::Arc;
use std::time::Duration;

use rescind_core::{Limits, MAX_RECORDED_METHOD_BYTES, RequestLog, RequestStatus};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::driver::requests::{held, of, pair, yield_until};

#[tokio::test(start_paused = true)]
async fn a_hostile_method_is_kept_at_most_256_bytes_long() {
    let (client, server) = pair(held(&Arc::new(Semaphore::new(0))), Limits::default());
    let log = RequestLog::new();
    server.record_in(&log);
    let name = format!("<script>{}", "é".repeat(100_000));
    assert!(client.call::<_, Value>(name, &json!({})).await.is_err());
    let [ended] = &*log.ended() else { panic!("one has ended") };
    let kept = ended.request.method.as_deref().unwrap();
    assert!(kept.starts_with("<script>é") && kept.len() <= MAX_RECORDED_METHOD_BYTES, "{} bytes", kept.len());
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_log_knows_its_calls_by_kept_names() {
    let release = Arc::new(Semaphore::new(0));
    let (client, server) = pair(held(&release), Limits::default());
    let call = client.call::<_, Value>("hold", &json!({})).start().unwrap();
    yield_until(|| !server.requests().is_empty()).await;
    tokio::time::advance(Duration::from_millis(1500)).await;
    let now = tokio::time::Instant::now().into_std();
    for requests in [server.requests(), client.requests()] {
        let hold = of(&requests, "hold");
        assert_eq!((hold.status, now - hold.started), (RequestStatus::Running, Duration::from_millis(1500)));
    }
    // A name that is too long to be kept is forgotten when the call is written.
    let long = client.call::<_, Value>("x".repeat(1000), &json!({})).start().unwrap();
    assert!(
        client
            .requests()
            .iter()
            .any(|request| request.method.as_ref().is_some_and(|name| name.len() == 1000))
    );
    drop((call, long));
}
