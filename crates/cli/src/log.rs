//! Logs go to stderr; stdout belongs to the protocol and to reports.

use tracing::Level;

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

/// Starts logging: errors, with `-v` debug messages, with `-vv` every step.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => Level::ERROR,
        1 => Level::DEBUG,
        2.. => Level::TRACE,
    };
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).finish();
    // It fails only if a subscriber is already set, and none is.
    drop(tracing::subscriber::set_global_default(subscriber));
}
