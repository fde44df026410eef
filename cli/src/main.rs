//! The `tercel` command: thin hands around the library.

mod access;
mod archive;
mod args;
mod backup;
mod call;
mod cert;
mod check;
mod demo;
mod forget;
mod gateway;
mod gc;
mod group;
mod health;
mod import;
mod inspect;
mod invite;
mod measured;
mod metrics;
mod query;
mod restore;
mod rows;
mod serve;
mod settings;
mod settle;
mod space;
mod stat;
mod step;

use clap::Parser;
use tercel_term::Term;
use tercel_term::fail::Outcome;

use args::{Args, Command};

fn main() -> std::process::ExitCode {
    let term = Term::new();
    // A panic that is told as an error of damaged files needs no trace before that.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !tercel::tools::is_expected() {
            print(panic);
        }
    }));
    // Where the system refuses that, the signal ends the process, as it would have.
    let _ = tercel_term::stop::survive_full_files();
    let parsed = settings::with_file(std::env::args_os())
        .and_then(|words| Args::parse_from(words).with_server(std::env::var_os("TERCEL_SERVER")))
        .and_then(|args| args.with_tls(std::env::var_os("TERCEL_TLS")));
    match parsed.and_then(|args| run(args, &term)) {
        Ok(code) => code,
        Err(e) => {
            e.print(&term);
            std::process::ExitCode::from(e.code)
        }
    }
}

fn run(args: Args, term: &Term) -> Outcome {
    let tls = args.tls.as_deref();
    match args.command {
        Command::Serve(a) => serve::run(&a, tls),
        Command::Gateway(a) => gateway::run(&a, tls),
        Command::Cert(a) => cert::run(&a),
        Command::Demo(a) => demo::run(&a, tls, term),
        Command::Import(a) => import::run(&a, term),
        Command::Query(a) => query::run(&a),
        Command::Stat(a) => stat::run(&a),
        Command::Health(a) => health::run(&a),
        Command::Forget(a) => forget::run(&a),
        Command::Gc(a) => gc::run(&a, term),
        Command::Settle(a) => settle::run(&a),
        Command::Inspect(a) => inspect::run(&a),
        Command::Load(a) => rows::load(&a, term),
        Command::Dump(a) => rows::dump(&a),
        Command::Call(a) => call::run(&a),
        Command::Check(a) => check::run(&a, term),
        Command::Backup(a) => backup::run(&a, term),
        Command::Restore(a) => restore::run(&a, term),
        Command::Access(a) => access::run(&a),
        Command::Archive(a) => archive::run(&a, term),
        Command::Group(a) => group::run(&a),
        Command::Bench(_) | Command::Soak(_) => measured::run(),
    }
}
