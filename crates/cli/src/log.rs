//! Logs go to stderr; stdout belongs to the protocol and to reports.

use tracing::Level;

/// Starts logging: warnings, with `-v` what happens, with `-vv` every step.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => Level::ERROR,
        1 => Level::DEBUG,
        2.. => Level::TRACE,
    };
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).finish();
    // It can only fail if a subscriber is set already, and nobody set one.
    drop(tracing::subscriber::set_global_default(subscriber));
}
