//! The commands of certificates.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, Subcommand)]
pub enum Cert {
    /// Make an authority, which signs the certificates of a group's members and clients
    Init(CertInit),
    /// Make the certificate of a member, or of a server that is alone
    Member(CertNew),
    /// Make the certificate of a client
    Client(CertNew),
    /// Make the certificate of a gateway for HTTPS, by the names of its host
    Host(CertHost),
    /// Give a directory a new certificate of the same name, and a new key
    Renew(CertRenew),
    /// Tell whom a certificate names, and when it ends
    Show(CertShow),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel cert init ./ca --group euros
  tercel cert member a --ca ./ca --out ./a-tls
  tercel cert client ann --ca ./ca --out ./ann-tls
  tercel serve --data ./a --listen 0.0.0.0:7117 --tls ./a-tls
  tercel stat --server HOST:7117 --tls ./ann-tls

Who has the file `ca.key` can be any member and any client. Keep the directory on one machine that serves nothing, and copy the \
directories that are made from it to theirs. The authority is good for ten years.")]
pub struct CertInit {
    /// A new directory for the authority
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The group whose members it names: letters, digits, dots, dashes and underscores
    #[arg(long, value_name = "NAME", value_parser = cert_name, default_value = "tercel")]
    pub group: String,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The directory then has `tls.crt`, `tls.key` and `ca.crt`, as --tls wants them. Only its owner may read it.

A member's certificate is good for a year, a client's for 90 days, and `tercel cert renew` makes the next one."
)]
pub struct CertNew {
    /// The name: letters, digits, dots, dashes and underscores
    #[arg(value_name = "NAME", value_parser = cert_name)]
    pub name: String,
    /// The directory of the authority
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,
    /// A new directory for the certificate
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Days that it is good for, up to 3650; else 365 of a member and 90 of a client
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub days: Option<u32>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel cert host db.example.org 10.0.0.1 --ca ./ca --out ./web
  tercel gateway --listen 0.0.0.0:8470 --https ./web \\
      --https-callers ./ca/ca.crt
  curl https://db.example.org:8470/v1/roots --cacert ./ca/ca.crt \\
      --cert ./ann-tls/tls.crt --key ./ann-tls/tls.key

Callers trust the gateway by `ca.crt`. The certificate names no member and no client, so it is refused as either. Where programs \
and browsers trust another authority already, use a certificate of that one. To renew it, make another one and move its files to \
the directory: the gateway takes them within some ten seconds.")]
pub struct CertHost {
    /// The names and addresses by which callers name the gateway's host
    #[arg(value_name = "HOST", required = true, value_parser = host_name)]
    pub hosts: Vec<String>,
    /// The directory of the authority
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,
    /// A new directory for the certificate
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Days that it is good for, up to 3650; else 90
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3_650), default_value = "90")]
    pub days: u32,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel cert renew ./a-tls --ca ./ca

A server or client that runs takes the new files within ten seconds, and its connections go on. Where the authority is on \
another machine, renew a copy there and bring `tls.crt` and `tls.key` back.")]
pub struct CertRenew {
    /// The directory of the certificate
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The directory of the authority
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,
    /// Days that it is good for, up to 3650; else 365 of a member and 90 of a client
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub days: Option<u32>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel cert show ./a-tls

Exit codes: 0 it is good; 1 it has ended, or its files are wrong.")]
pub struct CertShow {
    /// The directory of the certificate
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A host's name or address.
fn host_name(text: &str) -> Result<String, String> {
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    // A last label of digits is an address that was mistyped.
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_name =
        text.len() <= 253 && text.split('.').all(is_label) && !last.chars().all(|c| c.is_ascii_digit());
    match is_name || text.parse::<IpAddr>().is_ok() {
        true => Ok(text.into()),
        false if text.contains(':') => Err("it is no address; leave out the port".into()),
        false => Err("it is no name of a host, and no address".into()),
    }
}

/// A name that a certificate can have.
pub fn cert_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=64).contains(&text.len()) && text.chars().all(is_plain) {
        true => Ok(text.into()),
        false => Err("a name has 1 to 64 letters, digits, dots, dashes and underscores".into()),
    }
}
