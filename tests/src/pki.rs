//! The keys and certificates of one control plane, made anew for each.

use std::path::PathBuf;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

use crate::process::Scratch;

/// Where the files are, and the authority in the form the client wants it.
pub struct Pki {
    /// The authority, PEM.
    pub ca: PathBuf,
    /// The authority, DER.
    pub ca_der: Vec<u8>,
    /// The API server's certificate, PEM.
    pub server: PathBuf,
    /// The API server's key, PEM.
    pub server_key: PathBuf,
    /// The key that signs ServiceAccount tokens, PEM.
    pub accounts_key: PathBuf,
    /// The key that verifies them, PEM.
    pub accounts_public: PathBuf,
}

impl Pki {
    /// Makes them in `scratch`.
    pub fn new(scratch: &Scratch) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "berth-tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

        // The last is where Pods of a test node find it.
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc", &crate::node::API_SERVER.to_string()].map(str::to_owned);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        let server_key = KeyPair::generate()?;
        let server = params.signed_by(&server_key, &authority)?;
        let accounts = KeyPair::generate()?;

        Ok(Self {
            ca: scratch.write("ca.crt", authority.pem())?,
            ca_der: authority.der().to_vec(),
            server: scratch.write("apiserver.crt", server.pem())?,
            server_key: scratch.write("apiserver.key", server_key.serialize_pem())?,
            accounts_key: scratch.write("accounts.key", accounts.serialize_pem())?,
            accounts_public: scratch.write("accounts.pub", accounts.public_key_pem())?,
        })
    }
}
