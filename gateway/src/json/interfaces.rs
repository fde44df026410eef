//! The methods that a server runs, and the services that it offers, as JSON and as a trait declares them.

use serde_json::{Value, json};
use tercel::tools::wire::interface::{Interface, Method};
use tercel::tools::wire::layout::{FieldLayout, Layout, Shape};

/// A record or an enum that has a name.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The layout of the type.
    pub layout: &'a Layout,
    /// Set if it is an enum.
    pub is_enum: bool,
}

impl Named<'_> {
    /// The type as a program declares it.
    pub fn line(self) -> String {
        let name = self.layout.name();
        if !self.is_enum {
            return format!("struct {name} {{ {} }}", fields(self.layout).join(", "));
        }
        let variants = self.variants().map(|(name, of)| match of.map(fields) {
            None => name.to_string(),
            Some(fields) if fields.is_empty() => name.to_string(),
            Some(fields) => match fields.iter().any(|field| field.contains(": ")) {
                true => format!("{name} {{ {} }}", fields.join(", ")),
                false => format!("{name}({})", fields.join(", ")),
            },
        });
        format!("enum {name} {{ {} }}", variants.collect::<Vec<_>>().join(", "))
    }

    /// The variants of an enum, each with its fields.
    pub fn variants(&self) -> impl Iterator<Item = (&str, Option<&Layout>)> {
        // Before them stands the tag.
        self.layout.fields().iter().skip(1).map(|variant| match &variant.shape {
            Shape::Record(of) => (variant.name.as_str(), Some(&**of)),
            _ => (variant.name.as_str(), None),
        })
    }

    fn json(self) -> Value {
        let of = |layout: &Layout| {
            let all = layout.fields().iter();
            all.map(|f| json!({ "name": f.name, "type": f.shape.to_string() })).collect::<Vec<_>>()
        };
        if !self.is_enum {
            return json!({ "name": self.layout.name(), "fields": of(self.layout) });
        }
        let variants = self
            .variants()
            .map(|(name, fields)| json!({ "name": name, "fields": fields.map_or(vec![], of) }));
        json!({ "name": self.layout.name(), "variants": variants.collect::<Vec<_>>() })
    }
}

/// The fields of a record; without names if they have none.
fn fields(of: &Layout) -> Vec<String> {
    let has_names = of.fields().iter().any(|f| f.name.parse::<usize>().is_err());
    let field = |f: &FieldLayout| match has_names {
        true => format!("{}: {}", f.name, f.shape),
        false => f.shape.to_string(),
    };
    of.fields().iter().map(field).collect()
}

/// The named types in the arguments and results of an interface's methods.
pub fn types(i: &Interface) -> Vec<Named<'_>> {
    let mut all = Vec::new();
    for m in &i.methods {
        for layout in [&m.takes, &m.gives, &m.fails, &m.input, &m.output] {
            layout.fields().iter().for_each(|f| gather(&f.shape, &mut all));
        }
    }
    all
}

/// The named types in the fields of a class.
pub fn types_in(class: &Layout) -> Vec<Named<'_>> {
    let mut all = Vec::new();
    class.fields().iter().for_each(|f| gather(&f.shape, &mut all));
    all
}

fn gather<'a>(shape: &'a Shape, all: &mut Vec<Named<'a>>) {
    let (layout, is_enum) = match shape {
        Shape::List(of) | Shape::Option(of) => return gather(of, all),
        Shape::Record(layout) => (&**layout, false),
        Shape::Enum(layout) => (&**layout, true),
        _ => return,
    };
    if all.iter().any(|named| named.layout.name() == layout.name()) {
        return;
    }
    all.push(Named { layout, is_enum });
    for field in layout.fields() {
        match &field.shape {
            // A variant has no name of its own.
            Shape::Record(variant) if is_enum => variant.fields().iter().for_each(|f| gather(&f.shape, all)),
            shape => gather(shape, all),
        }
    }
}

/// An interface, with its methods and the named types in them.
pub fn interface(i: &Interface) -> Value {
    let methods: Vec<Value> = i.methods.iter().map(method).collect();
    let class = Some(&i.class).filter(|_| !i.is_service());
    let types: Vec<Value> = types(i).into_iter().map(Named::json).collect();
    json!({ "name": i.name, "service": i.is_service(), "class": class, "methods": methods, "types": types })
}

fn method(m: &Method) -> Value {
    let takes = m.takes.fields().iter().map(|f| json!({ "name": f.name, "type": f.shape.to_string() }));
    json!({
        "name": m.name,
        "reads": m.reads,
        "slow": m.mode.is_slow(),
        "one_way": m.mode.is_one_way(),
        "takes": takes.collect::<Vec<Value>>(),
        "gives": only(&m.gives),
        "fails": only(&m.fails),
        "input": item(&m.input),
        "output": item(&m.output),
    })
}

/// A method as a trait declares it.
pub fn line(m: &Method) -> String {
    let takes = m.takes.fields().iter().map(|f| format!("{}: {}", f.name, f.shape));
    let takes: Vec<String> = takes.chain(streams(m)).collect();
    let said = [(m.reads, "#[read] "), (m.mode.is_slow(), "#[slow] "), (m.mode.is_one_way(), "#[one_way] ")];
    let attributes: String = said.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    let gives = only(&m.gives).unwrap_or_else(|| "()".into());
    let gives = match only(&m.fails) {
        Some(fails) => format!(" -> Result<{gives}, {fails}>"),
        None if gives == "()" => String::new(),
        None => format!(" -> {gives}"),
    };
    format!("{attributes}{}({}){gives}", m.name, takes.join(", "))
}

/// The type of the one field that there is, if there is one.
fn only(layout: &Layout) -> Option<String> {
    layout.fields().first().map(|f| f.shape.to_string())
}

/// The type of the items of a stream, if there is one; of a callback that of the questions, or answers,
/// behind their numbers.
fn item(layout: &Layout) -> Option<String> {
    layout.fields().last().map(|f| f.shape.to_string())
}

/// The streams of a procedure, as it has them.
fn streams(m: &Method) -> Vec<String> {
    let is_callback = m.input.fields().len() > 1;
    match (item(&m.output), item(&m.input)) {
        (Some(question), Some(answer)) if is_callback => vec![format!("&Callback<{question}, {answer}>")],
        (output, input) => {
            let output = output.map(|item| format!("&Output<{item}>"));
            output.into_iter().chain(input.map(|item| format!("&Input<{item}>"))).collect()
        }
    }
}
