//! A client's port in the world: waiting is letting the world go on.

use tercel_engine::error::Error;
use tercel_engine::time::Now;
use tercel_engine::txn::{Home, Port, Step};

use crate::stage::{Actor, Stage};

/// What a thread of a client's process runs transactions on.
pub(crate) struct Seated<'s> {
    pub stage: &'s Stage,
    pub me: Actor,
    pub client: usize,
    /// Which life of the process it belongs to: one that crashed is never heard of again.
    pub life: u32,
    pub patience_us: u64,
}

impl Seated<'_> {
    /// Whether the process that this thread belongs to is gone.
    pub(crate) fn is_gone(&self) -> bool {
        let world = self.stage.world();
        world.clients[self.client].life != self.life || world.is_over()
    }
}

impl Port for Seated<'_> {
    fn drive(&self, step: &mut dyn FnMut(&mut dyn Home, Now) -> Step) -> Result<(), Error> {
        let mut end = None;
        loop {
            {
                let mut world = self.stage.world();
                if world.clients[self.client].life != self.life || world.is_over() {
                    return Err(Error::Unavailable("the process has ended".into()));
                }
                let (now, time) = (world.client_now(self.client), world.time());
                let done = step(&mut world.clients[self.client].machine, now) == Step::Done;
                world.after_client(self.client);
                if done {
                    return Ok(());
                }
                let end = *end.get_or_insert(time + self.patience_us);
                if time >= end {
                    return Err(match world.clients[self.client].machine.availability() {
                        None => Error::Unavailable("no connection".into()),
                        _ => Error::Timeout(None),
                    });
                }
                world.listen(self.me, self.client, end);
            }
            self.stage.pass(self.me);
        }
    }

    fn back_off(&self, us: u64) {
        self.stage.sleep(self.me, us);
    }
}
