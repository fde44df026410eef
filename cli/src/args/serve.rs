//! The command line of `serve`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use tercel::{Address, Addresses};

use super::Archived;
use super::values::{server_bytes, socket_mode, subscriptions};

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel serve --data ./packages
  tercel serve --data ./packages --listen unix:/tmp/tercel.sock
  tercel serve --data ./packages --listen 127.0.0.1:7200 --listen unix:./socket
  tercel serve --data ./b --listen 127.0.0.1:7118 --join 127.0.0.1:7117 \\
      --secret ./a/secret
  tercel serve --config /etc/tercel.toml --metrics 127.0.0.1:9117
  tercel serve --data ./c --listen 127.0.0.1:7120 --follow 127.0.0.1:7117 \\
      --secret ./a/secret
  tercel serve --data ./euros --listen 127.0.0.1:7130 --peer 127.0.0.1:7131
  tercel serve --data ./packages --listen 0.0.0.0:7117 --tls ./a-tls
  tercel serve --data ./packages --archive s3://backups/packages

At the first SIGTERM or SIGINT the server takes no new calls, and stops when those under way have ended, or after --drain \
seconds. At the second it stops at once. What was acknowledged is kept either way.")]
pub struct Serve {
    /// The data directory; created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Where to listen: HOST:PORT, udp:HOST:PORT or unix:PATH; may be given several times
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7117")]
    pub listen: Vec<Address>,
    #[command(flatten)]
    pub member: MemberOf,
    /// A server of another space, or with commas the members of its group, to ask how transactions over both
    /// spaces ended whose client is gone; may be given several times
    #[arg(long, value_name = "ADDR,..")]
    pub peer: Vec<Addresses>,
    #[command(flatten)]
    pub archived: Archived,
    /// Allow plain connections of other machines: what they carry can be read and changed on its way
    #[arg(long)]
    pub allow_plain_remote: bool,
    /// Memory for modified objects before they are installed into pages, from 1M to what the machine has; no
    /// transaction can be larger
    #[arg(long, value_name = "BYTES", value_parser = server_bytes, default_value = "256M")]
    pub mob: usize,
    /// Memory for cached pages, from 1M to what the machine has
    #[arg(long, value_name = "BYTES", value_parser = server_bytes, default_value = "64M")]
    pub cache: usize,
    /// Pages that one client may have cached, from 16 to 4194304; beyond it the server asks for pages back
    #[arg(long, value_name = "PAGES", value_parser = subscriptions, default_value = "1048576")]
    pub subscriptions: usize,
    /// Milliseconds of silence after which a client and the server ask each other, from 100 to 600000; after
    /// twice that a peer is gone
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(100..=600_000), default_value = "2000")]
    pub keepalive: u32,
    #[command(flatten)]
    pub collecting: Collecting,
    #[command(flatten)]
    pub local: OfThisHost,
    /// Seconds from the first SIGTERM or SIGINT for calls under way, and to store what is in memory, up to
    /// 3600; with 0 it stops at once
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=3_600), default_value = "5")]
    pub drain: u32,
    /// Take what is not said here from this TOML file: each key is an option without its dashes, a list says
    /// it several times
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub shown: Shown,
    /// Stop when standard input ends, because the process that started this one has ended
    #[arg(long, hide = true)]
    pub until_eof: bool,
}

/// When what no root reaches is freed.
#[derive(Debug, ClapArgs)]
pub struct Collecting {
    /// Seconds that an object which no root reaches stays before it is freed, up to 86400: programs may still
    /// hold a reference to it
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400), default_value = "600")]
    pub gc_grace: u32,
    /// Collect by itself once so many objects in a hundred of those left by the last collection were made,
    /// and 100,000 at least; with 0 only `tercel gc` collects
    #[arg(long, value_name = "PERCENT", default_value = "50")]
    pub gc_percent: u8,
}

/// The group that a server is a member of from now on, and its address there.
#[derive(Debug, ClapArgs)]
pub struct MemberOf {
    /// Join the group of these members, of which one must answer: an empty directory becomes a member that
    /// learns, and votes after `tercel group add`
    #[arg(long, value_name = "ADDR,..")]
    pub join: Option<Addresses>,
    /// Keep a copy of the space of these members, of which one must answer, for readers near it: as --join,
    /// for a member that is not meant to vote
    #[arg(long, value_name = "ADDR,..", conflicts_with = "join")]
    pub follow: Option<Addresses>,
    /// Where clients and the other members reach this one, if that is not the first address of --listen
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<Address>,
    /// The group's secret, copied from the file `secret` in another member's directory: with --join or
    /// --follow, it is kept in this one's. A member whose directory has it needs no more
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
    /// Join a group with this invitation, of `tercel group invite`, instead of --join and --secret; its
    /// certificate is put where --tls says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["join", "follow", "secret"])]
    pub invite: Option<PathBuf>,
    /// Milliseconds of silence after which members suspect their leader at the latest, from 150 to 60000:
    /// after 150 on calm hosts, after four of its longest pauses of late on busy ones
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(150..=60_000), default_value = "1000")]
    pub silence: u32,
}

/// The clients at a server's Unix sockets.
#[derive(Debug, ClapArgs)]
pub struct OfThisHost {
    /// The clients of a Unix socket that may use shared memory
    #[arg(long, value_name = "CLIENTS", value_enum, default_value_t = SharedMemory::SameUser)]
    pub shared_memory: SharedMemory,
    /// Mode of Unix sockets, in octal; 660 lets the processes of the server's group connect too
    #[arg(long, value_name = "MODE", value_parser = socket_mode, default_value = "600")]
    pub socket_mode: u32,
}

/// The part of a server that its operator sees.
#[derive(Debug, ClapArgs)]
pub struct Shown {
    /// Serve counters for Prometheus there, at http://HOST:PORT/metrics
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,
    /// The events of the server that are written to standard error: of groups, copies and disks, never of
    /// single requests
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = LogLevel::Info)]
    pub log_level: LogLevel,
    /// Write each event as a JSON object in a line
    #[arg(long)]
    pub log_json: bool,
    /// Append connects, refusals, grants, definitions, backups and operators' requests to this file, as lines
    /// of JSON
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// Append each call of a method or procedure to the audit, too: its name, and no argument
    #[arg(long, requires = "audit")]
    pub audit_calls: bool,
}

/// The least of the events that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// None
    Off,
    /// Events that may need an operator
    Warn,
    /// Views and copies too
    Info,
    /// Connections between members too
    Debug,
}

/// The clients that may use shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SharedMemory {
    /// None
    Off,
    /// Clients of the user that the server runs as
    SameUser,
    /// All that can reach the socket
    AnyUser,
}
