//! The terminal of the `tercel` command: colours and bars where a person looks, plain lines otherwise.
//!
//! | module | its noun |
//! |---|---|
//! | the root | the terminal, and how numbers are written |
//! | [`disk`] | a disk that takes its time: syncs of a server of this run, held up |
//! | [`fail`] | the failure of a command: what happened, the next step, the exit code |
//! | [`hosts`] | networks of this run's own on one machine, whose links can be cut |
//! | [`importing`] | an import in its course, and what is said if it is lost |
//! | [`members`] | a group of such processes, all servers of one space |
//! | [`process`] | a process of this program that this process started |
//! | [`stop`] | how a signal stops the server of this process |
//! | [`tiers`] | gateways, application servers and two groups, and payments through them |
//! | [`wrap`] | text broken into lines that fit |
//! | [`tidy`] | what ends with this process: such processes, and its own directories |

pub mod disk;
pub mod fail;
pub mod hosts;
pub mod importing;
pub mod members;
pub mod notify;
pub mod process;
pub mod stop;
pub mod tidy;
pub mod tiers;
pub mod wrap;

use std::io::IsTerminal;
use std::time::Duration;

pub use indicatif::ProgressBar;
use indicatif::{ProgressDrawTarget, ProgressState, ProgressStyle};

/// The kinds of standard output and standard error.
pub struct Term {
    out: bool,
    err: bool,
}

impl Term {
    /// Looks at the streams of this process and at `NO_COLOR`.
    #[expect(clippy::new_without_default, reason = "it looks at the process, which a default value does not")]
    pub fn new() -> Term {
        let colour = std::env::var_os("NO_COLOR").is_none();
        Term { out: std::io::stdout().is_terminal() && colour, err: std::io::stderr().is_terminal() }
    }

    /// A heading.
    pub fn bold(&self, s: &str) -> String {
        self.paint(anstyle::Style::new().bold(), s)
    }

    /// Something good.
    pub fn green(&self, s: &str) -> String {
        self.paint(anstyle::AnsiColor::Green.on_default().bold(), s)
    }

    /// Something bad.
    pub fn red(&self, s: &str) -> String {
        self.paint(anstyle::AnsiColor::Red.on_default().bold(), s)
    }

    fn paint(&self, style: anstyle::Style, s: &str) -> String {
        if self.out { format!("{style}{s}{style:#}") } else { s.into() }
    }

    /// A bar over `total`, on standard error; silent where that is not a terminal.
    pub fn bar(&self, total: u64, template: &str, what: &'static str) -> ProgressBar {
        let target = if self.err { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─").with_key("rate", write_rate));
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }
}

/// Prints a line to standard output. If its reader has gone, the command ends without an error, because
/// nothing is left to do. Any other failure ends the command with an error, because its answer is lost.
#[macro_export]
macro_rules! say {
    () => { $crate::line(format_args!("")) };
    ($($words:tt)*) => { $crate::line(format_args!($($words)*)) };
}

/// Prints text to standard output as [`say`] does, broken into lines that fit the terminal. What follows a
/// break is indented by two columns more.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => { $crate::paragraph(format_args!($($words)*)) };
}

/// The function behind [`tell`].
pub fn paragraph(words: std::fmt::Arguments<'_>) {
    line(format_args!("{}", wrap::wrap(&words.to_string(), wrap::columns(), 2)));
}

/// The function behind [`say`].
pub fn line(words: std::fmt::Arguments<'_>) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{words}").and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => tidy::leave(0),
        Err(e) => {
            eprintln!("error: cannot write to standard output: {e}");
            tidy::leave(1)
        }
    }
}

/// Gives the name by which this program was called, so that a command offered for copying works.
pub fn program() -> String {
    let called =
        std::env::args_os().next().map_or_else(|| "tercel".into(), |p| p.to_string_lossy().into_owned());
    if called.contains(char::is_whitespace) { format!("'{called}'") } else { called }
}

/// Parses a number of bytes with an optional K, M, G or T.
///
/// # Errors
/// A sentence for the user: it is no number, or too large.
pub fn bytes(s: &str) -> Result<usize, String> {
    let s = s.trim();
    let (number, shift) = match s.as_bytes().last() {
        Some(b'K' | b'k') => (&s[..s.len() - 1], 10),
        Some(b'M' | b'm') => (&s[..s.len() - 1], 20),
        Some(b'G' | b'g') => (&s[..s.len() - 1], 30),
        Some(b'T' | b't') => (&s[..s.len() - 1], 40),
        _ => (s, 0),
    };
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("`{s}` is not a number of bytes: write for example 4096, 512K, 64M or 1G"));
    }
    let n = number.parse().ok().and_then(|n: usize| n.checked_mul(1 << shift));
    n.ok_or_else(|| format!("`{s}` is out of range: no machine has so many bytes"))
}

/// A bar of things with a rate.
pub const THINGS: &str = "{msg:<22} {wide_bar:.cyan/dim} {human_pos}/{human_len} {rate} {eta}";

fn write_rate(state: &ProgressState, to: &mut dyn std::fmt::Write) {
    // A terminal that cannot be written to shows no bar either.
    let _ = write!(to, "{}/s", thousands(state.per_sec() as u64));
}

/// Bytes a second.
pub fn rate(bytes: u64, seconds: f64) -> String {
    format!("{:.0} MB/s", bytes as f64 / 1e6 / seconds.max(1e-3))
}

/// A number with thousands apart.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// So many of something, in words: what one and what several are called.
pub fn count(n: u64, one: &str, several: &str) -> String {
    format!("{} {}", thousands(n), if n == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_is_not_called_as_several_are() {
        let packages = |n| super::count(n, "package", "packages");
        assert_eq!(
            (&*packages(0), &*packages(1), &*packages(2_000)),
            ("0 packages", "1 package", "2,000 packages")
        );
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(super::thousands(7), "7");
        assert_eq!(super::thousands(1234567), "1,234,567");
    }

    #[test]
    fn bytes_are_read_with_their_unit() {
        assert_eq!(
            (super::bytes("512"), super::bytes("64M"), super::bytes("1g")),
            (Ok(512), Ok(64 << 20), Ok(1 << 30))
        );
        assert_eq!(super::bytes("2T"), Ok(2 << 40));
        for word in ["x", "", "G", "+1", "-1M", "1.5G"] {
            assert!(super::bytes(word).unwrap_err().contains("not a number"), "{word}");
        }
        for much in ["99999999999G", "99999999999999999999999"] {
            assert!(super::bytes(much).unwrap_err().contains("out of range"), "{much}");
        }
    }
}
