//! One text message for each frame.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, accept_async_with_config, client_async_with_config};

use super::Answers;

pub(super) type Socket = WebSocketStream<TcpStream>;

/// tungstenite clears its read buffer before each read, so the floor has one of the size that Rescind sets.
fn config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(12 * 1024)
}

pub(super) async fn connect(endpoint: &str) -> Socket {
    let stream = TcpStream::connect(endpoint).await.expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    let opened = client_async_with_config(format!("ws://{endpoint}/"), stream, Some(config())).await;
    opened.expect("the server upgrades").0
}

pub(super) async fn exchange(socket: &mut Socket, frame: Bytes) -> Bytes {
    let text = Utf8Bytes::try_from(frame).expect("a frame is text");
    socket.send(Message::Text(text)).await.expect("the wire is open");
    socket.next().await.expect("the server answers").expect("a message").into_data()
}

pub(super) async fn serve(answers: Answers, listens: fn(&str)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listens(&listener.local_addr().expect("a socket").to_string());
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket");
        tokio::spawn(async move {
            let mut socket =
                accept_async_with_config(stream, Some(config())).await.expect("the client upgrades");
            while let Some(Ok(message)) = socket.next().await {
                let answer = match (answers, message) {
                    (Answers::Same, message) if message.is_text() => message,
                    (Answers::Envelope, Message::Text(text)) => {
                        let answer = Utf8Bytes::try_from(answers.to(text.into())).expect("JSON is text");
                        Message::Text(answer)
                    }
                    _ => return,
                };
                if socket.send(answer).await.is_err() {
                    return;
                }
            }
        });
    }
}
