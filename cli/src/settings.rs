//! The file of `tercel serve --config`: each key is an option's long name, and the command line wins.
//!
//! The file becomes words of the command line before that is read, so a key is known, checked and explained
//! by what knows the option.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, ArgAction, CommandFactory};
use tercel_term::fail::Failure;
use toml::{Table, Value};

use crate::args::Args;

/// The words of the command line, with those of the file that it names.
///
/// # Errors
/// If the file cannot be read, is not TOML, or has a key that is no option or a value that none takes.
pub fn with_file(words: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, Failure> {
    let mut words: Vec<OsString> = words.collect();
    let is_serve = words.get(1).is_some_and(|word| word == "serve");
    let Some(path) = is_serve.then(|| value_of("config", &words)).flatten() else { return Ok(words) };
    let shown = path.to_string_lossy().into_owned();
    let failed = |what: String| Failure::new(format!("{shown}: {what}")).code(2);
    let text = std::fs::read_to_string(&path)
        .map_err(|e| failed(e.to_string()).next("name a file that can be read with --config"))?;
    let file: Table = text.parse().map_err(|e: toml::de::Error| failed(e.to_string()))?;
    for (key, value) in file {
        if !is_option(&key) {
            let next = "`tercel serve --help` lists the options; a key is one of them without the dashes";
            return Err(failed(format!("`{key}` is no setting")).next(next));
        }
        let instead = INSTEAD.iter().find(|(one, _)| *one == key).map(|(_, other)| *other);
        if is_named(&key, &words) || instead.is_some_and(|other| is_named(other, &words)) {
            continue;
        }
        for word in of_value(&key, &value).map_err(failed)? {
            words.push(word.into());
        }
    }
    Ok(words)
}

/// The words by which the command line says this.
fn of_value(key: &str, value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(format!("--{key}={text}")),
        Value::Integer(n) => Ok(format!("--{key}={n}")),
        other => Err(format!("`{key}` takes a string or a number, and not a {}", other.type_str())),
    };
    match value {
        Value::Boolean(true) if is_switch(key) => Ok(vec![format!("--{key}")]),
        Value::Boolean(false) if is_switch(key) => Ok(Vec::new()),
        Value::Array(all) if all.is_empty() => Err(format!("`{key}` is an empty list: leave it out")),
        Value::Array(all) => all.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

/// Says whether there is such an option.
fn is_option(key: &str) -> bool {
    key != "config" && of_option(key, |_| ()).is_some()
}

/// Says whether it is an option without a value.
fn is_switch(key: &str) -> bool {
    of_option(key, |option| matches!(option.get_action(), ArgAction::SetTrue)) == Some(true)
}

fn of_option<R>(key: &str, f: impl FnOnce(&Arg) -> R) -> Option<R> {
    let command = Args::command();
    let options = command.find_subcommand("serve")?.get_arguments();
    let mut options = options.chain(command.get_arguments());
    options.find(|option| option.get_long() == Some(key)).map(f)
}

/// Options of which the command line takes one: what it says wins over the other one in the file.
const INSTEAD: [(&str, &str); 2] = [("join", "follow"), ("follow", "join")];

fn is_named(key: &str, words: &[OsString]) -> bool {
    let (alone, with) = (format!("--{key}"), format!("--{key}="));
    words.iter().any(|word| word == OsStr::new(&alone) || word.as_bytes().starts_with(with.as_bytes()))
}

/// The word after an option on the command line.
fn value_of(key: &str, words: &[OsString]) -> Option<OsString> {
    let (alone, with) = (format!("--{key}"), format!("--{key}="));
    let at = words.iter().position(|word| is_named(key, std::slice::from_ref(word)))?;
    match words[at] == OsStr::new(&alone) {
        true => words.get(at + 1).cloned(),
        false => {
            words[at].as_bytes().strip_prefix(with.as_bytes()).map(|path| OsStr::from_bytes(path).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(file: &str, more: &[&str]) -> Result<Vec<String>, String> {
        let path = std::env::temp_dir().join(format!("tercel-settings-{}-{:p}", std::process::id(), file));
        std::fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let words = ["tercel", "serve", &config].into_iter().chain(more.iter().copied());
        let result = with_file(words.map(OsString::from));
        std::fs::remove_file(path).unwrap();
        let words = |words: Vec<OsString>| words[3..].iter().map(|w| w.to_str().unwrap().into()).collect();
        result.map(words).map_err(|failure| failure.what)
    }

    #[test]
    fn command_line_wins_over_the_file() {
        let file = "data = '/d'\ntls = '/t'\nlisten = ['a:1', 'unix:/s']\nmob = '1G'\nkeepalive = 500\nallow-plain-remote = true\n";
        let all = [
            "--data=/d",
            "--tls=/t",
            "--listen=a:1",
            "--listen=unix:/s",
            "--mob=1G",
            "--keepalive=500",
            "--allow-plain-remote",
        ];
        let mut said = with(file, &[]).unwrap();
        said.sort_unstable();
        let mut all = all.map(String::from);
        all.sort_unstable();
        assert_eq!(said, all);
        let said = with(file, &["--listen", "b:2", "--mob=2G"]).unwrap();
        assert!(!said.iter().any(|word| word == "--mob=1G" || word.contains("a:1")), "{said:?}");
        assert!(said.contains(&"--keepalive=500".to_string()), "{said:?}");
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        assert!(with("lisen = 'a:1'", &[]).unwrap_err().contains("`lisen` is no setting"));
        assert!(with("config = 'again'", &[]).unwrap_err().contains("`config` is no setting"));
        assert!(with("data = {}", &[]).unwrap_err().contains("a string or a number"));
        assert!(with("drain = false", &[]).unwrap_err().contains("a string or a number"));
        assert!(with("listen = []", &[]).unwrap_err().contains("empty list"));
        assert!(with("join = 'a:1'", &["--follow=b:2"]).unwrap() == ["--follow=b:2"]);
        let said = with("data =", &[]).unwrap_err();
        assert!(said.contains("line 1"), "{said}");
    }
}
