//! The times of other clients: in quiet blocks, in blocks beside an antagonist process, in blocks beside a
//! bystander.
//!
//! The server is a process of its own, and stays on another processor than the clients whose time is
//! measured. The antagonist is a process, too, and runs where there is time left. Eight clients that read and
//! eight that commit have work at fixed times. The time of each operation, its waiting included, is measured
//! block by block. The limit of a row is the 99th percentile of the quiet blocks. The ratio says how many
//! times longer the unluckiest of a hundred operations takes beside that antagonist. The blocks beside a
//! bystander show how much of that comes only from sharing the machine.

use tercel::Address;
use tercel::tools::wire::id::PageId;
use tercel_term::process::OwnProcess;

use super::super::Options;
use super::super::blocks::{Pairs, median};
use super::super::placed;
use super::super::report::{Bystander, Row};
use super::antagonist::{Antagonist, Made};
use super::bystander;
use super::others::{Latency, Others};
use super::share::{Share, Strangers};
use super::sizes::Sizes;
use super::{BENCH, ROLE};

/// The process that a block runs beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Quiet,
    Antagonist,
    Bystander,
}

/// Every kind once a round. The order turns, so that a slow machine slows all kinds. The bystander takes the
/// share that the antagonist of its round took, so it comes after the antagonist.
const ORDERS: [[Block; 3]; 3] = [
    [Block::Quiet, Block::Antagonist, Block::Bystander],
    [Block::Antagonist, Block::Quiet, Block::Bystander],
    [Block::Antagonist, Block::Bystander, Block::Quiet],
];

/// The times of one kind of operation, for each kind of block: a value a round.
#[derive(Debug, Default)]
struct Rounds {
    quiet: Vec<Latency>,
    antagonist: Vec<Latency>,
    bystander: Vec<Latency>,
    /// Operations beside the antagonist.
    n: u64,
}

/// Two rows: fetches and commits beside one kind of antagonist.
///
/// # Errors
/// A sentence: what failed.
pub fn measure(
    options: &Options,
    server: &OwnProcess,
    antagonist: Antagonist,
    pages: &[PageId],
    sizes: Sizes,
) -> Result<Vec<Row>, String> {
    let address: Address = server.address()?;
    let (clients, _) = placed::ends();
    let others = placed::on(clients, || Others::connect(&address, pages.to_vec()))?;
    let work = |seed| placed::on(clients, || others.work(sizes.block, seed));
    let role = format!("{} {} {} {}", antagonist.name(), server.listens_on(), pages.len(), sizes.name());
    let mut maker = OwnProcess::role(&BENCH, ROLE, &role)?;
    let mut bystander =
        OwnProcess::role(&BENCH, ROLE, format!("{} {}", bystander::NAME, antagonist.threads()))?;
    work(0)?;
    let strangers = Strangers::begin(&[server.id(), maker.id(), bystander.id()]);
    let (mut fetches, mut commits) = (Rounds::default(), Rounds::default());
    let (mut made, mut share, mut stood): (Vec<Made>, Share, Vec<Share>) = Default::default();
    for round in 0..sizes.rounds {
        options.say(&format!("{}: round {} of {}", antagonist.name(), round + 1, sizes.rounds));
        for (i, block) in ORDERS[round % ORDERS.len()].into_iter().enumerate() {
            match block {
                Block::Quiet => {}
                Block::Antagonist => _ = maker.ask("on")?,
                Block::Bystander => _ = bystander.ask(&format!("on {share}"))?,
            }
            std::thread::sleep(sizes.pause);
            let times = work((round * ORDERS.len() + i + 1) as u64)?;
            match block {
                Block::Quiet => {}
                Block::Antagonist => {
                    let said = maker.ask("off")?;
                    let last = Made::parse(&said).ok_or_else(|| format!("an antagonist said {said:?}"))?;
                    share = last.share;
                    made.push(last);
                    fetches.n += times.fetches.len() as u64;
                    commits.n += times.commits.len() as u64;
                }
                Block::Bystander => stood.extend(Share::parse(&bystander.ask("off")?)),
            }
            fetches.of(block).push(Latency::of(times.fetches));
            commits.of(block).push(Latency::of(times.commits));
        }
    }
    let time = sizes.rounds as f64 * (sizes.block + sizes.pause).as_secs_f64();
    let count: u64 = made.iter().map(|m| m.count).sum();
    let met: u64 = made.iter().map(|m| m.met).sum();
    let took = median(&mut made.iter().map(|m| m.share.cores()).collect::<Vec<_>>());
    let stood = median(&mut stood.iter().map(|s| s.cores()).collect::<Vec<_>>());
    let about = format!(
        "{} (some {:.1} a second), at the lowest priority with {took:.2} processors; met with its bound {met} times; \
         {}; strangers took {:.2} processors meanwhile",
        antagonist.what(),
        count as f64 / time,
        placed::note(),
        strangers.cores()
    );
    Ok(vec![
        fetches.row(antagonist, "fetch", &about, stood),
        commits.row(antagonist, "commit", &about, stood),
    ])
}

impl Rounds {
    fn of(&mut self, block: Block) -> &mut Vec<Latency> {
        match block {
            Block::Quiet => &mut self.quiet,
            Block::Antagonist => &mut self.antagonist,
            Block::Bystander => &mut self.bystander,
        }
    }

    fn row(&self, antagonist: Antagonist, name: &str, about: &str, cores: f64) -> Row {
        let id = format!("load.{}.{name}.p99", antagonist.name());
        let limit = format!("load.quiet.{name}.p99");
        let (machine, rest) = (pairs(&self.quiet, &self.bystander), pairs(&self.bystander, &self.antagonist));
        let (of_limit, ratio) = (machine.ratio(), rest.ratio());
        let bystander = Bystander {
            value: machine.ours(),
            of_limit: of_limit.median,
            of_limit_lo: of_limit.lo,
            of_limit_hi: of_limit.hi,
            ratio: ratio.median,
            ratio_lo: ratio.lo,
            ratio_hi: ratio.hi,
            cores,
        };
        let p50 = |latency: &[Latency]| median(&mut latency.iter().map(|f| f.p50).collect::<Vec<_>>());
        let note = format!(
            "{about}; medians {:.0} us, {:.0} quiet; beside a bystander of {cores:.2} processors {:.0} us, {:.2} times quiet \
             ({:.2} to {:.2}), and this {:.2} times that ({:.2} to {:.2})",
            p50(&self.antagonist),
            p50(&self.quiet),
            bystander.value,
            of_limit.median,
            of_limit.lo,
            of_limit.hi,
            ratio.median,
            ratio.lo,
            ratio.hi
        );
        let row = Row::compared(id, "us", &pairs(&self.quiet, &self.antagonist), limit, self.n);
        Row { bystander: Some(bystander), ..row.note(note) }
    }
}

/// Pairs the 99th percentiles of two kinds of blocks, round by round.
fn pairs(limit: &[Latency], ours: &[Latency]) -> Pairs {
    Pairs { pairs: limit.iter().zip(ours).map(|(limit, ours)| (limit.p99, ours.p99)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_each_block_once_and_the_trouble_before_the_bystander() {
        for order in ORDERS {
            let at = |block| order.iter().position(|b| *b == block).unwrap();
            assert!(at(Block::Quiet) < 3 && at(Block::Antagonist) < at(Block::Bystander));
        }
    }

    #[test]
    fn the_machines_share_is_told_from_the_rest() {
        let latency = |p99| vec![Latency { p50: 1.0, p99 }; 6];
        let rounds =
            Rounds { quiet: latency(10.0), antagonist: latency(40.0), bystander: latency(20.0), n: 60 };
        let row = rounds.row(Antagonist::Flood, "fetch", "a flood", 1.5);
        let bystander = row.bystander.unwrap();
        assert_eq!((row.id.as_str(), row.ratio), ("load.flood.fetch.p99", Some(4.0)));
        assert_eq!((bystander.value, bystander.of_limit, bystander.ratio), (20.0, 2.0, 2.0));
        assert!(row.note.unwrap().starts_with("a flood; medians 1 us, 1 quiet; beside a bystander of 1.50"));
    }
}
