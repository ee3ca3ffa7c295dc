//! Who may see the page, and who may stop a request: the host, the origin, and the token in the page's URL.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use rescind_net::{HostPolicy, HostRefusal};
use subtle::ConstantTimeEq as _;

/// Refuses requests for a host that is not served (DNS rebinding), and marks every response: it is not kept, not shown in
/// a frame, and its URL, which has the token, is not sent to other sites.
pub(crate) async fn check_host(
    State(hosts): State<Arc<HostPolicy>>,
    request: Request,
    next: Next,
) -> Response {
    let target = request.uri().authority().map(axum::http::uri::Authority::as_str);
    let named = request.headers().get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let refusal = hosts.check(target, named).map(drop);
    let mut response = match refusal {
        Ok(()) => next.run(request).await,
        Err(why @ HostRefusal::NotServed) => {
            (StatusCode::MISDIRECTED_REQUEST, format!("{why}\n")).into_response()
        }
        Err(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether the request was sent by a page of the same origin: its one `Origin` has the host and the port of its one
/// `Host`. Every browser sends `Origin` with a POST, so a request without it is refused.
pub(crate) fn is_same_origin(headers: &HeaderMap) -> bool {
    let only = |name| {
        let mut values = headers.get_all(name).iter();
        let value = values.next()?;
        values.next().is_none().then_some(value)?.to_str().ok()
    };
    let (Some(origin), Some(host)) = (only(header::ORIGIN), only(header::HOST)) else { return false };
    let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    named.is_some_and(|named| named.eq_ignore_ascii_case(host))
}

/// 256 bits of the operating system.
const BYTES: usize = 32;

/// A secret of 256 random bits, in hexadecimal. It is all that is needed to see the page and to stop requests.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// A new token.
    ///
    /// # Errors
    /// The system returns no random bytes.
    pub(crate) fn random() -> std::io::Result<Self> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        let mut text = String::with_capacity(2 * BYTES);
        for byte in bytes {
            // A write into memory cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self(text))
    }

    /// Compares in a time that does not depend on where the texts differ.
    pub(crate) fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_origin_with_the_host_and_port_of_the_request_is_the_same() {
        let headers = |origins: &[&'static str]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("localhost:8000"));
            for origin in origins {
                headers.append(header::ORIGIN, HeaderValue::from_static(origin));
            }
            headers
        };
        assert!(is_same_origin(&headers(&["http://localhost:8000"])));
        assert!(is_same_origin(&headers(&["https://LOCALHOST:8000"])));
        for wrong in [
            &[][..],
            &["null"],
            &["http://localhost"],
            &["http://localhost:8001"],
            &["http://127.0.0.1:8000"],
            &["http://evil.example"],
            &["http://localhost:8000.evil.example"],
            &["ftp://localhost:8000"],
            &["http://localhost:8000", "http://localhost:8000"],
        ] {
            assert!(!is_same_origin(&headers(wrong)), "{wrong:?}");
        }
        assert!(!is_same_origin(&HeaderMap::new()));
    }

    #[test]
    fn a_token_has_256_bits_is_equal_to_itself_alone_and_is_not_shown() {
        let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(token.as_str().len(), 64);
        assert!(token.is(token.as_str()));
        let cut = &token.as_str()[..63];
        for wrong in ["", cut, other.as_str(), &token.as_str().to_uppercase().replace(char::is_numeric, "A")]
        {
            assert!(!token.is(wrong));
        }
        assert!(!format!("{token:?}").contains(token.as_str()));
    }
}
