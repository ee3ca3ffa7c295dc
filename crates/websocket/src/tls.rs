//! `wss`. Without the feature its server is a type without a value.

#[cfg(feature = "rustls")]
pub(crate) use self::with_rustls::Server;
#[cfg(feature = "rustls")]
pub use self::with_rustls::{ClientTls, ServerTls};
#[cfg(not(feature = "rustls"))]
pub(crate) use self::without::Server;

#[cfg(not(feature = "rustls"))]
mod without {
    use tokio::net::TcpStream;

    /// There is none.
    #[derive(Clone, Debug)]
    pub(crate) enum Server {}

    impl Server {
        #[expect(clippy::unused_async, reason = "with the feature it waits")]
        pub(crate) async fn accept(self, _: TcpStream) -> std::io::Result<TcpStream> {
            match self {}
        }
    }
}

#[cfg(feature = "rustls")]
mod with_rustls {
    use std::fmt;
    use std::path::Path;
    use std::sync::Arc;

    use rescind_core::{TransportError, TransportErrorKind};
    use tokio::net::TcpStream;
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

    /// The certificate and key of a `wss` server.
    #[derive(Clone)]
    pub struct ServerTls(pub(crate) Server);

    impl ServerTls {
        /// A certificate, with the ones above it, and its key, both PEM files.
        ///
        /// # Errors
        /// A file cannot be read, holds nothing of the kind, or key and certificate do not belong together.
        pub fn from_pem_files(certificate: &Path, key: &Path) -> Result<Self, TransportError> {
            let chain = certificates(certificate)?;
            let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key_der))
                .map_err(|error| unusable(certificate, &error))?;
            Ok(Self::from_config(config))
        }

        /// A configuration of rustls' own. Its list of protocols (ALPN) becomes `http/1.1`, the one a WebSocket begins
        /// with.
        #[must_use]
        pub fn from_config(mut config: ServerConfig) -> Self {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Self(Server(Arc::new(config)))
        }
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

    /// Whom a `wss` client trusts.
    #[derive(Clone)]
    pub struct ClientTls(Arc<ClientConfig>);

    impl ClientTls {
        /// The certificate authorities this system trusts.
        ///
        /// # Errors
        /// None can be found.
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
        /// The file cannot be read or holds no certificate.
        pub fn from_ca_file(file: &Path) -> Result<Self, TransportError> {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| unusable(file, &error))?;
            }
            Self::trusting(roots)
        }

        /// A configuration of rustls' own. Its list of protocols (ALPN) becomes `http/1.1`, the one a WebSocket begins
        /// with.
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
                .map_err(|_| failed(format!("{host} is no name a certificate can have")))?;
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
