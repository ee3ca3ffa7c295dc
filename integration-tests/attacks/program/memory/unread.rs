//! Echoes whose answers are not read.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::timeout;

use super::Field;
use crate::http2::{Http2, send_all};
use crate::raw_stream::{Stream, request};
use crate::target::Wire;

const ECHOES: u64 = 900;
const SIZE: usize = 900_000;
/// A process that reads nothing for this time has stopped reading, and the attack is over.
const STUCK: Duration = Duration::from_secs(2);

pub(super) async fn over_a_stream(field: &mut Field) {
    let mut stream = Stream::connect(&mut field.target).await;
    stream.initialize(field.target.dialect.name()).await;
    let value = "x".repeat(SIZE);
    for id in 1..=ECHOES {
        let echo = request(id, "test/echo", &json!({"value": value}));
        match timeout(STUCK, stream.writer.send(&[echo.into()])).await {
            Ok(Ok(())) => {}
            // It has stopped reading or closed the connection.
            Ok(Err(_)) | Err(_) => break,
        }
    }
    field.others_are_served().await;
    field.hold(stream);
}

pub(super) async fn over_http(field: &mut Field) {
    let mut opening = Http2::connect(&field.target, 1 << 20).await;
    opening.initialize(field.target.dialect.name()).await;
    let mut client = Http2::connect(&field.target, 0).await;
    client.session.clone_from(&opening.session);
    if field.target.wire == Wire::Acp {
        field.hold(client.events().await);
    }
    let value = "x".repeat(SIZE);
    for id in 1..=ECHOES {
        let mut params = json!({"value": value});
        if field.target.wire == Wire::Stateless {
            params = crate::honest_client::with_meta(params);
        }
        let echo = Bytes::from(request(id, "test/echo", &params));
        let posted = timeout(STUCK, async {
            let (response, mut stream) = client.begin("test/echo", echo.len()).await?;
            send_all(&mut stream, echo).await;
            let _sent = stream.send_data(Bytes::new(), true);
            Ok::<_, h2::Error>((response, stream))
        });
        match posted.await {
            Ok(Ok(posted)) => field.hold(posted),
            // No further stream can be opened, or the connection is closed.
            Ok(Err(_)) | Err(_) => break,
        }
    }
    field.others_are_served().await;
    field.hold((opening, client));
}
