//! `tercel access`.

use std::process::ExitCode;

use serde_json::{Value, json};
use tercel::access::{Principal, Rights, Role, Unheard, grant, list, revoke, whoami};
use tercel::{Address, Addresses, Error};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{say, tell};

use crate::args;

pub fn run(args: &args::Access) -> Outcome {
    match args {
        args::Access::Grant(args) => change(args, "has", grant),
        args::Access::Revoke(args) => change(args, "has no longer", revoke),
        args::Access::List(args) => {
            let rights = list(&servers(&args.of), args.of.secret.as_deref()).map_err(refused)?;
            shown(&args.of, &rights);
            Ok(ExitCode::SUCCESS)
        }
        args::Access::Whoami(args) => asked_who(&args.of),
        args::Access::Test(args) => tested(args),
    }
}

type Ask = fn(&Addresses, Option<&std::path::Path>, &Principal, &Role) -> Result<Rights, Error>;

fn change(args: &args::OneRight, words: &str, ask: Ask) -> Outcome {
    let mut rights = None;
    for role in roles(args)? {
        rights = Some(ask(&servers(&args.of), args.of.secret.as_deref(), &args.who, &role).map_err(refused)?);
        if !args.of.json {
            tell!("{} {words} the role `{role}`", args.who);
        }
    }
    let Some(rights) = rights else { return Ok(ExitCode::SUCCESS) };
    if args.of.json {
        say!("{}", as_json(&rights));
    }
    if rights.unheard.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(not_heard(&rights.unheard)) }
}

/// The failure of a revocation that counts, and that some members have not said that they have applied.
fn not_heard(unheard: &[Unheard]) -> Failure {
    let one = |it: &Unheard| format!("member {} at {} ({})", it.member, it.address, it.why);
    let all: Vec<String> = unheard.iter().map(one).collect();
    let what = format!("the leader judges by this, and not heard to do so was {}", all.join(", "));
    let next = "run the command again; a member that does not answer even then is to be stopped: it serves no page once \
         it has not heard its leader for two keepalives";
    Failure::new(what).next(next).code(NOT_NOW)
}

fn asked_who(of: &args::OfAccess) -> Outcome {
    let rights = whoami(&servers(of), of.secret.as_deref()).map_err(refused)?;
    let roles: Vec<String> = rights.roles.iter().map(Role::to_string).collect();
    match (of.json, rights.is_judged) {
        (true, is_judged) => {
            say!("{}", json!({"who": text(&rights.who), "judged": is_judged, "roles": roles}))
        }
        (false, false) => say!("{}; there was no grant yet, so everyone may do everything", rights.who),
        (false, true) if roles.is_empty() => say!("{}; it has no role", rights.who),
        (false, true) => say!("{}; its roles: {}", rights.who, roles.join(", ")),
    }
    Ok(ExitCode::SUCCESS)
}

fn tested(args: &args::OneRight) -> Outcome {
    let rights = list(&servers(&args.of), args.of.secret.as_deref()).map_err(refused)?;
    let lacking: Vec<Role> = roles(args)?.into_iter().filter(|role| !rights.has(&args.who, role)).collect();
    if args.of.json {
        let lacks: Vec<String> = lacking.iter().map(Role::to_string).collect();
        say!("{}", json!({"who": text(&args.who), "has": lacks.is_empty(), "lacks": lacks}));
    } else {
        lacking.iter().for_each(|role| say!("{} lacks the role `{role}`", args.who));
        if lacking.is_empty() {
            say!("{} has it", args.who);
        }
    }
    Ok(if lacking.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The roles that the command line names: one for each class, or thing to call.
fn roles(args: &args::OneRight) -> Result<Vec<Role>, Failure> {
    let texts = match args.names.is_empty() {
        true => vec![args.role.clone()],
        false => args.names.iter().map(|name| format!("{} {name}", args.role)).collect(),
    };
    let parse = |text: &String| {
        let parsed = text.parse();
        parsed.map_err(|why| Failure::new(format!("`{text}` is no role: {why}")).code(2))
    };
    texts.iter().map(parse).collect()
}

fn shown(of: &args::OfAccess, rights: &Rights) {
    if of.json {
        return say!("{}", as_json(rights));
    }
    if !rights.is_judged {
        return say!("there was no grant yet, so everyone may do everything");
    }
    for (who, role) in &rights.all {
        say!("{who}  {role}");
    }
    if rights.all.is_empty() {
        say!("nobody has a role but the operators on the servers' hosts");
    }
}

fn as_json(rights: &Rights) -> Value {
    let one = |(who, role): &(Principal, Role)| json!({"who": text(who), "role": role.to_string()});
    let mut json =
        json!({"judged": rights.is_judged, "rights": rights.all.iter().map(one).collect::<Vec<_>>()});
    if !rights.unheard.is_empty() {
        let one =
            |it: &Unheard| json!({"member": it.member.to_string(), "address": it.address, "why": it.why});
        json["unheard"] = rights.unheard.iter().map(one).collect();
    }
    json
}

fn text(who: &Principal) -> String {
    who.to_string()
}

fn servers(of: &args::OfAccess) -> Addresses {
    of.server.clone().unwrap_or_else(|| Address::default_tcp().into())
}

/// The answer of a server that says no, or does not answer.
fn refused(error: Error) -> Failure {
    match error {
        Error::Unavailable(text) => Failure::of_sentence(&text).code(NOT_NOW),
        Error::Denied(text) => Failure::of_sentence(&text),
        error => Failure::new(error.to_string()),
    }
}

/// The exit code that `tercel group` has, too: try again later.
const NOT_NOW: u8 = 75;
