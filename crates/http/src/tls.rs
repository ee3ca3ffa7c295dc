//! `https` for both sides.

use std::io;
use std::sync::Arc;

use rescind_core::{ClientCertificates, PeerCertificates, TransportError, TransportErrorKind};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TransportError {
    TransportError::new(TransportErrorKind::Open, error)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TransportError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found.map_err(failed)? {
        none if none.is_empty() => Err(failed("there is no certificate in the PEM text")),
        found => Ok(found),
    }
}

/// What a server's connections are wrapped in.
#[derive(Clone)]
pub(crate) struct Acceptor {
    acceptor: TlsAcceptor,
    identity: Arc<Identity>,
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Acceptor {
    pub(crate) fn new(chain: &[u8], key: &[u8]) -> Result<Self, TransportError> {
        let key = PrivateKeyDer::from_pem_slice(key).map_err(failed)?;
        let identity = Arc::new(Identity { chain: certificates(chain)?, key });
        Self::with(identity, WebPkiClientVerifier::no_client_auth())
    }

    /// Asks clients for certificates of these authorities, in PEM.
    pub(crate) fn client_certificates(
        self,
        authorities: &[u8],
        demand: ClientCertificates,
    ) -> Result<Self, TransportError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authorities)?), provider());
        let verifier = match demand {
            ClientCertificates::Optional => verifier.allow_unauthenticated(),
            ClientCertificates::Required => verifier,
        };
        Self::with(self.identity, verifier.build().map_err(failed)?)
    }

    fn with(identity: Arc<Identity>, clients: Arc<dyn ClientCertVerifier>) -> Result<Self, TransportError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_client_cert_verifier(clients)
            .with_single_cert(identity.chain.clone(), identity.key.clone_key())
            .map_err(failed)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), identity })
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        self.acceptor.accept(stream).await
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

/// What the client of a connection showed.
pub(crate) fn certificates_of(stream: &server::TlsStream<TcpStream>) -> PeerCertificates {
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    PeerCertificates::new(shown.iter().map(|certificate| certificate.to_vec()))
}

fn provider() -> Arc<crypto::CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}

fn roots(authorities: &[u8]) -> Result<RootCertStore, TransportError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(authorities)? {
        roots.add(authority).map_err(failed)?;
    }
    Ok(roots)
}

/// What a client's connections are wrapped in.
#[derive(Clone)]
pub(crate) struct Connector(TlsConnector);

impl Connector {
    /// Trusts these authorities, in PEM, and no others.
    pub(crate) fn new(authorities: &[u8]) -> Result<Self, TransportError> {
        Self::trusting(roots(authorities)?)
    }

    /// Trusts the authorities this system trusts. They are read from its files once.
    pub(crate) async fn system() -> io::Result<Self> {
        static SYSTEM: OnceCell<Connector> = OnceCell::const_new();
        let read = || async {
            let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
            let mut roots = RootCertStore::empty();
            let (trusted, _) = roots.add_parsable_certificates(found.map_err(io::Error::other)?.certs);
            if trusted == 0 {
                let text = "no certificate authority of this system was found: name those to trust";
                return Err(io::Error::other(text));
            }
            Self::trusting(roots).map_err(io::Error::other)
        };
        SYSTEM.get_or_try_init(read).await.cloned()
    }

    fn trusting(roots: RootCertStore) -> Result<Self, TransportError> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}
