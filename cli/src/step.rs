//! `tercel import step` and `tercel query step`: files of ISO 10303-21 become objects, and are asked.

use std::process::ExitCode;

use serde::Serialize;
use tercel::{Client, Ref};
use tercel_cad::import::{Choice, EntityCount, import, interrupted, summary};
use tercel_cad::model::Model;
use tercel_cad::product::{Links, Part, bill, find, parts};
use tercel_cad::query::{
    Bounds, Tally, Visited, Walk, entity_names, model, models, placements_of, points_of, text, unused,
};
use tercel_cad::source::{Source, printable};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{Term, count, say, tell, thousands, tidy};

use crate::args::{self, OfInstance, OfModel, StepWhat};
use crate::space;

/// Imports.
pub fn import_step(args: &args::ImportStep, term: &Term) -> Outcome {
    let source = match &args.path {
        Some(path) => Source::at(path)?,
        None => Source::sample(),
    };
    tidy::on_signals(interrupted)?;
    let choice = Choice { strict: args.strict, ..Choice::default() };
    let imported = space::create(&args.space, |client| import(client, &source, &choice, term))?;
    if args.json {
        say!("{}", json(&imported));
    } else {
        tell!("imported {}", summary(&imported));
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers a query.
pub fn query(what: &StepWhat) -> Outcome {
    let of = what.of_space();
    let client = space::open(&of.space)?;
    match what {
        StepWhat::Models(_) => all_models(&client, of.json),
        StepWhat::Parts(of) => bill_of(&client, of),
        StepWhat::Closure(of) => closure(&client, of),
        StepWhat::Box(of) => bounds(&client, of),
        StepWhat::Unused(of) => unused_of(&client, of),
        StepWhat::Show(of) => show(&client, of),
    }?;
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

/// A model, as `models --json` has it.
#[derive(Serialize)]
struct ModelAnswer {
    model: String,
    schemas: Vec<String>,
    instances: usize,
    references: u64,
}

/// A line of a bill, as `parts --json` has it.
#[derive(Serialize)]
struct LineAnswer<'a> {
    depth: usize,
    product: &'a str,
    id: u64,
    times: u64,
    total: u64,
}

/// Counts by entity, as `closure --json` and `unused --json` have them.
#[derive(Serialize)]
struct CountsAnswer {
    instances: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    references: Option<u64>,
    entities: Vec<EntityCount>,
}

/// A box, as `box --json` has it; null without points.
#[derive(Serialize)]
struct BoxAnswer {
    points: u64,
    min: Option<[f64; 3]>,
    max: Option<[f64; 3]>,
    /// Unset if parts are placed in it: they are counted where their own coordinates have them.
    as_placed: bool,
}

/// The entities by which a part is put into an assembly.
const USES: [&str; 2] = ["NEXT_ASSEMBLY_USAGE_OCCURRENCE", "MAPPED_ITEM"];

fn json(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).unwrap_or_default()
}

fn all_models(client: &Client, is_json: bool) -> Result<(), Failure> {
    let all = models(client)?;
    let answers = client.run(|tx| {
        let mut answers = Vec::new();
        for (name, model) in &all {
            let model = tx.get(*model)?;
            answers.push(ModelAnswer {
                model: name.clone(),
                schemas: model.schemas().to_vec()?.into_iter().map(|schema| schema.0).collect(),
                instances: model.instances().len(),
                references: model.references(),
            });
        }
        Ok(answers)
    })?;
    if is_json {
        say!("{}", json(&answers));
        return Ok(());
    }
    for of in &answers {
        say!(
            "{}  {}, {}",
            printable(&of.model),
            count(of.instances as u64, "instance", "instances"),
            count(of.references, "reference", "references")
        );
    }
    Ok(())
}

fn bill_of(client: &Client, args: &OfModel) -> Result<(), Failure> {
    let of = model(client, args.model.as_deref())?;
    let parts = client.run(|tx| parts(tx, of))?;
    let mut lines = Vec::new();
    for top in tops(&parts)? {
        lines.extend(bill(&parts, top)?);
    }
    let part = |place: usize| &parts[place];
    if args.of.json {
        let answers = lines.iter().map(|line| LineAnswer {
            depth: line.depth,
            product: &part(line.part).product,
            id: part(line.part).id,
            times: line.times,
            total: line.total,
        });
        say!("{}", json(&answers.collect::<Vec<_>>()));
        return Ok(());
    }
    for line in &lines {
        let (indent, Part { product, id, .. }) = ("  ".repeat(line.depth), part(line.part));
        match line.depth {
            0 => say!("{product}  #{id}"),
            _ => say!("{indent}{} x {product}  #{id}", line.times),
        }
    }
    if lines.is_empty() {
        eprintln!("the model has no products");
    }
    Ok(())
}

/// The products that no other one uses.
fn tops(parts: &[Part]) -> Result<Vec<usize>, Failure> {
    let tops: Vec<usize> = (0..parts.len()).filter(|place| !parts[*place].is_used).collect();
    match tops.is_empty() && !parts.is_empty() {
        true => Err(Failure::new(
            "every product of the model is a part of another one, so some are parts of themselves",
        )
        .code(3)),
        false => Ok(tops),
    }
}

fn closure(client: &Client, args: &OfInstance) -> Result<(), Failure> {
    let (of, is_json) = (model(client, args.of.model.as_deref())?, args.of.of.json);
    let start = find(client, of, &args.what)?;
    let (visited, entities) = client.run(|tx| {
        let mut tally = Tally::default();
        let walk = Links::of(tx, of)?.walk(tx, start, |instance| {
            tally.add(instance);
            Ok(())
        })?;
        Ok((walk.visited, tally.named(&entity_names(tx, of)?)))
    })?;
    let Visited { instances, references } = visited;
    counts(&CountsAnswer { instances, references: Some(references), entities }, is_json);
    Ok(())
}

fn unused_of(client: &Client, args: &OfModel) -> Result<(), Failure> {
    let of = model(client, args.model.as_deref())?;
    let entities = client.run(|tx| {
        let mut tally = Tally::default();
        for instance in unused(tx, of)? {
            tally.add(&tx.get(instance)?);
        }
        Ok(tally.named(&entity_names(tx, of)?))
    })?;
    let instances = entities.iter().map(|of| of.instances).sum();
    counts(&CountsAnswer { instances, references: None, entities }, args.of.json);
    Ok(())
}

fn counts(answer: &CountsAnswer, is_json: bool) {
    if is_json {
        say!("{}", json(answer));
        return;
    }
    for of in &answer.entities {
        say!("{:>10} {}", thousands(of.instances), of.entity);
    }
    say!("{:>10} in all", thousands(answer.instances));
}

fn bounds(client: &Client, args: &OfInstance) -> Result<(), Failure> {
    let (of, is_json) = (model(client, args.of.model.as_deref())?, args.of.of.json);
    let start = find(client, of, &args.what)?;
    let found = client.run(|tx| {
        let (points, mut bounds) = (points_of(tx, of)?, Bounds::default());
        let walk = Walk::around(placements_of(tx, of)?);
        let (names, mut has_uses) = (entity_names(tx, of)?, false);
        Links::of(tx, of)?.walk_by(walk, tx, start, |instance| {
            has_uses |=
                names.get(instance.entity() as usize).is_some_and(|name| USES.contains(&name.as_str()));
            bounds.take(instance, points)
        })?;
        Ok((bounds, has_uses))
    })?;
    let (Bounds { points, min, max }, has_uses) = found;
    let with = |corner: [f64; 3]| Some(corner).filter(|_| points > 0);
    if is_json {
        say!("{}", json(&BoxAnswer { points, min: with(min), max: with(max), as_placed: !has_uses }));
        return Ok(());
    }
    match points {
        0 => say!("{} reaches no points", args.what),
        _ => say!("from {} to {}, {} points", corner(min), corner(max), thousands(points)),
    }
    if has_uses && points > 0 {
        tell!("its parts are counted where their own coordinates have them: placements are not applied");
    }
    Ok(())
}

fn corner([x, y, z]: [f64; 3]) -> String {
    format!("({x}, {y}, {z})")
}

fn show(client: &Client, args: &OfInstance) -> Result<(), Failure> {
    let of: Ref<Model> = model(client, args.of.model.as_deref())?;
    let instance = find(client, of, &args.what)?;
    let text = client.run(|tx| text(tx, &entity_names(tx, of)?, instance))?;
    match args.of.of.json {
        true => say!("{}", json(&text)),
        false => say!("{text}"),
    }
    Ok(())
}
