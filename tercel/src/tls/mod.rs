//! TLS 1.3 between this process and others: the certificates, and the handshake.
//!
//! Both ends show a certificate, and each verifies the other's by the authorities in its bundle and by the
//! name in it ([`verify`](self::verify)). There is no older version, no ticket by which a session goes on
//! past its certificate, and no name of a host.
//!
//! | module | its noun |
//! |---|---|
//! | `files` | the three files of a directory |
//! | `anew` | a value made of files, and made anew when they change |
//! | `verify` | the rule by which certificates count |
//! | `sealed` | a connection after its handshake |
//! | `handshake` | a handshake, step by step |
//! | `trust` | the trust in the other end while a connection lasts |
//! | `der` | the end of a certificate's time |

mod anew;
mod der;
mod files;
mod handshake;
mod sealed;
mod trust;
mod verify;

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error as TlsFailure};
use thiserror::Error;

#[doc(hidden)]
pub use anew::Anew;
#[doc(hidden)]
pub use files::{ENDLESS, certificates, days_left, end_of, private_key, wrong};
pub use files::{Tls, TlsError, TlsStatus};
#[doc(hidden)]
pub use handshake::{Handshake, Step};
#[doc(hidden)]
pub use sealed::Sealed;
pub(crate) use sealed::{SECRET_BYTES, sealed_bytes};
pub(crate) use trust::Trust;
pub(crate) use verify::{Shown, Verifier};

/// The first byte of a TLS handshake. No message of Tercel begins so.
pub(crate) const FIRST_BYTE: u8 = 0x16;

/// A plain server's answer to a TLS handshake, in the words of TLS: it speaks no version of it.
pub(crate) const PLAIN_HERE: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];

/// The reason for which a connection is not sealed, or no longer.
#[derive(Debug, Error)]
pub enum Unsealed {
    /// The other end has ended the connection.
    #[error("the other end ended the connection")]
    Ended,
    /// The other end took too long.
    #[error("the other end did not finish the TLS handshake in time")]
    Late,
    /// The other end said too much before it was known.
    #[error("the other end sent too much before it was known")]
    TooMuch,
    /// The other end showed no certificate.
    #[error("the other end has no certificate")]
    Unnamed,
    /// The other end does not speak TLS.
    #[error("{PLAIN}")]
    Plain,
    /// A sentence.
    #[error("{0}")]
    Failed(String),
    /// The transport.
    #[error(transparent)]
    Io(io::Error),
}

/// The other end is no server that speaks TLS.
const PLAIN: &str = "the server there speaks plain, without TLS: start it with `--tls DIR`, or leave out --tls, TERCEL_TLS \
                     and `ClientBuilder::tls` here";

/// A server that speaks TLS, and a client that does not.
pub(crate) const SEALED_HERE: &str = "this server speaks TLS alone: name the directory of a client's certificate with --tls DIR, \
                                      TERCEL_TLS or `ClientBuilder::tls`; `tercel cert client NAME` makes one";

impl From<TlsFailure> for Unsealed {
    fn from(why: TlsFailure) -> Unsealed {
        Unsealed::Failed(match why {
            TlsFailure::AlertReceived(alert) => match alert {
                AlertDescription::ProtocolVersion => return Unsealed::Plain,
                AlertDescription::CloseNotify => return Unsealed::Ended,
                alert => refused(alert),
            },
            TlsFailure::InvalidMessage(_) => {
                "what answers there speaks neither TLS nor is a server of this version".into()
            }
            TlsFailure::InvalidCertificate(why) => {
                format!("the other end's certificate does not count: {}", doubt(&why))
            }
            TlsFailure::NoCertificatesPresented => return Unsealed::Unnamed,
            TlsFailure::NoApplicationProtocol => {
                "the other end speaks another version of the protocol".into()
            }
            TlsFailure::DecryptError => {
                "a record was changed on its way, or does not follow the one before".into()
            }
            other => format!("TLS: {other}"),
        })
    }
}

impl From<Unsealed> for io::Error {
    fn from(why: Unsealed) -> io::Error {
        match why {
            Unsealed::Io(error) => error,
            Unsealed::Ended => io::Error::new(io::ErrorKind::UnexpectedEof, why),
            Unsealed::Late => io::Error::new(io::ErrorKind::TimedOut, why),
            _ => io::Error::new(io::ErrorKind::PermissionDenied, why),
        }
    }
}

/// The words of the other end, which refuses this process's certificate.
fn refused(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "no authority that it trusts has signed it"
        }
        AlertDescription::CertificateExpired => "it has expired, or is not valid yet",
        AlertDescription::CertificateUnknown | AlertDescription::AccessDenied => {
            "it names nobody by tercel://client/NAME or tercel://GROUP/member/ID"
        }
        AlertDescription::CertificateRequired => "it was not shown",
        AlertDescription::UnsupportedCertificate => "it is made for another use",
        AlertDescription::BadCertificate => "it is damaged",
        AlertDescription::NoApplicationProtocol => {
            return "the other end speaks another version of the protocol".into();
        }
        other => return format!("the other end ended the TLS connection: {other:?}"),
    };
    format!("the other end does not take this process's certificate: {why}; look with `tercel cert show DIR`")
}

/// Explains the defect of the other end's certificate.
fn doubt(why: &CertificateError) -> String {
    match why {
        // Two authorities may have one name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no authority in this process's `ca.crt` has signed it".into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired".into(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet, or this host's clock is wrong".into()
        }
        CertificateError::Other(why) => why.to_string(),
        other => other.to_string(),
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({})", self.identity())
    }
}

#[cfg(test)]
pub(crate) mod tests;
