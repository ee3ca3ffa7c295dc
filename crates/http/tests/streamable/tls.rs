//! `https`, with certificates made for one test.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rescind_core::Peer;
use rescind_core::dialect::MCP;
use rescind_http::{HttpClient, StreamableTransport};
use serde_json::{Value, json};

use crate::support::{client, in_time, serve, server};

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
async fn https_is_served_to_who_trusts_its_authority_and_to_no_other() {
    let (authority, certificate, key) = certificates();
    let tls = server().tls(certificate.as_bytes(), key.as_bytes()).unwrap();
    let served = serve(tls, MCP).await;
    assert!(served.url.starts_with("https://"), "{}", served.url);
    for http2 in [false, true] {
        let trusting = HttpClient::new(&served.url).unwrap().tls_authorities(authority.as_bytes()).unwrap();
        let trusting = if http2 { trusting.http2() } else { trusting };
        let peer = client(StreamableTransport::new(trusting), MCP).await;
        let answer = in_time("echo", peer.call::<_, Value>("echo", &json!({"n": 1}))).await;
        assert_eq!(answer.unwrap(), json!({"n": 1}));
    }
    let (other, _, _) = certificates();
    let wary = HttpClient::new(&served.url).unwrap().tls_authorities(other.as_bytes()).unwrap();
    let refused = in_time("opening", Peer::builder(MCP).connect(StreamableTransport::new(wary))).await;
    let why = refused.expect_err("its certificate is another authority's");
    assert!(format!("{why:?}").contains("certificate"), "{why:?}");
}

#[test]
fn what_is_no_certificate_is_told() {
    assert!(server().tls(b"nothing", b"nothing").is_err());
    let url = "https://localhost/";
    assert!(HttpClient::new(url).unwrap().tls_authorities(b"nothing").is_err());
}
