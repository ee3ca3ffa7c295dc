//! `--page`: the live page of a command that serves.

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
pub(crate) struct Serving(Option<AbortHandle>);

/// Starts the page of the connections that this log records, and prints `page on URL` to stderr. Without `--page` there
/// is none. `is_draining` is asked for `/readyz`.
///
/// A command with a `Server` passes `&handle.request_log()` and `move || handle.is_draining()`.
///
/// # Errors
/// The reason why it cannot be served, in one sentence.
pub(crate) async fn start(
    args: &PageArgs,
    title: &str,
    log: &RequestLog,
    is_draining: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<Serving, Failure> {
    let Some(address) = &args.page else { return Ok(Serving(None)) };
    let failed = |why: &dyn std::fmt::Display| format!("the page cannot be served at {address}: {why}");
    let page = Page::new(log).map_err(|error| failed(&error))?.title(title).draining_if(is_draining);
    let page = page.bind(address).await.map_err(|error| failed(&error))?;
    output::message(&format!("page on {}\n", page.url()));
    Ok(Serving(Some(tokio::spawn(page.run()).abort_handle())))
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(page) = &self.0 {
            page.abort();
        }
    }
}
