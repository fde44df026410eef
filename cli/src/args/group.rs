//! The commands of a group.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use tercel::{Address, Addresses};

#[derive(Debug, Subcommand)]
pub enum Group {
    /// Make a directory, new or of a server that was alone, the first member of a new group
    Init(Init),
    /// Show the members of a group as its leader knows them
    Status(GroupStatus),
    /// Make a file that makes a server a member: addresses, certificate and the group's secret
    Invite(Invite),
    /// Let a member vote that has joined and caught up
    Add(OneMember),
    /// Remove a member: it stops
    Remove(OneMember),
    /// Hand the lead over to a member
    MoveLeader(OneMember),
    /// Make new directories, all of one space, the members of a new group
    Form(Form),
    /// Tell where the secret of a member's group is; a group that has none is given one
    Secret(Secret),
    /// Show what a member's directory remembers of its group; nothing may serve it meanwhile
    Inspect(InspectMember),
    /// Make the directory of a member whose group has lost its quorum for good a new group of one
    Rescue(Rescue),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel group inspect --data ./b
  tercel group rescue --data ./b
  tercel serve --data ./b --listen 127.0.0.1:7118
  tercel serve --data NEW --listen 127.0.0.1:7120 --join 127.0.0.1:7118 \\
      --secret ./b/secret

Choose the directory whose log ends last, in the newest view: commits that it does not have are lost, though they may have \
been acknowledged. Everything in its log is kept. Members of the group before refuse it; remove their directories.")]
pub struct Rescue {
    /// The member's directory; nothing may serve it meanwhile
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Where clients and members will reach it, if not where they did before
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<Address>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel group form ./a=127.0.0.1:7117 ./b=127.0.0.1:7118 ./c=127.0.0.1:7119
  tercel serve --data ./a --listen 127.0.0.1:7117

A commit is acknowledged once more than half of the members have it on their disks: of three, any one \
may be lost, of five any two. Move each directory to its machine before it is served the first time; \
ADDRESS is where clients and the other members reach it.")]
pub struct Form {
    /// A new directory, and where its server will be reached; an odd number of them, three or more
    #[arg(value_name = "DIR=ADDRESS", required = true, value_parser = member)]
    pub members: Vec<(PathBuf, Address)>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel group init --data ./a --advertise 127.0.0.1:7117
  tercel serve --data ./a --listen 127.0.0.1:7117
  tercel serve --data ./b --listen 127.0.0.1:7118 --join 127.0.0.1:7117 \\
      --secret ./a/secret
  tercel group add 127.0.0.1:7118 --server 127.0.0.1:7117")]
pub struct Init {
    /// The directory; nothing may serve it meanwhile
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Where clients and the other members will reach it
    #[arg(long, value_name = "ADDR")]
    pub advertise: Address,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel group invite b --ca ./ca --secret ./a/secret --server 10.0.0.1:7117 \\
      --out ./b.invite
  tercel serve --data ./b --listen 10.0.0.2:7117 --tls ./b-tls \\
      --invite ./b.invite
  tercel group add 10.0.0.2:7117 --server 10.0.0.1:7117

Who has the invitation can be this member, and has the group's secret: bring it to the member's machine by a way that others do \
not read, and remove it once the member has joined. It does not go out of force by being used. If one was read by others, give \
the group another authority and another secret.")]
pub struct Invite {
    /// The name of the member: letters, digits, dots, dashes and underscores
    #[arg(value_name = "NAME", value_parser = super::cert::cert_name)]
    pub name: String,
    /// The directory of the authority, as `tercel cert init` makes it
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,
    /// The file `secret` in the directory of a member
    #[arg(long, value_name = "FILE")]
    pub secret: PathBuf,
    /// A new file for the invitation
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Days that its certificate is good for, up to 3650; else 365
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub days: Option<u32>,
    #[command(flatten)]
    pub of: OfGroup,
}

/// Some members of a group.
#[derive(Debug, ClapArgs)]
pub struct OfGroup {
    /// Addresses of members, with commas between: one that answers is enough; else that in TERCEL_SERVER,
    /// else 127.0.0.1:7117
    #[arg(long, value_name = "ADDR", alias = "addr")]
    pub server: Option<Addresses>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel group status --server a:7117,b:7117 --json

The lag of a member is the number of entries that the leader's log has and the member's disk does not.

Exit codes: 0 a member leads; 75 none does, or none answers; 1 it is no group.")]
pub struct GroupStatus {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub of: OfGroup,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Members are changed one at a time, and a command returns once its change is on the disks of a quorum. \
With three members that vote, any one may be lost, with five any two; two tolerate no loss, and four no more than three.

A member that is to be added is served with `tercel serve --join` before.

Exit codes: 0 done; 75 it cannot be done now, or no member leads: try again later; 1 it cannot be done."
)]
pub struct OneMember {
    /// The member: its address, or its identity as `tercel group status` shows it
    #[arg(value_name = "MEMBER")]
    pub member: String,
    #[command(flatten)]
    pub of: OfGroup,
    /// A file with the group's secret, as in a member's directory: needed unless the leader runs on this host
    /// as the same user, or this command as the superuser
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:
  tercel group secret --data ./a

Members prove to each other that they have the secret, and believe nobody else. Copy the file to the machine of a member that \
is to join, where only its server's user may read it, and name it there with `tercel serve --join ADDR --secret FILE`. Members \
of builds that had no secret stop with a sentence: run this in the directory of one, copy the file `secret` into the \
directories of the others, and start them all.")]
pub struct Secret {
    /// The directory
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}

#[derive(Debug, ClapArgs)]
pub struct InspectMember {
    /// The member's directory
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

fn member(s: &str) -> Result<(PathBuf, Address), String> {
    let (dir, address) = s.rsplit_once('=').ok_or("write DIR=ADDRESS, such as ./a=127.0.0.1:7117")?;
    Ok((dir.into(), address.parse().map_err(|e: tercel::AddressError| e.to_string())?))
}
