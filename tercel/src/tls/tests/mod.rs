//! Handshakes and records in memory, between two ends of which each has certificates of a test's choice.

mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tempfile::TempDir;

use super::*;
use crate::identity::Identity;

/// An authority, and a directory for the certificates that it signs.
pub(crate) struct Authority {
    dir: TempDir,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The content of a certificate.
pub(crate) struct Says<'a> {
    pub uris: &'a [&'a str],
    /// Seconds from now.
    pub from: i64,
    pub to: i64,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority of tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { dir: tempfile::tempdir().unwrap(), pem, issuer: Issuer::new(params, key) }
    }

    /// A directory with a certificate.
    pub(crate) fn sign(&self, name: &str, says: &Says<'_>) -> PathBuf {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        self.sign_into(&dir, says);
        dir
    }

    /// Puts a certificate into a directory, and a new key.
    pub(crate) fn sign_into(&self, dir: &Path, says: &Says<'_>) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let at = |seconds: i64| {
            let distance = Duration::from_secs(seconds.unsigned_abs());
            rcgen::date_time_ymd(1970, 1, 1) + if seconds < 0 { now - distance } else { now + distance }
        };
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names =
            says.uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        (params.not_before, params.not_after) = (at(says.from), at(says.to));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(dir.join("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
        std::fs::write(dir.join("ca.crt"), &self.pem).unwrap();
    }

    /// The certificate of whom this URI names.
    pub(crate) fn tls(&self, uri: &str) -> Tls {
        let name = uri.replace(['/', ':'], "_");
        Tls::open(self.sign(&name, &Says { uris: &[uri], from: -HOUR, to: 24 * HOUR })).unwrap()
    }

    pub(crate) fn client(&self) -> Tls {
        self.tls("tercel://client/ann")
    }

    pub(crate) fn member(&self, id: usize) -> Tls {
        self.tls(&format!("tercel://euros/member/{id}"))
    }
}

/// The certificate of a directory, whatever it names.
fn certificate_of(dir: &Path) -> Arc<dyn ResolvesClientCert> {
    let chain = vec![CertificateDer::from_pem_file(dir.join("tls.crt")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(dir.join("tls.key")).unwrap();
    let key = CertifiedKey::from_der(chain, key, &ring::default_provider()).unwrap();
    Arc::new(SingleCertAndKey::from(key))
}

const HOUR: i64 = 3_600;

/// One end of a handshake.
enum End {
    UnderWay(Handshake),
    Done(Box<Sealed>),
    Failed(Unsealed),
}

impl End {
    fn take(self, arrived: &[u8], out: &mut Vec<u8>) -> End {
        match self {
            End::UnderWay(handshake) => match handshake.step(arrived, out) {
                Ok(Step::More(handshake)) => End::UnderWay(handshake),
                Ok(Step::Done(sealed)) => End::Done(sealed),
                Err(why) => End::Failed(why),
            },
            // A client learns only now that its certificate does not count.
            End::Done(mut sealed) => match sealed.open(arrived, &mut Vec::new()) {
                Ok(()) => End::Done(sealed),
                Err(why) => End::Failed(why),
            },
            failed => failed,
        }
    }

    fn why(&self) -> String {
        match self {
            End::UnderWay(_) => "it waits".into(),
            End::Done(sealed) => sealed.identity().to_string(),
            End::Failed(why) => why.to_string(),
        }
    }
}

/// Has a client and a server meet. What is on its way is changed in between: the flights are counted.
fn meet_over(client: &Tls, server: &Tls, mut change: impl FnMut(usize, &mut Vec<u8>)) -> (End, End) {
    let mut to_server = Vec::new();
    let mut client = End::UnderWay(Handshake::open(client.client(), &mut to_server).unwrap());
    let mut server = End::UnderWay(Handshake::accept(server.server()).unwrap());
    for flight in 0.. {
        let mut to_client = Vec::new();
        change(2 * flight, &mut to_server);
        if !to_server.is_empty() {
            server = server.take(&to_server, &mut to_client);
        }
        to_server.clear();
        change(2 * flight + 1, &mut to_client);
        if to_client.is_empty() {
            break;
        }
        client = client.take(&to_client, &mut to_server);
    }
    (client, server)
}

fn meet(client: &Tls, server: &Tls) -> (End, End) {
    meet_over(client, server, |_, _| ())
}

/// Two ends that know each other.
fn pair() -> (Box<Sealed>, Box<Sealed>) {
    let authority = Authority::new();
    match meet(&authority.client(), &authority.member(1)) {
        (End::Done(client), End::Done(server)) => (client, server),
        (client, server) => panic!("{} and {}", client.why(), server.why()),
    }
}

#[test]
fn both_ends_learn_who_the_other_is() {
    let (mut client, mut server) = pair();
    assert_eq!(server.identity().to_string(), "client:ann");
    assert_eq!(*client.identity(), Identity::Member("euros".into(), "1".into()));
    let said: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    for is_answer in [false, true] {
        let (from, to) = if is_answer { (&mut server, &mut client) } else { (&mut client, &mut server) };
        let (mut records, mut heard) = (Vec::new(), Vec::new());
        from.seal(&said, &mut records).unwrap();
        assert_eq!(records.len(), sealed_bytes(said.len()));
        // As they come: a byte, and the rest in pieces.
        let (first, rest) = records.split_at(1);
        to.open(first, &mut heard).unwrap();
        rest.chunks(5_000).for_each(|piece| to.open(piece, &mut heard).unwrap());
        assert!(heard == said);
    }
}

#[test]
fn certificates_that_do_not_count_are_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (ann, member) = (authority.client(), authority.member(1));
    let open = |dir: PathBuf| Tls::open(dir).unwrap();
    let says = |uris, from, to| Says { uris, from, to };
    let one = &["tercel://client/ben"][..];
    let expired = open(authority.sign("expired", &says(one, -48 * HOUR, -24 * HOUR)));
    let early = open(authority.sign("early", &says(one, 24 * HOUR, 48 * HOUR)));
    for (client, sees, told) in [
        (&other.client(), "no authority in this process's `ca.crt`", "no authority"),
        (&expired, "it has expired", "it has expired, or is not valid yet"),
        (&early, "not valid yet", "it has expired, or is not valid yet"),
    ] {
        // The other authority's client would not take this server either: it is asked to.
        let _ = std::fs::copy(ann.dir().join("ca.crt"), client.dir().join("ca.crt"));
        client.look();
        let (client, server) = meet(client, &member);
        assert!(server.why().contains(sees), "{}", server.why());
        assert!(client.why().contains(told) && client.why().contains("does not take"), "{}", client.why());
    }
    let members = &["tercel://euros/member/2"][..];
    let expired = open(authority.sign("expired-member", &says(members, -48 * HOUR, -24 * HOUR)));
    for (server, sees) in [
        (&other.member(1), "no authority in this process's `ca.crt`"),
        (&expired, "it has expired"),
        (&ann, "a client's, and only a member serves"),
    ] {
        let (client, server) = meet(&ann, server);
        assert!(client.why().contains(sees), "{}", client.why());
        assert!(matches!(server, End::Failed(_)), "{}", server.why());
    }
}

#[test]
fn certificate_without_one_name_is_none() {
    let authority = Authority::new();
    for (name, uris, why) in [
        ("none", &[][..], "names nobody"),
        ("web", &["https://example.org/"][..], "names nobody"),
        ("two", &["tercel://client/a", "tercel://client/b"][..], "names two"),
        ("odd", &["tercel://client/"][..], "has to name tercel://client/NAME"),
    ] {
        let dir = authority.sign(name, &Says { uris, from: -HOUR, to: 24 * HOUR });
        let error = Tls::open(dir).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("tls.crt"), "{error}");
    }
    // A program that is not Tercel shows one all the same.
    let unnamed =
        authority.sign("unnamed", &Says { uris: &["tercel://client/a"], from: -HOUR, to: 24 * HOUR });
    let named = Tls::open(&unnamed).unwrap();
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let mut config = (*named.client()).clone();
    authority.sign_into(&unnamed, &Says { uris: &[], from: -HOUR, to: 24 * HOUR });
    config.client_auth_cert_resolver = certificate_of(&unnamed);
    let client = Handshake::open(config.into(), &mut to_server).unwrap();
    let server = Handshake::accept(authority.member(1).server()).unwrap();
    let Ok(Step::More(server)) = server.step(&to_server, &mut to_client) else { panic!("it waits") };
    to_server.clear();
    assert!(matches!(client.step(&to_client, &mut to_server), Ok(Step::Done(_))));
    let Err(why) = server.step(&to_server, &mut to_client) else { panic!("it was let in") };
    assert!(why.to_string().contains("names nobody"), "{why}");
}

#[test]
fn changed_and_cut_flights_let_nobody_in() {
    let authority = Authority::new();
    let (ann, member) = (authority.client(), authority.member(1));
    let mut lengths = [0; 3];
    meet_over(&ann, &member, |flight, said| {
        if let Some(length) = lengths.get_mut(flight) {
            *length = said.len();
        }
    });
    for (flight, bytes) in lengths.into_iter().enumerate() {
        assert!(bytes > 100, "flight {flight} has {bytes} bytes");
        for at in (0..bytes).step_by(5) {
            for is_cut in [false, true] {
                let mut says_nothing = false;
                let ends = meet_over(&ann, &member, |which, said| match is_cut {
                    // Signatures are not always as long.
                    true if which == flight => said.truncate(at.min(said.len() - 1)),
                    false if which == flight => {
                        let at = at.min(said.len() - 1);
                        says_nothing = is_of_a_version(said, at);
                        said[at] ^= 0x41;
                    }
                    _ => {}
                });
                let is_open = matches!(ends, (End::Done(_), End::Done(_)));
                assert!(!is_open || says_nothing, "flight {flight}, byte {at}, cut: {is_cut}");
            }
        }
    }
}

/// Says whether a byte is of the version in the head of a record: it says nothing, and nobody looks at it.
fn is_of_a_version(records: &[u8], at: usize) -> bool {
    let mut begins = 0;
    while let Some(head) = records.get(begins..begins + 5) {
        if (begins + 1..begins + 3).contains(&at) {
            return true;
        }
        begins += 5 + usize::from(head[3]) * 256 + usize::from(head[4]);
    }
    false
}

#[test]
fn changed_lost_and_repeated_records_are_found() {
    for at in (0..60).step_by(7) {
        let (mut client, mut server) = pair();
        let mut records = Vec::new();
        client.seal(b"forty cents to ann, and not to ben", &mut records).unwrap();
        records[at.min(56 - 1)] ^= 0x80;
        let mut heard = Vec::new();
        let opened = server.open(&records, &mut heard);
        assert!(opened.is_err() && heard.is_empty() || at <= 4 && heard.is_empty(), "byte {at}");
    }
    let (mut client, mut server) = pair();
    let [mut one, mut two] = [Vec::new(), Vec::new()];
    client.seal(b"one", &mut one).unwrap();
    client.seal(b"two", &mut two).unwrap();
    let mut heard = Vec::new();
    server.open(&one, &mut heard).unwrap();
    assert!(server.open(&one, &mut heard).is_err());
    let (mut client, mut server) = pair();
    client.seal(b"one", &mut Vec::new()).unwrap();
    two.clear();
    client.seal(b"two", &mut two).unwrap();
    assert!(server.open(&two, &mut Vec::new()).is_err());
    assert_eq!(heard, b"one");
}

#[test]
fn stranger_that_talks_on_is_stopped() {
    let authority = Authority::new();
    let mut handshake = Handshake::accept(authority.member(1).server()).unwrap();
    // A greeting of 16 MiB, of which each record is whole.
    let mut record = vec![0x16, 3, 1, 0x10, 0, 1, 0xff, 0xff, 0xff];
    record.resize(5 + 0x1000, 0);
    let mut came = 0;
    let why = loop {
        let room = handshake.bytes_left().min(record.len());
        came += room;
        match handshake.step(&record[..room], &mut Vec::new()) {
            Ok(Step::More(more)) => handshake = more,
            Ok(Step::Done(_)) => panic!("it was let in"),
            Err(why) => break why,
        }
        record[5] = 0;
    };
    assert!(came <= 16 << 10, "{came} bytes, and {why}");
}

#[test]
fn new_files_count_once_they_fit() {
    let authority = Authority::new();
    let says = |to| Says { uris: &["tercel://euros/member/1"], from: -HOUR, to };
    let dir = authority.sign("renewed", &says(25 * HOUR));
    let tls = Tls::open(&dir).unwrap();
    assert_eq!((tls.status().days_left, tls.status().problem), (1, None));
    let other = authority.sign("other", &says(49 * HOUR));
    // A key that does not fit yet.
    std::fs::copy(other.join("tls.key"), dir.join("tls.key")).unwrap();
    tls.look();
    let status = tls.status();
    let problem = status.problem.unwrap();
    assert!(
        status.days_left == 1 && problem.contains("tls.key") && problem.contains("before stays"),
        "{problem}"
    );
    let (client, _) = meet(&authority.client(), &tls);
    assert!(matches!(client, End::Done(_)), "{}", client.why());
    std::fs::copy(other.join("tls.crt"), dir.join("tls.crt")).unwrap();
    tls.look();
    assert_eq!((tls.status().days_left, tls.status().problem), (2, None));
    for (name, text) in [("ca.crt", "no PEM"), ("tls.crt", ""), ("tls.key", "-----BEGIN")] {
        let before = std::fs::read(dir.join(name)).unwrap();
        std::fs::write(dir.join(name), text).unwrap();
        tls.look();
        assert!(tls.status().problem.unwrap().contains(name));
        std::fs::write(dir.join(name), before).unwrap();
        tls.look();
        assert_eq!(tls.status().problem, None);
    }
    assert_eq!(tls.status().principal, "member:1");
}
