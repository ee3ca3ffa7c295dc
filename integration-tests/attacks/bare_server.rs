//! The floor: the flood is served by code that only handles frames. The waits of a second connection are then caused
//! by the machine and the transport.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use rescind::transport::{
    ExchangeEnd, FrameInfo, FrameKind, Inbound, Lane, Link, Outbound, Sender, TransportError, TransportEvent,
};
use tokio::task::JoinSet;

/// How many frames are read before other tasks have a turn, as in our driver.
const BATCH: usize = 16;

/// Starts a task for each request, as any server does, answers it when the task ends, and reads each cancel, until
/// the connection ends. A task ends after the grace of the flood's handlers. Above the handler limit, requests are
/// answered at once.
pub(crate) async fn serve(link: Link, most: usize, grace: Duration) {
    let Link { mut rx, mut tx, .. } = link;
    let mut running = JoinSet::new();
    let mut read = 0;
    loop {
        let event = poll_fn(|cx| {
            let event = rx.as_mut().poll_event(cx);
            if event.is_pending() {
                let _ = tx.as_mut().poll_flush(cx);
            }
            event
        });
        let ended = tokio::select! {
            Some(ended) = running.join_next() => Some(ended.expect("it waits")),
            event = event => match event {
                Some(Ok(TransportEvent::Message(inbound))) if !is_request(&inbound) => {
                    if inbound.exchange.is_peers() {
                        tx.as_mut().finish_exchange(inbound.exchange, ExchangeEnd::Accepted);
                    }
                    None
                }
                // The first message opens the connection.
                Some(Ok(TransportEvent::Message(inbound))) if read > 0 && running.len() < most => {
                    running.spawn(async move {
                        tokio::time::sleep(grace).await;
                        inbound
                    });
                    None
                }
                Some(Ok(TransportEvent::Message(inbound))) => Some(inbound),
                Some(Ok(_)) => None,
                Some(Err(_)) | None => return,
            },
        };
        if let Some(ended) = ended {
            if send(&mut tx, answer(ended)).await.is_err() {
                return;
            }
        }
        read += 1;
        if read % BATCH == 0 {
            poll_fn(|cx| Poll::Ready(tx.as_mut().poll_flush(cx).is_ready())).await;
            tokio::task::yield_now().await;
        }
    }
}

/// Among the frames of a flood only requests have this member.
fn is_request(inbound: &Inbound) -> bool {
    inbound.body.windows(5).any(|bytes| bytes == b"\"id\":")
}

fn answer(inbound: Inbound) -> Outbound {
    let head = FrameInfo { kind: FrameKind::Answer, id: None, method: None, trace: None };
    let exchange = inbound.exchange;
    Outbound { body: inbound.body, exchange, lane: Lane::Data, head, last: exchange.is_peers() }
}

async fn send(tx: &mut Pin<Box<dyn Sender>>, out: Outbound) -> Result<(), TransportError> {
    poll_fn(|cx| match tx.as_mut().poll_ready(Lane::Data, cx) {
        Poll::Pending => {
            // Frames that are not flushed make no room.
            let _ = tx.as_mut().poll_flush(cx);
            tx.as_mut().poll_ready(Lane::Data, cx)
        }
        ready @ Poll::Ready(_) => ready,
    })
    .await?;
    tx.as_mut().start_send(out)
}
