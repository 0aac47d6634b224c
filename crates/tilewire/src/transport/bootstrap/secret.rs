//! The job's secret, and how both ends prove that they know it.
//!
//! ```text
//!   store                                    rank
//!     │  magic, version, store's nonce         │
//!     │ ─────────────────────────────────────▶ │
//!     │  magic, version, rank's nonce, proof   │   proof = HMAC-SHA256(secret, "rank",  version, both nonces)
//!     │ ◀───────────────────────────────────── │
//!     │  verdict, proof                        │   proof = HMAC-SHA256(secret, "store", version, both nonces)
//!     │ ─────────────────────────────────────▶ │
//! ```
//!
//! **What it protects against**: strangers who can reach the port. They cannot join, read or write keys, take a rank's
//! place, or make the store keep more than a small, fixed amount. A rank reveals nothing to a program that merely
//! listens on the store's port. The secret itself is never sent, and a recorded exchange cannot be replayed, since both
//! nonces are fresh. Both ends prove which version they speak, so nobody can talk them into an older one.
//!
//! **What it does not protect against**: an attacker *between* the ranks who can read or change packets of a connection
//! after it was opened. Nothing after the exchange is encrypted or signed: put nothing secret into values, and use a
//! network you trust, or a tunnel. Nor does it protect against anyone who can read the environment of the job's
//! processes (the same user, and root).
#![forbid(unsafe_code)]

use super::BootstrapError;
use super::wire::VERSION;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::fs::File;
use std::io::Read;

/// A text of at least 16 bytes that all ranks of a job know, and nobody else.
///
/// ```
/// use tilewire::transport::Secret;
/// let secret = Secret::random()?;
/// assert_eq!(Secret::new(secret.expose())?, secret);
/// assert_eq!(format!("{secret:?}"), "Secret(…)", "it does not get into a log by accident");
/// assert!(Secret::new("12345").is_err());
/// # Ok::<(), tilewire::transport::BootstrapError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// A number used once.
pub(super) type Nonce = [u8; 32];
/// Proof that its maker knows the secret.
pub(super) type Proof = [u8; 32];

/// Which end a proof comes from. Without this, an attacker could send a store's own proof back to it.
#[derive(Clone, Copy)]
pub(super) enum End {
    Rank,
    Store,
}

impl Secret {
    /// A shell command that prints a good secret, for messages and the guide.
    pub const RECIPE: &str = "od -An -N32 -tx1 /dev/urandom | tr -d ' \\n'";

    /// Shortest length in bytes. A shorter secret can be guessed from one recorded exchange.
    pub const SHORTEST: usize = 16;

    /// Makes a secret of this text.
    pub fn new(text: impl Into<String>) -> Result<Secret, BootstrapError> {
        let text = text.into();
        if text.len() < Secret::SHORTEST {
            return Err(BootstrapError::ShortSecret { bytes: text.len(), shortest: Secret::SHORTEST });
        }
        Ok(Secret(text))
    }

    /// A fresh secret: 256 random bits from the operating system, as 64 hexadecimal digits.
    pub fn random() -> Result<Secret, BootstrapError> {
        Ok(Secret(nonce()?.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The text, to hand to a child process.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub(super) fn proof(&self, end: End, store: &Nonce, rank: &Nonce) -> Proof {
        self.keyed(end, store, rank).finalize().into_bytes().into()
    }

    /// True if a proof is right. Takes the same time for every wrong proof, so timing does not help to guess one.
    pub(super) fn proves(&self, end: End, store: &Nonce, rank: &Nonce, proof: &Proof) -> bool {
        self.keyed(end, store, rank).verify_slice(proof).is_ok()
    }

    fn keyed(&self, end: End, store: &Nonce, rank: &Nonce) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(match end {
            End::Rank => b"tilewire bootstrap rank ",
            End::Store => b"tilewire bootstrap store",
        });
        mac.update(&[VERSION]);
        mac.update(store);
        mac.update(rank);
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Fresh random bytes.
pub(super) fn nonce() -> Result<Nonce, BootstrapError> {
    let mut bytes = Nonce::default();
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(BootstrapError::Random)
}
