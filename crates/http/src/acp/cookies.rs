//! The cookies of a connection.

use std::collections::BTreeMap;

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

/// The most cookies that are stored, and the most bytes of each.
const MOST: usize = 64;
const MOST_BYTES: usize = 4096;

/// Names and values. There is only one server, so domains and paths are ignored.
#[derive(Default)]
pub(super) struct CookieStore(BTreeMap<String, String>);

impl CookieStore {
    /// Stores the cookies that a response sets.
    pub(super) fn take(&mut self, headers: &HeaderMap) {
        for cookie in headers.get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok()) {
            let mut parts = cookie.split(';').map(str::trim);
            let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else { continue };
            let is_gone = parts.any(|part| {
                part.split_once('=').is_some_and(|(name, age)| {
                    name.eq_ignore_ascii_case("max-age") && age.parse::<i64>().is_ok_and(|age| age <= 0)
                })
            });
            if is_gone {
                self.0.remove(name);
            } else if cookie.len() <= MOST_BYTES && (self.0.len() < MOST || self.0.contains_key(name)) {
                self.0.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    /// The `Cookie` header of a request.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        let pairs: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut value = HeaderValue::from_str(&pairs.join("; ")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_sent_back_until_it_is_removed() {
        let mut cookies = CookieStore::default();
        let set = |cookies: &mut CookieStore, value: &'static str| {
            cookies.take(&HeaderMap::from_iter([(SET_COOKIE, HeaderValue::from_static(value))]));
            cookies.header().map(|value| value.to_str().map(ToOwned::to_owned).unwrap_or_default())
        };
        assert_eq!(set(&mut cookies, "node=a; Path=/acp; HttpOnly").as_deref(), Some("node=a"));
        assert_eq!(set(&mut cookies, "x=1=2; Max-Age=60").as_deref(), Some("node=a; x=1=2"));
        assert_eq!(set(&mut cookies, "node=b").as_deref(), Some("node=b; x=1=2"));
        assert_eq!(set(&mut cookies, "node=; Max-Age=0").as_deref(), Some("x=1=2"));
        assert_eq!(set(&mut cookies, "nonsense").as_deref(), Some("x=1=2"));
        assert_eq!(set(&mut cookies, "x=; max-age=-1"), None);
    }
}
