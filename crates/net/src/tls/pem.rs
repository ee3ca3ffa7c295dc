//! PEM texts, from memory or from a file, and the errors in them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rescind_core::{TransportError, TransportErrorKind};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A file that was modified less than this before it was read is read once more: a later write may have the same time
/// and length.
const SETTLED: Duration = Duration::from_secs(2);

/// PEM text: certificates or a private key, in memory or in a file.
///
/// The value that uses a file reads it when that value is made, and again after the file changes.
#[derive(Clone)]
pub struct Pem(Source);

#[derive(Clone)]
enum Source {
    Memory(Arc<[u8]>),
    File(PathBuf),
}

impl Pem {
    /// This text. It never changes.
    #[must_use]
    pub fn bytes(text: impl AsRef<[u8]>) -> Self {
        Self(Source::Memory(text.as_ref().into()))
    }

    /// The text in this file.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        Self(Source::File(path.as_ref().to_owned()))
    }

    pub(super) const fn is_file(&self) -> bool {
        matches!(self.0, Source::File(_))
    }

    pub(super) fn read(&self, role: Role) -> Result<Text, TlsError> {
        match &self.0 {
            Source::Memory(bytes) => {
                Ok(Text { label: role.label().to_owned(), bytes: Arc::clone(bytes), stamp: None })
            }
            Source::File(path) => {
                let label = format!("{} ({})", path.display(), role.label());
                let failed = |error| TlsError::new(&label, format!("cannot be read: {error}"));
                // Before the text: a write in between changes the next stamp.
                let stamp = Stamp::of(path).map_err(failed)?;
                let bytes = std::fs::read(path).map_err(failed)?.into();
                Ok(Text { bytes, stamp: Some(stamp), label })
            }
        }
    }

    /// Whether the file surely has the same content as when it was read.
    pub(super) fn is_unchanged(&self, text: &Text) -> bool {
        match (&self.0, text.stamp) {
            (Source::Memory(_), _) => true,
            (Source::File(path), Some(stamp)) => {
                stamp.settled && Stamp::of(path).is_ok_and(|now| now.same_as(stamp))
            }
            (Source::File(_), None) => false,
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            // It may be a private key.
            Source::Memory(_) => f.write_str("Pem::bytes(..)"),
            Source::File(path) => write!(f, "Pem::file({})", path.display()),
        }
    }
}

/// The use of a PEM text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Certificate,
    Key,
    Authorities,
}

impl Role {
    const fn label(self) -> &'static str {
        match self {
            Self::Certificate => "the certificate",
            Self::Key => "the private key",
            Self::Authorities => "the authorities",
        }
    }
}

/// The state of a file before it was read.
#[derive(Clone, Copy)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    settled: bool,
}

impl Stamp {
    fn of(path: &Path) -> std::io::Result<Self> {
        let found = std::fs::metadata(path)?;
        let modified = found.modified().ok();
        let age = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
        Ok(Self { modified, length: found.len(), settled: age.is_some_and(|age| age >= SETTLED) })
    }

    fn same_as(self, other: Self) -> bool {
        (self.modified, self.length) == (other.modified, other.length)
    }
}

/// A PEM text that was read.
#[derive(Clone)]
pub(super) struct Text {
    /// The file and the use of the text, for errors.
    label: String,
    pub(super) bytes: Arc<[u8]>,
    stamp: Option<Stamp>,
}

impl Text {
    pub(super) fn failed(&self, why: impl fmt::Display) -> TlsError {
        TlsError::new(&self.label, why.to_string())
    }

    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match found {
            Ok(none) if none.is_empty() => Err(self.failed("contains no certificate in PEM")),
            Ok(found) => Ok(found),
            Err(error) => Err(self.failed(format!("is not valid PEM: {error}"))),
        }
    }

    pub(super) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => self.failed("contains no private key in PEM"),
            error => self.failed(format!("is not valid PEM: {error}")),
        })
    }

    pub(super) fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for authority in self.certificates()? {
            roots.add(authority).map_err(|error| self.failed(error))?;
        }
        Ok(roots)
    }
}

/// A certificate, key or authority that cannot be used. The text names the file, if it is one, and what is wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub struct TlsError {
    place: String,
    why: String,
}

impl TlsError {
    pub(super) fn new(place: &str, why: impl Into<String>) -> Self {
        Self { place: place.to_owned(), why: why.into() }
    }
}

impl From<TlsError> for TransportError {
    fn from(error: TlsError) -> Self {
        Self::new(TransportErrorKind::Open, error)
    }
}
