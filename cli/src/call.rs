//! `tercel call`: a method of an object or a procedure of a service, by what the server says of it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tercel::tools::wire::datum::Datum;
use tercel::tools::wire::interface::Method;
use tercel::tools::{Described, Reply};
use tercel::{ClientConfig, Error, Oref};
use tercel_gateway::json::call::{Said, Target, Wrong, arguments, only, to_json};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::say;

use crate::args;
use crate::space;

pub fn run(args: &args::Call) -> Outcome {
    call(args).map_err(|Unended { failure, executed }| {
        if args.json {
            say!("{}", json!({ "executed": executed, "says": failure.what }));
        }
        failure
    })
}

/// A call that gave nothing, not even an error of its own: why, and whether it was executed, as a program is
/// told.
struct Unended {
    failure: Failure,
    executed: &'static str,
}

/// Failures that come before a call is sent.
impl From<Failure> for Unended {
    fn from(failure: Failure) -> Unended {
        Unended { failure, executed: "no" }
    }
}

fn call(args: &args::Call) -> Result<ExitCode, Unended> {
    let timeout = args.within.unwrap_or(ClientConfig::default().timeout);
    let begun = Instant::now();
    let client = space::open_server(args.addr.as_ref(), OPTION, timeout)?;
    let failed = |e| Failure::at_server(e, OPTION);
    let offered = tercel::tools::interfaces(&client).map_err(failed)?;
    let offered = offered.into_iter().map(Arc::new).collect();
    let target = match space::reference(&args.name)? {
        Some(oref) => Target::of_object(&client, offered, oref),
        None => Target::find(&client, offered, &args.name),
    };
    let target = target.map_err(wrong)?;
    let (interface, method) = target.method(&args.method).map_err(wrong)?;
    let of = &interface.methods[method];
    let takes = arguments(of, args.args.as_deref()).map_err(wrong)?;
    let object = target.object.unwrap_or(Oref::NULL);
    let timeout = timeout.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
    let key = args.key.as_deref().unwrap_or_default().as_bytes();
    let call = Described { interface, method, object, key, timeout, takes: &takes };
    let reply = tercel::tools::call(&client, &call)
        .map_err(|e| refused(e, target.object.is_some(), !key.is_empty()))?;
    let executed = |failure| Unended { failure, executed: "yes" };
    let code = show(of, reply.as_ref(), args.json).map_err(executed)?;
    space::close(client).map_err(executed)?;
    Ok(code)
}

/// A request that names nothing, or cannot be meant.
fn wrong(why: Wrong) -> Failure {
    let said = |Said { what, next }| Failure::new(what).next(next);
    match why {
        Wrong::Absent(why) => said(why),
        Wrong::Invalid(why) => said(why).code(2),
        Wrong::Space(e) | Wrong::Method(e) => Failure::at_server(e, OPTION),
    }
}

/// The option that names the server.
const OPTION: &str = "--addr";

/// Prints what came of it.
fn show(of: &Method, reply: Option<&Reply>, as_json: bool) -> Outcome {
    match reply {
        None if as_json => say!("{}", json!({ "gives": null })),
        None => {}
        Some(Reply::Returned(bytes)) => match only(&of.gives, bytes).map_err(unreadable)? {
            gives if as_json => say!("{}", json!({ "gives": gives.map(to_json) })),
            None => {}
            Some(gives) => plain(gives),
        },
        Some(Reply::Failed(bytes)) => {
            let fails = only(&of.fails, bytes).map_err(unreadable)?.unwrap_or(Datum::Null);
            let name = of.fails.fields().first().map_or_else(String::new, |p| p.shape.to_string());
            if as_json {
                say!("{}", json!({ "error": name, "fails": to_json(fails) }));
                return Ok(ExitCode::from(1));
            }
            return Err(Failure::new(format!("`{}` has failed with {name}{}", of.name, in_a_line(fails))));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn unreadable(e: Error) -> Failure {
    Failure::new(e.to_string())
}

/// Prints a value: a list as a line an element, a record as a line a field.
fn plain(datum: Datum) {
    match datum {
        Datum::List(values) => values.into_iter().for_each(|v| say!("{}", word(v))),
        Datum::Map(fields) => fields.into_iter().for_each(|(name, v)| say!("{name}: {}", word(v))),
        other => say!("{}", word(other)),
    }
}

/// A value within a line: a text as it is, all else as JSON.
fn word(datum: Datum) -> String {
    match datum {
        Datum::Text(text) => text,
        other => to_json(other).to_string(),
    }
}

/// The fields of an error behind its name.
fn in_a_line(datum: Datum) -> String {
    let fields = match datum {
        Datum::Map(fields) => {
            fields.into_iter().map(|(name, v)| format!("{name} {}", to_json(v))).collect::<Vec<_>>()
        }
        other => vec![word(other)],
    };
    if fields.is_empty() { String::new() } else { format!(": {}", fields.join(", ")) }
}

/// Describes the obstacle that kept the method from its end. The exit code also shows whether the method was
/// begun: a program must know whether it may call again.
fn refused(e: Error, is_method: bool, is_keyed: bool) -> Unended {
    let unknown = |what: String| {
        let next = match is_keyed {
            true => "call it again with the same key: it has one effect",
            false => "it was executed once at most: look whether it was before you call it again",
        };
        let failure = Failure::new(what).next(next).code(UNKNOWN);
        Unended { failure, executed: "unknown" }
    };
    match e {
        Error::Unknown { op: None, what: why } => {
            unknown(format!("it is not known whether the call was executed: {why}"))
        }
        Error::Unknown { op: Some(op), .. } => unknown(format!(
            "no answer came in time: it is not known whether the call was executed, as operation {op}"
        )),
        e @ Error::Failed(_) if !is_method => Unended { failure: Failure::from(e), executed: "in part" },
        // It may have been executed before, under this key, with a result that cannot be read any more.
        e @ Error::Failed(_) if is_keyed => Unended { failure: Failure::from(e), executed: "unknown" },
        e => Failure::at_server(e, OPTION).into(),
    }
}

/// The exit code of a call of which it is not known whether it was executed.
const UNKNOWN: u8 = 4;
