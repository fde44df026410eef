//! The identity of the other end of a connection, as its certificate says it.
//!
//! A certificate names its holder by a URI among its alternative names: `tercel://client/NAME`, or
//! `tercel://GROUP/member/ID`. Its address and its common name mean nothing. The invariant: an identity was
//! read from a certificate of which a trusted authority vouches for every byte.

use std::fmt;

use rustls::pki_types::CertificateDer;
use tercel_wire::access::Principal;
use webpki::EndEntityCert;

/// The client that a chain of certificates names which was verified; none if it names no client.
pub fn client_named(chain: &[CertificateDer<'_>]) -> Option<Principal> {
    match Identity::of(chain.first()?).ok()? {
        Identity::Client(name) => Principal::client(&name),
        Identity::Member(..) => None,
    }
}

/// A verified identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    /// A client, by its name.
    Client(String),
    /// A member: its group, and its name there.
    Member(String, String),
}

impl Identity {
    /// Reads the identity from a certificate that was verified.
    ///
    /// # Errors
    /// If the certificate names no identity, or two.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Identity, Unnamed> {
        let parsed = EndEntityCert::try_from(certificate).map_err(|_| Unnamed::Malformed)?;
        let mut named = parsed.valid_uri_names().filter(|uri| uri.starts_with(SCHEME));
        match (named.next(), named.next()) {
            (None, _) => Err(Unnamed::Nothing),
            (Some(_), Some(_)) => Err(Unnamed::Twice),
            (Some(uri), None) => Identity::of_uri(uri).ok_or_else(|| Unnamed::Unknown(uri.into())),
        }
    }

    fn of_uri(uri: &str) -> Option<Identity> {
        let mut parts = uri.strip_prefix(SCHEME)?.split('/');
        match (parts.next()?, parts.next()?, parts.next(), parts.next()) {
            ("client", name, None, None) => is_name(name).then(|| Identity::Client(name.into())),
            (group, "member", Some(id), None) => {
                (is_name(group) && is_name(id)).then(|| Identity::Member(group.into(), id.into()))
            }
            _ => None,
        }
    }

    /// The group of a member.
    pub(crate) fn group(&self) -> Option<&str> {
        match self {
            Identity::Client(_) => None,
            Identity::Member(group, _) => Some(group),
        }
    }
}

/// The identity as a principal: `client:NAME`, `member:ID`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Client(name) => write!(f, "client:{name}"),
            Identity::Member(_, id) => write!(f, "member:{id}"),
        }
    }
}

/// The reason for which a certificate gives no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unnamed {
    #[error("the certificate cannot be read")]
    Malformed,
    #[error("the certificate names nobody: it has no URI tercel://client/NAME or tercel://GROUP/member/ID")]
    Nothing,
    #[error("the certificate names two identities, and has to name one")]
    Twice,
    #[error("the certificate names `{0}`, and has to name tercel://client/NAME or tercel://GROUP/member/ID")]
    Unknown(String),
}

/// Says whether a text can be the name of a client, a group or a member.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// The beginning of every name.
const SCHEME: &str = "tercel://";

/// A name is a part of log lines and tables.
const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_names_a_client_or_a_member() {
        let client = Identity::of_uri("tercel://client/ann").unwrap();
        assert_eq!((client.to_string().as_str(), client.group()), ("client:ann", None));
        let member = Identity::of_uri("tercel://euros/member/a-1").unwrap();
        assert_eq!((member.to_string().as_str(), member.group()), ("member:a-1", Some("euros")));
        // A group of the name `client` is one.
        assert_eq!(Identity::of_uri("tercel://client/member/a").unwrap().group(), Some("client"));
    }

    #[test]
    fn other_uris_name_nobody() {
        let long = format!("tercel://client/{}", "a".repeat(NAME_BYTES_MAX + 1));
        for uri in [
            "tercel://client/",
            "tercel://client",
            "tercel://client/a/b",
            "tercel://client/a b",
            "tercel://client/ä",
            "tercel:///member/a",
            "tercel://g/member/",
            "tercel://g/member/a/b",
            "tercel://g/members/a",
            "http://client/ann",
            &long,
        ] {
            assert_eq!(Identity::of_uri(uri), None, "{uri}");
        }
    }
}
