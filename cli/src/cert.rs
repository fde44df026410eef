//! `tercel cert`: an authority of one's own, and the certificates that it signs.
//!
//! The authority's directory has `ca.crt`, `ca.key` and `group`; a certificate's directory has what `--tls`
//! wants. Files are their owner's alone, and none is overwritten but by `renew`.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;
use tercel::tools::certificates::certificates;
use tercel::{Tls, TlsStatus};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::say;

use crate::args;

pub fn run(args: &args::Cert) -> Outcome {
    match args {
        args::Cert::Init(args) => init(args),
        args::Cert::Member(args) => {
            let authority = Authority::open(&args.ca)?;
            make(&authority, &Named::member(&authority, &args.name), args)
        }
        args::Cert::Client(args) => {
            let of = Named::Client(format!("tercel://client/{}", args.name));
            make(&Authority::open(&args.ca)?, &of, args)
        }
        args::Cert::Host(args) => host(args),
        args::Cert::Renew(args) => renew(args),
        args::Cert::Show(args) => show(args),
    }
}

/// The holder of a certificate, by the URI in it.
pub enum Named {
    Member(String),
    Client(String),
}

impl Named {
    /// A member of the authority's group.
    pub fn member(authority: &Authority, name: &str) -> Named {
        Named::Member(format!("tercel://{}/member/{name}", authority.group))
    }

    /// The holder that a certificate names today.
    fn of(status: &TlsStatus) -> Result<Named, Failure> {
        match (status.principal.split_once(':'), &status.group) {
            (Some(("member", id)), Some(group)) => Ok(Named::Member(format!("tercel://{group}/member/{id}"))),
            (Some(("client", name)), _) => Ok(Named::Client(format!("tercel://client/{name}"))),
            _ => Err(Failure::new(format!("{} is no name of a member or client", status.principal))),
        }
    }

    fn uri(&self) -> &str {
        match self {
            Named::Member(uri) | Named::Client(uri) => uri,
        }
    }

    fn days(&self) -> u32 {
        match self {
            Named::Member(_) => MEMBER_DAYS,
            Named::Client(_) => CLIENT_DAYS,
        }
    }
}

const HOUR: Duration = Duration::from_secs(3_600);
const AUTHORITY_DAYS: u32 = 3_650;
const MEMBER_DAYS: u32 = 365;
const CLIENT_DAYS: u32 = 90;

fn init(args: &args::CertInit) -> Outcome {
    let dir = &args.dir;
    new_directory(dir)?;
    let key = KeyPair::generate().map_err(failed)?;
    let authority = authority(&args.group)?.self_signed(&key).map_err(failed)?;
    write_new(&dir.join("ca.key"), &key.serialize_pem())?;
    write_new(&dir.join("group"), &format!("{}\n", args.group))?;
    write_new(&dir.join(AUTHORITY_NAME), &authority.pem())?;
    let (shown, group) = (dir.display(), &args.group);
    say!(
        "{shown} is the authority of group {group}, for {AUTHORITY_DAYS} days; keep ca.key to yourself, and go on:"
    );
    say!("  tercel cert member NAME --ca {shown} --out DIR");
    say!("  tercel cert client NAME --ca {shown} --out DIR");
    Ok(ExitCode::SUCCESS)
}

/// The authority of a directory.
pub struct Authority {
    pub group: String,
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn open(dir: &Path) -> Result<Authority, Failure> {
        let [group, key, pem] = ["group", "ca.key", AUTHORITY_NAME].map(|name| read(&dir.join(name)));
        let group = group?.trim().to_string();
        let key = KeyPair::from_pem(&key?).map_err(failed)?;
        let issuer = Issuer::new(authority(&group)?, key);
        Ok(Authority { group, pem: pem?, issuer })
    }

    /// Signs a certificate of a member or a client. Gives it and its key as texts.
    pub fn sign(&self, of: &Named, days: Option<u32>) -> Result<(String, String), Failure> {
        let mut params = good_for(days.unwrap_or(of.days()))?;
        let uri = of.uri().try_into().map_err(failed)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Named::Member(_) = of {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        self.signed(params)
    }

    /// Signs the certificate of a gateway's host. Gives it and its key as texts.
    fn sign_host(&self, hosts: &[String], days: u32) -> Result<(String, String), Failure> {
        let mut params = good_for(days)?;
        for host in hosts {
            let name = match host.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into().map_err(failed)?),
            };
            params.subject_alt_names.push(name);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.signed(params)
    }

    /// Signs a certificate of a new key. Gives both as texts.
    fn signed(&self, mut params: CertificateParams) -> Result<(String, String), Failure> {
        let key = KeyPair::generate().map_err(failed)?;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// The content of an authority's certificate. It is the same at each call, so that it can sign later.
fn authority(group: &str) -> Result<CertificateParams, Failure> {
    let mut params = good_for(AUTHORITY_DAYS)?;
    params.distinguished_name.push(DnType::CommonName, format!("Tercel authority of {group}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A certificate that names nobody yet, from an hour ago on and for an hour more than these days: the clock
/// of another host may be late, or early.
fn good_for(days: u32) -> Result<CertificateParams, Failure> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(failed)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let beginning = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = beginning + now.saturating_sub(HOUR);
    params.not_after = beginning + now + 24 * HOUR * days + HOUR;
    Ok(params)
}

fn make(authority: &Authority, of: &Named, args: &args::CertNew) -> Outcome {
    let signed = authority.sign(of, args.days)?;
    let (out, uri, days) = (&args.out, of.uri(), args.days.unwrap_or(of.days()));
    put(out, authority, signed)?;
    let out = out.display();
    say!("{uri}, for {days} days; use it with --tls {out}");
    Ok(ExitCode::SUCCESS)
}

fn host(args: &args::CertHost) -> Outcome {
    let authority = Authority::open(&args.ca)?;
    put(&args.out, &authority, authority.sign_host(&args.hosts, args.days)?)?;
    let (out, hosts) = (args.out.display(), args.hosts.join(", "));
    say!("{hosts}, for {} days; use it with `tercel gateway --https {out}`", args.days);
    Ok(ExitCode::SUCCESS)
}

/// Makes a directory of a certificate, its key and the authority.
fn put(out: &Path, authority: &Authority, (certificate, key): (String, String)) -> Result<(), Failure> {
    new_directory(out)?;
    write_new(&out.join(AUTHORITY_NAME), &authority.pem)?;
    write_new(&out.join(KEY_NAME), &key)?;
    write_new(&out.join(CERTIFICATE_NAME), &certificate)
}

fn renew(args: &args::CertRenew) -> Outcome {
    let dir = &args.dir;
    let authority = Authority::open(&args.ca)?;
    let of = Named::of(&open(dir)?.status())?;
    let in_bundle = |name: &str| certificates(&args.dir.join(name)).map_err(|e| Failure::new(e.to_string()));
    let by = certificates(&args.ca.join(AUTHORITY_NAME)).map_err(|e| Failure::new(e.to_string()))?;
    if !in_bundle(AUTHORITY_NAME)?.iter().any(|one| by.contains(one)) {
        let text = format!(
            "the authority in {} is not among those in {}",
            args.ca.display(),
            dir.join(AUTHORITY_NAME).display()
        );
        let next = "name with --ca the one that signed it; a new authority goes into the bundles ca.crt of all ends first";
        return Err(Failure::new(text).next(next));
    }
    let (certificate, key) = authority.sign(&of, args.days)?;
    // The key goes first: whoever reads between the two finds that they do not fit, and looks again.
    for (name, text) in [(KEY_NAME, &key), (CERTIFICATE_NAME, &certificate)] {
        let (file, new) = (dir.join(name), dir.join(format!("{name}.new")));
        let _ = std::fs::remove_file(&new);
        write_new(&new, text)?;
        std::fs::rename(&new, &file).map_err(|e| of_file(&file, &e))?;
    }
    say!("{}, for {} days from now", of.uri(), args.days.unwrap_or(of.days()));
    Ok(ExitCode::SUCCESS)
}

fn show(args: &args::CertShow) -> Outcome {
    let TlsStatus { principal, group, days_left, .. } = open(&args.dir)?.status();
    if args.json {
        say!("{}", json!({ "principal": principal, "group": group, "days_left": days_left }));
    } else {
        let of = group.map_or(String::new(), |group| format!(" of group {group}"));
        match days_left {
            0.. => say!("{principal}{of}, ends in {days_left} days"),
            _ => say!("{principal}{of}, has ended: renew it with `tercel cert renew`"),
        }
    }
    Ok(if days_left >= 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn open(dir: &Path) -> Result<Tls, Failure> {
    Tls::open(dir).map_err(|e| Failure::new(e.to_string()))
}

pub fn new_directory(dir: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().mode(0o700).create(dir);
    made.map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => {
            let text = format!("{} is there already, and may have a key that is in use", dir.display());
            Failure::new(text).next("name a directory that does not exist")
        }
        _ => of_file(dir, &e),
    })
}

pub fn write_new(file: &Path, text: &str) -> Result<(), Failure> {
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
    written.map_err(|e| of_file(file, &e))
}

fn read(file: &Path) -> Result<String, Failure> {
    let missing = "name the directory of an authority with --ca, as `tercel cert init` has made it";
    std::fs::read_to_string(file).map_err(|e| of_file(file, &e).next(missing))
}

pub fn of_file(file: &Path, e: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {e}", file.display()))
}

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::new(format!("the certificate cannot be made: {e}"))
}

pub const AUTHORITY_NAME: &str = "ca.crt";
pub const KEY_NAME: &str = "tls.key";
pub const CERTIFICATE_NAME: &str = "tls.crt";
