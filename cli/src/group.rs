//! `tercel group`.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tercel::Address;
use tercel::group::{Inspected, form, inspect};
use tercel_term::fail::Outcome;
use tercel_term::{say, tell};

use crate::args;

pub fn run(args: &args::Group) -> Outcome {
    match args {
        args::Group::Form(args) => formed(args),
        args::Group::Inspect(args) => inspected(args),
    }
}

fn formed(args: &args::Form) -> Outcome {
    let members: Vec<(&Path, Address)> =
        args.members.iter().map(|(dir, address)| (dir.as_path(), address.clone())).collect();
    form(&members)?;
    say!("a group of {}; serve each member:", members.len());
    for (dir, address) in &args.members {
        say!("  tercel serve --data {} --listen {address}", dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn inspected(args: &args::InspectMember) -> Outcome {
    let Inspected { group, member, starts, promised, members } = inspect(&args.data)?;
    if args.json {
        let of = |(id, votes, address): &(tercel::group::MemberId, bool, String)| json!({"member": id.to_string(), "votes": votes, "address": address});
        let members: Vec<_> = members.iter().map(of).collect();
        let group = format!("{group:016x}");
        let all = json!({
            "group": group, "member": member.to_string(), "starts": starts, "promised_view": promised, "members": members,
        });
        tell!("{all:#}");
        return Ok(ExitCode::SUCCESS);
    }
    say!("member {member} of group {group:016x}, started {starts} times, has promised view {promised}");
    for (id, votes, address) in members {
        say!("  {id}  {}  {address}", if votes { "votes" } else { "learns" });
    }
    Ok(ExitCode::SUCCESS)
}
