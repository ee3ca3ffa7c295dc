//! A bearer token in a file: a server requires it of its clients, or a client shows it.
//!
//! The file of a client may change while the client runs: it is read again every few seconds, before a connection opens,
//! and when the server refuses the token.

use std::fmt;
use std::future::{Ready, ready};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rescind::http::Authorization;
use rescind::{AuthRefusal, AuthRequest, Credential, Principal};
use subtle::ConstantTimeEq as _;
use tokio::task::AbortHandle;

use crate::output;

/// The shortest token.
const MIN_BYTES: usize = 16;

/// The time between two looks at the file of a client.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The time in which a changed file must stay the same. A program may still write it.
const SETTLED: Duration = Duration::from_millis(50);
/// How often a file that goes on changing is read before it is left for later.
const READS: usize = 5;

/// A token.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(Arc<str>);

impl Token {
    /// Reads the token of a file, without spaces and line ends around it.
    ///
    /// # Errors
    /// The reason why the file has no token, in one sentence.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("the token in {} could not be read: {error}", file.display()))?;
        Self::parse(&text).ok_or_else(|| {
            format!(
                "{} must contain one token of {MIN_BYTES} or more letters, digits and signs",
                file.display()
            )
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let token = text.trim();
        let is_token = token.len() >= MIN_BYTES && token.bytes().all(|byte| byte.is_ascii_graphic());
        is_token.then(|| Self(token.into()))
    }

    /// The header by which a client shows it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Accepts only requests that show it.
    pub(crate) fn hook(
        &self,
    ) -> impl Fn(AuthRequest) -> Ready<Result<Credential, AuthRefusal>> + Send + Sync + 'static {
        let token = self.clone();
        move |request| {
            let shown = request.header("authorization").is_some_and(|value| token.is_shown_by(value));
            ready(if shown { Ok(Credential::anonymous()) } else { Err(AuthRefusal::unauthorized("Bearer")) })
        }
    }

    fn is_shown_by(&self, header: &str) -> bool {
        let Some((scheme, shown)) = header.split_once(' ') else { return false };
        // The comparison takes the same time whatever the first wrong byte is.
        scheme.eq_ignore_ascii_case("bearer") && bool::from(shown.trim().as_bytes().ct_eq(self.0.as_bytes()))
    }
}

/// The token that a client shows, in a file that may change.
#[derive(Clone)]
pub(crate) struct TokenFile {
    watched: Arc<Watched>,
    authorization: Authorization,
    _looking: Arc<Looking>,
}

struct Watched {
    file: PathBuf,
    token: RwLock<Token>,
    /// Whether the last read has failed, which was said.
    is_unreadable: AtomicBool,
}

/// The task that looks at the file, until this is dropped.
struct Looking(AbortHandle);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl TokenFile {
    /// Reads the token, and goes on looking at the file as long as this value lives.
    ///
    /// # Errors
    /// The reason why the file has no token, in one sentence.
    pub(crate) fn open(file: &Path) -> Result<Self, String> {
        let token = Token::read(file)?;
        let authorization = Authorization::new(&token.header()).map_err(|error| error.to_string())?;
        let (token, is_unreadable) = (RwLock::new(token), AtomicBool::new(false));
        let watched = Arc::new(Watched { file: file.to_owned(), token, is_unreadable });
        let refused = Arc::clone(&watched);
        let authorization = authorization.refresh(move |authorization| {
            let refused = Arc::clone(&refused);
            async move { refused.read_again(&authorization).await }
        });
        let (looked_at, sets) = (Arc::clone(&watched), authorization.clone());
        let looking = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_AGAIN).await;
                looked_at.read_again(&sets).await;
            }
        });
        let looking = Arc::new(Looking(looking.abort_handle()));
        Ok(Self { watched, authorization, _looking: looking })
    }

    /// The header by which a client shows the current token.
    pub(crate) async fn header(&self) -> String {
        self.watched.read_again(&self.authorization).await;
        self.watched.token().header()
    }

    /// The same for a client over HTTP, in which it changes as the file does.
    pub(crate) const fn authorization(&self) -> &Authorization {
        &self.authorization
    }
}

impl Watched {
    fn token(&self) -> Token {
        self.token.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the token that is in the file now. If there is none, the last one stays, which is said once.
    async fn read_again(&self, authorization: &Authorization) {
        let mut last = None;
        for _ in 0..READS {
            let file = self.file.clone();
            let read = tokio::task::spawn_blocking(move || Token::read(&file)).await;
            let read = read.unwrap_or_else(|error| Err(error.to_string()));
            // Nothing has changed, or what has changed stays.
            if read.as_ref().is_ok_and(|token| *token == self.token()) || last.as_ref() == Some(&read) {
                return self.take(read, authorization);
            }
            last = Some(read);
            tokio::time::sleep(SETTLED).await;
        }
    }

    fn take(&self, read: Result<Token, String>, authorization: &Authorization) {
        match read {
            Ok(token) => {
                if self.is_unreadable.swap(false, Ordering::Relaxed) {
                    output::message(&format!("rescind: {} has a token again\n", self.file.display()));
                }
                if authorization.set(&token.header()).is_ok() {
                    *self.token.write().unwrap_or_else(PoisonError::into_inner) = token;
                }
            }
            Err(why) => {
                if !self.is_unreadable.swap(true, Ordering::Relaxed) {
                    output::message(&format!("rescind: {why}; the last token is used\n"));
                }
            }
        }
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenFile")
    }
}

/// A token with the name of the principal that shows it: `NAME=SECRET`.
#[derive(Clone, Debug)]
pub(crate) struct NamedToken {
    name: Arc<str>,
    token: Token,
}

impl FromStr for NamedToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, secret) = text.split_once('=').ok_or("it is not NAME=SECRET")?;
        if name.is_empty() || secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("give NAME=SECRET, with a secret of letters, digits and signs".to_owned());
        }
        Ok(Self { name: name.into(), token: Token(secret.into()) })
    }
}

impl NamedToken {
    /// Accepts only requests that show one of these, as its principal.
    pub(crate) fn hook(
        tokens: Vec<Self>,
    ) -> impl Fn(AuthRequest) -> Ready<Result<Credential, AuthRefusal>> + Send + Sync + 'static {
        move |request| {
            let header = request.header("authorization").unwrap_or_default().to_owned();
            let shown = tokens.iter().find(|named| named.token.is_shown_by(&header));
            ready(match shown {
                Some(named) => Ok(Credential::of(Principal(named.name.to_string().into()))),
                None => Err(AuthRefusal::unauthorized("Bearer")),
            })
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_of_at_least_sixteen_characters() {
        for text in ["0123456789abcdef", "  0123456789abcdef\n", "~!@#$%^&*()_+-=[]{}"] {
            assert!(Token::parse(text).is_some(), "{text}");
        }
        for text in [
            "",
            "\n",
            "0123456789abcde",
            "01234567 89abcdef",
            "0123456789abcdef\n0123456789abcdef",
            "0123456789abcdeé",
        ] {
            assert!(Token::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn only_the_token_itself_is_accepted() {
        let token = Token::parse("0123456789abcdef").unwrap_or_else(|| panic!("it is a token"));
        for header in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef", "BEARER 0123456789abcdef "] {
            assert!(token.is_shown_by(header), "{header}");
        }
        for header in [
            "",
            "Bearer",
            "Bearer ",
            "0123456789abcdef",
            "Basic 0123456789abcdef",
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcdef0",
        ] {
            assert!(!token.is_shown_by(header), "{header}");
        }
        assert_eq!(format!("{token:?}"), "Token", "it is not shown in logs");
    }
}
