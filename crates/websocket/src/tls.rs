//! `wss`. Without the feature the type of its server has no values.

#[cfg(feature = "rustls")]
pub(crate) use self::with_rustls::{PROTOCOLS, Server, accept, certificates_of};
#[cfg(not(feature = "rustls"))]
pub(crate) use self::without::{Server, accept, certificates_of};

#[cfg(not(feature = "rustls"))]
mod without {
    use rescind_core::PeerCertificates;
    use tokio::net::TcpStream;

    /// Without the feature there is no TLS server.
    #[derive(Clone, Debug)]
    pub(crate) enum Server {}

    pub(crate) async fn accept(tls: Server, _: TcpStream) -> std::io::Result<TcpStream> {
        match tls {}
    }

    /// Without TLS a client shows no certificate.
    pub(crate) fn certificates_of(_: &TcpStream) -> PeerCertificates {
        PeerCertificates::default()
    }
}

#[cfg(feature = "rustls")]
mod with_rustls {
    use rescind_core::PeerCertificates;
    pub(crate) use rescind_core::ServerTls as Server;
    use tokio::net::TcpStream;
    use tokio_rustls::server::TlsStream;

    /// A WebSocket begins with HTTP/1.1.
    pub(crate) const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

    pub(crate) async fn accept(tls: Server, socket: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        tls.accept(socket, PROTOCOLS).await
    }

    pub(crate) fn certificates_of(stream: &TlsStream<TcpStream>) -> PeerCertificates {
        PeerCertificates::of(stream)
    }
}
