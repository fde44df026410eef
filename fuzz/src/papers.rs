//! The papers that strangers show to be let in: certificates, handshakes, bearers' tokens.

use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tercel::Tls;
use tercel::tools::certificates::{Handshake, Step, certificates, client_named, end_of};
use tercel_gateway::Tokens;

/// The files that both ends have, an issuer of tokens, and a certificate as its bytes.
struct Papers {
    _dir: TempDir,
    tls: Tls,
    tokens: Tokens,
    certificate: Vec<u8>,
}

/// The first byte says what the others are: changes of a certificate, of a handshake, of records, or a token.
pub fn run(data: &[u8]) {
    static PAPERS: OnceLock<Papers> = OnceLock::new();
    let papers = PAPERS.get_or_init(Papers::new);
    let Some((which, data)) = data.split_first() else { return };
    match which % 4 {
        0 => certificate(&changed(&papers.certificate, data)),
        1 => certificate(data),
        2 => papers.handshake(data),
        _ => papers.token(data),
    }
}

fn certificate(bytes: &[u8]) {
    let chain = [bytes.to_vec().into()];
    let (end, named) = (end_of(&chain), client_named(&chain));
    assert!(named.is_none_or(|who| who.is_spoken_for()), "it names a client");
    assert!(end.is_none_or(|end| end.abs() < 1 << 40), "{end:?}");
}

/// The bytes with each triple of `data` as a change: two bytes say where, one by which bits.
fn changed(bytes: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len().max(1);
        bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= change[2]);
    }
    bytes
}

impl Papers {
    fn new() -> Papers {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let put = |name: &str, text: &str| std::fs::write(path(name), text).expect("room");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        put("ca.crt", &params.self_signed(&key).expect("an authority").pem());
        let issuer = Issuer::new(params, key);
        let (mut params, key) = (CertificateParams::default(), KeyPair::generate().expect("a key"));
        let uri = "tercel://euros/member/1".try_into().expect("a URI");
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        put("tls.crt", &params.signed_by(&key, &issuer).expect("a certificate").pem());
        put("tls.key", &key.serialize_pem());
        put("keys.json", KEYS);
        put("issuers.json", ISSUERS);
        let certificate = certificates(&path("tls.crt")).expect("a certificate").remove(0).to_vec();
        let tls = Tls::open(dir.path()).expect("files that fit");
        let tokens = Tokens::open(Path::new(&path("issuers.json"))).expect("issuers");
        Papers { _dir: dir, tls, tokens, certificate }
    }

    /// A handshake in which the first change is to one flight, and the records behind it with the others.
    fn handshake(&self, data: &[u8]) {
        let (mut flight, mut answer) = (Vec::new(), Vec::new());
        let [server, client] = Handshake::both(&self.tls, &mut flight).expect("both ends begin");
        let (which, data) = data.split_at(data.len().min(1));
        let is_changed = |flight: &[u8]| changed(flight, data) != flight;
        let mut whole = true;
        let mut take = |flight: &mut Vec<u8>, number: u8| {
            let mut came = std::mem::take(flight);
            if which == [number] {
                whole &= !is_changed(&came);
                came = changed(&came, data);
            }
            came.truncate(16 << 10);
            came
        };
        let Ok(Step::More(server)) = server.step(&take(&mut flight, 0), &mut answer) else {
            return assert!(!whole, "the first flight is good");
        };
        let Ok(Step::Done(mut client)) = client.step(&take(&mut answer, 1), &mut flight) else {
            return assert!(!whole, "the second flight is good");
        };
        let Ok(Step::Done(mut server)) = server.step(&take(&mut flight, 2), &mut answer) else {
            return assert!(!whole, "the third flight is good");
        };
        // Bits of a record that nobody reads: its legacy version.
        let (mut sealed, mut opened) = (Vec::new(), Vec::new());
        client.seal(b"for the server alone", &mut sealed).expect("a record");
        if server.open(&take(&mut sealed, 3), &mut opened).is_ok() {
            assert!(opened.is_empty() || opened == b"for the server alone", "a changed record");
        }
        assert!(whole || which != [3] || opened.is_empty() || opened == b"for the server alone");
    }

    fn token(&self, data: &[u8]) {
        let text = String::from_utf8_lossy(data);
        // No key of the issuer has signed anything.
        assert!(self.tokens.bearer(&text, SystemTime::UNIX_EPOCH).is_err(), "{text}");
    }
}

const KEYS: &str = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

const ISSUERS: &str = r#"{"issuers": [{"name": "corp", "issuer": "https://login.example.org/", "audience": "tercel",
    "algorithms": ["EdDSA", "ES256", "RS256"], "keys": "keys.json"}]}"#;
