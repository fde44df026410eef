//! `tercel inspect --interfaces`: the methods that a server runs, and the services that it offers.

use serde_json::{Value, json};
use tercel::Client;
use tercel::tools::wire::interface::{Interface, Method};
use tercel::tools::wire::layout::Layout;
use tercel_term::fail::Failure;
use tercel_term::say;

pub fn show(client: &Client, as_json: bool) -> Result<(), Failure> {
    let all = tercel::tools::interfaces(client)?;
    if as_json {
        let all: Vec<Value> = all.iter().map(interface).collect();
        say!("{}", json!({ "interfaces": all }));
        return Ok(());
    }
    if all.is_empty() {
        say!("this server runs no methods, which run at clients that have them, and offers no services");
    }
    for i in &all {
        match i.is_service() {
            true => say!("service {}", i.name),
            false => say!("{} for {}", i.name, i.class),
        }
        i.methods.iter().for_each(|m| say!("  {}", line(m)));
    }
    Ok(())
}

fn interface(i: &Interface) -> Value {
    let methods: Vec<Value> = i.methods.iter().map(method).collect();
    let class = Some(&i.class).filter(|_| !i.is_service());
    json!({ "name": i.name, "service": i.is_service(), "class": class, "methods": methods })
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

/// The type of the items of a stream, if there is one; of a callback that of the questions, or answers, behind their numbers.
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
