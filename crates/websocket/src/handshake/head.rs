use std::fmt;

use http::{HeaderMap, Uri};

/// The head of a request that wants to become a connection, for an auth hook to look at.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    uri: &'a Uri,
    headers: &'a HeaderMap,
}

impl<'a> RequestHead<'a> {
    pub(crate) const fn new(uri: &'a Uri, headers: &'a HeaderMap) -> Self {
        Self { uri, headers }
    }

    /// The path, without the query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.uri.path()
    }

    /// What follows the `?`.
    #[must_use]
    pub fn query(&self) -> Option<&'a str> {
        self.uri.query()
    }

    /// The first header of this name, in any case, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Every header of this name that is text.
    pub fn headers(&self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
    }
}

/// Shows the path only: headers and query may hold secrets.
impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead").field("path", &self.path()).finish_non_exhaustive()
    }
}
