//! The integration tests of this crate, one module a file. They are one program, because every program is
//! linked for itself.

mod common;

mod access;
mod across;
mod archives;
mod call;
mod columns;
mod commands;
mod container;
mod cut_off;
mod demo;
mod disks;
mod exports;
mod gateway;
mod gc;
mod group;
mod health;
mod interfaces;
mod lists;
mod measured;
mod mishaps;
mod operate;
mod rows;
mod serve;
mod slow;
mod step;
mod tls;
