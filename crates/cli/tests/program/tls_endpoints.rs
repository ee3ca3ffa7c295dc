//! The fixture over `wss` and `https`, and checks of it: authorities, and certificates of clients.
#![cfg(unix)]

use crate::common::{Files, Fixture, assert_out_of_reach, check, output, text};
use rustix::process::Signal;

#[test]
fn wss_needs_a_certificate_and_the_client_needs_an_authority() {
    let place = Files::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (
        place.write("cert.pem", &made.cert.pem()),
        place.write("key.pem", &made.signing_key.serialize_pem()),
    );
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let stranger = place.write("stranger.pem", &stranger.cert.pem());

    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    let fixture = Fixture::listen("mcp", "wss://127.0.0.1:0/", &tls);
    let endpoint = fixture.endpoint.replace("127.0.0.1", "localhost");
    check("mcp", &endpoint, &["--tls-ca", &certificate]);

    let done = output(&["check", "--dialect", "mcp", "--tls-ca", &stranger, &endpoint]);
    assert_eq!(done.status.code(), Some(2));
    let said = text(&done.stderr);
    assert!(said.contains("could not be reached") && said.contains("TLS"), "{said}");
    let (code, rest) = fixture.end_by(Signal::TERM);
    assert_eq!((code, rest.as_str()), (Some(0), ""));
}

#[test]
fn a_fixture_with_a_client_authority_serves_only_clients_with_its_certificate_over_wss() {
    serves_only_clients_with_a_certificate("wss://127.0.0.1:0/");
}

#[test]
fn a_fixture_with_a_client_authority_serves_only_clients_with_its_certificate_over_https() {
    serves_only_clients_with_a_certificate("https://127.0.0.1:0/mcp");
}

fn serves_only_clients_with_a_certificate(endpoint: &str) {
    let place = Files::new();
    let write = |name: &str, made: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        let certificate = place.write(&format!("{name}.pem"), &made.cert.pem());
        (certificate, place.write(&format!("{name}.key"), &made.signing_key.serialize_pem()))
    };
    let made = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (certificate, key) = write("server", &made("localhost"));
    // A certificate that is its own authority.
    let (ours, our_key) = write("client", &made("client"));
    let (foreign, foreign_key) = write("foreign", &made("client"));

    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--client-ca", &ours];
    let fixture = Fixture::listen("mcp", endpoint, &tls);
    let endpoint = fixture.endpoint.replace("127.0.0.1", "localhost");
    let trusting = ["--tls-ca", &certificate];
    check("mcp", &endpoint, &[&trusting[..], &["--tls-cert", &ours, "--tls-key", &our_key]].concat());
    for shown in [&[][..], &["--tls-cert", &foreign, "--tls-key", &foreign_key]] {
        let command = ["check", "--dialect", "mcp", "--json", "--start-timeout", "5000", &endpoint];
        let done = output(&[&command[..], &trusting, shown].concat());
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{endpoint} {shown:?}: {said}");
        assert!(
            said.contains("no session could be opened") && said.trim_end().lines().count() == 1,
            "{said}"
        );
        assert!(done.stdout.is_empty(), "{}", text(&done.stdout));
    }
    assert_eq!(fixture.end_by(Signal::TERM).0, Some(0));
}

#[test]
fn https_trusts_the_systems_authorities_by_default() {
    let place = Files::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = place.write("cert.pem", &made.cert.pem());
    let key = place.write("key.pem", &made.signing_key.serialize_pem());
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let stranger = place.write("stranger.pem", &stranger.cert.pem());

    let fixture =
        Fixture::listen("mcp", "https://127.0.0.1:0/mcp", &["--tls-cert", &certificate, "--tls-key", &key]);
    let endpoint = fixture.endpoint.replace("127.0.0.1", "localhost");
    // The variable contains the path of the system's authorities.
    let check = |authorities: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rescind"));
        command.args(["check", "--dialect", "mcp", &endpoint]).stdin(std::process::Stdio::null());
        command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR").output().unwrap()
    };
    let trusting = check(&certificate);
    assert_eq!(trusting.status.code(), Some(0), "{}", text(&trusting.stderr));
    let wary = check(&stranger);
    assert_out_of_reach(&wary, "certificate");
    assert_eq!(fixture.end_by(Signal::TERM).0, Some(0));
}

#[test]
fn an_untrusted_server_counts_as_unreachable_in_every_binding() {
    let place = Files::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = place.write("cert.pem", &made.cert.pem());
    let key = place.write("key.pem", &made.signing_key.serialize_pem());
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let stranger = place.write("stranger.pem", &stranger.cert.pem());
    for dialect in ["mcp", "mcp-2026", "acp"] {
        let tls = ["--tls-cert", &certificate, "--tls-key", &key];
        let fixture = Fixture::listen(dialect, "https://127.0.0.1:0/agent", &tls);
        let endpoint = fixture.endpoint.replace("127.0.0.1", "localhost");
        let check = ["check", "--dialect", dialect, "--json", "--tls-ca"];
        assert_out_of_reach(&output(&[&check[..], &[&stranger, &endpoint]].concat()), "certificate");
        assert_eq!(fixture.end_by(Signal::TERM).0, Some(0));
        let gone = output(&[&check[..], &[&certificate, &endpoint]].concat());
        assert_out_of_reach(&gone, "refused");
    }
}
