//! Buckets by HTTPS: whose certificate counts, and whose does not.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::version::TLS13;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;
use tercel_archive::access::Access;
use tercel_archive::store::{Store, StoreError};
use tercel_testkit::bucket::{BUCKET, Bucket};

/// A service with the certificate of an authority of its own.
struct Encrypted {
    bucket: Arc<Bucket>,
    at: SocketAddr,
    dir: TempDir,
}

impl Encrypted {
    fn start(host: &str) -> Encrypted {
        let dir = tempfile::tempdir().unwrap();
        let authority = authority();
        std::fs::write(dir.path().join("ca.crt"), authority.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_string()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap().der().clone();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let (bucket, config) = (Arc::new(Bucket::start()), Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let serving = bucket.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (bucket, config) = (serving.clone(), config.clone());
                thread::spawn(move || {
                    bucket.serve(StreamOwned::new(ServerConnection::new(config).unwrap(), stream));
                });
            }
        });
        Encrypted { bucket, at, dir }
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    /// Opens it with a file of authorities.
    fn open(&self, authorities: PathBuf) -> Result<Arc<dyn Store>, StoreError> {
        let mut variables = self.bucket.variables();
        variables.insert("AWS_ENDPOINT_URL".into(), format!("https://localhost:{}", self.at.port()));
        variables.insert("AWS_CA_BUNDLE".into(), authorities.display().to_string());
        tercel_archive::open(&format!("s3://{BUCKET}/a"), &Access { variables, credentials: None })
    }

    fn refusal(&self, authorities: PathBuf) -> String {
        let error = self.open(authorities).err().unwrap();
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
        assert_eq!(self.bucket.requests(), [], "a request went to whom is not trusted");
        error.to_string()
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[test]
fn bucket_is_reached_by_https() {
    let service = Encrypted::start("localhost");
    let store = service.open(service.authorities()).unwrap();
    let bytes = vec![7; 3 << 20];
    assert!(store.put("log/1", &bytes).unwrap());
    assert!(store.get("log/1").unwrap() == Some(bytes));
}

#[test]
fn unknown_authority_is_refused() {
    let (service, other) = (Encrypted::start("localhost"), Encrypted::start("localhost"));
    let why = service.refusal(other.authorities());
    assert!(
        why.contains("no authority that is trusted here has signed") && why.contains("AWS_CA_BUNDLE"),
        "{why}"
    );
}

#[test]
fn certificate_of_another_host_is_refused() {
    let service = Encrypted::start("elsewhere.test");
    let why = service.refusal(service.authorities());
    assert!(why.contains("the certificate of localhost does not count"), "{why}");
}

#[test]
fn wrong_file_of_authorities_is_named() {
    let service = Encrypted::start("localhost");
    let path = service.dir.path().join("absent");
    assert!(service.refusal(path.clone()).contains("absent"));
    std::fs::write(&path, "no certificate").unwrap();
    assert!(service.refusal(path).contains("no certificate of an authority"));
}
