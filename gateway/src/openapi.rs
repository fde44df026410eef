//! `/openapi.json`: the gateway's routes, and each procedure and method with the classes and types that they
//! name, as the space and its servers have them at that moment.

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use tercel::tools::wire::interface::{Interface, Method};
use tercel::tools::wire::layout::{Layout, Shape};
use tercel::tools::wire::schema::Scalar;

use crate::answer::{self, Answer};
use crate::gate::Gate;
use crate::json::call::Wrong;
use crate::json::interfaces::{Named, line, types, types_in};
use crate::route::Route;

/// Classes below are the system's own.
const USER_CLASS_MIN: u16 = 16;

impl Gate {
    /// Describes what can be asked for.
    pub fn openapi(&self) -> Result<Answer, Wrong> {
        let interfaces = self.offered.get(&self.client, None)?;
        let (mut paths, mut schemas) = (fixed(), Map::new());
        schemas.insert("gateway.Error".into(), error());
        for (id, layout) in tercel::tools::classes(&self.client)? {
            // A class that was changed has several ids: the last is what programs write today.
            if id.0 >= USER_CLASS_MIN {
                schemas.insert(schema_name(layout.name()), record(&layout));
                schemas.extend(types_in(&layout).into_iter().map(schema));
            }
        }
        for i in &interfaces {
            schemas.extend(types(i).into_iter().map(schema));
            for m in i.methods.iter().filter(|m| !m.has_streams()) {
                let path = match i.is_service() {
                    true => format!("/v1/services/{}/{}", i.name, m.name),
                    false => format!("/v1/objects/{{object}}/{}.{}", i.name, m.name),
                };
                paths.insert(path, json!({ "post": operation(i, m) }));
            }
        }
        let about = "Objects by reference (PAGE.SLOT) or root, calls, and changes as server-sent events.";
        let body = json!({
            "openapi": "3.1.0",
            "info": { "title": "Tercel gateway", "version": env!("CARGO_PKG_VERSION"), "description": about },
            "paths": paths,
            "components": { "schemas": schemas },
        });
        Ok(answer::json(StatusCode::OK, &body))
    }
}

/// Routes that are always there.
fn fixed() -> Map<String, Value> {
    let get = |summary: &str, takes: &[Value]| {
        let responses = json!({ "200": { "description": "as the summary says" }, "default": refusal() });
        json!({ "get": { "summary": summary, "parameters": takes, "responses": responses } })
    };
    let object = parameter("object", "path", "PAGE.SLOT, or a root's name");
    let fresh = parameter("fresh", "query", "strict, stale or bounded:MS");
    let at_least = parameter("at_least", "query", "the Tercel-Token of an earlier answer");
    let last = parameter("Last-Event-ID", "header", "the id of the last event that was read");
    let status = "The servers' status; once a second as events, if text/event-stream is accepted.";
    let all = [
        (Route::Health, get("Says whether a server serves.", &[])),
        (Route::Status, get(status, &[])),
        (Route::Metrics, get("Counters for Prometheus.", &[])),
        (Route::Roots, get("The roots of the space.", &[fresh.clone(), at_least.clone()])),
        (Route::Services, get("The interfaces of objects and services.", &[])),
        (Route::Object, get("An object, with an ETag.", &[object.clone(), fresh, at_least])),
        (Route::Watch, get("Changes of an object or a root, as server-sent events.", &[object, last])),
    ];
    all.into_iter().map(|(route, item)| (route.name().to_string(), item)).collect()
}

fn operation(i: &Interface, m: &Method) -> Value {
    let about = "the call is executed at most once under it";
    let mut takes = vec![parameter("Idempotency-Key", "header", about)];
    if !i.is_service() {
        let about = format!("PAGE.SLOT, or a root's name, of an object of class {}", i.class);
        takes.push(parameter("object", "path", &about));
    }
    let gives = m.gives.fields().first().map_or(json!({ "type": "null" }), |f| shape(&f.shape));
    let gives = json!({ "type": "object", "properties": { "gives": gives } });
    let mut responses = json!({ "200": described("what it gives", gives), "default": refusal() });
    if let Some(fails) = m.fails.fields().first() {
        let properties = json!({ "error": { "type": "string" }, "fails": shape(&fails.shape) });
        let fails = json!({ "type": "object", "properties": properties });
        responses["422"] = described("its own error", fails);
    }
    json!({
        "summary": line(m),
        "tags": [if i.is_service() { &i.name } else { &i.class }],
        "operationId": format!("{}.{}", i.name, m.name),
        "parameters": takes,
        "requestBody": { "content": { "application/json": { "schema": record(&m.takes) } } },
        "responses": responses,
    })
}

fn parameter(name: &str, place: &str, about: &str) -> Value {
    let (is_needed, text) = (place == "path", json!({ "type": "string" }));
    json!({ "name": name, "in": place, "required": is_needed, "description": about, "schema": text })
}

fn described(about: &str, schema: Value) -> Value {
    json!({ "description": about, "content": { "application/json": { "schema": schema } } })
}

fn refusal() -> Value {
    described("why not, and the next step", json!({ "$ref": "#/components/schemas/gateway.Error" }))
}

fn error() -> Value {
    let text = || json!({ "type": "string" });
    let executed = json!({ "type": "string", "enum": ["unknown", "in part"] });
    let properties = json!({ "error": text(), "next": text(), "executed": executed, "operation": text() });
    json!({ "type": "object", "required": ["error", "next"], "properties": properties })
}

fn schema(of: Named<'_>) -> (String, Value) {
    let schema = if of.is_enum { variants(of.variants()) } else { record(of.layout) };
    (schema_name(of.layout.name()), schema)
}

fn record(layout: &Layout) -> Value {
    let properties: Map<String, Value> =
        layout.fields().iter().map(|f| (f.name.clone(), shape(&f.shape))).collect();
    json!({ "type": "object", "properties": properties })
}

/// An enum: a variant is its name, or an object of its name and its value.
fn variants<'a>(all: impl Iterator<Item = (&'a str, Option<&'a Layout>)>) -> Value {
    let all = all.map(|(name, of)| match of.filter(|of| !of.fields().is_empty()) {
        None => json!({ "const": name }),
        Some(of) => {
            let value = match of.fields() {
                [only] if only.name == "0" => shape(&only.shape),
                _ => record(of),
            };
            json!({ "type": "object", "required": [name], "properties": { name: value } })
        }
    });
    json!({ "oneOf": all.collect::<Vec<_>>() })
}

fn shape(of: &Shape) -> Value {
    match of {
        Shape::Scalar(s) => scalar(*s),
        Shape::Array(s, n) => json!({ "type": "array", "items": scalar(*s), "minItems": n, "maxItems": n }),
        Shape::Text => json!({ "type": "string" }),
        Shape::Bytes => json!({ "type": "string", "description": "two hexadecimal digits a byte" }),
        Shape::Ref(class) => {
            let of = if class.is_empty() { "any object" } else { class };
            json!({ "type": ["string", "null"], "description": format!("PAGE.SLOT of {of}") })
        }
        Shape::Far(_) => json!({ "type": ["string", "null"], "description": "a reference with its space" }),
        Shape::List(of) => json!({ "type": "array", "items": shape(of) }),
        Shape::Option(of) => json!({ "oneOf": [{ "type": "null" }, shape(of)] }),
        Shape::Record(of) | Shape::Enum(of) => {
            json!({ "$ref": format!("#/components/schemas/{}", schema_name(of.name())) })
        }
    }
}

fn scalar(of: Scalar) -> Value {
    match of {
        Scalar::Bool => json!({ "type": "boolean" }),
        Scalar::F32 | Scalar::F64 => json!({ "type": "number" }),
        Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => json!({ "type": "integer", "minimum": 0 }),
        _ => json!({ "type": "integer" }),
    }
}

/// A name as components have it: letters, digits, dots, dashes and underscores.
fn schema_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}
