//! For commands that serve: the live page of `--page`, the signals that stop the process, and an allocator that returns memory
//! to the system.

use clap::Args;
use rescind::page::Page;
use rescind::requests::RequestLog;
use tokio::task::AbortHandle;

use crate::{Failure, output};

/// The live page of a command that serves.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Serve a live page of the requests at this address of loopback, with a button that stops each. Port 0 takes a free
    /// port. The line `page on URL` on stderr has its URL: the URL is all that is needed to stop requests.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) page: Option<String>,
}

/// The page that was asked for, while this value lives.
#[derive(Debug)]
pub(crate) struct ServedPage(Option<AbortHandle>);

/// Starts the page of the connections that this log records, and prints `page on URL` to stderr. Without `--page` there
/// is none. `is_draining` is asked for `/readyz`.
///
/// A command with a `Server` passes `&handle.request_log()` and `move || handle.is_draining()`.
///
/// # Errors
/// The reason why it cannot be served, in one sentence.
pub(crate) async fn start_page(
    args: &PageArgs,
    title: &str,
    log: &RequestLog,
    is_draining: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<ServedPage, Failure> {
    let Some(address) = &args.page else { return Ok(ServedPage(None)) };
    let failed = |why: &dyn std::fmt::Display| format!("the page cannot be served at {address}: {why}");
    let page = Page::new(log).map_err(|error| failed(&error))?.title(title).draining_if(is_draining);
    let page = page.bind(address).await.map_err(|error| failed(&error))?;
    output::message(&format!("page on {}\n", page.url()));
    Ok(ServedPage(Some(tokio::spawn(page.run()).abort_handle())))
}

impl Drop for ServedPage {
    fn drop(&mut self) {
        if let Some(page) = &self.0 {
            page.abort();
        }
    }
}

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

/// Waits for Ctrl-C, Ctrl-Break, the end of the console or of the system. From the call on, before the future is awaited, Ctrl-C and
/// Ctrl-Break no longer end the process. When the console is closed, Windows ends the process some seconds later.
///
/// # Cancel safety
/// Dropping the future loses a signal that arrived meanwhile.
#[cfg(windows)]
pub(crate) fn stop_signal() -> impl Future<Output = ()> {
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
    let signals = (ctrl_c(), ctrl_break(), ctrl_close(), ctrl_shutdown());
    async move {
        match signals {
            (Ok(mut interrupt), Ok(mut pause), Ok(mut close), Ok(mut shutdown)) => {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = pause.recv() => {}
                    _ = close.recv() => {}
                    _ = shutdown.recv() => {}
                }
            }
            // The signals could not be registered, so they end the process as usual.
            _ => std::future::pending().await,
        }
    }
}

/// Sets the allocator's thresholds, if they are not set, by executing this program again in this process. It is for
/// programs that serve and must be called before they start a thread.
///
/// glibc allocates a large block as a separate mapping and unmaps it on free. Each such free raises the size from
/// which it does so, up to 32 MiB, which is more than any frame. A server would therefore keep the memory of its
/// largest frames. A fixed threshold prevents this. Without `unsafe` it can be set only before a process starts, so
/// the program executes itself again in the same process.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn give_back_large_blocks() {
    use std::os::unix::process::CommandExt as _;

    let set = std::env::var_os(glibc::TUNABLES).unwrap_or_default();
    // A value that is not valid Unicode comes from the user and is not changed.
    let (None, Some(set)) = (std::env::var_os(glibc::DONE), set.to_str()) else { return };
    let Some(tunables) = glibc::completed(set, |name| std::env::var_os(name).is_some()) else { return };
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut command = std::process::Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).env(glibc::TUNABLES, tunables).env(glibc::DONE, "1").exec();
    // The program serves without the setting and uses more memory.
    tracing::debug!(%error, "the allocator could not be set");
}

/// Does nothing: this system does not use glibc.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) const fn give_back_large_blocks() {}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    /// The variable that glibc reads when a process starts: `name=value:name=value`.
    pub(super) const TUNABLES: &str = "GLIBC_TUNABLES";
    /// Set in the program that was executed again, so that this happens once.
    pub(super) const DONE: &str = "RESCIND_ALLOCATOR_SET";

    /// The name of a setting, its older variable, and the value used here.
    const SETTINGS: [(&str, &str, &str); 3] = [
        ("glibc.malloc.mmap_threshold", "MALLOC_MMAP_THRESHOLD_", "131072"),
        ("glibc.malloc.trim_threshold", "MALLOC_TRIM_THRESHOLD_", "131072"),
        ("glibc.malloc.arena_max", "MALLOC_ARENA_MAX", "2"),
    ];

    /// The value `set` with those settings added that the user has not made. `None`: the user has made all of them.
    pub(super) fn completed(set: &str, has_variable: impl Fn(&str) -> bool) -> Option<String> {
        let is_set = |name: &str| {
            set.split(':').any(|part| part.split_once('=').is_some_and(|(set_name, _)| set_name == name))
        };
        let missing: Vec<String> = SETTINGS
            .into_iter()
            .filter(|(name, variable, _)| !is_set(name) && !has_variable(variable))
            .map(|(name, _, value)| format!("{name}={value}"))
            .collect();
        if missing.is_empty() {
            return None;
        }
        let set = (!set.is_empty()).then(|| set.to_owned());
        Some(set.into_iter().chain(missing).collect::<Vec<_>>().join(":"))
    }

    #[cfg(test)]
    mod tests {
        use super::completed;

        #[test]
        fn the_users_tunables_are_kept_and_the_missing_ones_are_added() {
            let ours = "glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072:\
                        glibc.malloc.arena_max=2";
            assert_eq!(completed("", |_| false).as_deref(), Some(ours));
            let theirs = "glibc.malloc.mmap_threshold=7:glibc.malloc.arena_max=3";
            assert_eq!(
                completed(theirs, |_| false).unwrap(),
                format!("{theirs}:glibc.malloc.trim_threshold=131072")
            );
            assert_eq!(completed(theirs, |variable| variable == "MALLOC_TRIM_THRESHOLD_"), None);
        }
    }
}
