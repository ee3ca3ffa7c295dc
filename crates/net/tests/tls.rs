//! TLS over an in-memory stream: where certificates come from, when they are read again, and client certificates.
#![cfg(feature = "rustls")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed helper fails its test")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rescind_net::rustls::pki_types::pem::PemObject;
use rescind_net::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rescind_net::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use rescind_net::{AuthRequest, ClientCertificates, ClientTls, PeerCertificates, Pem, ServerTls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A certificate and its key, in PEM.
struct Pair(String, String);

/// An authority with a folder for files, which is deleted on drop.
struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("rescind-net-tls-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair(certificate.pem(), key.serialize_pem())
    }

    fn server(&self) -> Pair {
        self.issue("localhost", ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn client(&self) -> Pair {
        self.issue("ada", ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn write(&self, Pair(certificate, key): &Pair) -> (PathBuf, PathBuf) {
        std::fs::write(self.file("server.pem"), certificate).unwrap();
        std::fs::write(self.file("server.key"), key).unwrap();
        (self.file("server.pem"), self.file("server.key"))
    }

    fn trusting(&self) -> ClientTls {
        ClientTls::trusting(Pem::bytes(self.issuer.pem())).unwrap()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Pair {
    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.0.as_bytes()).unwrap()
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.1.as_bytes()).unwrap()
    }

    fn server_tls(&self) -> ServerTls {
        ServerTls::from_pem(Pem::bytes(&self.0), Pem::bytes(&self.1)).unwrap()
    }
}

/// The data that each side received from the other: the server's certificate, the client's certificates, and the
/// negotiated protocol.
type Seen = (Vec<u8>, Vec<Vec<u8>>, Option<Vec<u8>>);

/// One connection, with a byte in both directions: a client of TLS 1.3 learns only then that it is refused.
async fn meet(server: &ServerTls, client: &ClientTls) -> std::io::Result<Seen> {
    let (near, far) = tokio::io::duplex(16 * 1024);
    let serve = async {
        let mut stream = server.accept(near, &[b"b", b"a"]).await?;
        stream.write_u8(1).await?;
        stream.flush().await?;
        stream.read_u8().await?;
        let request = AuthRequest::new("GET", "/").with_certificates(PeerCertificates::of(&stream));
        Ok::<_, std::io::Error>(request.certificates().to_vec())
    };
    let connect = async {
        let mut stream = client.connect("localhost", far, &[b"a"]).await?;
        stream.read_u8().await?;
        stream.write_u8(1).await?;
        stream.flush().await?;
        let (_, session) = stream.get_ref();
        let shown = session.peer_certificates().unwrap().first().unwrap().to_vec();
        Ok::<_, std::io::Error>((shown, session.alpn_protocol().map(<[u8]>::to_vec)))
    };
    let both = tokio::time::timeout(Duration::from_secs(20), async { tokio::try_join!(serve, connect) });
    let (certificates, (shown, protocol)) = both.await.expect("a handshake ends")?;
    Ok((shown, certificates, protocol))
}

#[tokio::test]
async fn every_source_of_a_certificate_gives_the_same_server() {
    let authority = Authority::new();
    let pair = authority.server();
    let (certificate, key) = authority.write(&pair);
    let builder = || ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = builder().with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = config.with_single_cert(vec![pair.der()], pair.key()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(authority.issuer.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let servers = [
        pair.server_tls(),
        ServerTls::from_pem(Pem::file(certificate), Pem::file(key)).unwrap(),
        ServerTls::from_config(config),
    ];
    let clients = [
        authority.trusting(),
        ClientTls::trusting(Pem::file(authority.file("ca.pem"))).unwrap(),
        ClientTls::from_config(client),
    ];
    for server in &servers {
        for client in &clients {
            let seen = meet(server, client).await.unwrap();
            assert_eq!(seen, (pair.der().to_vec(), Vec::new(), Some(b"a".to_vec())));
        }
        meet(server, &Authority::new().trusting()).await.expect_err("another authority's certificate");
    }
}

#[tokio::test]
async fn a_changed_pair_of_files_is_shown_by_the_next_handshake_and_a_broken_one_is_not() {
    let authority = Authority::new();
    let (old, new) = (authority.server(), authority.server());
    let (certificate, key) = authority.write(&old);
    let server = ServerTls::from_pem(Pem::file(&certificate), Pem::file(&key)).unwrap();
    let server = server.check_every(Duration::ZERO);
    let client = authority.trusting();
    assert_eq!(meet(&server, &client).await.unwrap().0, old.der().to_vec());
    authority.write(&new);
    assert_eq!(meet(&server, &client).await.unwrap().0, new.der().to_vec());
    // The certificate was replaced, and its key not yet.
    std::fs::write(&certificate, &old.0).unwrap();
    assert_eq!(meet(&server, &client).await.unwrap().0, new.der().to_vec());
    std::fs::write(&certificate, "no certificate").unwrap();
    assert_eq!(meet(&server, &client).await.unwrap().0, new.der().to_vec());
    std::fs::remove_file(&key).unwrap();
    assert_eq!(meet(&server, &client).await.unwrap().0, new.der().to_vec());
    authority.write(&old);
    assert_eq!(meet(&server, &client).await.unwrap().0, old.der().to_vec());
}

#[tokio::test]
async fn files_are_not_checked_before_the_time_between_two_checks_has_passed() {
    let authority = Authority::new();
    let (old, new) = (authority.server(), authority.server());
    let (certificate, key) = authority.write(&old);
    let server = ServerTls::from_pem(Pem::file(&certificate), Pem::file(&key)).unwrap();
    let server = server.check_every(Duration::from_secs(3600));
    authority.write(&new);
    assert_eq!(meet(&server, &authority.trusting()).await.unwrap().0, old.der().to_vec());
}

#[tokio::test]
async fn client_certificates_are_accepted_or_required() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (pair, known, unknown) = (ours.server(), ours.client(), other.client());
    let showing = |pair: &Pair| ours.trusting().identity(Pem::bytes(&pair.0), Pem::bytes(&pair.1)).unwrap();
    for demand in [ClientCertificates::Optional, ClientCertificates::Required] {
        for authorities in [Pem::file(ours.file("ca.pem")), Pem::bytes(ours.issuer.pem())] {
            let server = pair.server_tls().client_certificates(authorities, demand).unwrap();
            let (_, shown, _) = meet(&server, &showing(&known)).await.unwrap();
            assert_eq!(shown, [known.der().to_vec()], "{demand:?}");
            meet(&server, &showing(&unknown)).await.expect_err("a certificate of another authority");
            let without = meet(&server, &ours.trusting()).await;
            assert_eq!(without.is_ok(), demand == ClientCertificates::Optional, "{demand:?}: {without:?}");
        }
    }
}

#[tokio::test]
async fn authorities_of_clients_are_read_again_and_no_session_outlives_them() {
    let (ours, other) = (Authority::new(), Authority::new());
    let pair = ours.server();
    let known = ours.client();
    let client = ours.trusting().identity(Pem::bytes(&known.0), Pem::bytes(&known.1)).unwrap();
    let clients = ours.file("clients.pem");
    std::fs::write(&clients, ours.issuer.pem()).unwrap();
    let server = pair.server_tls().check_every(Duration::ZERO);
    let server = server.client_certificates(Pem::file(&clients), ClientCertificates::Required).unwrap();
    // The second connection resumes the session of the first.
    for _ in 0..2 {
        meet(&server, &client).await.unwrap();
    }
    std::fs::write(&clients, other.issuer.pem()).unwrap();
    meet(&server, &client).await.expect_err("its authority is not one of them any more");
}

#[test]
fn errors_name_the_file_and_the_problem() {
    let authority = Authority::new();
    let (pair, other) = (authority.server(), authority.server());
    let (certificate, key) = authority.write(&pair);
    let missing = Pem::file(authority.file("missing.pem"));
    let (certificate, key) = (Pem::file(certificate), Pem::file(key));
    let error = |made: Result<ServerTls, rescind_net::TlsError>| made.unwrap_err().to_string();
    let reported = error(ServerTls::from_pem(missing.clone(), key.clone()));
    assert!(reported.contains("missing.pem (the certificate): cannot be read: "), "{reported}");
    let reported = error(ServerTls::from_pem(key.clone(), key.clone()));
    assert!(reported.ends_with("server.key (the certificate): contains no certificate in PEM"), "{reported}");
    let reported = error(ServerTls::from_pem(certificate.clone(), certificate.clone()));
    assert!(reported.ends_with("server.pem (the private key): contains no private key in PEM"), "{reported}");
    let reported = error(ServerTls::from_pem(certificate.clone(), Pem::bytes(&other.1)));
    assert!(reported.starts_with("the private key: cannot be used with its certificate: "), "{reported}");
    let reported = ClientTls::trusting(Pem::bytes("nothing")).unwrap_err().to_string();
    assert_eq!(reported, "the authorities: contains no certificate in PEM");
    let reported = ClientTls::system().identity(certificate, missing).unwrap_err().to_string();
    assert!(reported.contains("missing.pem (the private key): cannot be read: "), "{reported}");
    let shown = format!("{:?}", Pem::bytes(&pair.1));
    assert!(!shown.contains("KEY"), "a private key is not shown: {shown}");
}
