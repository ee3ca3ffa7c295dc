//! One client opens connections by the thousand, and others still get theirs.

use serde_json::json;

use crate::acp::support::{hello, listen, open, post, request, server};

const MOST: usize = 8;

#[tokio::test]
async fn a_flood_of_initialize_displaces_only_its_own_unused_connections() {
    let listener = server().sessions(MOST).bind("127.0.0.1:0").await.unwrap();
    let counts = listener.counts();
    let served = listen(listener);
    let address = served.address();
    let [mallory, ada] = ["mallory", "ada"].map(|user| ("X-User", user));
    let known = |id: &str| ("Acp-Connection-Id", id.to_owned());
    let new = request(1, "session/new", &json!({}));
    let uses = async |user: (&str, &str), id: &str| {
        let (name, id) = known(id);
        post(address, &[user, (name, &id)], &new).await.status
    };
    let kept = open(address, &[ada]).await;
    assert_eq!(uses(ada, &kept).await, 202);
    let mut opened = Vec::new();
    for _ in 0..5 * MOST {
        opened.push(open(address, &[mallory]).await);
    }
    assert_eq!(usize::try_from(counts.displaced_sessions()).unwrap(), 5 * MOST - MOST / 2);
    assert_eq!(uses(mallory, &opened[0]).await, 404, "it made room");
    // Used connections keep their places. A client has half of them at most.
    for id in opened.iter().rev().take(MOST / 2) {
        assert_eq!(uses(mallory, id).await, 202);
    }
    let refused = post(address, &[mallory], &hello()).await;
    assert_eq!((refused.status, refused.head.contains("retry-after: 1")), (429, true), "{}", refused.body);
    assert!(refused.body.contains("this client"), "{}", refused.body);
    let other = open(address, &[ada]).await;
    assert_eq!((uses(ada, &other).await, uses(ada, &kept).await), (202, 202), "another client is served");
}
