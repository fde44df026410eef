//! The objects over which most transactions lose, in bounded memory.
//!
//! An object that comes when there is room for no more takes the place of the one with the smallest count,
//! and goes on from that (*Space-Saving*; Metwally, Agrawal, El Abbadi, *Efficient Computation of Frequent
//! and Top-k Elements in Data Streams*, 2005, section 3): an object that stands for more than one in 64 of
//! all conflicts is among them, and no count is too small.

use tercel_wire::id::{ClassId, Oref};
use tercel_wire::message::Refusal;
use tercel_wire::page::class_of;

use super::Work;

/// Objects that are counted.
const COUNTED_MAX: usize = 64;

/// The conflicts by object, since this server leads.
#[derive(Debug, Default)]
pub(crate) struct Contended(Vec<Losses>);

/// The transactions that lost over an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Losses {
    pub over: Oref,
    /// Its class, if the object is in memory.
    pub class: Option<ClassId>,
    /// Their number, at most.
    pub count: u64,
}

impl Contended {
    /// Counts a transaction that was refused for others.
    pub fn lost(&mut self, why: Refusal, work: &mut Work) {
        work.stats.conflicts += 1;
        if let Refusal::Conflict(over) = why
            && over != Oref::NULL
        {
            let class = work.pages.newest(over, class_of);
            self.count(over, class);
        }
    }

    fn count(&mut self, over: Oref, class: Option<ClassId>) {
        if let Some(losses) = self.0.iter_mut().find(|losses| losses.over == over) {
            (losses.count, losses.class) = (losses.count + 1, class.or(losses.class));
        } else if self.0.len() < COUNTED_MAX {
            self.0.push(Losses { over, class, count: 1 });
        } else if let Some(least) = self.0.iter_mut().min_by_key(|losses| losses.count) {
            *least = Losses { over, class, count: least.count + 1 };
        }
    }

    /// Those over which most were lost, the most first.
    pub fn most(&self, count: usize) -> Vec<Losses> {
        let mut all = self.0.clone();
        all.sort_by_key(|losses| std::cmp::Reverse(losses.count));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::id::PageId;

    use super::*;

    fn object(n: u32) -> Oref {
        Oref::new(PageId::new(1 + n).unwrap(), 0).unwrap()
    }

    #[test]
    fn most_contended_objects_stay_among_many() {
        let mut contended = Contended::default();
        for n in 0..10_000 {
            contended.count(object(10 + n), None);
            if n % 10 == 0 {
                contended.count(object(1), Some(ClassId(70)));
            }
            if n % 20 == 0 {
                contended.count(object(2), None);
            }
        }
        assert_eq!(contended.0.len(), COUNTED_MAX);
        let [most, next] = contended.most(2)[..] else { panic!("{contended:?}") };
        assert_eq!((most.over, most.class), (object(1), Some(ClassId(70))));
        assert!(most.count >= 1_000, "{most:?}");
        assert!(next.over == object(2) || next.count >= 500, "{next:?}");
    }
}
