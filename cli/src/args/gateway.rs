//! The command line of the gateway.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use tercel::Addresses;

use super::values::{cache_bytes, origin};

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel gateway                                    of the server on this host
  tercel gateway 10.0.0.1:7117 10.0.0.2:7117        of a group, by its members
  tercel gateway --server unix:/run/tercel.sock --listen 127.0.0.1:8080
  curl http://127.0.0.1:8470/v1/roots
  curl -d '[5]' http://127.0.0.1:8470/v1/objects/purse/deposit
  tercel gateway --listen 0.0.0.0:8470 --https ./web \\
      --https-callers ./ca/ca.crt --speak-for

It is a client of the servers and keeps nothing: run several, on the servers' hosts or beside them. /openapi.json describes \
what it answers, and / is a console for the browser. Without --https nothing is encrypted. A caller that reaches it, with --https-callers by a certificate, may call \
everything that the gateway's own certificate (--tls) may. With --speak-for it may what the client may that its own certificate names, and the gateway's needs the role `speak-for` \
(`tercel access grant client:GATEWAY speak-for`); up to 64 such callers at once, and each has a sixteenth of --cache beside the gateway's. With --tokens the same \
is so for the subject of a token, who is the principal token:NAME/SUBJECT.

A file of issuers, with the file or the https:// URL of each one's public keys (JWK set): {\"issuers\": [{\"name\": \"corp\", \
\"issuer\": \"https://login.example.org/\", \"audience\": \"tercel\", \"algorithms\": [\"ES256\"], \"keys\": \"corp.json\"}]}. \
Algorithms are ES256, EdDSA and RS256.

At SIGTERM or SIGINT it takes no more requests, and stops when those under way have ended, or after --drain seconds.")]
pub struct Gateway {
    /// The servers' addresses, HOST:PORT or unix:PATH: one, or those of a group's members
    #[arg(value_name = "SERVER", conflicts_with = "server")]
    pub servers: Vec<String>,
    /// The same as one option, with commas between; else those in TERCEL_SERVER, else 127.0.0.1:7117
    #[arg(long, value_name = "ADDR", alias = "addr")]
    pub server: Option<Addresses>,
    /// Where to answer HTTP
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8470")]
    pub listen: String,
    /// Answer HTTPS alone, with tls.crt and tls.key of this directory; they are read anew when they change
    #[arg(long, value_name = "DIR")]
    pub https: Option<PathBuf>,
    /// Let in callers with a certificate of an authority in this file, and no others
    #[arg(long, value_name = "FILE", requires = "https")]
    pub https_callers: Option<PathBuf>,
    /// Speak for each caller, by the client that its certificate names: the servers judge its own rights
    #[arg(long, requires = "https_callers")]
    pub speak_for: bool,
    /// Speak for callers with tokens (JWT), too, of the issuers in this file
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// Let pages of this site ask in a browser, as https://app.example.org; say it for each
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub cors: Vec<String>,
    /// Allow an address that other machines can reach, although everyone there may call everything
    #[arg(long)]
    pub public: bool,
    /// The client's cache, such as 64M or 1G: from 1M to 8G
    #[arg(long, value_name = "BYTES", value_parser = cache_bytes, default_value = "64M")]
    pub cache: usize,
    /// Seconds to wait at the start for a server that answers, up to 3600
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=3_600), default_value = "30")]
    pub wait: u32,
    /// Seconds that requests under way have to end at SIGTERM or SIGINT, up to 3600
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=3_600), default_value = "25")]
    pub drain: u32,
}
