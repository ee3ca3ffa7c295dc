//! `https`, with certificates made for one test.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rescind_core::Peer;
use rescind_core::dialect::MCP;
use rescind_http::{ClientTls, HttpClient, Pem, ServerTls, StreamableTransport};
use rescind_net::ClientCertificates;
use serde_json::{Value, json};

use crate::streamable::support::{client, in_time, serve, server};

/// An authority, and a certificate for loopback with its key, all PEM.
fn certificates() -> (String, String, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    (authority.pem(), certificate.pem(), key.serialize_pem())
}

#[tokio::test]
async fn https_is_served_only_to_clients_that_trust_its_authority() {
    let (authority, certificate, key) = certificates();
    let tls = ServerTls::from_pem(Pem::bytes(&certificate), Pem::bytes(&key)).unwrap();
    let served = serve(server().tls(tls), MCP).await;
    assert!(served.url.starts_with("https://"), "{}", served.url);
    for http2 in [false, true] {
        let trusting = client_of(&served.url, &authority);
        let trusting = if http2 { trusting.http2() } else { trusting };
        let peer = client(StreamableTransport::new(trusting), MCP).await;
        let answer = in_time("echo", peer.call::<_, Value>("echo", &json!({"n": 1}))).await;
        assert_eq!(answer.unwrap(), json!({"n": 1}));
    }
    let (other, _, _) = certificates();
    let wary = client_of(&served.url, &other);
    let refused = in_time("opening", Peer::builder(MCP).connect(StreamableTransport::new(wary))).await;
    let why = refused.expect_err("its certificate is another authority's");
    assert!(format!("{why:?}").contains("certificate"), "{why:?}");
}

#[test]
fn an_invalid_certificate_is_reported() {
    assert!(ServerTls::from_pem(Pem::bytes("nothing"), Pem::bytes("nothing")).is_err());
    assert!(ClientTls::trusting(Pem::bytes("nothing")).is_err());
}

fn client_of(url: &str, authority: &str) -> HttpClient {
    HttpClient::new(url).unwrap().tls(ClientTls::trusting(Pem::bytes(authority)).unwrap())
}

#[tokio::test]
async fn a_changed_certificate_is_served_by_the_next_handshake_and_a_broken_one_is_not() {
    let folder = std::env::temp_dir().join(format!("rescind-https-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (certificate, key) = (folder.join("server.pem"), folder.join("server.key"));
    let write = |pair: &(String, String, String)| {
        std::fs::write(&certificate, &pair.1).unwrap();
        std::fs::write(&key, &pair.2).unwrap();
    };
    let (old, new) = (certificates(), certificates());
    write(&old);
    let tls = ServerTls::from_pem(Pem::file(&certificate), Pem::file(&key)).unwrap();
    let served = serve(server().tls(tls.check_every(std::time::Duration::ZERO)), MCP).await;
    // Each client makes a connection of its own.
    let opens = async |authority: &str| {
        let transport = StreamableTransport::new(client_of(&served.url, authority));
        in_time("opening", Peer::builder(MCP).connect(transport)).await.is_ok()
    };
    assert!(opens(&old.0).await && !opens(&new.0).await);
    write(&new);
    assert!(opens(&new.0).await && !opens(&old.0).await);
    std::fs::write(&certificate, "no certificate").unwrap();
    assert!(opens(&new.0).await && !opens(&old.0).await);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// With a certificate, with that of another authority, and without one.
#[tokio::test]
async fn a_client_shows_its_certificate_to_a_server_that_requests_one() {
    let (ours, other) = (certificates(), certificates());
    for demand in [ClientCertificates::Optional, ClientCertificates::Required] {
        let tls = ServerTls::from_pem(Pem::bytes(&ours.1), Pem::bytes(&ours.2)).unwrap();
        let tls = tls.client_certificates(Pem::bytes(&ours.0), demand).unwrap();
        let served = serve(server().tls(tls), MCP).await;
        let without = || ClientTls::trusting(Pem::bytes(&ours.0)).unwrap();
        let showing = |pair: &(String, String, String)| {
            without().identity(Pem::bytes(&pair.1), Pem::bytes(&pair.2)).unwrap()
        };
        let cases = [
            (showing(&ours), true),
            (showing(&other), false),
            (without(), demand == ClientCertificates::Optional),
        ];
        for (tls, passes) in cases {
            let transport = StreamableTransport::new(HttpClient::new(&served.url).unwrap().tls(tls));
            let answered = async {
                let peer = Peer::builder(MCP).connect(transport).await.ok()?;
                let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
                    "clientInfo": {"name": "test", "version": "0"}});
                peer.call::<_, Value>("initialize", &hello).await.ok()
            };
            assert_eq!(in_time("initialize", answered).await.is_some(), passes, "{demand:?}");
        }
    }
}
