//! A cancel is written before the frames that it overtook.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rescind_core::dialect::ACP;
use rescind_core::{ByteStream, CancelResult, Framing, Peer};
use serde_json::{Value, json};
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;

/// Reports the content of each write.
struct Writes(mpsc::UnboundedSender<String>);

impl AsyncWrite for Writes {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_cancel_is_written_before_the_frames_it_overtook() {
    let (tell, mut writes) = mpsc::unbounded_channel();
    let (reader, _open) = tokio::io::simplex(64);
    let link = ByteStream::new(reader, Writes(tell)).framing(Framing::Newline).into_link();
    let peer = Peer::builder(ACP).attach(link).unwrap();
    let call = peer.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert!(writes.recv().await.unwrap().contains("\"wait\""));
    for _ in 0..100 {
        peer.try_notify("noise", &json!({})).unwrap();
    }
    assert_eq!(call.canceller().cancel("enough"), CancelResult::Sent);
    let first = writes.recv().await.unwrap();
    assert!(first.contains("cancel_request") && !first.contains("noise"), "{first}");
    assert_eq!(first.lines().count(), 1);
    let then = writes.recv().await.unwrap();
    assert_eq!(then.lines().count(), 100, "what it overtook is one write");
}
