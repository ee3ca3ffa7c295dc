//! The nodes that live, and their addresses.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::Uri;
use rescind_core::LogText;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::engine::{Beat, Engine, EngineError};
use crate::names::{Incarnation, NodeName};
use crate::secret::{Purpose, Secret};

/// The interval of heartbeats, and of reading those of the others.
pub(crate) const BEAT: Duration = Duration::from_secs(3);
/// How long a node counts as living after its last heartbeat.
pub(crate) const TIME_TO_LIVE: Duration = Duration::from_secs(10);
/// How long a node counts as living after its entry is gone from an engine. One that forgot its entries, because it started
/// again, has them back after a heartbeat. A node that has left refuses connections, and is gone at once.
const LINGER: Duration = Duration::from_secs(6);
/// The same after the engine was away, in which time the entries of living nodes end: from its return, the lifetime of an entry and the
/// interval of heartbeats.
const SETTLES: Duration = Duration::from_secs(13);
/// How long the address of a node is remembered that is no member any more: as long as a task is kept.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// The least time between two readings for nodes that are not known.
const BETWEEN_READINGS: Duration = Duration::from_millis(200);

/// A node that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: NodeName,
    /// The URL by which other nodes reach it.
    pub url: Uri,
    /// `None`: a list of addresses does not have it.
    pub(crate) incarnation: Option<Incarnation>,
}

/// The nodes that live, as this process last read them. A clone is the same view.
#[derive(Clone)]
pub struct Membership(Arc<Shared>);

struct Shared {
    engine: Arc<dyn Engine>,
    secret: Secret,
    view: RwLock<View>,
    /// Held while the engine is read for a node that is not known.
    reading: tokio::sync::Mutex<()>,
    /// The engine refused the last heartbeat, for example because it is full.
    is_refused: AtomicBool,
    has_lost_its_name: AtomicBool,
}

#[derive(Default)]
struct View {
    members: HashMap<NodeName, Seen>,
    /// Those that do not count as living any more, and until when they are remembered.
    former: HashMap<NodeName, Seen>,
    /// The last reading failed, so nodes may be missing, and dead ones may be left.
    is_away: bool,
    /// At the last reading the engine refused heartbeats. It may refuse those of others too, so the end of an entry says nothing. A
    /// node that refuses connections is dead all the same: a process keeps its address.
    is_refused: bool,
    read_at: Option<Instant>,
    /// Since when each reading has succeeded.
    steady_since: Option<Instant>,
}

/// A member, and until when it counts as one without an entry.
struct Seen {
    member: Member,
    until: Instant,
}

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    At(Member),
    /// No such node lives.
    Gone,
    /// It is not known, and the engine cannot be asked.
    Unknown,
}

/// A node's entry in the engine.
#[derive(Serialize, Deserialize)]
struct Entry {
    url: String,
    #[serde(default)]
    incarnation: Option<String>,
    /// Without it the entry is that of a list, which is the operator's own.
    #[serde(default)]
    signature: Option<String>,
}

impl View {
    /// Takes the members of a reading. Those without an entry stay for this time at least; a list is what its operator wrote.
    fn replace(&mut self, found: Vec<Member>, now: Instant, lingers: Duration, is_list: bool) {
        self.former.retain(|_, seen| now < seen.until);
        for seen in self.members.values_mut() {
            seen.until = seen.until.max(now + lingers);
        }
        let gone: Vec<NodeName> = {
            let is_gone = |seen: &Seen| is_list || now >= seen.until;
            self.members.iter().filter(|(_, seen)| is_gone(seen)).map(|(name, _)| name.clone()).collect()
        };
        for name in gone {
            if let Some(seen) = self.members.remove(&name).filter(|_| !is_list) {
                self.former.insert(name, Seen { until: now + REMEMBERED, ..seen });
            }
        }
        for member in found {
            self.former.remove(&member.name);
            self.members.insert(member.name.clone(), Seen { member, until: now + LINGER });
        }
    }
}

impl Membership {
    pub(crate) fn new(engine: Arc<dyn Engine>, secret: Secret) -> Self {
        Self(Arc::new(Shared {
            engine,
            secret,
            view: RwLock::default(),
            reading: tokio::sync::Mutex::default(),
            is_refused: AtomicBool::new(false),
            has_lost_its_name: AtomicBool::new(false),
        }))
    }

    fn view<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.0.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The nodes that live, in the order of their names.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let mut members: Vec<_> =
            self.view(|view| view.members.values().map(|seen| seen.member.clone()).collect());
        members.sort_by(|one, other| one.name.cmp(&other.name));
        members
    }

    /// Whether the engine could be read the last time. While it is away, the members that were read last are used.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.view(|view| !view.is_away && view.read_at.is_some())
    }

    /// Reads the members from the engine.
    pub(crate) async fn read(&self) -> Result<(), EngineError> {
        let read = self.0.engine.members().await;
        let mut view = self.0.view.write().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let read_before = view.read_at.replace(now);
        match read {
            Ok(entries) => {
                let found = entries.iter().filter_map(|(name, entry)| self.member(name, entry)).collect();
                let is_refused = self.0.is_refused.load(Ordering::Relaxed);
                // Between readings that far apart it may have been away, too.
                let is_back = view.is_away || read_before.is_none_or(|at| now.duration_since(at) >= LINGER);
                (view.is_away, view.is_refused) = (false, is_refused);
                if is_back || is_refused {
                    view.steady_since = Some(now);
                }
                let lingers = if is_back {
                    SETTLES
                } else if is_refused {
                    // When the engine takes heartbeats again, those of the others may come later than the one of this node.
                    LINGER
                } else {
                    Duration::ZERO
                };
                view.replace(found, now, lingers, self.0.engine.is_list());
                Ok(())
            }
            Err(error) => {
                if !view.is_away {
                    tracing::warn!(error = %LogText::text(&error), "the members of the cluster cannot be read: those of the last reading stay");
                }
                view.is_away = true;
                Err(error)
            }
        }
    }

    /// `None`: this cluster's secret has not signed the entry, so its address may lead anywhere.
    fn member(&self, name: &str, entry: &str) -> Option<Member> {
        let read: Entry = serde_json::from_str(entry).ok()?;
        let incarnation = read.incarnation.as_deref();
        if let Some(incarnation) = incarnation {
            let parts = [name, &read.url, incarnation].map(str::as_bytes);
            if !self.0.secret.is_signed(Purpose::Member, &parts, read.signature.as_deref()?) {
                tracing::warn!(node = %LogText::name(name), "the entry of a node is not signed with the secret of this cluster");
                return None;
            }
        } else if !self.0.engine.is_list() {
            return None;
        }
        Some(Member {
            name: name.parse().ok()?,
            url: read.url.parse().ok()?,
            incarnation: incarnation.and_then(|text| text.parse().ok()),
        })
    }

    /// The member in an entry of this name. `None`: it is not one of this cluster.
    pub(crate) fn read_entry(&self, name: &NodeName, entry: &str) -> Option<Member> {
        self.member(name.as_str(), entry)
    }

    /// Whether another process has taken the name of this node.
    pub(crate) fn has_lost_its_name(&self) -> bool {
        self.0.has_lost_its_name.load(Ordering::Relaxed)
    }

    /// Where a node is, as it was last read.
    fn cached(&self, name: &NodeName) -> Option<Member> {
        self.view(|view| view.members.get(name).map(|seen| seen.member.clone()))
    }

    /// Where a node is. A node that is not known is looked for in the engine, at most five times a second.
    pub(crate) async fn locate(&self, name: &NodeName) -> Located {
        match self.cached(name) {
            Some(member) => Located::At(member),
            None => self.locate_again(name).await,
        }
    }

    /// Where a node is, read from the engine after this call began. Several that ask at once share one reading.
    pub(crate) async fn locate_again(&self, name: &NodeName) -> Located {
        self.refresh().await;
        match self.cached(name) {
            Some(member) => Located::At(member),
            None if self.view(|view| view.is_away || view.is_refused) => Located::Unknown,
            None => Located::Gone,
        }
    }

    /// Where a node was that is no member any more.
    pub(crate) fn former(&self, name: &NodeName) -> Option<Member> {
        self.view(|view| view.former.get(name).map(|seen| seen.member.clone()))
    }

    /// Whether each living node has had the time to write its entry since the engine can be read.
    pub(crate) fn is_settled(&self) -> bool {
        let since = self.view(|view| view.steady_since.filter(|_| !view.is_away));
        self.0.engine.is_list() || since.is_some_and(|since| since.elapsed() >= SETTLES)
    }

    /// Reads the members after this call began.
    pub(crate) async fn refresh(&self) {
        let asked = Instant::now();
        let _reading = self.0.reading.lock().await;
        let read_at = self.view(|view| view.read_at);
        if read_at.is_some_and(|at| at >= asked) {
            return;
        }
        // A list costs nobody a round trip.
        if let Some(at) = read_at.filter(|_| !self.0.engine.is_list()) {
            tokio::time::sleep_until(at + BETWEEN_READINGS).await;
        }
        if let Err(error) = self.read().await {
            tracing::debug!(error = %LogText::text(&error), "the members could not be read");
        }
    }

    /// Reads the members, unless that was just done.
    pub(crate) async fn refresh_if_old(&self) {
        if self.view(|view| view.read_at).is_none_or(|at| at.elapsed() >= BETWEEN_READINGS) {
            self.refresh().await;
        }
    }

    /// Writes or renews the entry of this node.
    pub(crate) async fn beat(&self, entry: &OwnEntry) -> Result<Beat, EngineError> {
        let beat = self.0.engine.beat(entry.name.as_str(), &entry.text, TIME_TO_LIVE).await;
        self.0.is_refused.store(matches!(beat, Err(EngineError::Refused(_))), Ordering::Relaxed);
        beat
    }

    /// Writes the entry of a node that starts. An engine that was just started answers before it can keep records, so it is asked
    /// again until this time.
    pub(crate) async fn first_beat(&self, entry: &OwnEntry, until: Instant) -> Result<Beat, EngineError> {
        loop {
            match self.beat(entry).await {
                Err(EngineError::Away(error)) if Instant::now() < until => {
                    tracing::debug!(error = %LogText::text(&error), "the engine is not ready");
                    tokio::time::sleep(BETWEEN_READINGS).await;
                }
                beat => return beat,
            }
        }
    }

    /// Renews the entry of this node and reads those of the others, until it is dropped.
    pub(crate) async fn keep(self, own: OwnEntry) {
        let mut due = tokio::time::interval(BEAT);
        due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            match self.beat(&own).await {
                Ok(Beat::Held) => self.0.has_lost_its_name.store(false, Ordering::Relaxed),
                Ok(Beat::Taken(_)) => {
                    if !self.0.has_lost_its_name.swap(true, Ordering::Relaxed) {
                        tracing::error!(node = %own.name, "another process has taken the name of this node: other nodes do not reach its sessions, and it takes no new ones");
                    }
                }
                Err(error) => tracing::debug!(error = %LogText::text(&error), "a heartbeat failed"),
            }
            if let Err(error) = self.read().await {
                tracing::debug!(error = %LogText::text(&error), "the members could not be read");
            }
        }
    }
}

/// The entry of this node.
#[derive(Clone, Debug)]
pub(crate) struct OwnEntry {
    pub(crate) name: NodeName,
    pub(crate) text: String,
}

impl OwnEntry {
    pub(crate) fn new(name: &NodeName, url: &Uri, incarnation: Incarnation, secret: &Secret) -> Self {
        let (url, incarnation) = (url.to_string(), incarnation.to_string());
        let parts = [name.as_str(), &url, &incarnation].map(str::as_bytes);
        let signature = Some(secret.sign(Purpose::Member, &parts).to_string());
        let entry = Entry { url, incarnation: Some(incarnation), signature };
        Self { name: name.clone(), text: serde_json::to_string(&entry).unwrap_or_default() }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("members", &self.members()).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    //! The members, as an engine has them whose every reading is counted.

    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::engine::Answer;

    /// An engine with these entries.
    pub(crate) struct Counted {
        entries: Mutex<Vec<(String, String)>>,
        readings: AtomicU32,
        /// It refuses heartbeats.
        is_full: AtomicBool,
        /// How many heartbeats it does not answer.
        away: AtomicU32,
        /// It does not answer a reading.
        is_away: AtomicBool,
    }

    impl Engine for Counted {
        fn members(&self) -> Answer<'_, Vec<(String, String)>> {
            self.readings.fetch_add(1, Ordering::Relaxed);
            if self.is_away.load(Ordering::Relaxed) {
                return Box::pin(async { Err(EngineError::Away("connection refused".to_owned())) });
            }
            Box::pin(async { Ok(self.entries.lock().unwrap().clone()) })
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
            let is_away =
                self.away.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if is_away.is_ok() {
                Box::pin(async { Err(EngineError::Away("no stream found for given subject".to_owned())) })
            } else if self.is_full.load(Ordering::Relaxed) {
                unused()
            } else {
                Box::pin(async { Ok(Beat::Held) })
            }
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
        let engine = Arc::new(Counted {
            entries: entries.into(),
            readings: AtomicU32::new(0),
            is_full: AtomicBool::new(false),
            away: AtomicU32::new(0),
            is_away: AtomicBool::new(false),
        });
        (Membership::new(Arc::clone(&engine) as _, secret.clone()), engine)
    }

    /// What a node sees of `n1`, at this URL, after a heartbeat of its own that a full engine has refused.
    pub(crate) async fn with_a_full_engine(url: &'static str, secret: &Secret) -> (Membership, Arc<Counted>) {
        let (membership, engine) = membership(vec![("n1".to_owned(), entry("n1", url, secret))], secret);
        engine.is_full.store(true, Ordering::Relaxed);
        beat_and_read(&membership, secret).await;
        (membership, engine)
    }

    fn own_entry(secret: &Secret) -> OwnEntry {
        let (name, url) = ("n2".parse().unwrap(), Uri::from_static("http://127.0.0.1:2/"));
        OwnEntry::new(&name, &url, Incarnation::new().unwrap(), secret)
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_starts_although_its_engine_keeps_no_records_at_first() {
        let secret = Secret::of_loopback();
        let (membership, engine) = membership(Vec::new(), &secret);
        let own = own_entry(&secret);
        engine.away.store(20, Ordering::Relaxed);
        let began = Instant::now();
        let until = began + TIME_TO_LIVE;
        assert!(matches!(membership.first_beat(&own, until).await, Ok(Beat::Held)));
        assert_eq!(began.elapsed(), 20 * BETWEEN_READINGS);
        engine.away.store(u32::MAX, Ordering::Relaxed);
        assert!(matches!(membership.first_beat(&own, until).await, Err(EngineError::Away(_))));
        assert_eq!(began.elapsed(), TIME_TO_LIVE, "it is not asked for ever");
        engine.away.store(0, Ordering::Relaxed);
        engine.is_full.store(true, Ordering::Relaxed);
        assert!(matches!(membership.first_beat(&own, until).await, Err(EngineError::Refused(_))));
    }

    async fn beat_and_read(membership: &Membership, secret: &Secret) {
        let own = own_entry(secret);
        let _ = membership.beat(&own).await;
        membership.read().await.unwrap();
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

    #[tokio::test(start_paused = true)]
    async fn members_stay_while_the_engine_is_full_and_until_their_next_heartbeats() {
        let secret = Secret::of_loopback();
        let (membership, engine) = with_a_full_engine("http://127.0.0.1:1/", &secret).await;
        engine.entries.lock().unwrap().clear();
        for _ in 0..10 {
            tokio::time::advance(BEAT).await;
            beat_and_read(&membership, &secret).await;
            assert!(matches!(membership.locate(&"n1".parse().unwrap()).await, Located::At(_)));
            assert_eq!(membership.locate(&"n3".parse().unwrap()).await, Located::Unknown);
            assert!(membership.is_current(), "it can be read");
        }
        // The next heartbeat of n1 may come up to 3 s after this one.
        engine.is_full.store(false, Ordering::Relaxed);
        beat_and_read(&membership, &secret).await;
        tokio::time::advance(BEAT).await;
        beat_and_read(&membership, &secret).await;
        assert!(matches!(membership.locate(&"n1".parse().unwrap()).await, Located::At(_)));
        tokio::time::advance(BEAT).await;
        beat_and_read(&membership, &secret).await;
        assert_eq!(membership.locate(&"n1".parse().unwrap()).await, Located::Gone);
    }

    #[tokio::test(start_paused = true)]
    async fn members_have_time_to_write_their_entries_again_after_an_outage() {
        let secret = Secret::of_loopback();
        let n1 = entry("n1", "http://127.0.0.1:1/", &secret);
        let (membership, engine) = membership(vec![("n1".to_owned(), n1.clone())], &secret);
        let name = "n1".parse().unwrap();
        beat_and_read(&membership, &secret).await;
        // Its entry ends meanwhile, and it cannot write it again.
        engine.entries.lock().unwrap().clear();
        engine.is_away.store(true, Ordering::Relaxed);
        for _ in 0..5 {
            tokio::time::advance(BEAT).await;
            membership.read().await.unwrap_err();
        }
        engine.is_away.store(false, Ordering::Relaxed);
        membership.read().await.unwrap();
        let back = Instant::now();
        while back.elapsed() < SETTLES {
            assert!(matches!(membership.locate(&name).await, Located::At(_)), "{:?}", back.elapsed());
            assert!(!membership.is_settled());
            tokio::time::advance(BETWEEN_READINGS).await;
            membership.read().await.unwrap();
        }
        assert_eq!(membership.locate_again(&name).await, Located::Gone);
        assert!(membership.is_settled());
        assert!(membership.former(&name).is_some(), "it can be asked where it was");
        engine.entries.lock().unwrap().push(("n1".to_owned(), n1));
        tokio::time::advance(BETWEEN_READINGS).await;
        assert!(matches!(membership.locate_again(&name).await, Located::At(_)));
        assert_eq!(membership.former(&name), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_process_gives_others_time_to_write_their_entries_too() {
        let secret = Secret::of_loopback();
        let n1 = entry("n1", "http://127.0.0.1:1/", &secret);
        let (membership, engine) = membership(vec![("n1".to_owned(), n1)], &secret);
        beat_and_read(&membership, &secret).await;
        engine.entries.lock().unwrap().clear();
        tokio::time::advance(REMEMBERED).await;
        assert!(matches!(membership.locate_again(&"n1".parse().unwrap()).await, Located::At(_)));
        assert!(!membership.is_settled());
    }
}
