//! `tercel demo`: the main job, on real data, in a minute.

mod child;
mod scenes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use crate::args;
use crate::fail::{Failure, Outcome};
use crate::import::Source;
use crate::term::Term;

pub use child::ServerProcess;

pub fn run(args: &args::Demo, term: &Term) -> Outcome {
    let begun = Instant::now();
    let place = Place::new(args.dir.as_deref())?;
    let source = Source::choose(args.input.as_deref(), args.sample);
    say!("{} package index: {}", term.bold("data"), source.describe());
    let mut server = ServerProcess::start(&place.path, None)?;
    say!("{} process {} at {} ({})", term.bold("server"), server.id(), server.address(), server.backend());
    let imported = scenes::import(&server, &source, term)?;
    scenes::closure(&server, imported.edges, term)?;
    scenes::advisory(&server, term)?;
    scenes::crash(&mut server, &place.path, term)?;
    server.stop()?;
    say!();
    say!("{} in {:.1} s. Try next:", term.green("done"), begun.elapsed().as_secs_f64());
    say!("  tercel import debian --data ./packages");
    say!("  tercel query why firefox-esr libc6 --data ./packages");
    say!("  tercel inspect libssl3 --data ./packages");
    say!("  tercel serve --data ./packages        and the same commands without --data");
    Ok(ExitCode::SUCCESS)
}

/// Where the demonstration's data is; removed at the end if it was made for it.
struct Place {
    path: PathBuf,
    ours: bool,
}

impl Place {
    fn new(dir: Option<&Path>) -> Result<Place, Failure> {
        let path = match dir {
            Some(dir) => dir.to_path_buf(),
            None => std::env::temp_dir().join(format!("tercel-demo-{}", std::process::id())),
        };
        let used = std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
        if used {
            return Err(Failure::new(format!("{} is not empty", path.display()))
                .next("the demonstration wants a fresh directory: name another with --dir"));
        }
        std::fs::create_dir_all(&path)?;
        Ok(Place { path, ours: dir.is_none() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.ours {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
