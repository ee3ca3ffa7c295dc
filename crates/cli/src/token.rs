//! A bearer token in a file: a server requires it of its clients, or a client shows it.

use std::fmt;
use std::future::{Ready, ready};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rescind::{AuthRefusal, AuthRequest, Credential, Principal};
use subtle::ConstantTimeEq as _;

/// The shortest token.
const MIN_BYTES: usize = 16;

/// A token.
#[derive(Clone)]
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
