//! The signals that stop this process.

/// Waits for SIGINT or SIGTERM. From the call on, before the future is awaited, these signals no longer end the
/// process.
///
/// # Cancel safety
/// Dropping the future loses a signal that arrived meanwhile. It does not restore the default action of the signals.
#[cfg(unix)]
pub(crate) fn stop_signal() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async move {
        match signals {
            (Ok(mut interrupt), Ok(mut terminate)) => {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            }
            // The signals could not be registered, so they end the process as usual.
            _ => std::future::pending().await,
        }
    }
}

/// Waits for Ctrl-C.
///
/// # Cancel safety
/// Dropping the future loses a signal that arrived meanwhile.
#[cfg(windows)]
pub(crate) fn stop_signal() -> impl Future<Output = ()> {
    let signal = tokio::signal::windows::ctrl_c();
    async move {
        match signal {
            Ok(mut interrupt) => {
                interrupt.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    }
}
