//! The settings of a bucket: of its URL, of the variables that every S3 client knows, and of a file of keys.
//!
//! They are checked here, once. The invariant: a request goes by TLS, or to this machine, or in plain because
//! a variable asks for that by name.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use object_store::path::Path as ObjectPath;

use super::keys::Source;
use crate::access::Access;
use crate::store::StoreError;

/// The settings of a bucket.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The bucket.
    pub bucket: String,
    /// The beginning of all names, without a slash at its ends; empty if the archive is the whole bucket.
    pub path: String,
    /// The region, by which requests are signed.
    pub region: String,
    /// The URL of the service, without the bucket.
    pub endpoint: Uri,
    /// The file with the authorities that are trusted beside those of the system, in PEM.
    pub authorities: Option<PathBuf>,
    /// Plain connections may leave this machine.
    pub allow_http: bool,
    /// The place of the keys.
    pub source: Source,
    /// The bounds in time.
    pub patience: Patience,
}

/// The bounds in time of a call. Where nothing answers, a call ends after `attempts` times `answer` and the
/// pauses between. An attempt of a replacement is three requests, so with a service that answers each at the
/// last moment a call takes several times as long.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// The time for a connection to be made.
    pub connect: Duration,
    /// The time for an answer to begin, and for it to end, beside the time of its bytes. Longer times hold up
    /// a server that is to stop.
    pub answer: Duration,
    /// The bytes of a second at the slowest, by which larger objects get more time.
    pub bytes_per_second: u64,
    /// The number of times that a request is made.
    pub attempts: u32,
    /// The pause before the second attempt; the later ones are three times longer each.
    pub pause: Duration,
}

impl Default for Patience {
    /// Five attempts of 10 s, with pauses of 8 s in all: a minute where nothing answers, which is less
    /// than the 90 s in which service managers have a server stop.
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(10),
            bytes_per_second: 128 << 10,
            attempts: 5,
            pause: Duration::from_millis(200),
        }
    }
}

impl Patience {
    /// The time for a number of bytes to go one way.
    pub(super) fn of_bytes(&self, bytes: u64) -> Duration {
        self.answer + Duration::from_secs(bytes / self.bytes_per_second.max(1))
    }
}

impl Settings {
    /// Reads the settings of a URL, `s3://BUCKET/PATH`.
    ///
    /// # Errors
    /// If the URL is none of a bucket, or a variable has no fitting value, or there are no keys.
    pub fn read(url: &str, access: &Access) -> Result<Settings, StoreError> {
        let (bucket, path) = of_url(url)?;
        let refused =
            |why: String| StoreError::Refused { store: crate::shown(url), what: "its settings".into(), why };
        let region = access.variable("AWS_REGION").or(access.variable("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or("us-east-1");
        let is_region = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !region.chars().all(is_region) {
            return Err(refused("AWS_REGION has no name of a region, such as eu-central-1".into()));
        }
        let allow_http = match access.variable("AWS_ALLOW_HTTP").map(str::to_ascii_lowercase).as_deref() {
            None | Some("false" | "0" | "no") => false,
            Some("true" | "1" | "yes") => true,
            Some(_) => return Err(refused("AWS_ALLOW_HTTP is neither true nor false".into())),
        };
        let named = access.variable("AWS_ENDPOINT_URL_S3").or(access.variable("AWS_ENDPOINT_URL"));
        let endpoint = match named {
            Some(named) => endpoint_of(named, allow_http).map_err(refused)?,
            None => {
                let own = format!("https://s3.{region}.amazonaws.com");
                own.parse().map_err(|_| refused(format!("AWS_REGION makes no endpoint: {own}")))?
            }
        };
        Ok(Settings {
            bucket,
            path,
            region: region.into(),
            endpoint,
            authorities: access.variable("AWS_CA_BUNDLE").map(PathBuf::from),
            allow_http,
            source: Source::of(access).map_err(refused)?,
            patience: Patience::default(),
        })
    }

    /// The URL of the archive.
    #[must_use]
    pub fn url(&self) -> String {
        match self.path.is_empty() {
            true => format!("s3://{}", self.bucket),
            false => format!("s3://{}/{}", self.bucket, self.path),
        }
    }
}

/// The bucket and the path of a URL.
fn of_url(url: &str) -> Result<(String, String), StoreError> {
    let wrong = |why: &str| StoreError::Url { url: crate::shown(url), why: format!(": {why}") };
    let rest = url.strip_prefix("s3://").ok_or_else(|| wrong("it does not begin with s3://"))?;
    if rest.contains('@') {
        return Err(wrong("keys do not belong into a URL; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
    }
    if rest.contains(['?', '#', '%']) {
        return Err(wrong("settings do not belong into it; set AWS_REGION and AWS_ENDPOINT_URL"));
    }
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(is_name) {
        return Err(wrong("a bucket has 3 to 63 letters, digits, hyphens and dots"));
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && ObjectPath::parse(part).is_ok();
    if !path.is_empty() && !path.split('/').all(is_part) {
        return Err(wrong("its path has an empty part, or signs that names cannot have"));
    }
    Ok((bucket.into(), path.into()))
}

/// The endpoint that a variable names.
fn endpoint_of(named: &str, allow_http: bool) -> Result<Uri, String> {
    // It is not shown: in front of an `@` it may have a password.
    let wrong = || "AWS_ENDPOINT_URL is no URL such as https://minio.example.org:9000".to_string();
    let endpoint: Uri = named.trim_end_matches('/').parse().map_err(|_| wrong())?;
    let host = endpoint.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
    if endpoint.authority().is_none_or(|authority| authority.as_str().contains('@')) {
        return Err(wrong());
    }
    match endpoint.scheme_str() {
        Some("https") => Ok(endpoint),
        Some("http") if allow_http || is_of_this_machine(host) => Ok(endpoint),
        Some("http") => Err(format!(
            "AWS_ENDPOINT_URL is plain HTTP to {host}, where others could read and change the archive: use https, or ask \
             for it by name with AWS_ALLOW_HTTP=true"
        )),
        _ => Err(wrong()),
    }
}

/// Says whether a host is this machine: all of its addresses are loopback ones.
fn is_of_this_machine(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    match (host.parse::<IpAddr>(), (host, 0).to_socket_addrs()) {
        (Ok(address), _) => address.to_canonical().is_loopback(),
        (_, Ok(mut addresses)) => addresses.all(|address| address.ip().to_canonical().is_loopback()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(variables: &[(&str, &str)]) -> Access {
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "geheim")];
        let all = keys.iter().chain(variables);
        let variables = all.map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Access { variables, credentials: None }
    }

    fn read(url: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::read(url, &access(variables)).map_err(|error| error.to_string())
    }

    #[test]
    fn urls_name_a_bucket_and_a_path() {
        for (url, bucket, path) in [
            ("s3://backups", "backups", ""),
            ("s3://backups/", "backups", ""),
            ("s3://backups/a/b", "backups", "a/b"),
            ("s3://backups/a/b/", "backups", "a/b"),
        ] {
            let settings = read(url, &[]).unwrap();
            assert_eq!((&settings.bucket[..], &settings.path[..]), (bucket, path), "{url}");
        }
        for url in [
            "s3://",
            "s3:///a",
            "s3://ab",
            "s3://back ups",
            "s3://backups//a",
            "s3://backups/../a",
            "s3://backups?region=x",
            "s3://key:geheim@backups/a",
        ] {
            let why = read(url, &[]).unwrap_err();
            assert!(why.contains("names no store") && !why.contains("geheim"), "{url}: {why}");
        }
    }

    #[test]
    fn plain_http_stays_on_this_machine() {
        for near in
            ["http://127.0.0.1:9000", "http://[::1]:9000/", "http://localhost:9000", "https://203.0.113.7"]
        {
            read("s3://backups", &[("AWS_ENDPOINT_URL", near)]).unwrap();
        }
        let far = ("AWS_ENDPOINT_URL", "http://203.0.113.7:9000");
        let why = read("s3://backups", &[far]).unwrap_err();
        assert!(why.contains("AWS_ALLOW_HTTP=true"), "{why}");
        read("s3://backups", &[far, ("AWS_ALLOW_HTTP", "true")]).unwrap();
        assert!(read("s3://backups", &[far, ("AWS_ALLOW_HTTP", "false")]).is_err());
        for wrong in ["ftp://host", "host:9000", "http://", "https://me:geheim@host"] {
            let why = read("s3://backups", &[("AWS_ENDPOINT_URL", wrong)]).unwrap_err();
            assert!(why.contains("AWS_ENDPOINT_URL") && !why.contains("geheim"), "{wrong}: {why}");
        }
    }

    #[test]
    fn region_makes_the_endpoint() {
        let settings = read("s3://backups", &[("AWS_REGION", "eu-central-1")]).unwrap();
        assert_eq!(settings.endpoint, "https://s3.eu-central-1.amazonaws.com/");
        assert!(read("s3://backups", &[("AWS_REGION", "eu central")]).is_err());
        let both = [("AWS_ENDPOINT_URL", "https://one.test"), ("AWS_ENDPOINT_URL_S3", "https://two.test")];
        assert_eq!(read("s3://backups", &both).unwrap().endpoint, "https://two.test/");
    }
}
