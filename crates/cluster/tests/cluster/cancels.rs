//! Cancels of requests that have a key.

use rescind_cluster::NodeList;
use rescind_core::{Cause, CauseKind};

use crate::cluster::node::{Event, LIMIT, Node, cancel, of, open, post, read, request, secret, send};

/// A worker in another process watches the key of its request.
#[tokio::test]
async fn a_watcher_on_another_node_is_signalled_when_the_caller_cancels() {
    let (nodes, secret) = (NodeList::new(), secret());
    let mut owner = Node::start("n1", &nodes, &secret).await;
    let other = Node::start("n2", &nodes, &secret).await;
    let session = open(owner.address, &[]).await;
    let body = request(1, "hang").to_string();
    let _request = send(owner.address, "POST", &[of(&session)], &body).await;
    let key = owner.key().await;
    let watch = other.cluster.cancel_bus().watch(&key).unwrap();
    assert_eq!(post(other.address, &[of(&session)], &cancel(1)).await.status, 202);
    assert_eq!(owner.event().await, Event::Cancelled);
    tokio::time::timeout(LIMIT, watch.cancelled()).await.unwrap();
    // A watch that begins after the request has ended finds the record.
    let late = other.cluster.cancel_bus().watch(&key).unwrap();
    tokio::time::timeout(LIMIT, late.cancelled()).await.unwrap();
}

#[tokio::test]
async fn a_cancel_by_the_key_reaches_the_handler_and_its_caller_is_answered() {
    let (nodes, secret) = (NodeList::new(), secret());
    let mut owner = Node::start("n1", &nodes, &secret).await;
    let other = Node::start("n2", &nodes, &secret).await;
    let session = open(owner.address, &[]).await;
    let body = request(1, "hang").to_string();
    let asked = send(other.address, "POST", &[of(&session)], &body).await;
    let key = owner.key().await;
    let cause = Cause::new(CauseKind::Operator);
    other.cluster.cancel_bus().cancel(&key, &cause).await.unwrap();
    assert_eq!(owner.event().await, Event::Cancelled);
    let answer = read(asked).await;
    assert!(answer.text.contains("cancelled by an operator"), "{answer:?}");
}
