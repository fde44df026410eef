//! The keys by which requests are signed: of variables, or of a file that is read for each request.
//!
//! The file may be replaced while a server runs, so keys that end are renewed without a restart. The
//! invariant: no type here prints a secret, and no error has any part of the file.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

use super::trouble::{self, Trouble};
use crate::access::Access;

/// The place of the keys.
#[derive(Clone)]
pub enum Source {
    /// Keys of variables.
    Fixed(Arc<AwsCredential>),
    /// A file, and the name of its section.
    File(PathBuf, String),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl Source {
    /// Finds the keys: in the file that is named beside the variables, else in the variables, else in the
    /// file that they name.
    pub(super) fn of(access: &Access) -> Result<Source, String> {
        let profile = access.variable("AWS_PROFILE").unwrap_or("default");
        let file = |path: PathBuf| {
            let source = Source::File(path, profile.into());
            source.read().map(|_| source)
        };
        if let Some(path) = &access.credentials {
            return file(path.clone());
        }
        match (access.variable("AWS_ACCESS_KEY_ID"), access.variable("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret)) => {
                let token = access.variable("AWS_SESSION_TOKEN");
                Ok(Source::Fixed(Arc::new(keys_of(id, secret, token)?)))
            }
            (Some(_), None) => Err("AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not".into()),
            (None, Some(_)) => Err("AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID is not".into()),
            (None, None) => match access.variable("AWS_SHARED_CREDENTIALS_FILE") {
                Some(path) => file(path.into()),
                None => Err("there are no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file that \
                             has them in AWS_SHARED_CREDENTIALS_FILE"
                    .into()),
            },
        }
    }

    /// The place, for people.
    pub(super) fn text(&self) -> String {
        match self {
            Source::Fixed(_) => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".into(),
            Source::File(path, profile) => format!("[{profile}] of {}", path.display()),
        }
    }

    /// The keys as they are now.
    fn read(&self) -> Result<Arc<AwsCredential>, String> {
        match self {
            Source::Fixed(keys) => Ok(keys.clone()),
            Source::File(path, profile) => {
                let text =
                    contents(path).map_err(|why| format!("the file of keys {}: {why}", path.display()))?;
                of_section(&text, profile)
                    .map(Arc::new)
                    .map_err(|why| format!("the file of keys {}: {why}", path.display()))
            }
        }
    }
}

/// The provider of keys, as requests ask for it.
pub(super) struct Keys {
    source: Source,
    last: Mutex<Option<Arc<AwsCredential>>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Keys {
    pub(super) fn new(source: Source) -> Keys {
        Keys { source, last: Mutex::default() }
    }

    pub(super) fn text(&self) -> String {
        self.source.text()
    }

    /// A text from elsewhere without the secrets of the last request, as a store may send them back.
    pub(super) fn scrub(&self, text: &str) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(keys) = last else { return text.into() };
        let secrets = [Some(&keys.secret_key), keys.token.as_ref()];
        secrets
            .into_iter()
            .flatten()
            .fold(text.to_string(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

#[async_trait]
impl CredentialProvider for Keys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        match self.source.read() {
            Ok(keys) => {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys.clone());
                Ok(keys)
            }
            Err(why) => {
                trouble::note(Trouble::Keys(why.clone()));
                Err(object_store::Error::Generic { store: "S3", source: why.into() })
            }
        }
    }
}

fn contents(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    // A text that is no UTF-8 would be quoted by nobody, but its error says no more than that.
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(format!("it has more than {FILE_BYTES_MAX} bytes")),
        false => Ok(text),
    }
}

/// The keys of a section.
fn of_section(text: &str, profile: &str) -> Result<AwsCredential, String> {
    let (mut is_here, mut is_found) = (false, false);
    let (mut id, mut secret, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim();
            is_here =
                name == profile || name.strip_prefix("profile ").is_some_and(|name| name.trim() == profile);
            is_found |= is_here;
        } else if let Some((name, value)) = line.split_once('=')
            && is_here
        {
            match name.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => id = Some(value.trim()),
                "aws_secret_access_key" => secret = Some(value.trim()),
                "aws_session_token" => token = Some(value.trim()),
                _ => {}
            }
        }
    }
    match (is_found, id, secret) {
        (false, ..) => Err(format!("it has no section [{profile}]; AWS_PROFILE names another one")),
        (_, Some(id), Some(secret)) => keys_of(id, secret, token),
        (_, None, _) => Err(format!("its section [{profile}] has no aws_access_key_id")),
        (..) => Err(format!("its section [{profile}] has no aws_secret_access_key")),
    }
}

/// Makes keys that can stand in a header.
fn keys_of(id: &str, secret: &str, token: Option<&str>) -> Result<AwsCredential, String> {
    let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    let token = token.filter(|token| !token.is_empty());
    match is_word(id) && is_word(secret) && token.is_none_or(is_word) {
        true => {
            Ok(AwsCredential { key_id: id.into(), secret_key: secret.into(), token: token.map(Into::into) })
        }
        false => Err("a key or the token is empty, or has signs that keys do not have".into()),
    }
}

/// Bytes of a file of keys: more than any that people write.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# ours\n[default]\naws_access_key_id = one\naws_secret_access_key=geheim/1+=\n\n\
                        [profile other]\nregion = x\nAWS_ACCESS_KEY_ID=two\naws_secret_access_key = geheim2\n\
                        aws_session_token = geheim3\n[half]\naws_access_key_id = three\n";

    #[test]
    fn section_has_its_keys() {
        let keys = of_section(TEXT, "default").unwrap();
        assert_eq!((&keys.key_id[..], &keys.secret_key[..], keys.token), ("one", "geheim/1+=", None));
        let keys = of_section(TEXT, "other").unwrap();
        let token = keys.token.as_deref();
        assert_eq!((&keys.key_id[..], &keys.secret_key[..], token), ("two", "geheim2", Some("geheim3")));
    }

    #[test]
    fn wrong_file_is_told_without_its_contents() {
        for (text, profile, says) in [
            (TEXT, "absent", "no section [absent]"),
            (TEXT, "half", "no aws_secret_access_key"),
            ("[default]\naws_secret_access_key = geheim", "default", "no aws_access_key_id"),
            ("[default]\naws_access_key_id=a\naws_secret_access_key = ge heim", "default", "signs"),
            ("aws_access_key_id = geheim", "default", "no section [default]"),
        ] {
            let why = of_section(text, profile).unwrap_err();
            assert!(why.contains(says) && !why.contains("geheim"), "{why}");
        }
    }

    #[test]
    fn named_file_comes_before_variables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        std::fs::write(&path, TEXT).unwrap();
        let variables =
            [("AWS_ACCESS_KEY_ID", "v"), ("AWS_SECRET_ACCESS_KEY", "geheim"), ("AWS_PROFILE", "other")];
        let variables = variables.map(|(name, value)| (name.to_string(), value.to_string()));
        let mut access = Access { variables: variables.into(), credentials: Some(path.clone()) };
        let id = |access: &Access| {
            Source::of(access).and_then(|source| source.read()).map(|keys| keys.key_id.clone())
        };
        assert_eq!(id(&access).unwrap(), "two");
        access.credentials = None;
        assert_eq!(id(&access).unwrap(), "v");
        access.variables.remove("AWS_SECRET_ACCESS_KEY");
        assert!(id(&access).unwrap_err().contains("AWS_SECRET_ACCESS_KEY is not"));
        access.variables.remove("AWS_ACCESS_KEY_ID");
        assert!(id(&access).unwrap_err().contains("AWS_SHARED_CREDENTIALS_FILE"));
        access.variables.insert("AWS_SHARED_CREDENTIALS_FILE".into(), path.display().to_string());
        assert_eq!(id(&access).unwrap(), "two");
    }

    #[test]
    fn replaced_file_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        std::fs::write(&path, TEXT).unwrap();
        let source = Source::File(path.clone(), "default".into());
        assert_eq!(source.read().unwrap().key_id, "one");
        std::fs::write(&path, TEXT.replace("= one", "= renewed")).unwrap();
        assert_eq!(source.read().unwrap().key_id, "renewed");
    }

    #[test]
    fn secrets_are_not_printed() {
        let keys = Arc::new(keys_of("id", "geheim", Some("token-geheim")).unwrap());
        let provider = Keys { source: Source::Fixed(keys.clone()), last: Mutex::new(Some(keys)) };
        assert!(!format!("{provider:?}").contains("geheim"));
        assert_eq!(provider.scrub("a geheim b token-geheim c"), "a *** b token-*** c");
    }
}
