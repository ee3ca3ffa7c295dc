//! Logs go to stderr; stdout belongs to the protocol and to reports.

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

/// Hides the fixture's one intended panic from stderr. Every other panic is reported as usual.
pub(crate) fn hide_intended_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        if text != Some(rescind_testkit::fixture::PANIC_TEXT) {
            tell(panic);
        }
    }));
}

/// Starts logging: errors and warnings of the cluster, with `-v` debug messages, with `-vv` every step.
pub(crate) fn start(verbose: u8) {
    let targets = match verbose {
        // The client of NATS reports errors that the commands report too.
        0 => Targets::new()
            .with_default(Level::ERROR)
            .with_target("rescind_cluster", Level::WARN)
            .with_target("async_nats", LevelFilter::OFF),
        1 => Targets::new().with_default(Level::DEBUG),
        2.. => Targets::new().with_default(Level::TRACE),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let subscriber = tracing_subscriber::registry().with(lines).with(targets);
    // It fails only if a subscriber is already set, and none is.
    drop(tracing::subscriber::set_global_default(subscriber));
}
