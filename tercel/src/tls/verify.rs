//! Which certificates count: the chain is verified as everywhere, and the name by Tercel's own rule.
//!
//! Addresses and host names mean nothing, so that a member may move. A server must be a member; a client is
//! whoever an authority of the bundle has named.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible,
    RootCertStore, SignatureScheme,
};

use super::Unsealed;
use crate::identity::{Identity, Unnamed};

/// Verifies the other end of a handshake.
#[derive(Debug)]
pub(crate) struct Verifier {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    provider: Arc<CryptoProvider>,
}

/// The certificates that the other end of a connection has shown, its own first.
pub(crate) struct Shown {
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// The other end serves.
    pub(super) serves: bool,
}

impl Verifier {
    /// # Errors
    /// If the bundle of authorities is empty.
    pub(super) fn new(roots: RootCertStore, provider: &Arc<CryptoProvider>) -> Result<Verifier, String> {
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let clients = clients.build().map_err(|why| why.to_string())?;
        Ok(Verifier { roots, clients, provider: provider.clone() })
    }

    /// Says whether an authority counted by another rule that does not by this one.
    pub(crate) fn lacks_one_of(&self, other: &Verifier) -> bool {
        other.roots.roots.iter().any(|root| !self.roots.roots.contains(root))
    }

    /// Verifies again what the other end of a connection has shown.
    ///
    /// # Errors
    /// If it would not be let in now.
    pub(crate) fn verify(&self, shown: &Shown) -> Result<(), Unsealed> {
        let [certificate, chain @ ..] = &shown.chain[..] else { return Err(Unsealed::Unnamed) };
        let now = UnixTime::now();
        match shown.serves {
            // The name of a host means nothing.
            true => {
                let name = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
                self.verify_server_cert(certificate, chain, &name, &[], now).map(drop)?;
            }
            false => self.verify_client_cert(certificate, chain, now).map(drop)?,
        }
        Ok(())
    }

    fn signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let cert = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&cert, &self.roots, intermediates, now, algorithms)?;
        match Identity::of(end_entity).map_err(unnamed)? {
            Identity::Member(..) => Ok(ServerCertVerified::assertion()),
            client @ Identity::Client(_) => Err(wrong(NotMember(client.to_string()))),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Verifier {
    /// Strangers are not told which authorities count here.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.clients.verify_client_cert(end_entity, intermediates, now)?;
        Identity::of(end_entity).map_err(unnamed)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

/// A server that shows a client's certificate.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of {0} is a client's, and only a member serves")]
struct NotMember(String);

fn unnamed(why: Unnamed) -> Error {
    wrong(why)
}

fn wrong(why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
}
