//! The command line of `tercel archive`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs, Subcommand};
use tercel::Addresses;

use super::values::time;

/// The settings of buckets, for the help of what archives.
pub const BUCKETS: &str = "An archive is in a directory, file:///DIR, or in a bucket of a service that speaks S3, s3://BUCKET/PATH. Buckets \
are reached by these variables of the environment:

  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY   the keys
  AWS_SESSION_TOKEN                          their token, if they have one
  AWS_SHARED_CREDENTIALS_FILE, AWS_PROFILE   a file with keys; its section
  AWS_REGION                                 the region; else us-east-1
  AWS_ENDPOINT_URL                           a service other than AWS
  AWS_ALLOW_HTTP=true                        plain HTTP to other machines
  AWS_CA_BUNDLE                              a file of more authorities, PEM

The file that an option names comes first, then the keys of variables, then the file of a variable. A file \
is read for each request, so renewed keys count at once.";

/// The use of an archive.
#[derive(Debug, Subcommand)]
#[command(after_help = BUCKETS)]
pub enum Archive {
    /// Show what an archive has: bases, the log, gaps
    List(ArchiveList),
    /// Read all of an archive, and see that nothing is missing or damaged
    Verify(ArchiveList),
    /// Make a space of an archive as of any moment, or several spaces at one cut
    Restore(ArchiveRestore),
    /// Copy an archive to another place, or go on with an earlier copy
    Copy(ArchiveCopy),
    /// Give an archive back to a server, if a copy of its space was served with the same archive
    Take(ArchiveTake),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel archive list file:///mnt/a
  tercel archive list s3://backups/a
  tercel archive verify file:///mnt/a

`tercel archive --help` has the variables of buckets. The exit code of `verify` is 3 if something \
is missing or damaged.")]
pub struct ArchiveList {
    /// The archive, as `tercel serve --archive` was given it
    #[arg(value_name = "URL")]
    pub archive: String,
    #[command(flatten)]
    pub keys: Keys,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel archive restore file:///mnt/a --until 2026-11-27T14:05 --data ./space
  tercel archive restore file:///mnt/a --until-stamp 51200 --data ./space
  tercel archive restore s3://backups/a --credentials ./keys --data ./space
  tercel archive restore --spaces a=file:///mnt/a --spaces b=file:///mnt/b \\
      --until 2026-11-27T14:05 --data ./spaces

Moments are in UTC; `14:05` is all of that minute. Without one, all that is there is restored. \
Of several spaces it takes the latest states up to that moment that fit each other: no transaction over several of them is there \
by half. The space has a new history: clients of the old server are told so.

`tercel archive --help` has the variables of buckets.")]
#[command(group = ArgGroup::new("what").required(true).args(["archive", "spaces"]))]
pub struct ArchiveRestore {
    /// The archive, as `tercel serve --archive` was given it
    #[arg(value_name = "URL")]
    pub archive: Option<String>,
    /// The archive of one of several spaces, with a name for the space; given for each
    #[arg(long, value_name = "NAME=URL")]
    pub spaces: Vec<String>,
    /// Everything up to this moment, such as 2026-11-27T14:05:30
    #[arg(long, value_name = "TIME", conflicts_with = "until_stamp")]
    pub until: Option<String>,
    /// Everything up to this commit
    #[arg(long, value_name = "STAMP", conflicts_with = "spaces")]
    pub until_stamp: Option<u64>,
    /// Where to put the space, or a directory for each of several: a directory that is empty or does not
    /// exist
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    #[command(flatten)]
    pub keys: Keys,
    /// Only say what would be restored
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel archive copy file:///mnt/a file:///media/disk/a
  tercel archive copy file:///mnt/a s3://backups/a
  tercel archive copy s3://backups/a file:///mnt/a

A copy is gone on with: what is there already is not copied again, and what the archive has removed as old stays there. \
`tercel archive --help` has the variables of buckets.")]
pub struct ArchiveCopy {
    /// The archive
    #[arg(value_name = "FROM")]
    pub from: String,
    /// Where to put the copy
    #[arg(value_name = "TO")]
    pub to: String,
    #[command(flatten)]
    pub keys: Keys,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel archive take file:///mnt/a --server db:7117
  tercel archive take s3://backups/a --data ./space

A restored space that is served with the archive it came from takes that over, and keeps it from the old server. Stop the \
copy, or give it a place of its own; then take the archive for the old server. That goes on with a base, as another history. \
`tercel archive --help` has the variables of buckets.")]
pub struct ArchiveTake {
    /// The archive, as `tercel serve --archive` was given it
    #[arg(value_name = "URL")]
    pub archive: String,
    /// The server that is to write it, or the members of its group; else that in TERCEL_SERVER, else
    /// 127.0.0.1:7117
    #[arg(long, value_name = "ADDR", conflicts_with = "data")]
    pub server: Option<Addresses>,
    /// The directory of the space, while no server has it
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub keys: Keys,
}

/// The keys of a bucket.
#[derive(Debug, ClapArgs)]
pub struct Keys {
    /// The file with the keys of a bucket, as AWS_SHARED_CREDENTIALS_FILE names one
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
}

/// Where a server archives its space, and how often.
#[derive(Debug, ClapArgs)]
pub struct Archived {
    /// Archive the space there, file:///DIR or s3://BUCKET/PATH, so that it can be restored as of any minute
    /// of two weeks; `tercel archive --help` has the variables of buckets
    #[arg(long, value_name = "URL")]
    pub archive: Option<String>,
    /// Archive at least so often, while there are commits
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s", requires = "archive")]
    pub archive_every: Duration,
    /// The file with the keys of the archive's bucket, read for each request; else those of the environment
    #[arg(long, value_name = "FILE", requires = "archive")]
    pub archive_credentials: Option<PathBuf>,
}
