//! The token in the page's URL.

use std::fmt::{self, Write as _};

use subtle::ConstantTimeEq as _;

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
