//! `tercel query`: closures and paths over the package graph. Of models see `step`.

use std::process::ExitCode;

use serde::Serialize;
use tercel::Client;
use tercel_packages::query::{Way, find, neighbours, path, visit};
use tercel_term::fail::Outcome;
use tercel_term::say;

use crate::args::{self, QueryWhat};
use crate::{space, step};

/// The form of `--json`, fields in this order.
#[derive(Serialize)]
struct ClosureAnswer<'a> {
    root: &'a str,
    count: usize,
    names: &'a [String],
}

/// The form of `--json` of `why`.
#[derive(Serialize)]
struct WhyAnswer<'a> {
    from: &'a str,
    to: &'a str,
    path: Option<&'a [String]>,
}

pub fn run(args: &args::Query) -> Outcome {
    let (space_args, json) = match &args.what {
        QueryWhat::Step(query) => return step::query(&query.what),
        QueryWhat::Depends(c) | QueryWhat::Rdepends(c) => (&c.space, c.json),
        QueryWhat::Why(w) => (&w.space, w.json),
    };
    let client = space::open(space_args)?;
    let code = match &args.what {
        QueryWhat::Depends(c) => closure(&client, c, Way::Depends, json),
        QueryWhat::Rdepends(c) => closure(&client, c, Way::Rdepends, json),
        QueryWhat::Why(w) => why(&client, w, json),
        QueryWhat::Step(query) => step::query(&query.what),
    }?;
    space::close(client)?;
    Ok(code)
}

fn closure(client: &Client, args: &args::Closure, way: Way, json: bool) -> Outcome {
    let root = find(client, &args.name)?;
    let (mut names, is_defined) = client.run(|tx| {
        let mut names = Vec::new();
        if args.recursive {
            visit(tx, root, way, |p| {
                names.push(p.name()?.into_owned());
                Ok(())
            })?;
        } else {
            let root = tx.get(root)?;
            for p in neighbours(&root, way) {
                let p = p?;
                if p.number() != root.number() {
                    names.push(p.name()?.into_owned());
                }
            }
        }
        Ok((names, tx.get(root)?.version().is_some()))
    })?;
    names.sort_unstable();
    if json {
        let answer = ClosureAnswer { root: &args.name, count: names.len(), names: &names };
        say!("{}", serde_json::to_string(&answer).unwrap_or_default());
    } else {
        names.iter().for_each(|n| say!("{n}"));
    }
    if names.is_empty() && !json {
        let name = &args.name;
        match (way, is_defined) {
            (Way::Depends, true) => eprintln!("{name} needs nothing"),
            (Way::Depends, false) => {
                eprintln!("{name} is mentioned by others and defined by none, so what it needs is not known")
            }
            (Way::Rdepends, _) => eprintln!("nothing needs {name}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn why(client: &Client, args: &args::Why, json: bool) -> Outcome {
    let (from, to) = (find(client, &args.from)?, find(client, &args.to)?);
    let path = client.run(|tx| path(tx, from, to))?;
    match (&path, json) {
        (path, true) => {
            let answer = WhyAnswer { from: &args.from, to: &args.to, path: path.as_deref() };
            say!("{}", serde_json::to_string(&answer).unwrap_or_default());
        }
        (Some(path), false) => say!("{}", path.join(" -> ")),
        (None, false) => say!("{} does not depend on {}", args.from, args.to),
    }
    Ok(if path.is_some() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
