//! `tercel import`: real data becomes objects of a space. Here a Packages file; `step` has models.

use std::process::ExitCode;
use std::time::Instant;

use tercel_packages::import::{interrupted, summary, write};
use tercel_packages::list::{Choice, Source, read};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{Term, say, tell, tidy};

use crate::args::{self, ImportWhat};
use crate::{space, step};

pub fn run(args: &args::Import, term: &Term) -> Outcome {
    match &args.what {
        ImportWhat::Debian(args) => import_debian(args, term),
        ImportWhat::Step(args) => step::import_step(args, term),
    }
}

fn import_debian(args: &args::ImportDebian, term: &Term) -> Outcome {
    let begun = Instant::now();
    let source = Source::choose(args.input.as_deref(), args.sample);
    if source == Source::Sample && !args.sample {
        return Err(Failure::new("this machine has no apt lists")
            .next("name a Packages file with --input FILE, or take the bundled list with --sample"));
    }
    tidy::on_signals(interrupted)?;
    // Read before anything is opened: a list that cannot be read leaves no directory behind.
    let choice = Choice { architecture: args.architecture.clone(), strict: args.strict };
    let graph = read(&source, &choice, term)?;
    let imported = space::create(&args.space, |client| write(client, &graph, &source, begun, term))?;
    if args.json {
        say!("{}", serde_json::to_string(&imported).unwrap_or_default());
    } else {
        tell!("imported {}", summary(&imported));
    }
    Ok(ExitCode::SUCCESS)
}
