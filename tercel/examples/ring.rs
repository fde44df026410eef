//! A counter with three replicas, one of which goes and comes back: `cargo run -p tercel --example ring`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use tercel::ring::{Delivery, Level, Ring, RingConfig};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Most of the three members.
const MOST: usize = 2;

/// A count that does not come in this time is an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// A member with its replica of the count. All apply the same additions in the same order.
struct Replica {
    me: u64,
    ring: Ring,
    /// None while it has to be asked for: this one has just come, or was apart from most others.
    count: Option<i64>,
    /// Additions since the question.
    since: i64,
    questions: i64,
    was_primary: bool,
}

/// A kind, the member that asked and the number of its question, a count.
type Message = (u8, u64, i64, i64);

const ADD: u8 = 0;
const ASK: u8 = 1;
const ANSWER: u8 = 2;

fn bytes((kind, member, question, count): Message) -> Vec<u8> {
    [&[kind][..], &member.to_le_bytes(), &question.to_le_bytes(), &count.to_le_bytes()].concat()
}

fn message(bytes: &[u8]) -> Option<Message> {
    let number = |at: usize| Some(i64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some((*bytes.first()?, number(1)? as u64, number(9)?, number(17)?))
}

impl Replica {
    fn join(
        me: u64,
        members: &[(u64, SocketAddr)],
        dir: &Path,
        count: Option<i64>,
        silence: Duration,
    ) -> Result<Replica> {
        let config = RingConfig::new(me, members.to_vec(), dir.join(format!("{me}.ring")));
        let ring = Ring::join(RingConfig { silence, ..config })?;
        Ok(Replica { me, ring, count, since: 0, questions: 0, was_primary: false })
    }

    /// Applies deliveries until it has a count that is wanted.
    fn until(&mut self, wanted: impl Fn(i64) -> bool) -> Result<i64> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(count) = self.count.filter(|count| wanted(*count)) {
                return Ok(count);
            }
            if Instant::now() > end {
                return Err(format!("member {} has waited {PATIENCE:?}; start the others", self.me).into());
            }
            match self.ring.next_within(Duration::from_secs(1))? {
                Some(Delivery::Message(it)) => message(&it.bytes).map_or(Ok(()), |it| self.apply(it))?,
                Some(Delivery::Configuration(it)) => {
                    // Most others may have gone on without it, also if they are in the next configuration.
                    self.count = self.count.filter(|_| it.members.len() >= MOST || !self.was_primary);
                    if it.is_transitional {
                        continue;
                    }
                    println!("member {} is with {:?}", self.me, it.members);
                    self.was_primary = it.is_primary;
                    if self.count.is_none() && it.is_primary {
                        self.questions += 1;
                        self.ring.send(&bytes((ASK, self.me, self.questions, 0)), Level::Agreed)?;
                    }
                }
                None => {}
            }
        }
    }

    fn apply(&mut self, (kind, member, question, count): Message) -> Result<()> {
        let is_mine = (member, question) == (self.me, self.questions);
        match (kind, &mut self.count) {
            (ADD, Some(mine)) => *mine += count,
            (ADD, None) => self.since += count,
            // The count as of the question's place in the order, which is the same at all members.
            (ASK, Some(mine)) => self.ring.send(&bytes((ANSWER, member, question, *mine)), Level::Agreed)?,
            (ASK, None) if is_mine => self.since = 0,
            (ANSWER, mine @ None) if is_mine => *mine = Some(count + self.since),
            _ => {}
        }
        Ok(())
    }

    fn add(&self, count: i64) -> Result<()> {
        Ok(self.ring.send(&bytes((ADD, 0, 0, count)), Level::Safe)?)
    }
}

/// Adds 1 to 100, and waits until the count is so high.
fn work(mut replica: Replica, until: i64) -> Result<Replica> {
    replica.until(|_| true)?;
    (1..=100).try_for_each(|n| replica.add(n))?;
    replica.until(|count| count >= until)?;
    Ok(replica)
}

/// The program, with members that are looked for after so much silence. Gives the counts at its end.
pub fn run(silence: Duration) -> Result<Vec<i64>> {
    let dir = std::env::temp_dir().join(format!("tercel-ring-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    // Addresses of this host that no other process uses.
    let [d, c, b, a] = std::process::id().to_le_bytes();
    let members = [1, 2, 3].map(|me| (me, SocketAddr::from(([127, 64 | a | b, c, d], 7_000 + me as u16))));
    let join = |me, count| Replica::join(me, &members, &dir, count, silence);
    let (once, again) = (3 * 5_050, 4 * 5_050);
    let replicas = std::thread::scope(|scope| {
        let one = scope.spawn(|| work(join(1, Some(0))?, again));
        let two = scope.spawn(|| work(join(2, None)?, again));
        let three = scope.spawn(|| {
            work(join(3, None)?, once)?;
            println!("member 3 leaves with its replica, and comes back with none");
            work(join(3, None)?, again)
        });
        [one, two, three].map(|thread| thread.join().expect("a replica panicked"))
    });
    // They leave when all have the count: one that others leave before has no majority, and so no count.
    let replicas: Vec<Replica> = replicas.into_iter().collect::<Result<_>>()?;
    let counts = replicas.iter().filter_map(|replica| replica.count).collect();
    println!("the counts are {counts:?}");
    std::fs::remove_dir_all(&dir)?;
    Ok(counts)
}

/// An error that `main` returns is printed for programmers, as `NotFound("ann")`; this prints its sentence.
fn main() {
    if let Err(e) = run(Duration::from_millis(300)) {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
