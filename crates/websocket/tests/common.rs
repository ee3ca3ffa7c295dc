//! The common parts of this transport's tests.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(dead_code, reason = "each test program uses a part of it")]
#![expect(unreachable_pub, reason = "a module of several test programs")]

use std::future::poll_fn;

use bytes::Bytes;
use rescind_core::{CloseReason, Link, Listener, Transport, TransportError, TransportEvent};
use rescind_testkit::support::frames;
pub use rescind_testkit::support::in_time;
use rescind_websocket::{LinkOptions, UpgradeOptions, WebSocketListener, connect};

pub async fn listen(options: UpgradeOptions) -> WebSocketListener {
    WebSocketListener::builder().options(options).bind("127.0.0.1:0").await.unwrap()
}

pub async fn accept(listener: &mut (impl Listener + Unpin)) -> Result<Link, TransportError> {
    let accepted = listener.accept();
    in_time("accepting", accepted).await.unwrap()
}

/// Both ends of a connection over a real socket, the client's first.
pub async fn pair(options: LinkOptions) -> (Link, Link) {
    let mut listener = listen(UpgradeOptions::new().link(options.clone())).await;
    let transport = Box::new(connect(&listener.endpoint().0).options(options));
    let (client, server) = tokio::join!(transport.open(), accept(&mut listener));
    (client.unwrap(), server.unwrap())
}

pub async fn send(link: &mut Link, body: impl Into<Bytes>) -> Result<(), TransportError> {
    frames::send(link, body).await
}

pub async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    in_time("an event", frames::event(link)).await
}

pub async fn body(link: &mut Link) -> Bytes {
    in_time("an event", frames::body(link)).await
}

pub async fn close(link: &mut Link, why: CloseReason) -> Result<(), TransportError> {
    in_time("closing", poll_fn(|cx| link.tx.as_mut().poll_close(&why, cx))).await
}

/// An axum application with a WebSocket route.
#[cfg(feature = "axum")]
pub mod route {
    use axum::Router;
    use axum::routing::{any, get};
    use rescind_testkit::support::Serving;
    use rescind_websocket::{MountedListener, UpgradeOptions, mount};

    pub async fn serve(options: UpgradeOptions) -> (MountedListener, String, Serving) {
        let (upgrades, listener) = mount(options);
        let app = Router::new().route("/agent", any(upgrades)).route("/", get(async || "a page of ours"));
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/agent", tcp.local_addr().unwrap());
        let serving = Serving::spawn(async { axum::serve(tcp, app).await.unwrap() });
        (listener.at(&url), url, serving)
    }
}

/// Certificates made for one test.
#[cfg(feature = "rustls")]
pub mod tls {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };
    use rescind_websocket::{ClientTls, Pem, ServerTls};

    /// How many were made, so that each has a separate folder.
    static NUMBER: AtomicU32 = AtomicU32::new(0);

    /// A certificate authority and a certificate for loopback, as files that are deleted on drop.
    pub struct Authority {
        folder: PathBuf,
        /// The certificate of a client, in DER.
        client: Vec<u8>,
    }

    impl Authority {
        pub fn new() -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            let key = KeyPair::generate().unwrap();
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();

            let client_key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(["ada".to_owned()]).unwrap();
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let client = params.signed_by(&client_key, &authority).unwrap();

            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("rescind-tls-{}-{number}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
            std::fs::write(folder.join("certificate.pem"), certificate.pem()).unwrap();
            std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
            std::fs::write(folder.join("client.pem"), client.pem()).unwrap();
            std::fs::write(folder.join("client.key"), client_key.serialize_pem()).unwrap();
            Self { folder, client: client.der().to_vec() }
        }

        pub fn file(&self, name: &str) -> PathBuf {
            self.folder.join(name)
        }

        pub fn server(&self) -> ServerTls {
            ServerTls::from_pem(Pem::file(self.file("certificate.pem")), Pem::file(self.file("key.pem")))
                .unwrap()
        }

        pub fn client(&self) -> ClientTls {
            ClientTls::trusting(Pem::file(self.file("ca.pem"))).unwrap()
        }

        /// The certificate of the client that `client_of` makes.
        pub fn certificate(&self) -> &[u8] {
            &self.client
        }

        /// A client with a certificate of another authority, or of this one.
        pub fn client_of(&self, other: &Self) -> ClientTls {
            let (certificate, key) = (other.file("client.pem"), other.file("client.key"));
            self.client().identity(Pem::file(certificate), Pem::file(key)).unwrap()
        }
    }

    impl Drop for Authority {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
