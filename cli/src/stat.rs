//! `tercel stat`.

use std::process::ExitCode;

use serde_json::Value;

use crate::args;
use crate::fail::{Failure, Outcome};
use crate::space;
use crate::term::thousands;

pub fn run(args: &args::Stat) -> Outcome {
    let client = space::open(&args.space)?;
    let status = client.server_status()?;
    let roots = client.run(|tx| tx.roots())?;
    let classes = client.classes()?;
    let mut status: Value =
        serde_json::from_str(&status).map_err(|e| Failure::new(format!("the server's status: {e}")))?;
    status["roots"] = roots.iter().map(|(name, _)| name.clone()).collect();
    status["classes"] = classes
        .iter()
        .filter(|(id, _)| id.0 >= 16)
        .map(|(id, l)| format!("{} ({})", l.name(), id.0))
        .collect();
    if args.json {
        say!("{status}");
    } else if let Value::Object(fields) = &status {
        for (name, value) in fields {
            let shown = match value {
                Value::Number(n) => n.as_u64().map_or(n.to_string(), thousands),
                Value::String(s) => s.clone(),
                Value::Array(a) => a.iter().filter_map(|v| v.as_str()).collect::<Vec<_>>().join(", "),
                other => other.to_string(),
            };
            say!("{:<18} {shown}", name.replace('_', " "));
        }
    }
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}
