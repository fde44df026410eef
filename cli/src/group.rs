//! `tercel group`.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::json;
use tercel::group::{
    Change, Ends, Inspected, Listed, change, form, init, inspect, log_ends, members, rescue, secret,
    status_of,
};
use tercel::status::{Group, Member};
use tercel::{Address, Addresses, Error, ServerError, ServerStatus};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{say, tell};

use crate::args;

pub fn run(args: &args::Group) -> Outcome {
    match args {
        args::Group::Init(args) => begun(args),
        args::Group::Form(args) => formed(args),
        args::Group::Invite(args) => crate::invite::invite(args),
        args::Group::Secret(args) => kept_secret(args),
        args::Group::Inspect(args) => inspected(args),
        args::Group::Rescue(args) => rescued(args),
        args::Group::Status(args) => status(args),
        args::Group::Add(args) => changed(args, Change::Vote, "votes"),
        args::Group::Remove(args) => changed(args, Change::Remove, "is removed, and stops"),
        args::Group::MoveLeader(args) => changed(args, Change::Lead, "leads"),
    }
}

fn begun(args: &args::Init) -> Outcome {
    let (dir, at) = (args.data.display(), &args.advertise);
    let me = init(&args.data, at)?;
    say!("member {me} is the first of a new group; serve it, and let others join:");
    say!("  tercel serve --data {dir} --listen {at}");
    say!("  tercel serve --data NEW --listen ADDR --join {at} --secret {dir}/secret");
    Ok(ExitCode::SUCCESS)
}

fn kept_secret(args: &args::Secret) -> Outcome {
    let (file, is_new) = secret(&args.data)?;
    let file = file.display();
    match is_new {
        true => {
            say!(
                "{file} is new. If another member has such a file, the group has a secret: put a copy of that one here instead. \
                 Else copy this one into the directories of all other members, and start each of them again"
            )
        }
        false => say!("{file} is the secret of the group; a member that is to join needs a copy:"),
    }
    say!("  tercel serve --data NEW --listen ADDR --join ADDR --secret FILE");
    Ok(ExitCode::SUCCESS)
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

fn servers(of: &args::OfGroup) -> Addresses {
    of.server.clone().unwrap_or_else(|| Address::default_tcp().into())
}

/// The answer of a group that says no, or does not answer.
fn refused(error: Error) -> Failure {
    let code = if matches!(error, Error::Unavailable(_)) { NOT_NOW } else { 1 };
    let text = match error {
        Error::Unavailable(text) | Error::Denied(text) => text,
        error => error.to_string(),
    };
    let failure = Failure::of_sentence(&text).code(code);
    match failure.next.is_none() && text.contains("does not answer: ") {
        true => failure.next("name the other members with --server ADDR,ADDR, or start this one"),
        false => failure,
    }
}

/// The exit code that `tercel backup` has, too: try again later.
const NOT_NOW: u8 = 75;

fn changed(args: &args::OneMember, what: Change, words: &str) -> Outcome {
    let members = change(&servers(&args.of), what, &args.member, args.secret.as_deref()).map_err(refused)?;
    tell!("{} {words}; the group:", args.member);
    listed(&members);
    Ok(ExitCode::SUCCESS)
}

fn listed(members: &Listed) {
    for (id, votes, address) in members {
        say!("  {id}  {}  {address}", if *votes { "votes" } else { "learns" });
    }
}

/// The status of the leader of the newest view; of another member if none leads.
fn status(args: &args::GroupStatus) -> Outcome {
    let servers = servers(&args.of);
    let mut known: Vec<Address> = servers.iter().cloned().collect();
    let all = members(&servers).map_err(refused)?;
    for address in all.iter().filter_map(|(.., address)| address.parse().ok()) {
        if !known.contains(&address) {
            known.push(address);
        }
    }
    // All are asked at once: one that is silent takes its whole time.
    let answers = thread::scope(|scope| {
        let asked = known.into_iter().map(|address| {
            let (at, servers) = (address.to_string(), servers.at(address));
            scope.spawn(move || (at, status_of(servers, PATIENCE)))
        });
        let asked: Vec<_> = asked.collect();
        asked.into_iter().filter_map(|told| told.join().ok()).collect::<Vec<_>>()
    });
    let denied = answers.iter().find_map(|answer| match answer {
        (_, Err(e @ Error::Denied(_))) => Some(e.clone()),
        _ => None,
    });
    let of = |(at, answer): (String, Result<ServerStatus, Error>)| Told::of(at, answer.ok()?);
    let mut told: Vec<Told> = answers.into_iter().filter_map(of).collect();
    // The group of the first that answers: a server of another one may be at an address on its list.
    let named = told.first().map(|told| told.group.group.clone());
    told.retain(|told| Some(&told.group.group) == named.as_ref());
    let best = told.iter().max_by_key(|told| (told.group.leads, told.group.view));
    let best = best.ok_or_else(|| match denied {
        Some(denied) => refused(denied),
        None => Failure::new(format!("no member of a group answers at {servers}")),
    })?;
    let group = &best.group;
    let code = if group.leader.is_none() { ExitCode::from(NOT_NOW) } else { ExitCode::SUCCESS };
    if args.json {
        let mut shown = json!(group);
        shown["answering"] = told.iter().map(|told| told.group.member.clone()).collect();
        say!("{shown}");
        return Ok(code);
    }
    headline(group, Some(&told)).iter().for_each(|line| say!("{line}"));
    group.members.iter().for_each(|of| row(of, &told));
    Ok(code)
}

/// A member's own words.
struct Told {
    /// Where it was asked.
    at: String,
    group: Group,
    is_disk_full: bool,
}

impl Told {
    fn of(at: String, status: ServerStatus) -> Option<Told> {
        Some(Told { at, group: status.group?, is_disk_full: status.storage.disk_full })
    }

    /// Says whether it is a member itself, and no copy of one that the others refuse.
    fn is(&self, member: &str) -> bool {
        self.group.member == member && self.group.refused.is_none()
    }
}

/// Shows a member, as the leader knows it, or as one that answers if none leads, and what it says itself.
fn row(member: &Member, told: &[Told]) {
    let number = |n: Option<u64>| n.map_or("-".into(), tercel_term::thousands);
    let silent_ms = member.silent_ms.filter(|ms| *ms >= SILENT_MS);
    // A copy of it may answer elsewhere.
    let at_home = told.iter().find(|told| told.at == member.address);
    let own = at_home.filter(|told| told.group.member == member.member);
    let own = own.or_else(|| told.iter().find(|told| told.is(&member.member)));
    let is_absent = own.is_none();
    let mut state = match (member.gone, silent_ms) {
        (true, _) if is_absent => "; down".into(),
        (_, Some(ms)) => format!("; silent for {} s", ms / 1_000),
        _ if is_absent => "; does not answer".into(),
        _ => String::new(),
    };
    if own.is_some_and(|told| told.is_disk_full) {
        state.push_str("; its disk is full");
    }
    if let Some(words) = own.and_then(|told| told.group.refused.as_ref()) {
        state.push_str(&format!("; {words}"));
    }
    if let Some(other) = at_home.filter(|told| told.group.member != member.member) {
        state.push_str(&format!("; member {} answers at this address", other.group.member));
    }
    let role = match member.lost {
        true => "takes a copy of the space: the log does not reach back",
        false if member.leads && !is_absent => "leads",
        false if member.votes => "votes",
        false => "learns",
    };
    say!(
        "  {}  {:<22} end {:>12}  lag {:>8}  round trip {:>8} us  {role}{state}",
        member.member,
        member.address,
        number(member.end),
        number(member.lag),
        number(member.round_trip_us),
    );
}

/// A member that was heard so long ago is silent: as long as a leader has it count as one that is there.
const SILENT_MS: u64 = 1_000;

/// Why no member leads, as far as one knows and others answered.
fn unled(group: &Group, told: Option<&[Told]>) -> String {
    let mut words = "no member leads".to_string();
    if let Some(led) = &group.led {
        let seconds = group.unled_ms.unwrap_or(0) / 1_000;
        words.push_str(&format!(": {led} led view {}, silent for {seconds} s", group.view));
    }
    let Some(told) = told else {
        return words + ", as far as this one knows";
    };
    let voters: Vec<_> = group.members.iter().filter(|of| of.votes).map(|of| &of.member).collect();
    let answers = |id: &&&String| told.iter().any(|told| told.is(id));
    let (there, all) = (voters.iter().filter(answers).count(), voters.len());
    let quorum = if there > all / 2 { "a quorum answers" } else { "no quorum" };
    format!("{words}; {quorum} ({there} of {all})")
}

/// The group as a server knows it.
pub fn headline_of(group: &Group) -> Vec<String> {
    headline(group, None)
}

/// The group as a server knows it; `told` are the words of all members that answered, if they were asked.
fn headline(group: &Group, told: Option<&[Told]>) -> Vec<String> {
    let (name, view) = (&group.group, group.view);
    let leader = group.leader.as_deref();
    let mut lines = vec![match (group.leads, leader) {
        (true, _) => {
            let leader = leader.unwrap_or("none");
            format!("group {name}: {leader} leads view {view}, because {}", group.why)
        }
        (_, Some(leader)) => format!("group {name}: {leader} leads view {view}, and this member follows"),
        (_, None) => format!("group {name}: {}", unled(group, told)),
    }];
    if group.lost {
        lines.push(
            "the leader's log no longer has what this member needs: it takes a copy of the space".into(),
        );
    }
    if !group.sure {
        lines.push("the log of this member had ended in damage, and may lack entries yet".into());
    }
    if let Some(view) = group.unsure_view {
        lines.push(format!(
            "view {view} may lack earlier commits: it began by `tercel group rescue`, or with members whose logs had \
             ended in damage"
        ));
    }
    lines
}

/// Time for one member to answer.
const PATIENCE: Duration = Duration::from_secs(1);

fn inspected(args: &args::InspectMember) -> Outcome {
    let failed = |e: ServerError| Failure::from(e).in_directory(&args.data);
    let Inspected { group, member, starts, promised, members } = inspect(&args.data).map_err(failed)?;
    let ends = log_ends(&args.data).map_err(failed)?;
    if args.json {
        let of = |(id, votes, address): &(tercel::group::MemberId, bool, String)| json!({"member": id.to_string(), "votes": votes, "address": address});
        let members: Vec<_> = members.iter().map(of).collect();
        let group = format!("{group:016x}");
        let all = json!({
            "group": group, "member": member.to_string(), "starts": starts, "promised_view": promised, "members": members,
            "last": ends.last.0, "last_view": ends.view, "stable": ends.stable.0, "sure": ends.is_sure,
        });
        tell!("{all:#}");
        return Ok(ExitCode::SUCCESS);
    }
    say!("member {member} of group {group:016x}, started {starts} times, has promised view {promised}");
    say!("{}", sentence(&ends));
    listed(&members);
    Ok(ExitCode::SUCCESS)
}

fn sentence(ends: &Ends) -> String {
    let Ends { stable, last, view, is_sure } = ends;
    let unsure = if *is_sure { "" } else { "; it ends in damage, and may have held more" };
    format!(
        "its log ends with entry {last} of view {view}, and up to {stable} all is known to be on a quorum's disks{unsure}"
    )
}

/// Asks the operator at the terminal.
///
/// # Errors
/// If the answer is not `yes`, or there is no terminal to ask at.
pub fn agreed(question: &str, next: &str) -> Result<(), Failure> {
    let mut answer = String::new();
    if std::io::stdin().is_terminal() {
        tell!("{question}");
        std::io::stdin().read_line(&mut answer)?;
    }
    if answer.trim() == "yes" { Ok(()) } else { Err(Failure::new("nothing was changed").next(next)) }
}

fn rescued(args: &args::Rescue) -> Outcome {
    let failed = |e: ServerError| Failure::from(e).in_directory(&args.data);
    let (dir, ends) = (args.data.display(), log_ends(&args.data).map_err(failed)?);
    say!("{}", sentence(&ends));
    say!(
        "commits behind entry {} that other members have are lost, and what became of them is unknown",
        ends.last
    );
    if !args.yes {
        agreed(
            &format!(
                "if no quorum of the group can come back, answer `yes` to make {dir} a new group of one:"
            ),
            &format!("if the quorum is lost for good, run `tercel group rescue --data {dir} --yes`"),
        )?;
    }
    let me = rescue(&args.data, args.advertise.as_ref()).map_err(failed)?;
    say!(
        "member {me} is the first of a new group with a new secret; serve it, let others join, and remove the old members' \
         directories:"
    );
    say!("  tercel serve --data {dir} --listen ADDR");
    Ok(ExitCode::SUCCESS)
}
