//! Silence: the time for which a member may say nothing until it counts as silent.
//!
//! A host that is busy runs its processes late, so members hear each other after pauses that say nothing of
//! their ends. The longest pauses of late are known for each link, and some times that long must pass.

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;

use super::Config;

/// The longest pause of late between two packets of a member.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pauses {
    longest_us: u64,
    /// It has faded up to then.
    faded: Now,
}

impl Pauses {
    /// A packet came after a pause. The part of that in which the judge itself was late is left out by the
    /// caller.
    pub(super) fn heard(&mut self, now: Now, pause_us: u64, config: &Config) {
        self.fade(now, config);
        // A member that was silent for as long as that was stopped or cut off: no link is like this.
        if pause_us < config.silence_us {
            self.longest_us = self.longest_us.max(pause_us.min(config.silence_us / PAUSES));
        }
    }

    /// The silence after which the member is suspected, in microseconds.
    pub(super) fn deadline_us(&self, config: &Config) -> u64 {
        let most = config.silence_us.max(config.deadline_us);
        match dropped(Rule::PausesForgotten) {
            true => config.deadline_us,
            false => (PAUSES * self.longest_us).clamp(config.deadline_us, most),
        }
    }

    fn fade(&mut self, now: Now, config: &Config) {
        let beats = now.since_us(self.faded) / config.heartbeat_us.max(1);
        if beats > 0 {
            self.faded = now;
            (0..beats.min(BEATS_MAX)).for_each(|_| self.longest_us -= self.longest_us.div_ceil(FADES_IN));
        }
    }
}

/// A member is suspected after so many times the longest pause.
const PAUSES: u64 = 4;

/// A pause loses one part in so many with each heartbeat, so half of it is forgotten in 1.8 s. A shorter time
/// would forget a busy host's pauses before the next one comes, a longer one the host's calm.
const FADES_IN: u64 = 128;

/// Nothing is left of any pause after so many heartbeats.
const BEATS_MAX: u64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: Config = Config {
        heartbeat_us: 20_000,
        deadline_us: 150_000,
        silence_us: 1_000_000,
        stagger_us: 3_000,
        window_bytes: 1,
        packet_bytes: 1,
        kept_bytes: 1,
    };

    /// Hears packets after these pauses.
    fn after(pauses_us: impl IntoIterator<Item = u64>) -> Pauses {
        let (mut pauses, mut now) = (Pauses::default(), Now(0));
        for pause_us in pauses_us {
            now = now.plus_us(pause_us);
            pauses.heard(now, pause_us, &CONFIG);
        }
        pauses
    }

    #[test]
    fn calm_link_has_the_usual_deadline() {
        let beats = (0..1_000).map(|i| 20_000 + i % 7 * 1_000);
        assert_eq!(after(beats).deadline_us(&CONFIG), 150_000);
        assert_eq!(Pauses::default().deadline_us(&CONFIG), 150_000);
    }

    #[test]
    fn deadline_is_four_of_the_longest_pause() {
        assert_eq!(after([20_000, 100_000]).deadline_us(&CONFIG), 400_000);
        let later = after([100_000, 20_000, 20_000]).deadline_us(&CONFIG);
        assert!((390_000..400_000).contains(&later), "{later}");
    }

    #[test]
    fn deadline_ends_at_the_silence() {
        assert_eq!(after([20_000, 900_000]).deadline_us(&CONFIG), 1_000_000);
        let narrow = Config { silence_us: 100_000, ..CONFIG };
        assert_eq!(after([20_000, 90_000]).deadline_us(&narrow), 150_000, "the least is the usual one");
    }

    #[test]
    fn stop_beyond_the_silence_is_no_pause() {
        assert_eq!(after([20_000, 1_000_000]).deadline_us(&CONFIG), 150_000);
    }

    #[test]
    fn pause_is_forgotten_on_a_calm_link() {
        let calm =
            |beats: usize| after([250_000].into_iter().chain(vec![20_000; beats])).deadline_us(&CONFIG);
        assert!((480_000..520_000).contains(&calm(88)), "{}", calm(88));
        assert_eq!(calm(300), 150_000);
        // Packets that come more often than heartbeats take no more from it, and rare ones no less.
        let often = after([250_000].into_iter().chain(vec![1_000; 88 * 20])).deadline_us(&CONFIG);
        assert!((480_000..520_000).contains(&often), "{often}");
        let mut rare = after([250_000]);
        rare.heard(Now(20_000_000), 10, &CONFIG);
        assert_eq!(rare.deadline_us(&CONFIG), 150_000);
    }
}
