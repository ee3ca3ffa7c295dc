//! The members, as an engine has them whose every reading is counted.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::engine::Answer;

/// An engine with these entries.
struct Counted {
    entries: Vec<(String, String)>,
    readings: AtomicU32,
}

impl Engine for Counted {
    fn members(&self) -> Answer<'_, Vec<(String, String)>> {
        self.readings.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(self.entries.clone()) })
    }

    fn signal<'a>(&'a self, _: &'a str, _: &'a str, _: Duration) -> Answer<'a, ()> {
        unused()
    }

    fn subscribe<'a>(&'a self, _: &'a [Arc<str>]) -> Answer<'a, ()> {
        unused()
    }

    fn unsubscribe<'a>(&'a self, _: &'a [Arc<str>]) -> Answer<'a, ()> {
        unused()
    }

    fn look<'a>(&'a self, _: &'a [Arc<str>]) -> Answer<'a, Vec<Option<String>>> {
        unused()
    }

    fn beat<'a>(&'a self, _: &'a str, _: &'a str, _: Duration) -> Answer<'a, Beat> {
        unused()
    }

    fn leave<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, ()> {
        unused()
    }

    fn push_job<'a>(&'a self, _: &'a str) -> Answer<'a, ()> {
        unused()
    }

    fn take_job(&self) -> Answer<'_, Option<String>> {
        unused()
    }
}

fn unused<'a, T>() -> Answer<'a, T> {
    Box::pin(async { Err(EngineError::Refused("these tests read members only".to_owned())) })
}

fn membership(entries: Vec<(String, String)>, secret: &Secret) -> (Membership, Arc<Counted>) {
    let engine = Arc::new(Counted { entries, readings: AtomicU32::new(0) });
    (Membership::new(Arc::clone(&engine) as _, secret.clone()), engine)
}

fn entry(name: &str, url: &'static str, secret: &Secret) -> String {
    let life = Incarnation::new().unwrap();
    OwnEntry::new(&name.parse().unwrap(), &Uri::from_static(url), life, secret).text
}

#[tokio::test]
async fn entries_that_the_cluster_has_not_signed_are_ignored() {
    let secret = Secret::new(*b"0123456789abcdef").unwrap();
    let other = Secret::new(*b"0123456789abcdeg").unwrap();
    let good = entry("n1", "http://127.0.0.1:1/", &secret);
    let entries = [
        ("n1", good.clone()),
        ("n2", good.clone()),
        ("n3", entry("n3", "http://127.0.0.1:3/", &other)),
        ("n4", entry("n4", "http://127.0.0.1:4/", &secret).replace("127.0.0.1:4", "192.0.2.7:4")),
        ("n5", r#"{"url":"http://192.0.2.7/"}"#.to_owned()),
        ("n6", good.replace("signature", "sig")),
        ("n7", "not JSON".to_owned()),
        ("n8", String::new()),
        ("n9", "[1]".to_owned()),
        ("a name", entry("n1", "http://127.0.0.1:1/", &secret)),
    ];
    let entries = entries.map(|(name, entry)| (name.to_owned(), entry)).to_vec();
    let (membership, _) = membership(entries, &secret);
    membership.read().await.unwrap();
    let names: Vec<_> = membership.members().into_iter().map(|member| member.name.to_string()).collect();
    assert_eq!(names, ["n1"], "the others are those of another cluster, of another node, or no entries");
}

#[tokio::test]
async fn a_flood_of_unknown_nodes_reads_the_engine_five_times_a_second() {
    let secret = Secret::of_loopback();
    let (membership, engine) = membership(Vec::new(), &secret);
    let begun = Instant::now();
    let flood = (0..20).map(|flooder| {
        let membership = membership.clone();
        tokio::spawn(async move {
            let mut lookups = 0_u32;
            while begun.elapsed() < Duration::from_secs(1) {
                let unknown = format!("f{flooder}-{lookups}").parse().unwrap();
                assert_eq!(membership.locate(&unknown).await, Located::Gone);
                lookups += 1;
            }
            lookups
        })
    });
    let mut lookups = 0;
    for flooder in flood.collect::<Vec<_>>() {
        lookups += flooder.await.unwrap();
    }
    let readings = engine.readings.load(Ordering::Relaxed);
    let most = begun.elapsed().as_millis() / BETWEEN_READINGS.as_millis() + 1;
    assert!(u128::from(readings) <= most, "{readings} readings for {lookups} look-ups, at most {most}");
    assert!(lookups > readings, "look-ups at the same time share a reading");
}
