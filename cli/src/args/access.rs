//! The commands of rights.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use tercel::Addresses;
use tercel::access::Principal;

#[derive(Debug, Subcommand)]
pub enum Access {
    /// Give a principal a role; the first grant shuts everyone else out
    Grant(OneRight),
    /// Take a role from a principal
    Revoke(OneRight),
    /// Show all rights
    List(AskAccess),
    /// Show for which principal the server takes this process, and what that may do
    Whoami(AskAccess),
    /// Tell whether a principal has a role; the exit code tells
    Test(OneRight),
}

/// Which server is asked, and how.
#[derive(Debug, ClapArgs)]
pub struct OfAccess {
    /// The server's address, HOST:PORT or unix:PATH, or those of a group's members with commas between; else
    /// that in TERCEL_SERVER, else 127.0.0.1:7117
    #[arg(long, value_name = "ADDR", alias = "addr")]
    pub server: Option<Addresses>,
    /// The file `secret` of the group: who has it may grant
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel access whoami --server unix:./socket
  tercel access list --json")]
pub struct AskAccess {
    #[command(flatten)]
    pub of: OfAccess,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel access grant uid:1000 grant --server unix:./socket
  tercel access grant client:anna read
  tercel access grant client:till write Account Booking
  tercel access grant client:shop call Bank.pay
  tercel access revoke client:shop call Bank.pay
  tercel access test client:anna write Account

Principals: client:NAME, member:ID, uid:N (the user of a process at the server's Unix socket), \
token:ISSUER/SUBJECT (of a gateway's caller), anyone.

Roles: read (pages, so all objects), write [CLASS..], define (classes), call INTERFACE[.METHOD].. (without any pages), \
backup, operate (status, gc, changes of the group), grant, \
speak-for (be any client, as a gateway for its callers).

Before the first grant everyone may do everything. Afterwards only what is granted may be done, also when the last right \
is revoked. The superuser and the server's own user on its host, and those who have the group's secret, always have \
`grant` and `operate`.

`revoke` waits until every member of the group judges by it, for four seconds at most.

Exit codes of `test`: 0 it has the role, 1 it has not. Of `revoke`: 75 the role is revoked, and the members that are named \
may not have applied that: run it again.")]
pub struct OneRight {
    /// The principal
    #[arg(value_name = "WHO")]
    pub who: Principal,
    /// read, write, define, call, backup, operate, grant or speak-for
    #[arg(value_name = "ROLE")]
    pub role: String,
    /// Classes that `write` is about, all if there are none; or interfaces, or methods, that `call` is about
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub of: OfAccess,
}
