//! `tercel inspect` of a map: its first entries, or the one of a key.
//!
//! The entries are those of one snapshot. The objects that they name are read afterwards, one by one, and may
//! be newer.

use serde_json::{Value, json};
use tercel::collections::key::shape_name;
use tercel::collections::map::{RawEntries, RawValue};
use tercel::collections::table::untyped::Entries;
use tercel::collections::{Key, Map, MapNode};
use tercel::tools::wire::layout::{Layout, Shape, Var};
use tercel::tools::wire::record::Class;
use tercel::{Any, Bytes, Client, Error, Isolation, Oref, Ref, Text};
use tercel_gateway::json::call::to_json;
use tercel_gateway::json::{record, reference};
use tercel_term::fail::Failure;
use tercel_term::{say, tell};

use crate::{args, space};

/// The number of entries that are shown without `--limit`.
pub const SHOWN: usize = 20;
/// The number of entries that are counted behind those that are shown: some 2,000 nodes.
const COUNTED_MAX: usize = 100_000;
/// The characters of a value that a line shows; `--json` has all of it.
const VALUE_CHARS_MAX: usize = 120;

/// The value of an entry.
enum Named {
    Object(Ref<Any>),
    /// A value that stands in the map, or nothing, in a set.
    Shown(Value),
}

/// The first entries of a map, and how many more there are. `is_more` says that the count was given up.
struct Page {
    entries: Vec<(Value, Named)>,
    left_out: usize,
    is_more: bool,
}

/// The type of a map's keys, by the number in its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Keys {
    Texts,
    ByteStrings,
    Numbers,
    /// Other keys, or a map with values, or a set: shown as a program writes them, and not looked for.
    Others(String),
}

/// Says whether the class is that of a map's nodes.
pub fn is_map(layout: &Layout) -> bool {
    layout.name() == MapNode::NAME
}

/// Prints the map whose top node has this reference and body.
pub fn show(
    client: &Client,
    args: &args::Inspect,
    oref: Oref,
    layout: &Layout,
    body: &[u8],
) -> Result<(), Failure> {
    let keys = Keys::of(oref, layout, body)?;
    if let Some(key) = &args.key {
        return entry(client, oref, &keys, key, args);
    }
    let limit = args.limit.map_or(SHOWN, |limit| limit as usize);
    let page = match &keys {
        Keys::Others(_) => first_raw(client, oref, limit),
        Keys::Texts => first(client, Map::<Text, Any>::open(Ref::new(oref)), limit, |k| json!(k.0)),
        Keys::ByteStrings => {
            first(client, Map::<Bytes, Any>::open(Ref::new(oref)), limit, |k| json!(hex(&k.0)))
        }
        Keys::Numbers => first(client, Map::<u64, Any>::open(Ref::new(oref)), limit, |k| json!(k)),
    }?;
    if args.json { as_json(client, oref, &keys, page) } else { as_lines(client, oref, &keys, page) }
}

fn as_json(client: &Client, oref: Oref, keys: &Keys, page: Page) -> Result<(), Failure> {
    let mut entries = Vec::with_capacity(page.entries.len());
    for (key, value) in page.entries {
        entries.push(json!({ "key": key, "value": self::value(client, &value)? }));
    }
    let more = if page.is_more { "more_than" } else { "more" };
    let out = json!({
        "ref": oref.to_string(),
        "class": MapNode::NAME,
        "keys": keys.name(),
        "entries": entries,
        more: page.left_out,
    });
    say!("{}", serde_json::to_string_pretty(&out).unwrap_or_default());
    Ok(())
}

fn as_lines(client: &Client, oref: Oref, keys: &Keys, page: Page) -> Result<(), Failure> {
    let all = page.entries.len() + page.left_out;
    let more = if page.is_more { "more than " } else { "" };
    tell!(
        "map {oref} of {more}{all} {}, keys are {}",
        if all == 1 { "entry" } else { "entries" },
        keys.name()
    );
    for (key, value) in page.entries {
        let value = self::value(client, &value)?;
        let part = |name| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let key = match (keys, key.as_str()) {
            (Keys::Others(_), Some(shown)) => shown.to_owned(),
            _ => key.to_string(),
        };
        let rest = value.get("fields").map(Value::to_string).unwrap_or_else(|| part("error").to_owned());
        match value.is_null() {
            true => say!("{key}  null"),
            false if value.is_string() => say!("{key}  {}", cut(value.as_str().unwrap_or_default())),
            false if !value.is_object() => say!("{key}  {}", cut(&value.to_string())),
            false => say!("{key}  {} {} {}", part("ref"), part("class"), cut(&rest)),
        }
    }
    if page.left_out > 0 {
        eprintln!("{more}{} more: --limit N shows N entries, --key KEY shows one", page.left_out);
    }
    Ok(())
}

/// Prints the entry of one key.
fn entry(client: &Client, oref: Oref, keys: &Keys, key: &str, args: &args::Inspect) -> Result<(), Failure> {
    let bad = |wanted: &str| Failure::new(format!("the key `{key}` is not {wanted}")).code(2);
    let (key, found) = match keys {
        Keys::Texts => (json!(key), find::<Text>(client, oref, key)?),
        Keys::ByteStrings => {
            let bytes = unhex(key).ok_or_else(|| {
                bad("a byte string in hexadecimal").next("give two digits a byte, such as --key 00ff")
            })?;
            (json!(hex(&bytes)), find::<Bytes>(client, oref, &bytes)?)
        }
        Keys::Others(types) => {
            let failure = Failure::new(format!("keys of {types} cannot be given on a command line")).code(2);
            return Err(failure.next("leave --key out, and give --limit N for more entries"));
        }
        Keys::Numbers => {
            let number = key.parse().map_err(|_| {
                bad("a number of 64 bits without a sign").next("give a number, such as --key 17")
            })?;
            (json!(number), find::<u64>(client, oref, number)?)
        }
    };
    let Some(found) = found else {
        let failure = Failure::new(format!("the map {oref} has no key {key}"));
        let (what, space) = (args.what.as_deref().unwrap_or_default(), space::named(&args.space));
        return Err(failure
            .next(format!("`tercel inspect {what}{space}` shows its first keys; --limit N shows more")));
    };
    let out = json!({ "key": key, "value": value(client, &Named::Object(found))? });
    say!("{}", serde_json::to_string_pretty(&out).unwrap_or_default());
    Ok(())
}

fn find<K: Key>(client: &Client, top: Oref, key: K::Arg<'_>) -> Result<Option<Ref<Any>>, Error> {
    let map = Map::<K, Any>::open(Ref::new(top));
    client.transaction().isolation(Isolation::Snapshot).run(|tx| map.get_ref(tx, key))
}

fn first<K: Key>(
    client: &Client,
    map: Map<K, Any>,
    limit: usize,
    shown: impl Fn(&K) -> Value,
) -> Result<Page, Error> {
    client.transaction().isolation(Isolation::Snapshot).run(|tx| {
        let mut page = Page { entries: Vec::new(), left_out: 0, is_more: false };
        for entry in map.iter(tx) {
            let (key, value) = entry?;
            if page.entries.len() < limit {
                page.entries.push((shown(&key), Named::Object(value)));
            } else if page.left_out < COUNTED_MAX {
                page.left_out += 1;
            } else {
                page.is_more = true;
                break;
            }
        }
        Ok(page)
    })
}

/// The first entries of a map without its types.
fn first_raw(client: &Client, top: Oref, limit: usize) -> Result<Page, Error> {
    client.transaction().isolation(Isolation::Snapshot).run(|tx| {
        let mut page = Page { entries: Vec::new(), left_out: 0, is_more: false };
        let types = Entries::of_map(tx, Ref::new(top))?;
        for entry in RawEntries::new(tx, Ref::new(top))? {
            let (key, value) = entry?;
            if page.entries.len() < limit {
                let value = match value {
                    RawValue::Reference(r) => Named::Object(r),
                    RawValue::Value(bytes) => Named::Shown(to_json(types.value(&bytes))),
                    RawValue::Nothing => Named::Shown(Value::Null),
                };
                page.entries.push((json!(key), value));
            } else if page.left_out < COUNTED_MAX {
                page.left_out += 1;
            } else {
                page.is_more = true;
                break;
            }
        }
        Ok(page)
    })
}

/// The object that an entry names, through the catalogue. An object that cannot be read is shown as its
/// reference and the reason.
fn value(client: &Client, named: &Named) -> Result<Value, Error> {
    let value = match named {
        Named::Object(value) => value,
        Named::Shown(value) => return Ok(value.clone()),
    };
    if value.is_null() {
        return Ok(Value::Null);
    }
    match tercel::tools::stored_object(client, value.oref()) {
        // A map in a map: what its top node has is of no use without the others.
        Ok((_, layout, _)) if is_map(&layout) => {
            Ok(json!({ "ref": value.oref().to_string(), "class": layout.name() }))
        }
        Ok((_, layout, body)) => Ok(json!({
            "ref": value.oref().to_string(),
            "class": layout.name(),
            "fields": record(&layout, &body, 0),
        })),
        Err(e @ (Error::NotFound(_) | Error::Corrupt(_))) => {
            Ok(json!({ "ref": value.oref().to_string(), "error": e.to_string() }))
        }
        Err(e) => Err(e),
    }
}

/// The failure of a request for entries of an object that is no map. It names the fields that are.
pub fn is_none(oref: Oref, layout: &Layout, body: &[u8]) -> Failure {
    let failure = Failure::new(format!("{oref} is a {} and no map", layout.name())).code(2);
    let is_map = |shape: &Shape| matches!(shape, Shape::Ref(name) if name == MapNode::NAME);
    let maps = layout.fields().iter().filter(|field| is_map(&field.shape));
    let maps = maps.filter_map(|f| Some(format!("{} is {}", f.name, reference(body, f.at).as_str()?)));
    match maps.collect::<Vec<_>>() {
        maps if !maps.is_empty() => {
            failure.next(format!("name one of its maps in place of it: {}", maps.join(", ")))
        }
        _ => failure.next("leave --key and --limit out to see the object, and name a map that it refers to"),
    }
}

impl Keys {
    fn of(oref: Oref, layout: &Layout, body: &[u8]) -> Result<Keys, Failure> {
        let keys = match shape(layout, body) {
            Some([1]) => Some(Keys::Texts),
            Some([2]) => Some(Keys::ByteStrings),
            Some([3]) => Some(Keys::Numbers),
            other => other.and_then(shape_name).map(Keys::Others),
        };
        let unknown = || {
            Failure::new(format!("the map {oref} has keys of a type that this version does not know"))
                .next("inspect it with the version of the program that made it")
        };
        keys.ok_or_else(unknown)
    }

    fn name(&self) -> &str {
        match self {
            Keys::Others(types) => types,
            Keys::Texts => "texts",
            Keys::ByteStrings => "byte strings",
            Keys::Numbers => "numbers",
        }
    }
}

/// The description of its keys that a node carries.
fn shape<'a>(layout: &Layout, body: &'a [u8]) -> Option<&'a [u8]> {
    match tercel::tools::wire::layout::var(body, layout.field("shape")?.at) {
        Var::Here { at, len } => body.get(at..at + len),
        Var::None | Var::Spilled { .. } => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let byte = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).ok();
    is_hex.then(|| (0..text.len()).step_by(2).filter_map(byte).collect())
}

pub fn cut(text: &str) -> String {
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_key_is_read_as_it_is_shown() {
        assert_eq!(unhex(&hex(&[0, 255, 16])), Some(vec![0, 255, 16]));
        assert_eq!((unhex(""), unhex("0AfF")), (Some(vec![]), Some(vec![10, 255])));
        for bad in ["f", "0g", "+f", "0x00", "é"] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }

    #[test]
    fn long_value_is_cut_between_characters() {
        let long = "é".repeat(VALUE_CHARS_MAX + 1);
        assert_eq!(cut(&long), format!("{}...", "é".repeat(VALUE_CHARS_MAX)));
        assert_eq!(cut("short"), "short");
    }
}
