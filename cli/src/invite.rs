//! Invitations: all that a server needs to become a member of a group, in one file for its machine.
//!
//! An invitation has the addresses of members, the group's secret, and a certificate with its key. It is a
//! credential, and as good as these until they are changed: it is its owner's alone, wherever it lies.
//! Taken again it goes on where it was broken off. Once its certificate is in place, and the member's
//! directory has a secret, it changes nothing: both may be newer by then.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use tercel::{Address, Addresses, Tls, TlsStatus};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::say;

use crate::args;
use crate::cert::{
    AUTHORITY_NAME, Authority, CERTIFICATE_NAME, KEY_NAME, Named, new_directory, of_file, write_new,
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Invitation {
    form: String,
    servers: String,
    group: String,
    member: String,
    secret: String,
    authority: String,
    certificate: String,
    key: String,
}

/// The first version of the form.
const FORM: &str = "tercel-invite-1";
/// More than any invitation has.
const BYTES_MAX: u64 = 64 << 10;
/// The secret, until the member's directory has it.
const SECRET_NAME: &str = "secret";

/// Makes an invitation.
pub fn invite(args: &args::Invite) -> Outcome {
    let servers = args.of.server.as_ref().ok_or_else(|| {
        Failure::new("an invitation names members that answer").next("name them with --server ADDR,..")
    })?;
    if servers.iter().any(|at| matches!(at, Address::Unix(_))) {
        let text = format!("{servers} has a Unix socket, which no other machine reaches");
        return Err(Failure::new(text).next("name members by HOST:PORT with --server"));
    }
    let authority = Authority::open(&args.ca)?;
    let (secret, _) = small(&args.secret)?;
    if !secret.starts_with("tercel-secret-") {
        let text = format!("{} is no secret of a group", args.secret.display());
        return Err(Failure::new(text).next("`tercel group secret --data DIR` tells where it is"));
    }
    let of = Named::member(&authority, &args.name);
    let (certificate, key) = authority.sign(&of, args.days)?;
    let invitation = Invitation {
        form: FORM.into(),
        servers: servers.to_string(),
        group: authority.group.clone(),
        member: args.name.clone(),
        secret,
        authority: authority.pem.clone(),
        certificate,
        key,
    };
    let text = serde_json::to_string_pretty(&invitation).expect("its keys are texts");
    if text.len() as u64 >= BYTES_MAX {
        let text = format!("the invitation has {} bytes, and {BYTES_MAX} are too many", text.len());
        return Err(Failure::new(text).next("leave authorities that nobody needs out of `ca.crt`"));
    }
    write_new(&args.out, &format!("{text}\n"))?;
    let (out, name) = (args.out.display(), &args.name);
    say!("{out} makes a server member {name} of the group at {servers}; who has it can be that member");
    say!("bring it to its machine by a way that others do not read, and serve there:");
    say!("  tercel serve --data NEW --listen ADDR --tls NEW-TLS --invite {out}");
    say!("then let it vote, and remove the invitation: tercel group add ADDR --server {servers}");
    Ok(ExitCode::SUCCESS)
}

/// An invitation that was taken.
pub struct Taken {
    pub servers: Addresses,
    pub tls: Tls,
    /// A file with the secret, until the group has been joined; none if the member's directory has one.
    pub secret: Option<PathBuf>,
}

/// Makes a directory with the certificate of an invitation, or takes one that the same member has, for the
/// member whose data is, or will be, in `data`.
///
/// # Errors
/// If others may read the invitation, or it is none; if the directory is another's.
pub fn take(file: &Path, dir: &Path, data: &Path) -> Result<Taken, Failure> {
    let shown = file.display();
    let (text, mode) = small(file)?;
    if mode & 0o077 != 0 {
        let text = format!("{shown} can be read by others, and has a key and the group's secret");
        return Err(Failure::new(text).next(format!("chmod 600 {shown}")));
    }
    let of: Invitation =
        serde_json::from_str(&text).ok().filter(|of: &Invitation| of.form == FORM).ok_or_else(|| {
            let text = format!("{shown} is no whole invitation of this version");
            Failure::new(text).next("bring it again, or make a new one with `tercel group invite`")
        })?;
    let servers: Addresses =
        of.servers.parse().map_err(|e: tercel::AddressError| Failure::new(format!("{shown}: {e}")))?;
    if !dir.join(CERTIFICATE_NAME).exists() {
        put(&of, dir)?;
    }
    let tls = args::open_tls(dir)?;
    let TlsStatus { principal, group, .. } = tls.status();
    if principal != format!("member:{}", of.member) || group.as_ref() != Some(&of.group) {
        let text = format!(
            "{} has the certificate of {principal}, and {shown} is for member {} of group {}",
            dir.display(),
            of.member,
            of.group
        );
        return Err(Failure::new(text).next("name a directory that does not exist with --tls"));
    }
    let secret = dir.join(SECRET_NAME);
    remove(&secret)?;
    let secret = match data.join(SECRET_NAME).exists() {
        true => None,
        false => {
            write_new(&secret, &of.secret)?;
            Some(secret)
        }
    };
    Ok(Taken { servers, tls, secret })
}

/// Makes the directory of a certificate, whole or not at all. One that has something in it stays as it is.
fn put(of: &Invitation, dir: &Path) -> Result<(), Failure> {
    let new = dir.with_added_extension("new");
    // An earlier start has left it when it was broken off.
    if new.exists() {
        [AUTHORITY_NAME, KEY_NAME, CERTIFICATE_NAME].iter().try_for_each(|name| remove(&new.join(name)))?;
        std::fs::remove_dir(&new).map_err(|e| of_file(&new, &e))?;
    }
    new_directory(&new)?;
    write_new(&new.join(AUTHORITY_NAME), &of.authority)?;
    write_new(&new.join(KEY_NAME), &of.key)?;
    write_new(&new.join(CERTIFICATE_NAME), &of.certificate)?;
    std::fs::rename(&new, dir).map_err(|e| match e.kind() {
        ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory => {
            let text = format!("{} is there, and has no {CERTIFICATE_NAME}", dir.display());
            Failure::new(text).next("name a directory that does not exist with --tls")
        }
        _ => of_file(dir, &e),
    })?;
    let around = dir.parent().filter(|around| !around.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(around).and_then(|around| around.sync_all()).map_err(|e| of_file(around, &e))
}

fn remove(file: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(of_file(file, &e)),
        _ => Ok(()),
    }
}

/// The text of a file that has not many bytes, and its mode.
fn small(file: &Path) -> Result<(String, u32), Failure> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| {
        let mode = file.metadata()?.mode();
        file.take(BYTES_MAX).read_to_string(&mut text)?;
        Ok(mode)
    });
    read.map(|mode| (text, mode)).map_err(|e| of_file(file, &e))
}
