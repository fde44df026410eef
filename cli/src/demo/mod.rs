//! `tercel demo`: the main job, on real data, in a minute.

mod calls;
mod group;
mod scenes;
mod tiers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use tercel::Addresses;
use tercel_packages::list::{self, Choice, Source};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::process::OwnProcess;
use tercel_term::tidy::OwnDir;
use tercel_term::{Term, program, say, tell};

use crate::args;

pub fn run(args: &args::Demo, tls: Option<&Path>, term: &Term) -> Outcome {
    if let Some(role) = std::env::var_os(tercel_term::tiers::ROLE) {
        tercel_term::tiers::application(&role)?;
        return Ok(ExitCode::SUCCESS);
    }
    let begun = Instant::now();
    tercel_term::tidy::on_signals(|| "interrupted".into())?;
    if let Some(address) = &args.addr {
        let at = Addresses::from(address);
        let at = match tls {
            Some(dir) => at.with_tls(args::open_tls(dir)?),
            None => at,
        };
        calls::at(&at, term)?;
        return Ok(ExitCode::SUCCESS);
    }
    let dir = DemoDir::new(args.dir.as_deref())?;
    if args.tiers {
        tiers::run(dir.path(), term)?;
        say!();
        tell!("{} in {:.1} s. Try next:", term.green("done"), begun.elapsed().as_secs_f64());
        say!("  cargo run -p tercel --example tiers");
        return Ok(ExitCode::SUCCESS);
    }
    if args.replicas > 1 {
        group::run(dir.path(), args.replicas, term)?;
        say!();
        tell!("{} in {:.1} s. Try next:", term.green("done"), begun.elapsed().as_secs_f64());
        say!("  {} group form ./a=127.0.0.1:7117 ./b=127.0.0.1:7118 ./c=127.0.0.1:7119", program());
        return Ok(ExitCode::SUCCESS);
    }
    let source = Source::choose(args.input.as_deref(), args.sample);
    tell!("{} package index: {}", term.bold("data"), source.describe());
    let graph = list::read(&source, &Choice::default(), term)?;
    let socket = calls::socket(dir.own.path()).map(|socket| socket.to_string());
    let more: Vec<&str> = socket.iter().flat_map(|socket| ["--listen", socket]).collect();
    let mut server = OwnProcess::serve(dir.path(), None, &more)?;
    tell!(
        "{} process {} at {} ({})",
        term.bold("server"),
        server.id(),
        server.listens_on(),
        server.backend()
    );
    let imported = scenes::import(&server, &graph, &source, begun, term)?;
    let root = scenes::root(&graph, term);
    scenes::closure(&server, root, &imported, term)?;
    scenes::advisory(&server, root, term)?;
    calls::at_own(&server, dir.own.path(), term)?;
    scenes::crash(&mut server, dir.path(), term)?;
    server.stop()?;
    let program = program();
    let list = match &source {
        Source::Sample => " --sample".into(),
        Source::File(path) if args.input.is_some() => format!(" --input {}", path.display()),
        Source::File(_) | Source::Stdin => String::new(),
    };
    say!();
    tell!("{} in {:.1} s. Try next:", term.green("done"), begun.elapsed().as_secs_f64());
    say!("  {program} import debian{list} --data ./packages");
    say!("  {program} query rdepends {root} --data ./packages");
    say!("  {program} inspect {root} --data ./packages");
    say!("  {program} serve --data ./packages");
    tell!("and, while it serves, the same commands in another terminal without --data");
    Ok(ExitCode::SUCCESS)
}

/// Where the demonstration's data is, and what else it needs a place for.
struct DemoDir {
    data: PathBuf,
    /// Made for this run, and removed behind it.
    own: OwnDir,
}

impl DemoDir {
    fn new(named: Option<&Path>) -> Result<DemoDir, Failure> {
        let own = std::env::temp_dir().join(format!("tercel-demo-{}", std::process::id()));
        let data = named.map_or_else(|| own.join("data"), Path::to_path_buf);
        for path in [&own, &data] {
            let used = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
            if used {
                return Err(Failure::new(format!("{} is not empty", path.display()))
                    .next("the demonstration wants a fresh directory: name another with --dir"));
            }
        }
        let make = |path: &Path| {
            let cannot = |e| Failure::new(format!("cannot make {}: {e}", path.display()));
            std::fs::create_dir_all(path).map_err(|e| cannot(e).next("name another place with --dir"))
        };
        make(&own)?;
        let own = OwnDir::new(own);
        make(&data)?;
        Ok(DemoDir { data, own })
    }

    fn path(&self) -> &Path {
        &self.data
    }
}
