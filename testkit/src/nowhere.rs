//! A place that keeps no object, for tests that look at ordered state only.

use tercel_engine::replica::Objects;
use tercel_engine::replica::version::{PendingStamp, VersionStamp};
use tercel_engine::slots::Slots;
use tercel_wire::id::{Oref, PageId, Stamp};

/// Drops all objects.
pub struct Nowhere;

impl Objects for Nowhere {
    fn write(&mut self, _: Oref, _: Option<(Oref, Stamp)>, _: &VersionStamp, _: Stamp, _: &[u8]) {}
    fn free(&mut self, _: Oref, _: Stamp) {}
    fn ordered(&mut self, _: &PendingStamp, _: Stamp) {}
    fn retract(&mut self, _: Oref, _: &PendingStamp) {}
    fn clear(&mut self, _: PageId, _: &Slots, _: &PendingStamp) {}
    fn restore(&mut self, _: PageId, _: &PendingStamp) {}
}
