//! How this process is told to stop.

/// SIGINT or SIGTERM; on Windows Ctrl-C. From the call on, before it is awaited, they no longer end the process.
///
/// # Cancel safety
/// Dropping the future loses a signal that came meanwhile; it does not give the signals back to the system.
#[cfg(unix)]
pub(crate) fn told_to_stop() -> impl Future<Output = ()> {
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
            // Then they end the process as they do any other.
            _ => std::future::pending().await,
        }
    }
}

/// Ctrl-C.
///
/// # Cancel safety
/// Dropping the future loses a signal that came meanwhile.
#[cfg(windows)]
pub(crate) fn told_to_stop() -> impl Future<Output = ()> {
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
