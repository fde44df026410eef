//! The times of other clients: in quiet blocks, in blocks beside a trouble process, in blocks beside a bystander.
//!
//! The server is a process of its own, and so is the trouble. Eight clients that read and eight that commit have work at
//! fixed times. The time of each operation, its waiting included, is measured block by block. The limit of a row is the
//! 99th percentile of the quiet blocks. The ratio says how many times longer the unluckiest of a hundred operations takes
//! beside that trouble. The blocks beside a bystander show how much of that comes only from sharing the machine.

use tercel::Address;
use tercel::wire::id::PageId;

use super::super::Options;
use super::super::blocks::{Pairs, median};
use super::super::commit::child::Child;
use super::super::report::{Bystander, Row};
use super::bystander;
use super::others::{Felt, Others, failed};
use super::share::{Share, Strangers};
use super::sizes::{SETTLE, Sizes};
use super::trouble::{Made, Trouble};

/// The process that a block runs beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Nobody,
    Trouble,
    Bystander,
}

/// Every kind once a round. The order turns, so that a slow machine slows all kinds. The bystander takes the share that the
/// trouble of its round took, so it comes after the trouble.
const ORDERS: [[Block; 3]; 3] = [
    [Block::Nobody, Block::Trouble, Block::Bystander],
    [Block::Trouble, Block::Nobody, Block::Bystander],
    [Block::Trouble, Block::Bystander, Block::Nobody],
];

/// The times of one kind of operation, for each kind of block: a value a round.
#[derive(Debug, Default)]
struct Rounds {
    quiet: Vec<Felt>,
    trouble: Vec<Felt>,
    bystander: Vec<Felt>,
    /// Operations beside the trouble.
    n: u64,
}

/// Two rows: fetches and commits beside one kind of trouble.
///
/// # Errors
/// A sentence: what failed.
pub fn measure(
    options: &Options,
    server: &Child,
    trouble: Trouble,
    pages: &[PageId],
    sizes: Sizes,
) -> Result<Vec<Row>, String> {
    let address: Address = server.address().to_string().parse().map_err(failed)?;
    let others = Others::connect(&address, pages.to_vec())?;
    let role = format!("{} {} {} {}", trouble.name(), server.address(), pages.len(), sizes.name());
    let mut maker = Child::load(&role)?;
    let mut bystander = Child::load(&format!("{} {}", bystander::NAME, trouble.threads()))?;
    others.work(sizes.block, 0)?;
    let strangers = Strangers::begin(&[server.id(), maker.id(), bystander.id()]);
    let (mut fetches, mut commits) = (Rounds::default(), Rounds::default());
    let (mut made, mut share, mut stood): (Vec<Made>, Share, Vec<Share>) = Default::default();
    for round in 0..sizes.rounds {
        options.say(&format!("{}: round {} of {}", trouble.name(), round + 1, sizes.rounds));
        for (i, block) in ORDERS[round % ORDERS.len()].into_iter().enumerate() {
            match block {
                Block::Nobody => {}
                Block::Trouble => _ = maker.ask("on")?,
                Block::Bystander => _ = bystander.ask(&format!("on {share}"))?,
            }
            std::thread::sleep(SETTLE);
            let times = others.work(sizes.block, (round * ORDERS.len() + i + 1) as u64)?;
            match block {
                Block::Nobody => {}
                Block::Trouble => {
                    let said = maker.ask("off")?;
                    let last = Made::parse(&said).ok_or_else(|| format!("a trouble said {said:?}"))?;
                    share = last.share;
                    made.push(last);
                    fetches.n += times.fetches.len() as u64;
                    commits.n += times.commits.len() as u64;
                }
                Block::Bystander => stood.extend(Share::parse(&bystander.ask("off")?)),
            }
            fetches.of(block).push(Felt::of(times.fetches));
            commits.of(block).push(Felt::of(times.commits));
        }
    }
    let time = sizes.rounds as f64 * (sizes.block + SETTLE).as_secs_f64();
    let count: u64 = made.iter().map(|m| m.count).sum();
    let met: u64 = made.iter().map(|m| m.met).sum();
    let took = median(&mut made.iter().map(|m| m.share.cores()).collect::<Vec<_>>());
    let stood = median(&mut stood.iter().map(|s| s.cores()).collect::<Vec<_>>());
    let about = format!(
        "{} (some {:.1} a second), at the lowest priority with {took:.2} processors; met with its bound {met} times; \
         strangers took {:.2} processors meanwhile",
        trouble.what(),
        count as f64 / time,
        strangers.cores()
    );
    Ok(vec![fetches.row(trouble, "fetch", &about, stood), commits.row(trouble, "commit", &about, stood)])
}

impl Rounds {
    fn of(&mut self, block: Block) -> &mut Vec<Felt> {
        match block {
            Block::Nobody => &mut self.quiet,
            Block::Trouble => &mut self.trouble,
            Block::Bystander => &mut self.bystander,
        }
    }

    fn row(&self, trouble: Trouble, name: &str, about: &str, cores: f64) -> Row {
        let id = format!("load.{}.{name}.p99", trouble.name());
        let limit = format!("load.quiet.{name}.p99");
        let (machine, rest) = (pairs(&self.quiet, &self.bystander), pairs(&self.bystander, &self.trouble));
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
        let p50 = |felt: &[Felt]| median(&mut felt.iter().map(|f| f.p50).collect::<Vec<_>>());
        let note = format!(
            "{about}; medians {:.0} us, {:.0} quiet; beside a bystander of {cores:.2} processors {:.0} us, {:.2} times quiet \
             ({:.2} to {:.2}), and this {:.2} times that ({:.2} to {:.2})",
            p50(&self.trouble),
            p50(&self.quiet),
            bystander.value,
            of_limit.median,
            of_limit.lo,
            of_limit.hi,
            ratio.median,
            ratio.lo,
            ratio.hi
        );
        let row = Row::compared(id, "us", &pairs(&self.quiet, &self.trouble), limit, self.n);
        Row { bystander: Some(bystander), ..row.note(note) }
    }
}

/// Of each round the 99th percentiles of two kinds of blocks.
fn pairs(limit: &[Felt], ours: &[Felt]) -> Pairs {
    Pairs { pairs: limit.iter().zip(ours).map(|(limit, ours)| (limit.p99, ours.p99)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_each_block_once_and_the_trouble_before_the_bystander() {
        for order in ORDERS {
            let at = |block| order.iter().position(|b| *b == block).unwrap();
            assert!(at(Block::Nobody) < 3 && at(Block::Trouble) < at(Block::Bystander));
        }
    }

    #[test]
    fn the_machines_share_is_told_from_the_rest() {
        let felt = |p99| vec![Felt { p50: 1.0, p99 }; 6];
        let rounds = Rounds { quiet: felt(10.0), trouble: felt(40.0), bystander: felt(20.0), n: 60 };
        let row = rounds.row(Trouble::Flood, "fetch", "a flood", 1.5);
        let bystander = row.bystander.unwrap();
        assert_eq!((row.id.as_str(), row.ratio), ("load.flood.fetch.p99", Some(4.0)));
        assert_eq!((bystander.value, bystander.of_limit, bystander.ratio), (20.0, 2.0, 2.0));
        assert!(row.note.unwrap().starts_with("a flood; medians 1 us, 1 quiet; beside a bystander of 1.50"));
    }
}
