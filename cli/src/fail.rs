//! Errors as people meet them: what happened, and the next step.

use crate::term::Term;

/// What a command failed with.
#[derive(Debug)]
pub struct Failure {
    /// What happened.
    pub what: String,
    /// What to do about it.
    pub next: Option<String>,
    /// The exit code: 1 for a failure, 2 for a wrong request, 3 for unsound data.
    pub code: u8,
}

/// What commands return.
pub type Outcome = Result<std::process::ExitCode, Failure>;

impl Failure {
    pub fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), next: None, code: 1 }
    }

    pub fn next(mut self, next: impl Into<String>) -> Failure {
        self.next = Some(next.into());
        self
    }

    pub fn code(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    pub fn print(&self, term: &Term) {
        eprintln!("{} {}", term.red("error:"), self.what);
        if let Some(next) = &self.next {
            eprintln!("{} {next}", term.bold("next:"));
        }
    }
}

impl From<tercel::Error> for Failure {
    fn from(e: tercel::Error) -> Failure {
        let next = match &e {
            tercel::Error::Conflict => Some("others change the same objects all the time: try again"),
            tercel::Error::Unavailable(_) => {
                Some("start a server with `tercel serve --data DIR`, or name a directory with --data DIR")
            }
            tercel::Error::Timeout(_) => Some("the server is slow or gone: `tercel stat` tells"),
            tercel::Error::Corrupt(_) => Some("stop the server and run `tercel check --data DIR`"),
            tercel::Error::Full(_) if e.to_string().contains("cache") => {
                Some("give more memory with --cache")
            }
            _ => None,
        };
        let failure = Failure::new(e.to_string());
        match next {
            Some(next) => failure.next(next),
            None => failure,
        }
    }
}

impl From<tercel::ServerError> for Failure {
    fn from(e: tercel::ServerError) -> Failure {
        Failure::new(e.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::new(e.to_string())
    }
}
