//! Archives of real servers, in directories and buckets: written, lost in the middle, raced for, damaged,
//! and restored.

mod around;
mod away;
#[cfg(feature = "s3")]
mod buckets;
mod careless;
mod failing;
mod groups;
mod histories;
#[cfg(feature = "s3")]
mod https;
mod place;
mod several;
mod single;
mod stores;
