//! A bystander: it takes as much of the machine as an antagonist process takes, and never speaks to the
//! server.
//!
//! All processes share one machine here, the antagonist too; a client on a network would use processors of
//! its own. The bystander has as many threads as the antagonist, of the same priority, and takes as much
//! processor time. Outside the kernel it takes the time by counting, inside it by sending bytes to itself
//! over the loopback. The delay of other clients beside the bystander is the machine's share of their delay
//! beside the antagonist; the rest is the server's.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::time::ClockId;

use super::share::{Meter, Share, took};
use super::switch::{Switch, serve};

/// As its role is called.
pub const NAME: &str = "bystander";

/// Runs as the bystander: at `on USER SYSTEM` takes these shares with so many threads, and says at the end
/// what it took.
pub fn stand_by(threads: usize) -> Result<(), String> {
    super::antagonist::step_back();
    serve(|switch, words| {
        let share = Share::parse(words).ok_or("a bystander is told which share to take")?;
        let meter = Meter::begin();
        burn(switch, share, threads).map_err(|e| format!("a bystander: {e}"))?;
        Ok(meter.share().to_string())
    })
}

/// Takes a share, divided among threads, until the switch is off.
fn burn(switch: &Switch, share: Share, threads: usize) -> io::Result<()> {
    let each = Share { user: share.user / threads as f64, system: share.system / threads as f64 };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| burn_one(each, |_| switch.is_on()))).collect();
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(panicked).map(drop))
    })
}

/// Takes a share for as long as it may, told what it has taken, in seconds; says what that came to.
fn burn_one(share: Share, may_go_on: impl Fn(&Share) -> bool) -> io::Result<Share> {
    let (mut near, mut far) = to_itself()?;
    let mut bytes = vec![0; PIECE_BYTES];
    let begun = Instant::now();
    let mut taken = Share::default();
    while may_go_on(&taken) {
        let passed = begun.elapsed().as_secs_f64();
        let lacks_user = passed * share.user - taken.user;
        let lacks_system = passed * share.system - taken.system;
        if lacks_user.max(lacks_system) <= 0.0 {
            std::thread::sleep(REST);
            continue;
        }
        let before = took(ClockId::ThreadCPUTime);
        let in_kernel = lacks_system > lacks_user;
        if in_kernel {
            near.write_all(&bytes)?;
            far.read_exact(&mut bytes)?;
        } else {
            (0..PIECE_STEPS).for_each(|n| _ = std::hint::black_box(n));
        }
        let piece = (took(ClockId::ThreadCPUTime) - before).as_secs_f64();
        *(if in_kernel { &mut taken.system } else { &mut taken.user }) += piece;
    }
    Ok(taken)
}

/// A connection of this process with itself.
fn to_itself() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    Ok((near, listener.accept()?.0))
}

/// Sent to itself at once: a few microseconds.
const PIECE_BYTES: usize = 16 << 10;
/// Counted at once: as long.
const PIECE_STEPS: u32 = 20_000;
/// Time for which a thread that has had its share rests before it looks again.
const REST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_of_both_and_not_more_than_it_is_told_to() {
        let begun = Instant::now();
        let share = Share { user: 0.05, system: 0.1 };
        let taken = burn_one(share, |taken| taken.user < 0.005 || taken.system < 0.01).unwrap();
        let passed = begun.elapsed().as_secs_f64();
        // It may have begun one piece too many.
        assert!(taken.user < passed * 0.05 + 0.005, "{taken:?} in {passed} s");
        assert!(taken.system < passed * 0.1 + 0.005, "{taken:?} in {passed} s");
    }
}
