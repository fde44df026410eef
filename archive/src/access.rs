//! The means by which stores are reached: variables of the environment, and a file of keys.
//!
//! They are plain data here, so that a program may take them from elsewhere. Directories need none of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The variables and the file that say where buckets are, and with which keys they are reached.
#[derive(Clone, Default)]
pub struct Access {
    /// Variables by their names, such as `AWS_REGION`. They may hold secrets, so they are not printed.
    pub variables: BTreeMap<String, String>,
    /// The file that has the keys; it comes before what the variables say about keys.
    pub credentials: Option<PathBuf>,
}

impl Access {
    /// Takes the variables that begin with `AWS_` from the environment of the process.
    #[must_use]
    pub fn of_environment() -> Access {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let variables = std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("AWS_"));
        Access { variables: variables.collect(), credentials: None }
    }

    /// The value of a variable; none if it is not there or empty.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.variables.keys().collect();
        f.debug_struct("Access").field("variables", &names).field("credentials", &self.credentials).finish()
    }
}
