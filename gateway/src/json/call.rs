//! A call by the server's description: its target, its arguments from JSON, and its result as JSON.

use std::sync::Arc;

use serde_json::{Value, json};
use tercel::tools::wire::datum::{self, Datum};
use tercel::tools::wire::interface::{Interface, Method};
use tercel::tools::wire::layout::Layout;
use tercel::tools::wire::payload::Payload;
use tercel::{Client, Error, Oref};

use super::interfaces;
use super::read::Written;

/// The reason why a request cannot be done, by the party that must act.
#[derive(Debug)]
pub enum Wrong {
    /// A name that leads nowhere.
    Absent(Said),
    /// The request cannot be meant.
    Invalid(Said),
    /// An error of the space.
    Space(Error),
    /// A method failed by a fault of its own. Unlike a procedure's, nothing of its work is kept.
    Method(Error),
}

/// An error in words: what is wrong, and the next step.
#[derive(Debug)]
pub struct Said {
    pub what: String,
    pub next: String,
}

impl Wrong {
    fn absent(what: String, next: String) -> Wrong {
        Wrong::Absent(Said { what, next })
    }

    /// An argument that cannot be meant.
    pub fn invalid(what: String, next: String) -> Wrong {
        Wrong::Invalid(Said { what, next })
    }
}

impl From<Error> for Wrong {
    fn from(e: Error) -> Wrong {
        Wrong::Space(e)
    }
}

/// The number of names that a message has; `tercel inspect` lists all.
const NAMED_MAX: usize = 20;

/// The target of a call, and the interfaces that it has.
#[derive(Debug)]
pub struct Target {
    /// The words by which a message names it.
    what: String,
    /// The object; none for a service.
    pub object: Option<Oref>,
    interfaces: Vec<Arc<Interface>>,
}

impl Target {
    /// The target of a name: a root, or a service.
    ///
    /// # Errors
    /// `Absent` if there is none, `Invalid` if there are two.
    pub fn find(client: &Client, offered: Vec<Arc<Interface>>, name: &str) -> Result<Target, Wrong> {
        let roots = client.run(|tx| tx.roots())?;
        let (only, bare) = match name.split_once(':') {
            Some((kind @ ("root" | "service"), bare)) => (Some(kind), bare),
            _ => (None, name),
        };
        let root = roots.iter().find(|(n, _)| n == bare && only != Some("service")).map(|(_, r)| r.oref());
        let is_service = |i: &Arc<Interface>| i.is_service() && i.name == bare && only != Some("root");
        match (root, offered.iter().any(is_service)) {
            (Some(_), true) => Err(Wrong::invalid(
                format!("`{name}` is a root, and also a service"),
                format!("say which: root:{name} or service:{name}"),
            )),
            (Some(oref), false) => Target::of_object(client, offered, oref),
            (None, true) => Ok(Target {
                what: format!("service `{bare}`"),
                object: None,
                interfaces: offered.into_iter().filter(is_service).collect(),
            }),
            (None, false) => {
                let roots = listed(roots.iter().map(|(name, _)| name.as_str()));
                let services = listed(offered.iter().filter(|i| i.is_service()).map(|i| i.name.as_str()));
                let what = only.unwrap_or("root or service");
                Err(Wrong::absent(
                    format!("there is no {what} `{bare}`"),
                    format!("roots: {roots}; services: {services}; or an object as PAGE.SLOT"),
                ))
            }
        }
    }

    /// A service.
    ///
    /// # Errors
    /// `Absent` if there is none.
    pub fn of_service(offered: Vec<Arc<Interface>>, name: &str) -> Result<Target, Wrong> {
        let services = listed(offered.iter().filter(|i| i.is_service()).map(|i| i.name.as_str()));
        let interfaces: Vec<_> = offered.into_iter().filter(|i| i.is_service() && i.name == name).collect();
        match interfaces.is_empty() {
            true => Err(Wrong::absent(
                format!("there is no service `{}`", cut(name)),
                format!("services: {services}"),
            )),
            false => Ok(Target { what: format!("service `{name}`"), object: None, interfaces }),
        }
    }

    /// The object that a reference names.
    ///
    /// # Errors
    /// `Absent` if there is none, or the server runs no methods of its class.
    pub fn of_object(client: &Client, offered: Vec<Arc<Interface>>, oref: Oref) -> Result<Target, Wrong> {
        let found = tercel::tools::stored_object(client, oref).map_err(|e| match e {
            Error::NotFound(_) => {
                Wrong::absent(e.to_string(), "`tercel inspect` lists the roots of the space".into())
            }
            e => Wrong::Space(e),
        });
        let (_, layout, _) = found?;
        let (class, of_objects) = (layout.name(), |i: &&Arc<Interface>| !i.is_service());
        if !offered.iter().any(|i| i.class == class) {
            let others = listed(offered.iter().filter(of_objects).map(|i| i.class.as_str()));
            return Err(Wrong::absent(
                format!("the server runs no methods of class `{class}`, of which {oref} is"),
                format!(
                    "classes with methods there: {others}; start the program that has those of `{class}` as the server of this space"
                ),
            ));
        }
        let interfaces = offered.into_iter().filter(|i| i.class == class).collect();
        Ok(Target { what: format!("class `{class}`"), object: Some(oref), interfaces })
    }

    /// The interface and the number of the method that is meant.
    ///
    /// # Errors
    /// `Absent` if there is none, `Invalid` if several interfaces have it.
    pub fn method(&self, name: &str) -> Result<(&Arc<Interface>, usize), Wrong> {
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
                Err(Wrong::absent(format!("{} has no method `{}`", self.what, cut(name)), hint))
            }
            ref several => {
                let names: Vec<String> = several.iter().map(|(i, _)| format!("{}.{bare}", i.name)).collect();
                let what = format!("{} has `{bare}` in {} interfaces", self.what, names.len());
                Err(Wrong::invalid(what, format!("say which: {}", names.join(" or "))))
            }
        }
    }
}

/// The beginning of a text that a message repeats.
pub fn cut(text: &str) -> &str {
    of_bytes(text, CUT_BYTES)
}

fn of_bytes(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The bytes of a text that show which one it is.
const CUT_BYTES: usize = 100;
/// The bytes of a message that names fields and values.
const MESSAGE_BYTES: usize = 1_000;

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
///
/// # Errors
/// `Invalid` if they are no JSON, or not what the method takes.
pub fn arguments(of: &Method, text: Option<&str>) -> Result<Vec<u8>, Wrong> {
    let wrong = |what: String| {
        let (signature, sample) = (interfaces::line(of), sample(&of.takes));
        Wrong::invalid(
            format!("the arguments of `{}`: {what}", of.name),
            format!("it is {signature}: give an object such as '{sample}', or an array in order"),
        )
    };
    let datum = match text {
        None => Datum::Map(Vec::new()),
        Some(text) => match serde_json::from_str(text).map_err(|e| wrong(not_json(text, &e)))? {
            Written(datum @ (Datum::Map(_) | Datum::List(_))) => datum,
            // Of a method that takes one value it can be no other.
            Written(datum) if of.takes.fields().len() == 1 => Datum::List(vec![datum]),
            Written(other) => {
                let other = to_json(other).to_string();
                return Err(wrong(format!("{} is neither a JSON object nor an array", cut(&other))));
            }
        },
    };
    let mut bytes = Vec::new();
    datum::encode(&of.takes, &datum, &mut bytes)
        .map_err(|e| wrong(of_bytes(&e.to_string(), MESSAGE_BYTES).into()))?;
    Ok(bytes)
}

/// Describes the mistake in arguments that are not JSON. Mostly it is a text without quotes, because the
/// shell took them.
fn not_json(text: &str, e: &serde_json::Error) -> String {
    let is_structure = text.trim_start().starts_with(['{', '[', '"']);
    let text = Value::from(cut(text)).to_string().replace('\'', r"'\''");
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

/// A value as JSON.
pub fn to_json(datum: Datum) -> Value {
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

/// The one value that a payload has, if it has one.
///
/// # Errors
/// `Corrupt` if it is not of that layout.
pub fn only(layout: &Layout, bytes: &[u8]) -> Result<Option<Datum>, Error> {
    let payload = Payload::decode(bytes, layout).and_then(|payload| datum::decode(layout, &payload));
    let read =
        payload.map_err(|e| Error::Corrupt(format!("what the server gave back cannot be read: {e}")))?;
    Ok(match read {
        Datum::Map(fields) => fields.into_iter().next().map(|(_, datum)| datum),
        other => Some(other),
    })
}
