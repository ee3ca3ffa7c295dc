//! Certificates made for one test.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rescind_websocket::{ClientTls, ServerTls};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How many were made, so that each has a separate folder.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A certificate authority and a certificate for loopback, as files that are deleted on drop.
pub struct Authority {
    folder: PathBuf,
    /// The certificate of a client and its key, in DER.
    client: (Vec<u8>, Vec<u8>),
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
        let client = (client.der().to_vec(), client_key.serialize_der());
        Self { folder, client }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn server(&self) -> ServerTls {
        ServerTls::from_pem_files(&self.file("certificate.pem"), &self.file("key.pem")).unwrap()
    }

    pub fn client(&self) -> ClientTls {
        ClientTls::from_ca_file(&self.file("ca.pem")).unwrap()
    }

    /// The certificate of the client that `client_of` makes.
    pub fn certificate(&self) -> &[u8] {
        &self.client.0
    }

    /// A client with a certificate of another authority, or of this one.
    pub fn client_of(&self, other: &Self) -> ClientTls {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca.pem")).unwrap()).unwrap();
        let key = PrivateKeyDer::try_from(other.client.1.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![other.client.0.clone().into()], key);
        ClientTls::from_config(config.unwrap())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
