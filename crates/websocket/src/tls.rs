//! `wss`. Without the feature the type of its server has no values.

#[cfg(feature = "rustls")]
pub use self::with_rustls::{ClientTls, ServerTls};
#[cfg(feature = "rustls")]
pub(crate) use self::with_rustls::{Server, certificates_of};
#[cfg(not(feature = "rustls"))]
pub(crate) use self::without::{Server, certificates_of};

#[cfg(not(feature = "rustls"))]
mod without {
    use rescind_core::PeerCertificates;
    use tokio::net::TcpStream;

    /// Without the feature there is no TLS server.
    #[derive(Clone, Debug)]
    pub(crate) enum Server {}

    impl Server {
        #[expect(clippy::unused_async, reason = "with the feature it waits")]
        pub(crate) async fn accept(self, _: TcpStream) -> std::io::Result<TcpStream> {
            match self {}
        }
    }

    /// Without TLS a client shows no certificate.
    pub(crate) fn certificates_of(_: &TcpStream) -> PeerCertificates {
        PeerCertificates::default()
    }
}

#[cfg(feature = "rustls")]
mod with_rustls {
    use std::fmt;
    use std::path::Path;
    use std::sync::Arc;

    use rescind_core::{ClientCertificates, PeerCertificates, TransportError, TransportErrorKind};
    use tokio::net::TcpStream;
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::server::WebPkiClientVerifier;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

    /// The certificate and key of a `wss` server.
    #[derive(Clone)]
    pub struct ServerTls {
        pub(crate) server: Server,
        /// `None`: the configuration was not made here.
        identity: Option<Arc<Identity>>,
    }

    struct Identity {
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    }

    impl ServerTls {
        /// A certificate, followed by those above it, and its key, both as PEM files.
        ///
        /// # Errors
        /// A file cannot be read or contains no such item, or the key does not belong to the certificate.
        pub fn from_pem_files(certificate: &Path, key: &Path) -> Result<Self, TransportError> {
            let chain = certificates(certificate)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .and_then(|config| {
                    config.with_no_client_auth().with_single_cert(chain.clone(), key.clone_key())
                })
                .map_err(|error| unusable(certificate, &error))?;
            Ok(Self { identity: Some(Arc::new(Identity { chain, key })), ..Self::from_config(config) })
        }

        /// A configuration of rustls. Its list of protocols (ALPN) becomes `http/1.1`, with which a WebSocket begins.
        #[must_use]
        pub fn from_config(mut config: ServerConfig) -> Self {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Self { server: Server(Arc::new(config)), identity: None }
        }

        /// Requests certificates from clients, which must be issued by an authority in this PEM file. The auth hook
        /// gets them ([`AuthRequest::certificates`](rescind_core::AuthRequest::certificates)).
        ///
        /// # Errors
        /// The file cannot be read or contains no authority; or this value was made from a configuration of rustls,
        /// which decides itself about client certificates.
        pub fn client_certificates(
            self,
            authorities: &Path,
            demand: ClientCertificates,
        ) -> Result<Self, TransportError> {
            let Some(identity) = self.identity else {
                let text =
                    "a configuration of rustls' own says itself which certificates it asks clients for";
                return Err(TransportError::new(TransportErrorKind::Open, text));
            };
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authorities)?), provider());
            let verifier = match demand {
                ClientCertificates::Optional => verifier.allow_unauthenticated(),
                ClientCertificates::Required => verifier,
            };
            let verifier = verifier.build().map_err(|error| unusable(authorities, &error))?;
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .and_then(|config| {
                    let config = config.with_client_cert_verifier(verifier);
                    config.with_single_cert(identity.chain.clone(), identity.key.clone_key())
                })
                .map_err(|error| TransportError::new(TransportErrorKind::Open, error))?;
            Ok(Self { identity: Some(identity), ..Self::from_config(config) })
        }
    }

    /// The certificates that the client of a connection showed.
    pub(crate) fn certificates_of(stream: &server::TlsStream<TcpStream>) -> PeerCertificates {
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        PeerCertificates::new(shown.iter().map(|certificate| certificate.to_vec()))
    }

    fn roots(file: &Path) -> Result<RootCertStore, TransportError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|error| unusable(file, &error))?;
        }
        Ok(roots)
    }

    impl fmt::Debug for ServerTls {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("ServerTls")
        }
    }

    #[derive(Clone)]
    pub(crate) struct Server(Arc<ServerConfig>);

    impl Server {
        pub(crate) async fn accept(self, socket: TcpStream) -> std::io::Result<server::TlsStream<TcpStream>> {
            TlsAcceptor::from(self.0).accept(socket).await
        }
    }

    impl fmt::Debug for Server {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Server")
        }
    }

    /// The servers that a `wss` client trusts.
    #[derive(Clone)]
    pub struct ClientTls(Arc<ClientConfig>);

    impl ClientTls {
        /// The certificate authorities that this system trusts.
        ///
        /// # Errors
        /// No authority can be found.
        pub fn system() -> Result<Self, TransportError> {
            let found = rustls_native_certs::load_native_certs();
            let mut roots = RootCertStore::empty();
            let (trusted, _) = roots.add_parsable_certificates(found.certs);
            if trusted == 0 {
                let text = "no certificate authority of this system was found: name one in a file";
                return Err(TransportError::new(TransportErrorKind::Open, text));
            }
            Self::trusting(roots)
        }

        /// Only the certificate authorities in this PEM file.
        ///
        /// # Errors
        /// The file cannot be read or contains no certificate.
        pub fn from_ca_file(file: &Path) -> Result<Self, TransportError> {
            Self::trusting(roots(file)?)
        }

        /// A configuration of rustls. Its list of protocols (ALPN) becomes `http/1.1`, with which a WebSocket begins.
        #[must_use]
        pub fn from_config(mut config: ClientConfig) -> Self {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Self(Arc::new(config))
        }

        fn trusting(roots: RootCertStore) -> Result<Self, TransportError> {
            let config = ClientConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(|error| TransportError::new(TransportErrorKind::Open, error))?;
            Ok(Self::from_config(config.with_root_certificates(roots).with_no_client_auth()))
        }

        pub(crate) async fn connect(
            self,
            host: &str,
            socket: TcpStream,
        ) -> Result<client::TlsStream<TcpStream>, TransportError> {
            let failed = |text| TransportError::new(TransportErrorKind::Open, text);
            let name = ServerName::try_from(host.to_owned())
                .map_err(|_| failed(format!("a certificate cannot be issued for the name {host}")))?;
            let connected = TlsConnector::from(self.0).connect(name, socket).await;
            connected.map_err(|error| failed(format!("TLS with {host}: {error}")))
        }
    }

    impl fmt::Debug for ClientTls {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("ClientTls")
        }
    }

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(ring::default_provider())
    }

    fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TransportError> {
        let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let all = all.map_err(|error| unusable(file, &error))?;
        if all.is_empty() {
            return Err(unusable(file, &"it holds no certificate"));
        }
        Ok(all)
    }

    fn unusable(file: &Path, why: &dyn fmt::Display) -> TransportError {
        TransportError::new(TransportErrorKind::Open, format!("{} cannot be used: {why}", file.display()))
    }
}
