//! `/openapi.json`: the gateway's routes, and each procedure and method with the classes and types that they
//! name, as the space and its servers have them at that moment.

mod schema;

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use tercel::HealthState;
use tercel::tools::wire::interface::{Interface, Method, Mode};

use crate::answer::{self, Answer};
use crate::asked::KEY_BYTES_MAX;
use crate::exposition::Exposition;
use crate::gate::Gate;
use crate::json::call::Wrong;
use crate::json::interfaces::{line, types, types_in};
use crate::keys::is_kept;
use crate::route::Route;
use crate::status;
use schema::{record, required, schema, schema_name, shape};

/// Classes below are the system's own.
const USER_CLASS_MIN: u16 = 16;

impl Gate {
    /// Describes what can be asked for.
    pub fn openapi(&self) -> Result<Answer, Wrong> {
        let interfaces = self.offered.get(&self.client, None)?;
        let (mut paths, mut schemas) = (fixed(), Map::new());
        schemas.insert("gateway.Error".into(), error());
        schemas.insert("gateway.Object".into(), object());
        for (id, layout) in tercel::tools::classes(&self.client)? {
            // A class that was changed has several ids: the last is what programs write today.
            if id.0 >= USER_CLASS_MIN && !is_kept(layout.name()) {
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
    let object = parameter("object", "path", "PAGE.SLOT, or a root's name", text());
    let bounds = json!({ "type": "string", "pattern": "^(strict|stale|bounded:[0-9]+)$" });
    let fresh = parameter("fresh", "query", "strict, stale or bounded:MS", bounds);
    let at_least = parameter("at_least", "query", "the Tercel-Token of an earlier answer", text());
    let last = parameter("Last-Event-ID", "header", "the id of the last event that was read", text());
    let any = || json!({ "type": "object" });
    let list = |name: &str, of: Value| {
        let all = json!({ "type": "array", "items": of });
        in_json(json!({ "type": "object", "required": [name], "properties": { name: all } }))
    };
    let root = json!({ "type": "object", "required": ["name", "ref"], "properties": { "name": text(), "ref": text() } });
    let events = || json!({ "text/event-stream": { "schema": text() } });
    let mut status = in_json(any());
    status["text/event-stream"] = events()["text/event-stream"].take();
    let mut metrics = Map::new();
    for form in [Exposition::OpenMetrics, Exposition::Text] {
        let kind = form.content_type().split_once(';').map_or("", |(kind, _)| kind);
        metrics.insert(kind.into(), json!({ "schema": text() }));
    }
    let about_status = "The servers' status; once a second as events, if text/event-stream is accepted.";
    let about_watch = "Changes of an object or a root, as server-sent events.";
    let reading = [fresh.clone(), at_least.clone()];
    let of_page = |more: &[Value]| {
        let limit = json!({ "type": "integer", "format": "int32", "minimum": 1, "maximum": 1_000 });
        let limit = parameter("limit", "query", "rows or entries of the page, else 100", limit);
        let after = parameter("after", "query", "the `next` of the page before", text());
        [more, &[limit, after, last.clone()], &reading].concat()
    };
    let range = |of: &str| {
        let from = parameter("from", "query", &format!("the least {of}"), text());
        [from, parameter("to", "query", &format!("the {of} before which it ends"), text())]
    };
    let by = parameter("by", "query", "the fields of an index with commas between: its order", text());
    let mut fields =
        parameter("fields", "query", "values of the first fields of an index, each by name", any());
    fields["style"] = "form".into();
    fields["explode"] = true.into();
    let table = parameter("table", "path", "PAGE.SLOT, or a root's name, of a table", text());
    let of_table = [&[table, by, fields], &range("value of the next field of the index")[..]].concat();
    let map = parameter("map", "path", "PAGE.SLOT, or a root's name, of a map or a set", text());
    let of_map = [&[map], &range("key, a list of JSON if it has parts")[..]].concat();
    let page = |name: &str, of: Value, about: &str| {
        let next = json!({ "type": ["string", "null"] });
        let all = json!({ "type": "array", "items": of });
        let properties = json!({ name: all, about: text(), "next": next });
        in_json(json!({ "type": "object", "required": [name, about, "next"], "properties": properties }))
    };
    let evented = |mut content: Value| {
        content["text/event-stream"] = events()["text/event-stream"].take();
        content
    };
    let entry = json!({ "type": "object", "required": ["key"] });
    let all = [
        get(Route::Health, "health", "Says whether a server serves.", &[], in_json(health())),
        get(Route::Status, "status", about_status, &[], status),
        get(Route::Metrics, "metrics", "Counters for Prometheus.", &[], metrics.into()),
        get(Route::Roots, "roots", "The roots of the space.", &reading, list("roots", root)),
        get(
            Route::Services,
            "services",
            "The interfaces of objects and services.",
            &[],
            list("interfaces", any()),
        ),
        get(
            Route::Object,
            "object",
            "An object, with an ETag.",
            &[object.clone(), fresh, at_least],
            in_json(reference("gateway.Object")),
        ),
        get(
            Route::Table,
            "table",
            "The rows of a table in the order of their keys or of an index, a page at a time; their changes as events, if text/event-stream is accepted.",
            &of_page(&of_table),
            evented(page("rows", reference("gateway.Object"), "class")),
        ),
        get(
            Route::Map,
            "map",
            "The entries of a map or a set in the order of their keys, a page at a time; their changes as events, if text/event-stream is accepted.",
            &of_page(&of_map),
            evented(page("entries", entry, "keys")),
        ),
        get(Route::Watch, "watch", about_watch, &[object, last], events()),
    ];
    all.into_iter().collect()
}

/// A route that is read, with the content of its answer.
fn get(route: Route, id: &str, summary: &str, takes: &[Value], content: Value) -> (String, Value) {
    let responses =
        json!({ "200": { "description": "as the summary says", "content": content }, "default": refusal() });
    let of = json!({ "operationId": id, "summary": summary, "parameters": takes, "responses": responses });
    (route.name().into(), json!({ "get": of }))
}

fn operation(i: &Interface, m: &Method) -> Value {
    let is_once = m.mode == Mode::Once;
    let about = match is_once || !i.is_service() && !m.reads {
        true => "the call has one effect and one answer under it, however often it is sent",
        false => "the call is executed at most once under it",
    };
    let key = json!({ "type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "pattern": "^[!-~]+$" });
    let mut takes = vec![parameter("Idempotency-Key", "header", about, key)];
    takes[0]["required"] = is_once.into();
    if !i.is_service() {
        let about = format!("PAGE.SLOT, or a root's name, of an object of class {}", i.class);
        takes.push(parameter("object", "path", &about, text()));
    }
    let gives = m.gives.fields().first().map_or(json!({ "type": "null" }), |f| shape(&f.shape));
    let gives = json!({ "type": "object", "required": ["gives"], "properties": { "gives": gives } });
    let (status, about) = match m.mode.is_one_way() {
        true => ("202", "it was sent, and gives no answer"),
        false => ("200", "what it gives"),
    };
    let mut responses = json!({ status: described(about, gives), "default": refusal() });
    if let Some(fails) = m.fails.fields().first() {
        let properties = json!({ "error": text(), "next": text(), "fails": shape(&fails.shape) });
        let fails =
            json!({ "type": "object", "required": ["error", "next", "fails"], "properties": properties });
        responses["422"] = described("its own error", fails);
    }
    json!({
        "summary": line(m),
        "tags": [if i.is_service() { &i.name } else { &i.class }],
        "operationId": format!("{}.{}", i.name, m.name),
        "parameters": takes,
        "requestBody": { "required": !required(&m.takes).is_empty(), "content": in_json(record(&m.takes)) },
        "responses": responses,
    })
}

fn parameter(name: &str, place: &str, about: &str, schema: Value) -> Value {
    let is_needed = place == "path";
    json!({ "name": name, "in": place, "required": is_needed, "description": about, "schema": schema })
}

fn described(about: &str, schema: Value) -> Value {
    json!({ "description": about, "content": in_json(schema) })
}

fn in_json(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn refusal() -> Value {
    described("why not, and the next step", reference("gateway.Error"))
}

fn error() -> Value {
    let executed = json!({ "type": "string", "enum": ["unknown", "in part", "yes"] });
    let properties = json!({ "error": text(), "next": text(), "executed": executed, "operation": text() });
    json!({ "type": "object", "required": ["error", "next"], "properties": properties })
}

fn object() -> Value {
    let fields = "by their names, as the schema of the class says; of what is large, its length and the reference of its tree";
    let properties = json!({
        "ref": text(),
        "class": text(),
        "class_id": { "type": "integer", "format": "int32", "minimum": 0, "maximum": u16::MAX },
        "fields": { "type": "object", "description": fields },
    });
    json!({ "type": "object", "required": ["ref", "class", "class_id", "fields"], "properties": properties })
}

fn health() -> Value {
    let states = [
        HealthState::Serving,
        HealthState::ReadOnly,
        HealthState::Draining,
        HealthState::NotLeading,
        HealthState::Following,
    ];
    let number = json!({ "type": "integer", "format": "int64", "minimum": 0 });
    let properties = json!({
        "state": { "type": "string", "enum": states.map(status::state) },
        "reason": text(),
        "uptime_seconds": number,
        "calls": number,
    });
    let required = ["state", "reason", "uptime_seconds", "calls"];
    json!({ "type": "object", "required": required, "properties": properties })
}
