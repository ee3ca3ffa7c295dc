//! The tests of HTTP in each of its bindings.

mod acp;
mod auth;
mod client;
mod contract;
mod heads;
mod legacy_sse;
mod refusals;
mod stateless;
mod streamable;
mod tasks;

use std::sync::Arc;

use rescind_testkit::Scenario;
use rescind_testkit::runner::{Played, Verdict};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How many vectors are played at once.
const AT_ONCE: usize = 8;

/// Plays vectors over a binding and returns how many held. All others fail the test, except those that the binding cannot
/// carry.
async fn play_all<F: Future<Output = Played> + Send + 'static>(
    scenarios: impl IntoIterator<Item = &'static Scenario>,
    play_over: fn(&'static Scenario) -> F,
    may_be_left_out: impl Fn(&Scenario) -> bool,
) -> usize {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut plays = JoinSet::new();
    for scenario in scenarios {
        let permits = Arc::clone(&permits);
        plays.spawn(async move {
            let _permit = permits.acquire_owned().await;
            (scenario, play_over(scenario).await)
        });
    }
    let (mut held, mut broken) = (0, Vec::new());
    for (scenario, played) in plays.join_all().await {
        let vector = &scenario.vector;
        let half_closes = vector.requirements(scenario.dialect).half_close;
        let expected = half_closes || !vector.needs.is_empty() || may_be_left_out(scenario);
        let name = format!("{}/{}", scenario.dialect, vector.name);
        match &played.verdict {
            Verdict::Held => held += 1,
            Verdict::NotAsked { .. } if expected => {}
            Verdict::NotAsked { why } | Verdict::Unsure { why } => {
                broken.push(format!("{name}: not asked: {why}"));
            }
            Verdict::Broke { why, step, .. } => {
                broken.push(format!("{name} step {step}: {why}\n{:?}", played.trace));
            }
        }
    }
    assert!(broken.is_empty(), "{} did not hold:\n{}", broken.len(), broken.join("\n"));
    held
}
