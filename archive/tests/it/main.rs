//! Archives of real servers, in directories: written, lost in the middle, raced for, damaged, and restored.

mod failing;
mod groups;
mod several;
mod single;
