//! One world from its beginning to its end: fill it, let faults strike, heal it, look at what is left.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tercel_engine::error::Error;
use tercel_engine::txn::{Isolation, Options, Tx};
use tercel_verify::{History, Kind, Outcome, Process, Session, Transaction};
use tercel_wire::token::Token;

use crate::check;
use crate::plan::Plan;
use crate::port::{ActorPort, Site};
use crate::record::Counts;
use crate::rule::{drop_here, keep_here};
use crate::scheduler::{Actor, ActorScheduler};
use crate::watched::LOSS_SESSIONS;
use crate::workload::actor::{HEALED_WAIT_US, live};
use crate::workload::read_all::read_all;
use crate::workload::{Ground, Notes, cell_id};
use crate::world::World;

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The world.
    pub plan: Plan,
    /// The findings, a sentence each.
    pub blames: Vec<String>,
    /// The counters.
    pub counts: Counts,
    /// The transactions and views of the clients.
    pub history: History,
    /// The lines of the trace, if they were kept.
    pub trace: String,
}

/// Runs a world.
pub fn run(plan: &Plan, trace: bool) -> Report {
    crate::quiet::hear_panics();
    let scheduler = ActorScheduler::new(World::new(plan.clone(), trace), 1 + plan.actors());
    drop_here(plan.rule, plan.small);
    let first = Actor(0);
    scheduler.register(first);
    let ground = caught(&scheduler, || fill(&scheduler, plan)).flatten();
    if let Some(ground) = &ground {
        std::thread::scope(|scope| {
            for i in 1..=plan.actors() {
                let (scheduler, plan) = (&scheduler, &plan);
                let body = move || act(scheduler, plan, Actor(i), ground);
                std::thread::Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, body)
                    .expect("the system gives a few threads");
            }
            let registered = |i| scheduler.is_registered(Actor(i));
            while !(1..=plan.actors()).all(registered) {
                std::thread::yield_now();
            }
            (1..=plan.actors()).for_each(|i| scheduler.world().enter(Actor(i)));
            caught(&scheduler, || direct(&scheduler, plan, ground));
            // Whatever has happened, no thread may be left waiting in the scheduler.
            scheduler.world().end();
            while !scheduler.world().all_done() {
                scheduler.sleep(first, 1);
            }
        });
    }
    keep_here();
    let mut world = scheduler.into_world();
    world.count_servers();
    finish(world)
}

fn act(scheduler: &ActorScheduler, plan: &Plan, me: Actor, ground: &Ground) {
    drop_here(plan.rule, plan.small);
    scheduler.register(me);
    scheduler.await_turn(me);
    caught(scheduler, || live(scheduler, me, ground));
    scheduler.world().done(me);
    scheduler.leave();
}

/// Runs something; a panic in it is the world's end.
fn caught<R>(scheduler: &ActorScheduler, f: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(|| crate::quiet::quietly(f))) {
        Ok(r) => Some(r),
        Err(_) => {
            let what = crate::quiet::last_panic();
            let mut world = scheduler.world();
            if !world.is_over() {
                world.blame(format!("panic: {what}"));
            }
            None
        }
    }
}

/// Makes the objects, before anything goes wrong.
fn fill(scheduler: &ActorScheduler, plan: &Plan) -> Option<Ground> {
    let port =
        ActorPort { scheduler, me: Actor(0), site: Site::Client(0), life: 0, patience_us: HEALED_WAIT_US };
    for _ in 0..FILL_ATTEMPTS {
        let mut notes = Notes::new(0, 0);
        let made = Tx::begin(&port, Isolation::Serializable).and_then(|tx| {
            let ground = Ground::make(&tx, plan, &mut notes)?;
            Ok((ground, tx.commit()?))
        });
        match made {
            Ok((ground, commit)) => {
                let (reads, writes) = notes.into_parts();
                let mut world = scheduler.world();
                let end_us = world.time();
                world.record.push(Transaction {
                    session: Session(0),
                    process: Process(0),
                    begin_us: 0,
                    end_us,
                    isolation: tercel_verify::Isolation::Serializable,
                    reads,
                    writes,
                    outcome: Outcome::Committed(commit.stamp.0),
                    op: commit.op.map(|op| op.to_string()),
                    request: None,
                });
                return Some(ground);
            }
            Err(Error::Conflict(_)) => {}
            Err(e) => {
                scheduler.world().blame(format!("the space cannot be filled: {e}"));
                return None;
            }
        }
    }
    scheduler.world().blame("the space cannot be filled: conflicts, though no other client is there".into());
    None
}

/// Lets the world go from phase to phase.
fn direct(scheduler: &ActorScheduler, plan: &Plan, ground: &Ground) {
    let me = Actor(0);
    scheduler.world().begin_safety();
    let begun = scheduler.world().time();
    loop {
        scheduler.sleep(me, GLANCE_US);
        let world = scheduler.world();
        let counts = &world.record.counts;
        let enough = counts.commits >= plan.commits
            || counts.events > plan.commits * EVENTS_A_COMMIT_MAX + 50_000
            || world.time() - begun > SAFETY_US_MAX;
        if enough || world.is_over() {
            break;
        }
    }
    if scheduler.world().is_over() {
        return;
    }
    scheduler.world().heal();
    if !wait(scheduler, me, |world| world.all_done()) {
        return scheduler.world().blame("a thread never comes to an end although everything works".into());
    }
    if !wait(scheduler, me, |world| world.is_regrouped()) {
        let mut world = scheduler.world();
        let why = world.gap();
        return world.blame(format!("the members never are who they should be: {why}"));
    }
    if !wait(scheduler, me, |world| world.is_level()) {
        let mut world = scheduler.world();
        let why = world.uneven();
        return world
            .blame(format!("a client never hears of the last commit although everything works: {why}"));
    }
    if plan.put_back {
        let lost = lose(scheduler, me, ground);
        if !wait(scheduler, me, |world| world.is_level()) {
            let mut world = scheduler.world();
            let why = world.uneven();
            return world.blame(format!("a client does not go on after a loss: {why}"));
        }
        for (client, token) in lost.into_iter().enumerate() {
            present(scheduler, me, client, token);
        }
    }
    if let Err(why) = collect_all(scheduler, me)
        && !scheduler.world().is_over()
    {
        return scheduler.world().blame(why);
    }
    look(scheduler, me, ground);
    if scheduler.world().is_over() {
        return;
    }
    if !wait(scheduler, me, |world| world.are_nodes_level()) {
        let mut world = scheduler.world();
        let why = world.gap();
        return world.blame(format!("the members never come to one end although everything works: {why}"));
    }
    scheduler.world().store_everything();
    if !wait(scheduler, me, |world| world.are_down()) {
        let mut world = scheduler.world();
        let why = world.gap();
        return world.blame(format!("a server does not come to a clean stop: {why}"));
    }
    if scheduler.world().is_over() {
        return;
    }
    keep_here();
    let (wrong, views) = check::pages::check(&scheduler.world(), ground);
    let mut world = scheduler.world();
    views.into_iter().for_each(|view| world.record.view(view));
    wrong.into_iter().for_each(|what| world.blame(what));
}

/// Waits until something is so; `false` if it never is.
fn wait(scheduler: &ActorScheduler, me: Actor, is_so: impl Fn(&mut World) -> bool) -> bool {
    let end = scheduler.world().time() + 4 * HEALED_WAIT_US;
    loop {
        {
            let mut world = scheduler.world();
            if world.is_over() || is_so(&mut world) {
                return true;
            }
            if world.time() > end {
                return false;
            }
        }
        scheduler.sleep(me, GLANCE_US);
    }
}

/// Puts the space back to what it was before each client's last commit, and lets a stranger commit until
/// stamps are where they were: clients that go on as if nothing were lost take the new commits for theirs.
/// Gives the tokens of the lost commits.
fn lose(scheduler: &ActorScheduler, me: Actor, ground: &Ground) -> Vec<Token> {
    let copy = scheduler.world().copy();
    let known = scheduler.world().clients.len();
    let changed = (0..known).filter_map(|client| change_one(scheduler, me, client, ground, client));
    let tokens = changed.map(|(_, token)| token).collect();
    let mut world = scheduler.world();
    let lost = world.oracle.promised;
    world.put_back(copy);
    let stranger = world.add_client();
    drop(world);
    for i in known.. {
        scheduler.world().after_client(stranger);
        if scheduler.world().is_over() || scheduler.world().oracle.promised > lost {
            break;
        }
        if let Some((transaction, _)) = change_one(scheduler, me, stranger, ground, i) {
            scheduler.world().record.push(transaction);
        }
    }
    tokens
}

/// Presents the token of a commit that was lost: no state contains it, whatever its stamp.
fn present(scheduler: &ActorScheduler, me: Actor, client: usize, token: Token) {
    let life = scheduler.world().clients[client].life;
    let port = ActorPort { scheduler, me, site: Site::Client(client), life, patience_us: HEALED_WAIT_US };
    let options = Options { at_least: Some(token), ..Options::default() };
    let begun = Tx::begin(&port, options).map(|tx| tx.snapshot());
    let mut world = scheduler.world();
    if !world.is_over() && !matches!(begun, Err(Error::OtherHistory(_))) {
        world.blame(format!(
            "client {client} presents {token}, which is of another history, and gets {begun:?}"
        ));
    }
}

/// Changes a cell; gives what to note of it, and its token, if it is known to be committed.
fn change_one(
    scheduler: &ActorScheduler,
    me: Actor,
    client: usize,
    ground: &Ground,
    n: usize,
) -> Option<(Transaction, Token)> {
    let life = scheduler.world().clients[client].life;
    let port = ActorPort { scheduler, me, site: Site::Client(client), life, patience_us: HEALED_WAIT_US };
    // A number that no thread of the workload has.
    let mut notes = Notes::new(1_000 + n, 0);
    let i = n % ground.cells.len();
    let begin_us = scheduler.world().time();
    let changed = Tx::begin(&port, Isolation::Serializable).and_then(|tx| {
        notes.see(&tx, ground.cells[i], cell_id(i))?;
        tx.edit(ground.cells[i])?.set_value(notes.write(cell_id(i)).0)?;
        tx.commit()
    });
    let commit = changed.ok()?;
    let (reads, writes) = notes.into_parts();
    let transaction = Transaction {
        session: Session(LOSS_SESSIONS.0 + n as u32),
        process: Process(LOSS_SESSIONS.0 + n as u32),
        begin_us,
        end_us: scheduler.world().time(),
        isolation: tercel_verify::Isolation::Serializable,
        reads,
        writes,
        outcome: Outcome::Committed(commit.stamp.0),
        op: commit.op.map(|op| op.to_string()),
        request: None,
    };
    Some((transaction, commit.token))
}

/// Records the final views of each client, of a client that has never cached anything, and of a program in
/// the server.
fn look(scheduler: &ActorScheduler, me: Actor, ground: &Ground) {
    let fresh = scheduler.world().add_client();
    let clients = (0..=fresh).map(Site::Client);
    for mut site in clients.chain([Site::Server(0)]) {
        site = scheduler.world().led(site);
        let life = scheduler.world().life_of(site);
        let port = ActorPort { scheduler, me, site, life, patience_us: HEALED_WAIT_US };
        let (viewer, kind) = match site {
            Site::Client(client) => {
                scheduler.world().after_client(client);
                let viewer =
                    if client == fresh { "the server".to_owned() } else { format!("client {client}") };
                (viewer, if client == fresh { Kind::Server } else { Kind::Cache })
            }
            Site::Server(_) => ("a program inside of the server".to_owned(), Kind::Server),
        };
        let mut seen = read_all(&port, ground, viewer.clone(), kind);
        // A transaction inside of a server does not wait for another leader, so this loop does.
        let end = scheduler.world().time() + HEALED_WAIT_US;
        let is_vacant =
            |seen: &Result<_, _>| matches!((site, seen), (Site::Server(_), Err(Error::Unavailable(_))));
        while is_vacant(&seen) && scheduler.world().time() < end && !scheduler.world().is_over() {
            scheduler.sleep(me, GLANCE_US);
            seen = read_all(&port, ground, viewer.clone(), kind);
        }
        match seen {
            Ok((view, wrong)) => {
                let mut world = scheduler.world();
                world.record.view(view);
                if let Some(wrong) = wrong {
                    world.blame(format!("{viewer}: {wrong}"));
                }
            }
            Err(_) if scheduler.world().is_over() => return,
            Err(e) => {
                let mut world = scheduler.world();
                let why = world.gap();
                return world.blame(format!("{viewer} cannot read although everything works: {e}; {why}"));
            }
        }
    }
}

/// Has what no root reaches collected, until there is nothing left. Sessions that end meanwhile leave more.
fn collect_all(scheduler: &ActorScheduler, me: Actor) -> Result<(), String> {
    let mut wrong = vec!["no collection comes to its end".to_owned()];
    for _ in 0..COLLECTIONS_MAX {
        let report = collect(scheduler, me);
        // What was freed may own chunks that are still to be freed.
        if scheduler.world().is_over() || !wait(scheduler, me, |world| world.is_level()) {
            break;
        }
        if report.is_some_and(|report| report.contains(NOTHING_FREED)) {
            wrong = check::reach::check(&scheduler.world());
            if wrong.is_empty() {
                return Ok(());
            }
        }
    }
    Err(wrong.into_iter().next().unwrap_or_default())
}

/// Has one collection done. Gives its report; none if the leader that was asked for it has ended.
fn collect(scheduler: &ActorScheduler, me: Actor) -> Option<String> {
    let end = scheduler.world().time() + COLLECTION_US_MAX;
    let mut ticket = None;
    while scheduler.world().time() < end && !scheduler.world().is_over() {
        let said = match ticket {
            None => scheduler.world().begin_collection(),
            Some(_) => scheduler.world().server_status(),
        };
        match (said, ticket) {
            (Some(said), None) => ticket = number(&said, "collection_ticket"),
            (Some(said), Some(ticket)) if number(&said, "done")? >= ticket => {
                return said.find("\"last\":").map(|at| said[at..].to_owned());
            }
            _ => {}
        }
        scheduler.sleep(me, GLANCE_US);
    }
    None
}

/// The number that JSON has under a name.
fn number(json: &str, name: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{name}\":"))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Fills in what only the log knows, and hands the history to the checkers.
fn finish(mut world: World) -> Report {
    let logged = world.oracle.logged();
    world.record.counts.collected = world.oracle.collected();
    world.record.counts.group.changes = world.oracle.lists;
    let unplaced = std::mem::take(&mut world.record.unplaced);
    let transactions = &mut world.record.history.transactions;
    for place in unplaced {
        let t = &mut transactions[place];
        let stamp = t.writes.first().and_then(|w| world.oracle.place_of(w.object, w.value));
        t.outcome = Outcome::Committed(stamp.unwrap_or(0));
    }
    let ops: std::collections::BTreeMap<u64, &str> =
        logged.iter().map(|entry| (entry.stamp, entry.op.as_str())).collect();
    for t in transactions.iter_mut().filter(|t| t.op.is_none()) {
        let stamp = t.writes.first().and_then(|w| world.oracle.place_of(w.object, w.value));
        t.op = stamp.and_then(|s| ops.get(&s)).map(|op| (*op).to_owned());
    }
    let behind = std::mem::take(&mut world.record.behind);
    for (object, seen, written) in behind {
        let at = |value| world.oracle.place_of(object, value);
        if let (Some(seen_at), Some(written_at)) = (at(seen), at(written))
            && seen_at < written_at
        {
            world.record.blames.push(format!(
                "a call has returned, having written version {} of object {} at {written_at}, and the next one of its thread reads {} of {seen_at}",
                written.0, object.0, seen.0
            ));
        }
    }
    let told = std::mem::take(&mut world.record.told);
    // The log of a space that was put back lacks entries behind the copy.
    for (object, seen) in told.into_iter().filter(|_| !world.plan.put_back) {
        if world.oracle.place_of(object, seen).is_none() {
            world.record.blames.push(format!(
                "a call that wrote nothing has told of version {} of object {}, which was not committed",
                seen.0, object.0
            ));
        }
    }
    world.record.counts.calls.services = world.record.tally.executed();
    let of_services = world.record.tally.blames();
    world.record.blames.extend(of_services);
    // Transactions on the twin maps leave no version in the log: what they are is checked while they run.
    let mut history = std::mem::take(&mut world.record.history);
    history.about = world.plan.to_string();
    history.log = Some(logged);
    let mut blames = std::mem::take(&mut world.record.blames);
    // The unfinished work of a run that was broken off says nothing about the space.
    if blames.is_empty() {
        blames.extend(world.record.watched.iter().filter_map(|watched| watched.check(&history)));
        blames.extend(tercel_verify::check(&history).iter().map(|v| v.to_string()));
    }
    let trace = std::mem::take(&mut world.trace).into_text();
    Report { plan: world.plan, blames, counts: world.record.counts, history, trace }
}

/// Time between two looks of the first thread for the next phase, in microseconds.
const GLANCE_US: u64 = 20_000;
/// A world in which so much happens and so little is committed is healed all the same.
const EVENTS_A_COMMIT_MAX: u64 = 200;
/// So is one that takes so long.
const SAFETY_US_MAX: u64 = 600_000_000;
/// Collections that are asked for at the end: each finds what those before it have left, as the end of views
/// does.
const COLLECTIONS_MAX: u32 = 20;
/// Time that a collection may take before it is asked for again, in microseconds.
const COLLECTION_US_MAX: u64 = 10_000_000;
/// The report of a collection that has freed nothing.
const NOTHING_FREED: &str = "\"objects\":0,\"bytes\":0,\"pages_let_go\":0,";
const FILL_ATTEMPTS: u32 = 16;
/// User code of transactions and collections is not deep.
const STACK_BYTES: usize = 512 << 10;
