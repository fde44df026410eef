//! The command line: what can be said, with help and examples beside it.

mod access;
mod archive;
mod cert;
mod gateway;
mod group;
mod rows;
mod serve;
mod step;
mod values;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand};
use tercel::{Address, Addresses, SessionToken, Tls};
use tercel_term::fail::Failure;

pub use access::*;
pub use archive::*;
pub use cert::*;
pub use gateway::*;
pub use group::*;
pub use rows::*;
pub use serve::*;
pub use step::*;
pub use values::Named;
use values::{cache_bytes, time};

/// Typed, durable objects that live on servers and feel local.
#[derive(Debug, Parser)]
#[command(name = "tercel", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  tercel demo                           see all of it in a minute
  tercel serve --data DIR               serve a directory on 127.0.0.1:7117
  tercel import debian --data DIR       import the machine's package index
  tercel query rdepends libssl3 --recursive --data DIR

Exit codes: 0 done; 1 it failed, or what was asked for is not there; 2 the command line is wrong; \
3 the data is not sound. Some commands have more: see their help. `health` exits with 75 if the server answers and \
does not serve everything now, and with 69 if it does not answer.

Environment: TERCEL_SERVER is the server's address where neither --server nor --data is given; \
TERCEL_TLS is the directory of --tls of commands that connect; NO_COLOR turns colours off; TERCEL_EVENTS=epoll or io_uring chooses how the kernel delivers events.")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
    /// Connect by TLS, and as a server ask for it, with the certificate in this directory, as `tercel cert`
    /// makes it; commands that connect take it else from TERCEL_TLS
    #[arg(long, value_name = "DIR", global = true)]
    pub tls: Option<PathBuf>,
}

impl Args {
    /// Where a command finds the server that it uses, and the directory that it may use instead; none of one
    /// that uses no server.
    fn place(&mut self) -> Option<(&mut Option<Addresses>, &Option<PathBuf>)> {
        Some(match &mut self.command {
            Command::Import(Import { what: ImportWhat::Debian(a) }) => (&mut a.space.server, &a.space.data),
            Command::Import(Import { what: ImportWhat::Step(a) }) => (&mut a.space.server, &a.space.data),
            Command::Query(Query { what: QueryWhat::Step(q) }) => {
                let space = q.what.space_mut();
                (&mut space.server, &space.data)
            }
            Command::Query(Query { what: QueryWhat::Depends(c) | QueryWhat::Rdepends(c) }) => {
                (&mut c.space.server, &c.space.data)
            }
            Command::Query(Query { what: QueryWhat::Why(w) }) => (&mut w.space.server, &w.space.data),
            Command::Stat(a) => (&mut a.space.server, &a.space.data),
            Command::Inspect(a) => (&mut a.space.server, &a.space.data),
            Command::Load(a) => (&mut a.space.server, &a.space.data),
            Command::Dump(a) => (&mut a.space.server, &a.space.data),
            Command::Forget(a) => (&mut a.space.server, &a.space.data),
            Command::Gc(a) => (&mut a.space.server, &a.space.data),
            Command::Settle(a) => (&mut a.space.server, &a.space.data),
            Command::Backup(a) => {
                if let [Named { name: None, at }] = &a.named[..] {
                    a.server = Some(at.clone());
                    a.named.clear();
                }
                // Of several spaces, each has its own.
                if !a.named.is_empty() {
                    return None;
                }
                (&mut a.server, &a.data)
            }
            Command::Call(a) => (&mut a.addr, &None),
            Command::Health(a) => (&mut a.server, &None),
            Command::Gateway(a) if a.servers.is_empty() => (&mut a.server, &None),
            Command::Archive(Archive::Take(a)) => (&mut a.server, &a.data),
            Command::Access(Access::List(a) | Access::Whoami(a)) => (&mut a.of.server, &None),
            Command::Access(Access::Grant(a) | Access::Revoke(a) | Access::Test(a)) => {
                (&mut a.of.server, &None)
            }
            Command::Group(Group::Status(a)) => (&mut a.of.server, &None),
            Command::Group(Group::Add(a) | Group::Remove(a) | Group::MoveLeader(a)) => {
                (&mut a.of.server, &None)
            }
            Command::Group(Group::Invite(a)) => (&mut a.of.server, &None),
            // They need none, or begin one of their own.
            Command::Serve(_)
            | Command::Cert(_)
            | Command::Gateway(_)
            | Command::Demo(_)
            | Command::Check(_)
            | Command::Restore(_)
            | Command::Archive(
                Archive::List(_) | Archive::Verify(_) | Archive::Restore(_) | Archive::Copy(_),
            )
            | Command::Group(
                Group::Init(_) | Group::Form(_) | Group::Inspect(_) | Group::Rescue(_) | Group::Secret(_),
            ) => {
                return None;
            }
            Command::Bench(_) | Command::Soak(_) => return None,
        })
    }

    /// Has the command connect by TLS, if the command line names a certificate, or the environment one of a
    /// command that connects. A server takes none from the environment: what is there is a client's.
    pub fn with_tls(mut self, named: Option<OsString>) -> Result<Args, Failure> {
        let named = named.filter(|named| !named.is_empty()).map(PathBuf::from);
        // An invitation names servers, and connects to none.
        let is_invitation = matches!(self.command, Command::Group(Group::Invite(_)));
        let connects = self.place().is_some() && !is_invitation
            || matches!(self.command, Command::Gateway(_) | Command::Demo(_) | Command::Backup(_));
        self.tls = self.tls.take().or(named.filter(|_| connects));
        let Some(dir) = self.tls.clone() else { return Ok(self) };
        if let Some((server, None)) = self.place()
            && !is_invitation
        {
            let at = server.take().unwrap_or_else(|| Address::default_tcp().into());
            *server = Some(at.with_tls(open_tls(&dir)?));
        }
        if let Command::Backup(a) = &mut self.command {
            for one in &mut a.named {
                one.at = one.at.clone().with_tls(open_tls(&dir)?);
            }
        }
        Ok(self)
    }

    /// Puts in the server that the environment names where the command line names none. Whatever the command
    /// line says wins, so a variable that is not used may hold anything.
    pub fn with_server(mut self, named: Option<OsString>) -> Result<Args, Failure> {
        let instead = match &self.command {
            Command::Call(_) => "--addr ADDR",
            Command::Health(_) | Command::Group(_) | Command::Access(_) | Command::Gateway(_) => {
                "--server ADDR"
            }
            _ => "--server ADDR or --data DIR",
        };
        let Some((server, data)) = self.place() else { return Ok(self) };
        if server.is_none()
            && data.is_none()
            && let Some(named) = named.filter(|named| !named.is_empty())
        {
            let parsed = named.to_string_lossy().parse();
            *server = Some(parsed.map_err(|e| {
                Failure::new(format!("the environment's TERCEL_SERVER: {e}"))
                    .next(format!("unset it, or say {instead}"))
                    .code(2)
            })?);
        }
        Ok(self)
    }
}

/// The certificate of a directory.
pub fn open_tls(dir: &Path) -> Result<Tls, Failure> {
    Tls::open(dir).map_err(|e| Failure::new(e.to_string()).next("look with `tercel cert show DIR`").code(2))
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a data directory
    Serve(Box<Serve>),
    /// Answer programs in any language, by HTTP and JSON, and show a console in the browser
    Gateway(Gateway),
    /// Show the main job on real data: import, traverse, change, kill, recover
    Demo(Demo),
    /// Import real data
    Import(Import),
    /// Ask what was imported: the package graph, or models
    Query(Query),
    /// Show how a server and its space are
    Stat(Stat),
    /// Ask a server whether it serves; the exit code tells
    Health(Health),
    /// Free what no root reaches, or say what that would be
    Gc(Gc),
    /// Have a space rest no longer on another one that is gone
    Forget(Forget),
    /// End a transaction over several spaces by hand, in a space that waits for one that is gone
    Settle(Settle),
    /// Show an object, or the entries of a map
    Inspect(Inspect),
    /// Insert the rows of a file into a table, whose indexes follow
    Load(Load),
    /// Print the rows of a table in the order of their keys
    Dump(Dump),
    /// Call a method of an object, or a procedure of a service, at a server that offers it
    Call(Call),
    /// Verify every page, reference and the log, and repair them; the exit code tells
    Check(Check),
    /// Copy a space as of one commit while its server works
    Backup(Backup),
    /// Verify a backup and make a space of it
    Restore(Restore),
    /// Say who may do what in a space
    #[command(subcommand)]
    Access(Access),
    /// Look into an archive, verify it, or make spaces of it as of any moment
    #[command(subcommand)]
    Archive(Archive),
    /// Begin a group of servers, look at it, or change its members
    #[command(subcommand)]
    Group(Group),
    /// Make the certificates by which servers and clients know each other, or look at them
    #[command(subcommand)]
    Cert(Cert),
    /// Measure against the physical limit in the same run
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Bench(Measured),
    /// Work on a server that is killed again and again, and prove that nothing was lost
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Soak(Measured),
}

/// Which space to use.
#[derive(Debug, Clone, ClapArgs)]
pub struct Space {
    /// The server's address, HOST:PORT or unix:PATH, or those of a group's members with commas between; else
    /// that in TERCEL_SERVER, else 127.0.0.1:7117
    #[arg(long, value_name = "ADDR", conflicts_with = "data", alias = "addr")]
    pub server: Option<Addresses>,
    /// Open this data directory in this process, without a server
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The client's cache, such as 64M or 1G: from 1M to 8G
    #[arg(long, value_name = "BYTES", value_parser = cache_bytes, default_value = "64M")]
    pub cache: usize,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel demo
  tercel demo --input Packages.xz --dir /var/tmp/demo
  tercel demo --addr unix:./socket
  tercel demo --replicas 3
  tercel demo --tiers

With --addr it writes into the space of that server: the class Mark, and one object of it, \
which it changes 50 times. No root reaches the object, so the server frees it when it collects next, as `tercel gc` does. \
Without --addr it starts a server of its own, and touches no other.")]
pub struct Demo {
    /// A Packages file; else the machine's apt lists, else a bundled sample
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Use the bundled sample even if there are apt lists
    #[arg(long, conflicts_with = "input")]
    pub sample: bool,
    /// Where to put the data; a fresh directory that is removed at the end if not given
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Show only a group of so many servers, 3, 5 or 7, of which the leader is killed, twice
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = replicas, conflicts_with_all = ["input", "sample"])]
    pub replicas: usize,
    /// Show only payments over two groups of three servers, through gateways and application servers, all of
    /// which are killed
    #[arg(long, conflicts_with_all = ["input", "sample", "replicas"])]
    pub tiers: bool,
    /// Show only what calls take, at a server that serves already: HOST:PORT or unix:PATH. It leaves an
    /// object there, see below
    #[arg(long, value_name = "ADDR", alias = "server", conflicts_with_all = ["input", "sample", "dir", "replicas", "tiers"])]
    pub addr: Option<Address>,
}

/// A number of servers of which more than half can be there when one is not.
fn replicas(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(n @ (1 | 3 | 5 | 7)) => Ok(n),
        _ => Err(format!("`{s}` is not 1, 3, 5 or 7")),
    }
}

#[derive(Debug, ClapArgs)]
pub struct Import {
    #[command(subcommand)]
    pub what: ImportWhat,
}

#[derive(Debug, Subcommand)]
pub enum ImportWhat {
    /// A Debian Packages file: packages, details, and the dependencies between packages
    #[command(after_help = "Examples:
  tercel import debian --data ./packages
  tercel import debian --sample --data ./packages
  tercel import debian --input Packages.gz --server 127.0.0.1:7117
  curl -s URL/Packages.xz | tercel import debian --input - --data ./packages

A list replaces the one that was imported before, all of it at once or not at all. A list without \
packages is refused, and so is one that was cut short: whose packing or whose last line has no end.

A list is read as apt reads it. Of several versions of a package the highest is taken, of equal ones the first. \
A stanza that cannot be read is told with its line, and left out. What is left out is counted in the end.")]
    Debian(ImportDebian),
    /// Models: STEP files (ISO 10303-21), with their instances and the references between these
    Step(ImportStep),
}

#[derive(Debug, ClapArgs)]
pub struct ImportDebian {
    /// The file: plain, .gz, .xz, .lzma or .lz4, or - for standard input; else the main list of the machine's
    /// apt lists
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Import the sample that comes with the program
    #[arg(long, conflicts_with = "input")]
    pub sample: bool,
    /// Take the packages of this architecture, and those of all; else this machine's, or if the list has none
    /// of that, the one that it has most of
    #[arg(long, value_name = "ARCH", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub architecture: Option<String>,
    /// Refuse a list with a stanza that cannot be read
    #[arg(long)]
    pub strict: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel query rdepends libssl3 --recursive --json --data ./packages
  tercel query why firefox-esr libc6 --data ./packages
  tercel query step parts --data ./models

A dependency is a name that Depends or Pre-Depends mentions: every alternative of `a | b` counts as \
needed, versions and architectures are ignored, and Provides is not followed. So a closure holds what \
may break, which is more than what apt would remove.")]
pub struct Query {
    #[command(subcommand)]
    pub what: QueryWhat,
}

#[derive(Debug, Subcommand)]
pub enum QueryWhat {
    /// The dependencies of a package
    #[command(after_help = "Example:\n  tercel query depends libssl3 --recursive --json --data ./packages")]
    Depends(Closure),
    /// The packages that need a package, or name it as an alternative
    #[command(after_help = "Example:
  tercel query rdepends libssl3 --recursive --json --data ./packages

Every alternative of `a | b` counts as needed, and Provides is not followed.")]
    Rdepends(Closure),
    /// A shortest path of dependencies from one package to another
    #[command(after_help = "Example:\n  tercel query why firefox-esr libc6 --data ./packages")]
    Why(Why),
    /// Models of STEP files: parts, closures, bounds
    Step(QueryStep),
}

#[derive(Debug, ClapArgs)]
pub struct Closure {
    /// The package
    pub name: String,
    /// Not only the direct ones
    #[arg(long)]
    pub recursive: bool,
    /// Print {"root":..,"count":..,"names":[..]}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
pub struct Why {
    /// The package that depends
    pub from: String,
    /// The package that is depended on
    pub to: String,
    /// Print {"from":..,"to":..,"path":[..]}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel stat --server 127.0.0.1:7117 --json

Of one address that server is asked, also if it does not lead its group; of several the leader. Counters begin with the server's start. --json has the same values under the names of the protocol.")]
pub struct Stat {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel health
  tercel health --server unix:/run/tercel.sock --within 500
  tercel health --json                            for a program that supervises
  tercel health || systemctl restart tercel       in a supervisor's script

The server answers without its log and its page store, so it answers while its disk is stuck. The states are serving, \
read-only (commits wait for the disk), draining (it is about to stop), following (another member of its group leads) and \
not leading; with --json also unreachable. Of several addresses the first that answers is asked.

Exit codes: 0 it serves, or follows; 75 it answers and is in another state, ask again later; 69 it cannot be reached, or does not \
answer in time; 2 the command line is wrong.")]
pub struct Health {
    /// The server's address, HOST:PORT or unix:PATH, or those of a group's members with commas between; else
    /// that in TERCEL_SERVER, else 127.0.0.1:7117
    #[arg(long, value_name = "ADDR", alias = "addr")]
    pub server: Option<Addresses>,
    /// Milliseconds to wait for a connection, and for the answer on it
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=600_000), default_value = "2000")]
    pub within: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel gc --dry-run             what would go, by class, with examples
  tercel gc --data ./packages     free it
  tercel gc --json

An object goes when no chain of references leads to it from a named root. It stays for the server's time of grace \
(`tercel serve --gc-grace`), because programs may still hold a reference to it; with --data no program can, and there is none. \
Pages are used again; with --data their room is also given back to the file system. \
A server also collects by itself when much was made since the last time.")]
pub struct Gc {
    /// Only say what would go
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON: objects and bytes that go, by class, and how many stay
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel forget a1b2c3d4 --server 127.0.0.1:7117

Sessions that write in a space have it rest on the others that they have seen, 64 at most; `tercel stat --json` lists them under rests_on. \
Forget one only if it is gone for good, or never was: readers are then no longer kept from an effect without a cause in it. \
Stop the programs that hold tokens with it before, and have all spaces forget it: a session that has seen it brings it back. \
The exit code is 1 if the space does not rest on it.")]
pub struct Forget {
    /// The id of the other space, in hexadecimal digits
    #[arg(value_name = "SPACE")]
    pub other: String,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel settle --prepared 57 --abort --server 127.0.0.1:7131
  tercel settle --prepared 57 --commit --seen TOKEN --yes

A space that has prepared its part of a transaction holds what the transaction read and wrote until it hears how that ended. \
Servers find it out by themselves: see --peer of `tercel serve`. Settle by hand only where the space that decides is gone for good, \
or has lost its history, and do the same in all other spaces of the transaction: it is committed in all of them or in none. \
Run it on the server's host, as the user that it runs as. `tercel stat` lists what is prepared. The exit code is 1 if nothing is at that stamp.")]
#[command(group = ArgGroup::new("end").required(true).args(["commit", "abort"]))]
pub struct Settle {
    /// The stamp of the prepare, as `tercel stat` lists it
    #[arg(long, value_name = "STAMP")]
    pub prepared: u64,
    /// The transaction was committed: have its changes here
    #[arg(long)]
    pub commit: bool,
    /// The transaction was not committed, and never will be
    #[arg(long, conflicts_with = "commit")]
    pub abort: bool,
    /// The states of other spaces that it had seen, if they are known: the token of a session that has seen
    /// it committed
    #[arg(long, value_name = "TOKEN", requires = "commit")]
    pub seen: Option<SessionToken>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel inspect --data ./packages              the roots of the space
  tercel inspect libssl3 --data ./packages      a package, or a root
  tercel inspect 12.7 --data ./packages         an object by page and slot
  tercel inspect 12.8 --limit 100 --json        a map: its first 100 entries
  tercel inspect 12.8 --key libssl3             a map: the entry of one key
  tercel inspect seats --data ./shop            a table: indexes, first rows
  tercel inspect --exports                      objects kept by an export
  tercel inspect --interfaces                   methods and services of a server

An object is printed as JSON; a map as a line an entry, a table as a line an index and a line a row, or with --json as JSON with how many more there are.")]
pub struct Inspect {
    /// A root's or package's name, or a reference PAGE.SLOT; without it the roots are listed
    pub what: Option<String>,
    /// The interfaces whose methods the server runs, and its services, with what they take and give
    #[arg(long, conflicts_with_all = ["what", "data"])]
    pub interfaces: bool,
    /// The far references of the objects that are kept by an export
    #[arg(long, conflicts_with_all = ["what", "interfaces"])]
    pub exports: bool,
    /// The entry of this key in a map: a text, a number, or a byte string in hexadecimal
    #[arg(long, value_name = "KEY", requires = "what", conflicts_with = "limit", allow_hyphen_values = true)]
    pub key: Option<String>,
    /// The number of entries of a map, or rows of a table, that are printed [default: 20]
    #[arg(long, value_name = "N", requires = "what", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub limit: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel call 12.3 seen                             a method of an object
  tercel call 12.3 set_advisory 7                   with its one argument
  tercel call Desk letters '\"Annie\"'                a text has quotes in JSON
  tercel call purse pay '[null, 5]'                 with arguments in order
  tercel call purse pay '{\"to\": null, \"cents\": 5}'  the same by name
  tercel call Clock now '[\"UTC\"]' --addr unix:./socket --json
  tercel call service:Clock now '[\"UTC\"]'           not a root of that name
  tercel call purse Account.close                   of two interfaces one
  tercel call Bank transfer '[1, 2]' --key 4711     with one effect, if repeated

NAME is a reference PAGE.SLOT, else a root or a service of this name. If there are both, write root:NAME or service:NAME. \
METHOD is the name alone, or INTERFACE.METHOD if two interfaces of the object's class have it. \
`tercel inspect --interfaces` lists what a server offers, and what each method takes.

In JSON a reference is a text \"PAGE.SLOT\" or null, a byte string a text of hexadecimal digits, an option the value or null, a record an \
object by field, and a variant its name, or an object of its name and its value. NaN, inf and -inf are texts.

With --json the result is {\"gives\": ..}, the error of the method itself {\"error\": NAME, \"fails\": ..}, and what else kept it from \
its end {\"executed\": \"no\" | \"unknown\" | \"in part\" | \"yes\", \"says\": ..}.

Exit codes: 0 it returned; 1 it failed with an error of its own, or could not be called; 2 the arguments are wrong; 4 it is not known \
whether it was executed.")]
pub struct Call {
    /// The object or the service: PAGE.SLOT, a root's name, or a service's
    pub name: String,
    /// The method or procedure
    pub method: String,
    /// The arguments of the method, as JSON: an object by name, or an array in order; one value alone
    #[arg(value_name = "ARGS", allow_negative_numbers = true)]
    pub args: Option<String>,
    /// The key of a method that writes, or of a procedure that is `#[once]`: under it the call has one
    /// effect, however often it is made
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub key: Option<String>,
    /// The server's address, HOST:PORT or unix:PATH, or those of a group's members with commas between; else
    /// that in TERCEL_SERVER, else 127.0.0.1:7117
    #[arg(long, value_name = "ADDR", visible_alias = "server")]
    pub addr: Option<Addresses>,
    /// Time to wait for a connection and the answer, such as 500ms or 2s; else 30 s, of which 5 s for the
    /// connection
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub within: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel check --data ./packages && echo sound
  tercel check --data ./packages --repair
  tercel check --data ./packages --json
  tercel check --data /backups/monday         as a restore would verify it

A check changes nothing. A repair restores what pages and log still hold and keeps every damaged \
file beside what replaces it, as NAME.damaged-N. What it cannot save it writes into lost.txt in DIR, and \
every check says so until you have dealt with that and removed the file.

Exit codes: 0 sound, or sound again with nothing lost; 1 it could not be done; 2 a wrong request; \
3 something is wrong or lost.")]
pub struct Check {
    /// The data directory; no server may have it open
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Restore what can be restored, then verify again
    #[arg(long)]
    pub repair: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel backup /backups/monday                  of the server on 127.0.0.1:7117
  tercel backup /backups/monday --server db:7117 --json
  tercel backup /backups/monday --data ./packages     of an unserved directory
  tercel backup /backups/$(date +%F) || logger failed     in a nightly script
  tercel backup /backups/all --server a=h1:7117 --server b=h2:7117

Everything up to one commit is in it, and nothing after. Commits, reads and installs go on. \
An unfinished backup is known as such; the same command begins it again. \
Of several spaces, each by a name of its own, it takes backups that fit each other: no transaction over several of them \
is in it by half. `tercel restore` makes spaces of all of them.

Exit codes: 0 done; 75 not now, try again later (the server is away, or busy with another \
backup, or has ended this one); 3 a page of the space is damaged; 1 anything else.")]
pub struct Backup {
    /// Where to put it: a directory that is empty or does not exist
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The server's address, HOST:PORT or unix:PATH, or those of a group's members with commas between; else
    /// that in TERCEL_SERVER, else 127.0.0.1:7117. Of several spaces NAME=ADDR, for each of them
    #[arg(long = "server", value_name = "ADDR", conflicts_with = "data", alias = "addr")]
    pub named: Vec<Named>,
    /// The one server, if no names are given.
    #[arg(skip)]
    pub server: Option<Addresses>,
    /// A data directory that no server has open
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel restore /backups/monday --data ./packages
  tercel restore /backups/monday --data ./copy --json
  tercel restore /backups/all --data ./spaces       of a set, ./spaces/a and all

The backup is verified in full before anything is written: every page, object and reference, \
and the checksums of all of it. Of a set of backups of several spaces, each becomes a directory of its name within NEW, \
and what transactions over several of them had left open is settled. The copy is the same space with a new history: clients that \
were connected to the old server are told so, for they may have seen commits that the backup \
does not have.

Exit codes: 0 done; 2 not a backup; 3 the backup is damaged; 1 anything else.")]
pub struct Restore {
    /// The backup, as `tercel backup` made it
    #[arg(value_name = "BACKUP")]
    pub backup: PathBuf,
    /// Where to put the space: a directory that is empty or does not exist
    #[arg(long, value_name = "NEW")]
    pub data: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// The command line of a program beside this one, which knows what can be said.
#[derive(Debug, ClapArgs)]
pub struct Measured {
    /// See --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// A command and all below it.
    fn with_subcommands(command: &clap::Command) -> Vec<&clap::Command> {
        command.get_subcommands().flat_map(with_subcommands).chain([command]).collect()
    }

    /// The command lines of all commands below that take a server, without one: each with what it cannot do
    /// without.
    fn lines_without_server(command: &clap::Command, before: &[&str]) -> Vec<Vec<String>> {
        let path = [before, &[command.get_name()]].concat();
        let takes_server = command.get_arguments().any(|arg| {
            let names = arg.get_long().into_iter().chain(arg.get_all_aliases().into_iter().flatten());
            names.into_iter().any(|name| name == "server")
        });
        let needed = command.get_arguments().filter(|arg| arg.is_required_set());
        let needed = needed.map(|arg| match (arg.get_long(), arg.get_id().as_str()) {
            (Some(long), _) => format!("--{long}=1"),
            (None, "who") => "uid:1".into(),
            (None, "role") => "read".into(),
            (None, _) => "x".into(),
        });
        let ends = command.get_groups().filter(|group| group.is_required_set());
        let ends = ends.filter_map(|group| Some(format!("--{}", group.get_args().next()?)));
        let own = path.iter().map(ToString::to_string).chain(needed).chain(ends).collect();
        let below = command.get_subcommands().flat_map(|below| lines_without_server(below, &path));
        takes_server.then_some(own).into_iter().chain(below).collect()
    }

    #[test]
    fn every_command_takes_its_server_from_the_environment() {
        let lines = lines_without_server(&Args::command(), &[]);
        assert!(lines.len() >= 10, "{lines:?}");
        for line in lines {
            let parsed = || Args::try_parse_from(&line).unwrap();
            let with = |named: &str| parsed().with_server(Some(named.into()));
            // A demo without an address begins a server of its own.
            let takes = !matches!(parsed().command, Command::Demo(_));
            let said = format!("{:?}", with("elsewhere:7").unwrap());
            assert_eq!(said.contains("elsewhere:7"), takes, "{line:?}: {said}");
            assert_eq!(with("nowhere").is_err(), takes, "{line:?}");
            assert!(!format!("{:?}", with("").unwrap()).contains("elsewhere"), "{line:?}");
            let mut named = line.clone();
            named.extend(["--server".into(), "there:1".into()]);
            let said = Args::try_parse_from(named).unwrap().with_server(Some("nowhere".into())).unwrap();
            assert!(format!("{said:?}").contains("there:1"), "{line:?}");
        }
    }

    #[test]
    fn prose_in_help_is_left_to_the_terminal_to_break() {
        for command in with_subcommands(&Args::command()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            let is_prose = |line: &str| !line.is_empty() && !line.starts_with("  ") && !line.ends_with(':');
            let broken = lines.windows(2).find(|pair| is_prose(pair[0]) && is_prose(pair[1]));
            assert!(broken.is_none(), "{}: {broken:?}", command.get_name());
            // What is to be copied fits into the narrowest of terminals.
            let wide = lines.iter().find(|line| line.starts_with("  ") && line.chars().count() > 80);
            assert!(wide.is_none(), "{}: {wide:?}", command.get_name());
        }
    }
}
