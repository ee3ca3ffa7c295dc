//! Client certificates, made for one test.

use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rescind_core::Principal;
use rescind_http::{HttpServer, Pem, ServerBinding, ServerTls};
use rescind_net::{ClientCertificates, Credential};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::auth::support::{Client, Http, WAYS, first, served};

/// An authority that has signed a certificate for a server and one for a client.
struct Authority {
    own: CertificateDer<'static>,
    pem: String,
    server: (String, String),
    client: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let server = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    let client_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["anna".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let client = params.signed_by(&client_key, &authority).unwrap();
    Authority {
        own: authority.der().clone(),
        pem: authority.pem(),
        server: (server.pem(), key.serialize_pem()),
        client: (client.der().clone(), PrivateKeyDer::try_from(client_key.serialize_der()).unwrap()),
    }
}

/// A connection of a client with this certificate.
async fn connect(
    address: &str,
    http: Http,
    trusted: &Authority,
    shown: Option<&Authority>,
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.own.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shown {
        None => config.with_no_client_auth(),
        Some(Authority { client: (certificate, key), .. }) => {
            config.with_client_auth_cert(vec![certificate.clone()], key.clone_key()).unwrap()
        }
    };
    config.alpn_protocols = match http {
        Http::One => vec![b"http/1.1".to_vec()],
        Http::Two => vec![b"h2".to_vec()],
    };
    let tcp = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
}

#[tokio::test]
async fn the_hook_sees_the_certificate_of_a_client() {
    let (authority, other) = (authority(), self::authority());
    for way in WAYS {
        for demand in [ClientCertificates::Optional, ClientCertificates::Required] {
            let seen: Arc<Mutex<Vec<Vec<Vec<u8>>>>> = Arc::default();
            let served = served!(way.0, |server: HttpServer<_>| {
                let seen = Arc::clone(&seen);
                asking(server, &authority, demand).auth(move |request| {
                    seen.lock().unwrap().push(request.certificates().to_vec());
                    std::future::ready(Ok(Credential::of(Principal("anna".into()))))
                })
            });
            let stream = connect(&served.address, way.1, &authority, Some(&authority)).await;
            let mut client = Client::over(stream, way.1).await;
            assert_eq!(client.ask(first(way, &[])).await.status, 200, "{way:?} {demand:?}");
            let shown = authority.client.0.to_vec();
            assert_eq!(seen.lock().unwrap().pop(), Some(vec![shown]), "{way:?} {demand:?}");
            // Without a certificate.
            let stream = connect(&served.address, way.1, &authority, None).await;
            let passes = passes(stream, way.1).await;
            assert_eq!(passes, demand == ClientCertificates::Optional, "{way:?} {demand:?}");
            // With a certificate of another authority.
            let stream = connect(&served.address, way.1, &authority, Some(&other)).await;
            assert!(!self::passes(stream, way.1).await, "{way:?} {demand:?}");
        }
    }
}

/// Whether a server continues after the handshake. In TLS 1.3 a client learns only then that its certificate is
/// refused.
async fn passes(mut stream: TlsStream<TcpStream>, http: Http) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let said: &[u8] = match http {
        Http::One => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        Http::Two => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    };
    let _ = stream.write_all(said).await;
    let _ = stream.flush().await;
    crate::auth::support::in_time("an answer", stream.read_u8()).await.is_ok()
}

fn asking<B: ServerBinding>(
    server: HttpServer<B>,
    authority: &Authority,
    demand: ClientCertificates,
) -> HttpServer<B> {
    let (certificate, key) = &authority.server;
    let tls = ServerTls::from_pem(Pem::bytes(certificate), Pem::bytes(key)).unwrap();
    server.tls(tls.client_certificates(Pem::bytes(&authority.pem), demand).unwrap())
}
