//! `tercel call`: a method of an object or a procedure of a service, by what the server says of it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tercel::tools::wire::datum::{self, Datum};
use tercel::tools::wire::interface::{Interface, Method};
use tercel::tools::wire::layout::Layout;
use tercel::tools::wire::payload::Payload;
use tercel::tools::{Described, Reply};
use tercel::{Client, ClientConfig, Error, Oref};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::say;

use crate::args;
use crate::inspect::interfaces;
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
    let target = Target::find(&client, offered, &args.name)?;
    let (interface, method) = target.method(&args.method)?;
    let of = &interface.methods[method];
    let takes = arguments(of, args.args.as_deref())?;
    let object = target.object.unwrap_or(Oref::NULL);
    let timeout = timeout.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
    let call = Described { interface, method, object, timeout, takes: &takes };
    let reply = tercel::tools::call(&client, &call).map_err(refused)?;
    let executed = |failure| Unended { failure, executed: "yes" };
    let code = show(of, reply.as_ref(), args.json).map_err(executed)?;
    space::close(client).map_err(executed)?;
    Ok(code)
}

/// The option that names the server.
const OPTION: &str = "--addr";

/// As many names as a message has; `tercel inspect` lists all.
const NAMED_MAX: usize = 20;

/// The target of a call, and the interfaces that it has.
struct Target {
    /// As a message names it.
    what: String,
    /// None for a service.
    object: Option<Oref>,
    interfaces: Vec<Arc<Interface>>,
}

impl Target {
    fn find(client: &Client, offered: Vec<Interface>, name: &str) -> Result<Target, Failure> {
        if let Some(oref) = space::reference(name)? {
            return Target::of_object(client, offered, oref);
        }
        let roots = client.run(|tx| tx.roots()).map_err(|e| Failure::at_server(e, OPTION))?;
        let (only, bare) = match name.split_once(':') {
            Some((kind @ ("root" | "service"), bare)) => (Some(kind), bare),
            _ => (None, name),
        };
        let root = roots.iter().find(|(n, _)| n == bare && only != Some("service")).map(|(_, r)| r.oref());
        let is_service = |i: &Interface| i.is_service() && i.name == bare && only != Some("root");
        match (root, offered.iter().any(is_service)) {
            (Some(_), true) => Err(Failure::new(format!("`{name}` is a root, and also a service"))
                .next(format!("say which: root:{name} or service:{name}"))
                .code(2)),
            (Some(oref), false) => Target::of_object(client, offered, oref),
            (None, true) => Ok(Target {
                what: format!("service `{bare}`"),
                object: None,
                interfaces: offered.into_iter().filter(is_service).map(Arc::new).collect(),
            }),
            (None, false) => {
                let roots = listed(roots.iter().map(|(name, _)| name.as_str()));
                let services = listed(offered.iter().filter(|i| i.is_service()).map(|i| i.name.as_str()));
                let what = only.unwrap_or("root or service");
                Err(Failure::new(format!("there is no {what} `{bare}`"))
                    .next(format!("roots: {roots}; services: {services}; or an object as PAGE.SLOT")))
            }
        }
    }

    fn of_object(client: &Client, offered: Vec<Interface>, oref: Oref) -> Result<Target, Failure> {
        let found = tercel::tools::stored_object(client, oref).map_err(|e| match e {
            Error::NotFound(_) => Failure::from(e).next("`tercel inspect` lists the roots of the space"),
            e => Failure::at_server(e, OPTION),
        });
        let (_, layout, _) = found?;
        let (class, of_objects) = (layout.name(), |i: &&Interface| !i.is_service());
        if !offered.iter().any(|i| i.class == class) {
            let others = listed(offered.iter().filter(of_objects).map(|i| i.class.as_str()));
            return Err(Failure::new(format!(
                "the server runs no methods of class `{class}`, of which {oref} is"
            ))
            .next(format!(
                "classes with methods there: {others}; start the program that has those of `{class}` as the server of this space"
            )));
        }
        let interfaces = offered.into_iter().filter(|i| i.class == class).map(Arc::new).collect();
        Ok(Target { what: format!("class `{class}`"), object: Some(oref), interfaces })
    }

    /// The interface and the number of the method that is meant.
    fn method(&self, name: &str) -> Result<(&Arc<Interface>, usize), Failure> {
        let (of, bare) = name.rsplit_once('.').map_or((None, name), |(of, bare)| (Some(of), bare));
        let interfaces = || self.interfaces.iter().filter(|i| of.is_none_or(|of| i.name == of));
        let places = interfaces().flat_map(|i| {
            let numbers = (0..i.methods.len()).filter(|n| i.methods[*n].name == bare);
            numbers.map(move |n| (i, n))
        });
        match places.collect::<Vec<_>>()[..] {
            [only] => Ok(only),
            [] => {
                let all = interfaces().flat_map(|i| &i.methods).map(interfaces::line).collect::<Vec<_>>();
                let hint = match all.is_empty() {
                    false => format!("methods: {}", listed(all.iter().map(String::as_str))),
                    true => {
                        format!("interfaces: {}", listed(self.interfaces.iter().map(|i| i.name.as_str())))
                    }
                };
                Err(Failure::new(format!("{} has no method `{name}`", self.what)).next(hint))
            }
            ref several => {
                let names: Vec<String> = several.iter().map(|(i, _)| format!("{}.{bare}", i.name)).collect();
                let what = format!("{} has `{bare}` in {} interfaces", self.what, names.len());
                Err(Failure::new(what).next(format!("say which: {}", names.join(" or "))).code(2))
            }
        }
    }
}

/// Names for a message, as many as it has room for.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    names.dedup();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    match (names.is_empty(), more) {
        (true, _) => "none".into(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more", names.join(", ")),
    }
}

/// Encodes the arguments of a method.
fn arguments(of: &Method, text: Option<&str>) -> Result<Vec<u8>, Failure> {
    let wrong = |what: String| {
        let signature = interfaces::line(of);
        Failure::new(format!("the arguments of `{}`: {what}", of.name))
            .next(format!(
                "it is {signature}: give an object such as '{}', or an array in order",
                sample(&of.takes)
            ))
            .code(2)
    };
    let datum = match text {
        None => Datum::Map(Vec::new()),
        Some(text) => match serde_json::from_str(text).map_err(|e| wrong(not_json(text, &e)))? {
            value @ (Value::Object(_) | Value::Array(_)) => of_json(value),
            // Of a method that takes one value it can be no other.
            value if of.takes.fields().len() == 1 => Datum::List(vec![of_json(value)]),
            other => return Err(wrong(format!("{other} is neither a JSON object nor an array"))),
        },
    };
    let mut bytes = Vec::new();
    datum::encode(&of.takes, &datum, &mut bytes).map_err(|e| wrong(e.to_string()))?;
    Ok(bytes)
}

/// Describes the mistake in arguments that are not JSON. Mostly it is a text without quotes, because the
/// shell took them.
fn not_json(text: &str, e: &serde_json::Error) -> String {
    let is_structure = text.trim_start().starts_with(['{', '[', '"']);
    let text = Value::from(text).to_string().replace('\'', r"'\''");
    match (is_structure, e.is_eof()) {
        (false, _) => format!("this is no JSON: if it is a text, it needs quotes of its own: '{text}'"),
        (true, false) => format!(
            "this is no JSON: {e}: texts need quotes, which the shell takes unless all stands between '..'"
        ),
        (true, true) => format!("this is no JSON: {e}"),
    }
}

/// The form of the arguments.
fn sample(takes: &Layout) -> String {
    let fields: Vec<String> = takes.fields().iter().map(|p| format!("\"{}\": ..", p.name)).collect();
    format!("{{{}}}", fields.join(", "))
}

fn of_json(value: Value) -> Datum {
    match value {
        Value::Null => Datum::Null,
        Value::Bool(b) => Datum::Bool(b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Datum::Int(n.into()),
            (None, Some(n)) => Datum::Int(n.into()),
            (None, None) => Datum::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Datum::Text(text),
        Value::Array(values) => Datum::List(values.into_iter().map(of_json).collect()),
        Value::Object(fields) => {
            Datum::Map(fields.into_iter().map(|(name, value)| (name, of_json(value))).collect())
        }
    }
}

fn to_json(datum: Datum) -> Value {
    match datum {
        Datum::Null => Value::Null,
        Datum::Bool(b) => json!(b),
        // No field has more than 64 bits.
        Datum::Int(n) => u64::try_from(n).map_or_else(|_| json!(n as i64), |n| json!(n)),
        Datum::Float(x) => json!(x),
        Datum::Text(text) => json!(text),
        Datum::List(values) => values.into_iter().map(to_json).collect(),
        Datum::Map(fields) => fields.into_iter().map(|(name, datum)| (name, to_json(datum))).collect(),
    }
}

/// Prints what came of it.
fn show(of: &Method, reply: Option<&Reply>, as_json: bool) -> Outcome {
    match reply {
        None if as_json => say!("{}", json!({ "gives": null })),
        None => {}
        Some(Reply::Returned(bytes)) => match only(&of.gives, bytes)? {
            gives if as_json => say!("{}", json!({ "gives": gives.map(to_json) })),
            None => {}
            Some(gives) => plain(gives),
        },
        Some(Reply::Failed(bytes)) => {
            let fails = only(&of.fails, bytes)?.unwrap_or(Datum::Null);
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

/// The one value that a payload has, if it has one.
fn only(layout: &Layout, bytes: &[u8]) -> Result<Option<Datum>, Failure> {
    let payload = Payload::decode(bytes, layout).and_then(|payload| datum::decode(layout, &payload));
    let read = payload.map_err(|e| Failure::new(format!("what the server gave back cannot be read: {e}")))?;
    Ok(match read {
        Datum::Map(fields) => fields.into_iter().next().map(|(_, datum)| datum),
        other => Some(other),
    })
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
fn refused(e: Error) -> Unended {
    let unknown = |what: String| {
        let failure = Failure::new(what)
            .next("it was executed once at most: look whether it was before you call it again")
            .code(UNKNOWN);
        Unended { failure, executed: "unknown" }
    };
    match e {
        Error::Unknown(why) => unknown(format!("it is not known whether the call was executed: {why}")),
        Error::Timeout(Some(op)) => unknown(format!(
            "no answer came in time: it is not known whether the call was executed, as operation {op}"
        )),
        e @ Error::Failed(_) => Unended { failure: Failure::from(e), executed: "in part" },
        e => Failure::at_server(e, OPTION).into(),
    }
}

/// The exit code of a call of which it is not known whether it was executed.
const UNKNOWN: u8 = 4;
