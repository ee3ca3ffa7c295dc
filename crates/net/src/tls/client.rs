//! TLS of a client.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, client};

use super::pem::{Pem, Text, TlsError};
use super::reload::{Parts, Source, default_interval};
use super::{owned, provider};

/// The TLS of a client: the authorities that it trusts, and the certificate that it shows. HTTP and WebSocket clients
/// take the same value. Clones share one configuration. Default: [`system`](Self::system).
///
/// The check of the server's certificate cannot be switched off. Files are read again when they change, as those of a
/// [`ServerTls`](crate::ServerTls).
#[derive(Clone)]
pub struct ClientTls {
    source: Source<ClientConfig>,
}

impl ClientTls {
    /// Trusts the certificate authorities that this system trusts. They are read once in a process, when the first
    /// connection opens. If none is found, that connection fails.
    #[must_use]
    pub fn system() -> Self {
        let parts = Parts { identity: None, authorities: None };
        Self { source: Source::later(parts, default_interval(), Arc::new(config)) }
    }

    /// Trusts these certificate authorities and no others. A file is read before this returns.
    ///
    /// # Errors
    /// The file cannot be read, or the text contains no certificate.
    pub fn trusting(authorities: Pem) -> Result<Self, TlsError> {
        let parts = Parts { identity: None, authorities: Some(authorities) };
        Ok(Self { source: Source::read(parts, default_interval(), Arc::new(config))? })
    }

    /// A configuration of rustls. The transport replaces its list of protocols (ALPN).
    #[must_use]
    pub fn from_config(config: impl Into<Arc<ClientConfig>>) -> Self {
        Self { source: Source::Config(config.into()) }
    }

    /// Shows this certificate, followed by those above it, to servers that request one. Default: none.
    ///
    /// # Errors
    /// A file cannot be read, a text contains no such item, or the key does not belong to the certificate; or this
    /// value was made from a configuration of rustls, which has its own.
    pub fn identity(self, certificates: Pem, key: Pem) -> Result<Self, TlsError> {
        let Some((parts, every)) = self.source.parts() else {
            let why = "a configuration of rustls decides which certificate it shows: set it there";
            return Err(TlsError::new("the certificate", why));
        };
        let parts = Parts { identity: Some((certificates, key)), ..parts };
        let build = Arc::new(config);
        if parts.authorities.is_some() {
            return Ok(Self { source: Source::read(parts, every, build)? });
        }
        // The system's authorities are not read yet.
        with_roots(&parts.read()?, Arc::new(RootCertStore::empty()))?;
        Ok(Self { source: Source::later(parts, every, build) })
    }

    /// The shortest time between two checks of the files. Zero: each handshake checks. Default: 2 s.
    #[must_use]
    pub fn check_every(self, time: Duration) -> Self {
        Self { source: self.source.check_every(time) }
    }

    /// Does the handshake on a stream to this host, for transports. `host` is a name or an IP address, for which the
    /// server's certificate must be valid. `protocols` are offered by ALPN, the preferred one first; empty: none is
    /// negotiated.
    ///
    /// # Errors
    /// `host` is neither a name nor an address, the server's certificate is not trusted, or the handshake failed.
    ///
    /// # Cancel safety
    /// Dropping the future drops the stream. A check of files that has begun continues.
    pub async fn connect<S>(
        &self,
        host: &str,
        stream: S,
        protocols: &[&[u8]],
    ) -> io::Result<client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::other(format!("{host} is not a name that a certificate can have")))?;
        let mut config = ClientConfig::clone(&*self.source.current().await?);
        config.alpn_protocols = owned(protocols);
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

impl Default for ClientTls {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

fn config(parts: &Parts<Text>) -> Result<ClientConfig, TlsError> {
    let roots = match &parts.authorities {
        Some(authorities) => Arc::new(authorities.roots()?),
        None => system_roots()?,
    };
    with_roots(parts, roots)
}

fn with_roots(parts: &Parts<Text>, roots: Arc<RootCertStore>) -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::new("TLS", error.to_string()))?
        .with_root_certificates(roots);
    match &parts.identity {
        None => Ok(config.with_no_client_auth()),
        Some((chain, key)) => config
            .with_client_auth_cert(chain.certificates()?, key.key()?)
            .map_err(|error| key.failed(format!("cannot be used with its certificate: {error}"))),
    }
}

/// The system's authorities, read once.
fn system_roots() -> Result<Arc<RootCertStore>, TlsError> {
    static SYSTEM: Mutex<Option<Arc<RootCertStore>>> = Mutex::new(None);
    let mut system = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(roots) = &*system {
        return Ok(Arc::clone(roots));
    }
    let mut roots = RootCertStore::empty();
    let (trusted, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if trusted == 0 {
        let why = "no certificate authority of this system was found: name those to trust";
        return Err(TlsError::new("the authorities", why));
    }
    Ok(Arc::clone(system.insert(Arc::new(roots))))
}
