//! `/metrics`: counts and gauges in the text form that Prometheus reads. No label has a text of a peer.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rescind_core::{Direction, OutcomeCounts, RequestLog, RequestOutcome, SessionInfo};

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The metrics at this moment. They are read from the log, which counts them, and not kept here.
///
/// # Errors
/// The library could not write them.
pub(crate) fn text(log: &RequestLog, viewers: usize, is_draining: bool) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("rescind");
    let (started, ended) = (Family::<Labels<1>, Counter>::default(), Family::<Labels<2>, Counter>::default());
    let cancels = Family::<Labels<1>, Counter>::default();
    let cancel_seconds = Family::<Labels<1>, Counter<f64, AtomicU64>>::default();
    let counts = log.counts();
    for (direction, counts) in [(Direction::Received, counts.received), (Direction::Made, counts.made)] {
        let labels = [("direction", direction.name())];
        started.get_or_create(&labels).inc_by(counts.started);
        cancels.get_or_create(&labels).inc_by(counts.ended_after_cancel);
        cancel_seconds.get_or_create(&labels).inc_by(counts.cancel_time.as_secs_f64());
        for (outcome, count) in outcomes(&counts) {
            let labels = [("direction", direction.name()), ("outcome", outcome)];
            ended.get_or_create(&labels).inc_by(count);
        }
    }
    registry.register("requests_started", "Requests that arrived, and calls that were made", started);
    registry.register("requests_ended", "Requests and calls that have ended", ended);
    registry.register("cancels_ended", "Requests and calls that ended after a cancel", cancels);
    registry.register(
        "cancel_seconds",
        "The sum of the times from a cancel to the end of its request",
        cancel_seconds,
    );
    let sessions = log.sessions();
    let in_flight = Family::<Labels<1>, Gauge>::default();
    for SessionInfo { stats, .. } in &sessions {
        for (state, count) in [
            ("running", stats.running),
            ("queued", stats.queued),
            ("draining", stats.draining),
            ("calls", stats.calls),
        ] {
            in_flight.get_or_create(&[("state", state)]).inc_by(whole(count));
        }
    }
    registry.register("in_flight", "Requests by their state, and calls, that have not ended", in_flight);
    for (name, help, value) in [
        ("sessions", "Connections that are open", sessions.len() as u64),
        ("page_viewers", "Viewers of the live page", viewers as u64),
        ("draining", "1 while the server drains", u64::from(is_draining)),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(whole(value));
        registry.register(name, help, gauge);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn outcomes(counts: &OutcomeCounts) -> [(&'static str, u64); 6] {
    let failed = RequestOutcome::Failed(rescind_core::ErrorCode::INTERNAL_ERROR);
    [
        (RequestOutcome::Completed.name(), counts.completed),
        (failed.name(), counts.failed),
        (RequestOutcome::Cancelled.name(), counts.cancelled),
        (RequestOutcome::Refused.name(), counts.refused),
        (RequestOutcome::Unreadable.name(), counts.unreadable),
        (RequestOutcome::Disconnected.name(), counts.disconnected),
    ]
}
