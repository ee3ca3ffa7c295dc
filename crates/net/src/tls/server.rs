//! TLS of a server.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::{TlsAcceptor, server};

use super::pem::{Pem, Text, TlsError};
use super::reload::{Parts, Source, default_interval};
use super::{owned, provider};
use crate::auth::{ClientCertificates, PeerCertificates};

/// The TLS of a server: its certificate, and whether clients must show one. HTTP and WebSocket servers take the same
/// value. Clones share one configuration.
///
/// TLS 1.2 and 1.3 are spoken. A certificate in a file is read again when the file changes: when a handshake begins, at
/// most every 2 s ([`check_every`](Self::check_every)), modification time and length of the files are compared. If the
/// changed files cannot be used, the earlier certificate is kept and one warning is logged. Connections that are open
/// keep their certificate. A session cannot be resumed after a change.
///
/// ```
/// use rescind_net::{ClientCertificates, ClientTls, Pem, ServerTls};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
/// # let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
/// // Or `Pem::file("server.pem")`, which is read again when the file changes.
/// let server = ServerTls::from_pem(Pem::bytes(&certificate), Pem::bytes(&key))?
///     .client_certificates(Pem::bytes(&certificate), ClientCertificates::Optional)?;
/// let client = ClientTls::trusting(Pem::bytes(&certificate))?;
///
/// // A transport does this for each connection.
/// let (near, far) = tokio::io::duplex(16 * 1024);
/// let (accepted, connected) =
///     tokio::try_join!(server.accept(near, &[]), client.connect("localhost", far, &[]))?;
/// assert!(connected.get_ref().1.peer_certificates().is_some());
/// assert!(accepted.get_ref().1.peer_certificates().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServerTls {
    source: Source<ServerConfig>,
}

impl ServerTls {
    /// A certificate, followed by those above it, and its private key. Files are read before this returns.
    ///
    /// # Errors
    /// A file cannot be read, a text contains no such item, or the key does not belong to the certificate.
    pub fn from_pem(certificates: Pem, key: Pem) -> Result<Self, TlsError> {
        let parts = Parts { identity: Some((certificates, key)), authorities: None };
        let build = |parts: &Parts<Text>| config(parts, ClientCertificates::Optional);
        Ok(Self { source: Source::read(parts, default_interval(), Arc::new(build))? })
    }

    /// A configuration of rustls. The transport replaces its list of protocols (ALPN). It is not read again: its
    /// certificate resolver decides about changes.
    #[must_use]
    pub fn from_config(config: impl Into<Arc<ServerConfig>>) -> Self {
        Self { source: Source::Config(config.into()) }
    }

    /// Requests certificates from clients, which must be issued by one of these authorities. The auth hook gets them
    /// ([`AuthRequest::certificates`](crate::AuthRequest::certificates)). Default: the server requests none.
    ///
    /// # Errors
    /// The file cannot be read, or the text contains no certificate; or this value was made from a configuration of
    /// rustls, whose verifier decides about client certificates.
    pub fn client_certificates(self, authorities: Pem, demand: ClientCertificates) -> Result<Self, TlsError> {
        let Some((parts, every)) = self.source.parts() else {
            let why = "a configuration of rustls decides about client certificates: set its verifier";
            return Err(TlsError::new("client certificates", why));
        };
        let parts = Parts { authorities: Some(authorities), ..parts };
        let build = move |parts: &Parts<Text>| config(parts, demand);
        Ok(Self { source: Source::read(parts, every, Arc::new(build))? })
    }

    /// The shortest time between two checks of the files. Zero: each handshake checks. Default: 2 s.
    #[must_use]
    pub fn check_every(self, time: Duration) -> Self {
        Self { source: self.source.check_every(time) }
    }

    /// Does the handshake on an accepted stream, for transports. `protocols` are offered by ALPN, the preferred one
    /// first; empty: none is negotiated.
    ///
    /// # Errors
    /// The handshake failed, for example because the client showed no certificate and must.
    ///
    /// # Cancel safety
    /// Dropping the future drops the stream. A check of files that has begun continues.
    pub async fn accept<S>(&self, stream: S, protocols: &[&[u8]]) -> io::Result<server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut config = ServerConfig::clone(&*self.source.current().await?);
        config.alpn_protocols = owned(protocols);
        TlsAcceptor::from(Arc::new(config)).accept(stream).await
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

impl PeerCertificates {
    /// The certificates that the client of this connection showed.
    #[must_use]
    pub fn of<S>(stream: &server::TlsStream<S>) -> Self {
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        Self::new(shown.iter().map(|certificate| certificate.to_vec()))
    }
}

fn config(parts: &Parts<Text>, demand: ClientCertificates) -> Result<ServerConfig, TlsError> {
    let Some((chain, key)) = &parts.identity else {
        return Err(TlsError::new("the certificate", "is missing"));
    };
    let verifier = match &parts.authorities {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(authorities) => {
            let roots = Arc::new(authorities.roots()?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = match demand {
                ClientCertificates::Optional => verifier.allow_unauthenticated(),
                ClientCertificates::Required => verifier,
            };
            verifier.build().map_err(|error| authorities.failed(error))?
        }
    };
    let (certificates, private) = (chain.certificates()?, key.key()?);
    ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_client_cert_verifier(verifier).with_single_cert(certificates, private))
        .map_err(|error| key.failed(format!("cannot be used with its certificate: {error}")))
}
