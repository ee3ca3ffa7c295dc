//! The secret that the nodes of a cluster share.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

/// The shortest secret, in bytes.
const MIN_BYTES: usize = 16;
/// The bytes of a signature: half of HMAC-SHA-256, 128 bits.
const MAC_BYTES: usize = 16;
/// The secret of a cluster that was given none. It is known to everybody, so such a cluster is for one machine.
const OF_LOOPBACK: &[u8] = b"rescind: a cluster of one machine, without a secret";

/// The secret that all nodes of a cluster share. It signs the ids of sessions, the keys of requests, the nodes' entries
/// in the engine and the messages between nodes. It is never sent.
#[derive(Clone)]
pub struct Secret {
    bytes: Arc<[u8]>,
    is_given: bool,
}

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file could not be read.
    #[error("the secret could not be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// It is too short.
    #[error("a secret has at least {MIN_BYTES} bytes")]
    TooShort,
}

/// The kinds of signatures. A signature of one kind is never valid as another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Session,
    Key,
    Member,
    Hop,
    /// A cancel for a request of a server without sessions.
    Shared,
    /// The list of a principal's tasks.
    Tasks,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Session => b"session",
            Self::Key => b"key",
            Self::Member => b"member",
            Self::Hop => b"hop",
            Self::Shared => b"shared",
            Self::Tasks => b"tasks",
        }
    }
}

/// A signature.
#[derive(Clone, Copy)]
pub(crate) struct Signature([u8; MAC_BYTES]);

impl Secret {
    /// A secret of at least 16 bytes.
    ///
    /// # Errors
    /// It is shorter.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let bytes = bytes.into();
        if bytes.len() < MIN_BYTES {
            return Err(SecretError::TooShort);
        }
        Ok(Self { bytes: bytes.into(), is_given: true })
    }

    /// The secret in a file, without spaces and line ends around it.
    ///
    /// # Errors
    /// The file cannot be read, or the secret has less than 16 bytes.
    pub fn read(file: impl AsRef<Path>) -> Result<Self, SecretError> {
        let text = std::fs::read(file)?;
        Self::new(text.trim_ascii())
    }

    /// The secret of a cluster without one: everybody knows it. A node with it may advertise addresses of loopback only.
    #[must_use]
    pub fn of_loopback() -> Self {
        Self { bytes: OF_LOOPBACK.into(), is_given: false }
    }

    /// Whether it is not that of [`of_loopback`](Self::of_loopback).
    pub(crate) const fn is_given(&self) -> bool {
        self.is_given
    }

    /// Signs these parts. Their lengths are signed too, so that no other division has the same signature.
    pub(crate) fn sign(&self, purpose: Purpose, parts: &[&[u8]]) -> Signature {
        // HMAC takes keys of every length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.bytes) else {
            return Signature([0; MAC_BYTES]);
        };
        for part in [b"rescind".as_slice(), purpose.label()].iter().chain(parts) {
            mac.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            mac.update(part);
        }
        let whole = mac.finalize().into_bytes();
        let mut signature = [0; MAC_BYTES];
        for (byte, of) in signature.iter_mut().zip(whole) {
            *byte = of;
        }
        Signature(signature)
    }

    /// Whether `shown`, in hexadecimal, is the signature of these parts. It takes the same time for each wrong one.
    pub(crate) fn is_signed(&self, purpose: Purpose, parts: &[&[u8]], shown: &str) -> bool {
        self.sign(purpose, parts).to_string().as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(secret: &Secret, purpose: Purpose, parts: &[&[u8]]) -> String {
        secret.sign(purpose, parts).to_string()
    }

    #[test]
    fn a_signature_is_of_one_secret_one_purpose_and_one_division() {
        let secret = Secret::new(*b"0123456789abcdef").unwrap();
        let signature = signed(&secret, Purpose::Key, &[b"ab", b"c"]);
        assert_eq!(signature.len(), 32);
        assert!(secret.is_signed(Purpose::Key, &[b"ab", b"c"], &signature));
        let other = Secret::new(*b"0123456789abcdeg").unwrap();
        for wrong in [
            signed(&other, Purpose::Key, &[b"ab", b"c"]),
            signed(&secret, Purpose::Session, &[b"ab", b"c"]),
            signed(&secret, Purpose::Key, &[b"a", b"bc"]),
            signed(&secret, Purpose::Key, &[b"abc"]),
            signature.to_uppercase(),
            signature[..30].to_owned(),
            String::new(),
        ] {
            assert!(!secret.is_signed(Purpose::Key, &[b"ab", b"c"], &wrong), "{wrong}");
        }
    }

    #[test]
    fn a_short_secret_is_refused_and_none_is_shown() {
        assert!(matches!(Secret::new(*b"0123456789abcde"), Err(SecretError::TooShort)));
        assert!(!Secret::of_loopback().is_given());
        assert_eq!(format!("{:?}", Secret::new(*b"0123456789abcdef").unwrap()), "Secret");
    }
}
