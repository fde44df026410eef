//! Principals, roles, and rights: who acts, and what a space lets it do.
//!
//! All three have one form as text, which people write, logs show and messages carry. The invariant: two
//! principals are equal exactly if their texts are.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;

use crate::cursor::{DecodeError, Put, Reader};
use crate::layout::NAME_BYTES_MAX;

/// The party that acts on a connection, as the server knows it. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Principal {
    /// No identity is known.
    #[default]
    Anyone,
    /// The user of the process at the other end of a Unix socket, and of the memory handed over there.
    Uid(u32),
    /// A member of the server's group, which has proven this name.
    Member(Arc<str>),
    /// A client that has proven this name.
    Client(Arc<str>),
    /// The subject of a token, behind the name of its issuer and a slash: a gateway has verified it.
    Token(Arc<str>),
}

/// Bytes of a client's, a member's or an issuer's name.
pub const PRINCIPAL_NAME_BYTES_MAX: usize = 64;

/// Bytes of a token's subject.
pub const SUBJECT_BYTES_MAX: usize = 128;

impl Principal {
    /// A client of this name; none if a client cannot have it: a name has 1 to 64 letters, digits or
    /// characters of `-_.`.
    pub fn client(name: &str) -> Option<Principal> {
        is_name(name).then(|| Principal::Client(name.into()))
    }

    /// A member of this name, which is as a client's.
    pub fn member(name: &str) -> Option<Principal> {
        is_name(name).then(|| Principal::Member(name.into()))
    }

    /// The subject of a token; none if the issuer's name is none as a client's, or the subject has not 1 to
    /// 128 visible characters of ASCII.
    pub fn token(issuer: &str, subject: &str) -> Option<Principal> {
        let is_subject =
            (1..=SUBJECT_BYTES_MAX).contains(&subject.len()) && subject.bytes().all(|b| b.is_ascii_graphic());
        (is_name(issuer) && is_subject).then(|| Principal::Token(format!("{issuer}/{subject}").into()))
    }

    /// Says whether another principal may speak for it that has the role for that.
    pub fn is_spoken_for(&self) -> bool {
        matches!(self, Principal::Client(_) | Principal::Token(_))
    }
}

impl Principal {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_bytes(self.to_string().as_bytes());
    }

    /// Reads it.
    ///
    /// # Errors
    /// If the text names none.
    pub fn decode(r: &mut Reader<'_>) -> Result<Principal, DecodeError> {
        r.str("principal")?.parse().map_err(|_| DecodeError::BadField("principal"))
    }
}

impl Display for Principal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Anyone => f.write_str("anyone"),
            Principal::Uid(uid) => write!(f, "uid:{uid}"),
            Principal::Member(name) => write!(f, "member:{name}"),
            Principal::Client(name) => write!(f, "client:{name}"),
            Principal::Token(name) => write!(f, "token:{name}"),
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=PRINCIPAL_NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// A text that names no principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a principal is client:NAME, member:ID, uid:N, token:ISSUER/SUBJECT or anyone; a name has 1 to 64 letters, digits or characters of -_."
)]
pub struct BadPrincipal;

impl FromStr for Principal {
    type Err = BadPrincipal;

    /// Reads the form that `Display` writes, and no other.
    fn from_str(text: &str) -> Result<Principal, BadPrincipal> {
        let found = match text.split_once(':') {
            None if text == "anyone" => Some(Principal::Anyone),
            Some(("uid", uid)) => uid.parse().ok().map(Principal::Uid),
            Some(("member", name)) => Principal::member(name),
            Some(("client", name)) => Principal::client(name),
            Some(("token", name)) => {
                name.split_once('/').and_then(|(issuer, of)| Principal::token(issuer, of))
            }
            _ => None,
        };
        found.filter(|found| found.to_string() == text).ok_or(BadPrincipal)
    }
}

/// Something that a principal may do in a space.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads pages, and so all objects.
    Read,
    /// Writes objects of the class of this name, in all its versions; of all classes if it is empty.
    Write(String),
    /// Defines classes.
    Define,
    /// Calls the methods or procedures of this interface, or the one that is named behind it:
    /// `INTERFACE.METHOD`. It sees no pages.
    Call(String),
    /// Takes backups.
    Backup,
    /// Does what operators do: status, collections, changes of the group, forgotten spaces.
    Operate,
    /// Grants and revokes.
    Grant,
    /// Says for which client it speaks on a connection, and is that client there.
    SpeakFor,
}

impl Role {
    /// Says whether a principal that has this role may do what the other one is about.
    pub fn covers(&self, other: &Role) -> bool {
        match (self, other) {
            (Role::Write(mine), Role::Write(class)) => mine.is_empty() || mine == class,
            (Role::Call(mine), Role::Call(called)) => {
                // An interface, and a method of it.
                let method = called.strip_prefix(mine.as_str()).and_then(|rest| rest.strip_prefix('.'));
                mine == called || method.is_some_and(|method| !method.contains('.'))
            }
            _ => self == other,
        }
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.number());
        out.put_bytes(self.name().as_bytes());
    }

    /// Reads it.
    ///
    /// # Errors
    /// If it is none.
    pub fn decode(r: &mut Reader<'_>) -> Result<Role, DecodeError> {
        let (number, name) = (r.u8()?, r.str("role")?);
        Role::of(number, name).ok_or(DecodeError::BadField("role"))
    }

    fn number(&self) -> u8 {
        match self {
            Role::Read => 1,
            Role::Write(_) => 2,
            Role::Define => 3,
            Role::Call(_) => 4,
            Role::Backup => 5,
            Role::Operate => 6,
            Role::Grant => 7,
            Role::SpeakFor => 8,
        }
    }

    /// The name of a class or of what is called.
    fn name(&self) -> &str {
        match self {
            Role::Write(name) | Role::Call(name) => name,
            _ => "",
        }
    }

    fn of(number: u8, name: &str) -> Option<Role> {
        let is_name = !name.is_empty()
            && name.len() <= 2 * NAME_BYTES_MAX + 1
            && !name.chars().any(|c| c.is_control() || c.is_whitespace());
        match (number, is_name) {
            (2, true) => Some(Role::Write(name.into())),
            (4, true) => Some(Role::Call(name.into())),
            _ if !name.is_empty() => None,
            (1, _) => Some(Role::Read),
            (2, _) => Some(Role::Write(String::new())),
            (3, _) => Some(Role::Define),
            (5, _) => Some(Role::Backup),
            (6, _) => Some(Role::Operate),
            (7, _) => Some(Role::Grant),
            (8, _) => Some(Role::SpeakFor),
            _ => None,
        }
    }
}

/// The words of the roles, by their numbers.
const WORDS: [(u8, &str); 8] = [
    (1, "read"),
    (2, "write"),
    (3, "define"),
    (4, "call"),
    (5, "backup"),
    (6, "operate"),
    (7, "grant"),
    (8, "speak-for"),
];

impl Display for Role {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (_, word) = WORDS[usize::from(self.number()) - 1];
        match self.name() {
            "" => f.write_str(word),
            name => write!(f, "{word} {name}"),
        }
    }
}

/// A text that names no role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a role is read, write, `write CLASS`, define, `call INTERFACE`, `call INTERFACE.METHOD`, backup, operate, grant or speak-for"
)]
pub struct BadRole;

impl FromStr for Role {
    type Err = BadRole;

    /// Reads the form that `Display` writes, and no other.
    fn from_str(text: &str) -> Result<Role, BadRole> {
        let (word, name) = text.split_once(' ').unwrap_or((text, ""));
        let number = WORDS.iter().find(|(_, of)| *of == word).map(|(number, _)| *number);
        let role = number.and_then(|number| Role::of(number, name));
        role.filter(|role| role.to_string() == text).ok_or(BadRole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_and_roles_have_one_text_each() {
        for text in [
            "anyone",
            "uid:0",
            "uid:4294967295",
            "member:00000000000000ff",
            "client:a.b-c_1",
            "token:corp/a|b/c@d:e",
        ] {
            assert_eq!(text.parse::<Principal>().unwrap().to_string(), text);
        }
        let long = format!("client:{}", "n".repeat(65));
        for text in [
            "",
            "Anyone",
            "uid:",
            "uid:-1",
            "uid:01",
            "uid:+1",
            "member:",
            "client:a:b",
            "client:",
            "client:a b",
            "token:a",
            "token:a/",
            "token:/a",
            "token:a:b/c",
            "token:a/b c",
            "token:a/é",
            &long,
        ] {
            assert_eq!(text.parse::<Principal>(), Err(BadPrincipal), "{text}");
        }
        for text in [
            "read",
            "write",
            "write Account",
            "define",
            "call Bank.pay",
            "backup",
            "operate",
            "grant",
            "speak-for",
        ] {
            assert_eq!(text.parse::<Role>().unwrap().to_string(), text);
        }
        for text in ["", "reads", "read all", "call", "call ", "write ", "write a b", "write  a", "grant x"] {
            assert_eq!(text.parse::<Role>(), Err(BadRole), "{text}");
        }
    }

    #[test]
    fn role_covers_what_it_names_alone() {
        let covers =
            |mine: &str, other: &str| mine.parse::<Role>().unwrap().covers(&other.parse::<Role>().unwrap());
        assert!(covers("write", "write A") && covers("write A", "write A") && covers("read", "read"));
        assert!(!covers("write A", "write") && !covers("write A", "write B") && !covers("write", "read"));
        assert!(covers("call a.Bank", "call a.Bank.pay") && covers("call a.Bank.pay", "call a.Bank.pay"));
        assert!(!covers("call a.Bank.pay", "call a.Bank") && !covers("call a.Bank", "call a.Banker.pay"));
        assert!(!covers("call a", "call a.Bank.pay"));
        assert!(!covers("operate", "grant") && !covers("grant", "operate"));
    }
}
