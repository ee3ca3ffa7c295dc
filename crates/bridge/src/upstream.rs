//! The upstream side of a session.

use std::fmt;
use std::future::Future;

use rescind_core::{BoxFuture, Link};

/// An open connection to the server behind the bridge.
#[must_use = "it is closed when it is dropped"]
pub struct Upstream {
    pub(crate) name: String,
    pub(crate) link: Link,
    pub(crate) end: Option<BoxFuture<'static, String>>,
}

impl Upstream {
    /// An upstream with a name, which errors contain: a command or an address.
    pub fn new(name: impl Into<String>, link: Link) -> Self {
        Self { name: name.into(), link, end: None }
    }

    /// A future that is ready once nothing of the upstream is left, for example when a child process was waited for. It
    /// returns what is known of the end, such as an exit status and the last lines of stderr. Errors contain that text,
    /// and a session of the bridge ends only after it.
    pub fn ends(mut self, end: impl Future<Output = String> + Send + 'static) -> Self {
        self.end = Some(Box::pin(end));
        self
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).field("link", &self.link).finish_non_exhaustive()
    }
}
