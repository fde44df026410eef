//! The instructions of user space that a call takes at both ends, counted by valgrind's callgrind.
//!
//! Client and server are in one process, which valgrind runs one thread at a time. Instructions count if they
//! carry out a call at the client or serve calls at the server. The search for the other end's line, and
//! sleeping, are taken off: they last as long as the other end takes.

use std::path::Path;

use tercel::{Client, Server};

use crate::callgrind;

use super::{
    Counter, Counting, CountingCalls, Here, KIB, Options, Procedures, ProceduresCalls, ROLE, Row, Scratch,
    failed,
};

/// The calls that are counted, by the names of their rows: in shared memory, and a null one by a socket.
const CALLS: [&str; 5] = ["null.shm", "typed.shm", "method.shm", "1k.shm", "null.tcp"];

/// The end of the names of calls by a socket.
const SOCKET: &str = ".tcp";

/// Counted calls: what comes before them, and is counted too, is below one in a thousand of them.
const COUNT: u32 = 5_000;

/// Functions whose instructions count, with all that they call; and those that wait, within them.
const COUNTED: [&str; 2] = ["::counted_call", "::Channels::serve"];
const WAITING: [&str; 2] = ["::Lines::is_there_soon", "::Lines::wait"];

/// The same by a socket, where waiting is in the kernel.
const COUNTED_BY_SOCKET: [&str; 2] = ["::counted_call", "::Loop::run"];

/// The rows; none, said, where valgrind is not here.
pub(super) fn rows(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    if !callgrind::is_here() {
        options.say("instructions of a call: not counted, for valgrind is not installed");
        return Ok(Vec::new());
    }
    CALLS
        .iter()
        .map(|call| {
            let id = format!("rpc.instructions.{call}");
            options.say(&format!("{id}, by valgrind"));
            let dir = scratch.join(&id);
            std::fs::create_dir_all(&dir).map_err(failed)?;
            let counted = count(call, &dir)?;
            let note = "instructions of user space at both ends, without waiting";
            Ok(Row::new(id, counted, "instructions", COUNT.into()).note(note))
        })
        .collect()
}

fn count(call: &str, dir: &Path) -> Result<f64, String> {
    let counted = callgrind::run("rpc", ROLE, format!("count {call}\n{}", dir.display()), dir)?;
    let (all, waiting) = match call.ends_with(SOCKET) {
        true => (&COUNTED_BY_SOCKET[..], &[][..]),
        false => (&COUNTED[..], &WAITING[..]),
    };
    let sum = |functions: &[&str]| {
        let each = functions.iter().map(|function| match callgrind::instructions_of(&counted, function) {
            0 => Err(format!("valgrind knows no function `{function}`: it was compiled into its callers")),
            n => Ok(n),
        });
        each.sum::<Result<u64, String>>()
    };
    Ok((sum(all)? - sum(waiting)?) as f64 / f64::from(COUNT))
}

/// Runs under valgrind: a server, and a client that calls.
pub(super) fn counted(call: &str, dir: &Path) -> Result<(), String> {
    let socket = match call.ends_with(SOCKET) {
        true => "127.0.0.1:0".into(),
        false => format!("unix:{}", dir.join("sock").display()),
    };
    let server = Server::builder(dir.join("data"))
        .listen(&socket)
        .methods(Counter::METHODS)
        .service(Procedures::serve(Here::default()));
    let server = server.start().map_err(failed)?;
    let client = Client::connect(&server.addresses()[0]).map_err(failed)?;
    let counter = client.run(|tx| tx.create(&Counter { count: 1 })).map_err(failed)?;
    let (service, handle) = (client.service::<dyn Procedures>(), client.handle(counter).remote());
    let large = vec![7; KIB];
    let mut one: Box<dyn FnMut() -> Result<(), String>> = match call.split_once('.').map_or(call, |c| c.0) {
        "null" => Box::new(|| service.null().map_err(failed)),
        "typed" => Box::new(|| service.add(2, 3).map(|_| ()).map_err(failed)),
        "1k" => Box::new(|| service.take(&large).map(|_| ()).map_err(failed)),
        _ => Box::new(|| handle.count().map(|_| ()).map_err(failed)),
    };
    // The first ones take the long way, which binds.
    (0..3).try_for_each(|_| one())?;
    for _ in 0..COUNT {
        counted_call(&mut *one)?;
    }
    drop(one);
    drop(client);
    server.stop().map_err(failed)
}

#[inline(never)]
fn counted_call(call: &mut dyn FnMut() -> Result<(), String>) -> Result<(), String> {
    call()
}
