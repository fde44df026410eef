//! Certificates for rows whose connections are sealed, and the rows of sealed calls by plain ones.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tercel::{Tls, Transport};

use super::{Ends, Place, Procedures, ProceduresCalls, TRIPS, Waits, block, failed, placed, rounds};
use crate::Options;
use crate::blocks::alternate;
use crate::report::Row;
use crate::scratch::Scratch;

/// The name of the rows of sealed calls in `--only`.
pub const SEALED: &str = "sealed";

/// Measures sealed calls by plain ones, with all ends on one processor, asleep while they wait.
///
/// # Errors
/// A sentence: what failed.
pub(super) fn rows(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    options.say("sealed calls, by plain ones");
    let place = |road| Place { road, waits: Waits::Sleeping, apart: false };
    let (first, _) = placed::ends();
    placed::on(first, || {
        let [plain, sealed] = [Transport::Tcp, Transport::Tls].map(|road| {
            let place = place(road);
            Ends::begin(&scratch.join(&format!("{SEALED}.{}", place.name())), &place.role())
        });
        let (plain, sealed) = (plain?, sealed?);
        let row = |id: &str, roads: [Transport; 2], limit: &str| {
            let [of_plain, of_sealed] = [plain.client(place(roads[0]))?, sealed.client(place(roads[1]))?];
            let [of_plain, of_sealed] = [&of_plain, &of_sealed].map(|it| it.service::<dyn Procedures>());
            let mut one = || of_plain.null().map_err(failed);
            let mut call = || of_sealed.null().map_err(failed);
            // Datagrams are begun by calls.
            (0..TRIPS).try_for_each(|_| one().and_then(|()| call()))?;
            let pairs = alternate(rounds(options), || block(&mut one), || block(&mut call))?;
            let n = (rounds(options) * TRIPS) as u64;
            Ok::<_, String>(
                Row::compared(id, "us", &pairs, limit, n).note("a procedure that takes and gives nothing"),
            )
        };
        Ok(vec![
            row("tls.null.tcp", [Transport::Tcp, Transport::Tls], "plain TCP")?,
            row("udp.sealed.null", [Transport::Udp, Transport::SealedUdp], "plain datagrams")?,
        ])
    })
}

/// Makes an authority, and a certificate each of a server and of a client.
pub(super) fn make(dir: &Path) -> Result<(), String> {
    let key = KeyPair::generate().map_err(failed)?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let trusted = authority.self_signed(&key).map_err(failed)?.pem();
    let issuer = Issuer::new(authority, key);
    for (name, uri) in [(SERVER, "tercel://bench/member/server"), (CLIENT, "tercel://client/bench")] {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().map_err(failed)?)];
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        let dir = place(dir, name);
        std::fs::create_dir_all(&dir).map_err(failed)?;
        for (file, text) in
            [("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem()), ("ca.crt", trusted.clone())]
        {
            std::fs::write(dir.join(file), text).map_err(failed)?;
        }
    }
    Ok(())
}

/// The certificate of an end.
pub(super) fn open(dir: &Path, name: &str) -> Result<Tls, String> {
    Tls::open(place(dir, name)).map_err(failed)
}

fn place(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}-tls"))
}

pub(super) const SERVER: &str = "server";
pub(super) const CLIENT: &str = "client";
