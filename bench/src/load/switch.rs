//! A process of the suite that does something while it is told to: `on` at its standard input begins it,
//! `off` ends it.

use std::io::{self, BufRead};
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch for the load: on while it is wanted.
pub struct Switch {
    on: AtomicBool,
}

impl Switch {
    /// One that is on.
    pub fn on() -> Switch {
        Switch { on: AtomicBool::new(true) }
    }

    pub fn set(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }
}

/// At `on`, with what stands behind it in the line, says `on` and does something; that must end when the
/// switch is off, and what it gives is said then.
///
/// # Errors
/// The first of what is done.
pub fn serve(mut what: impl FnMut(&Switch, &str) -> Result<String, String>) -> Result<(), String> {
    println!("listening on nothing");
    let switch = Switch::on();
    switch.set(false);
    std::thread::scope(|scope| {
        let (say, told) = std::sync::mpsc::channel();
        scope.spawn({
            let switch = &switch;
            move || {
                for line in io::stdin().lock().lines().map_while(Result::ok) {
                    let words = line.strip_prefix("on");
                    switch.set(words.is_some());
                    if words.is_some_and(|words| say.send(words.trim().to_string()).is_err()) {
                        return;
                    }
                }
                // The process that started this one has ended, or wants it to end.
                std::process::exit(0);
            }
        });
        while let Ok(words) = told.recv() {
            println!("on");
            let said = what(&switch, &words)?;
            println!("{said}");
        }
        Ok(())
    })
}
