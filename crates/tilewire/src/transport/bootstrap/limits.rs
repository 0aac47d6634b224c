//! Upper limits on what the store holds.
#![forbid(unsafe_code)]

use super::keepalive;
use super::store::Refusal;
use std::fmt;
use std::time::Duration;

/// Caps on everything the store reads and keeps. The host's limits apply; clients learn them when they join.
///
/// ```
/// use tilewire::transport::Limits;
/// let mut limits = Limits::default();
/// limits.value_bytes = 64 << 10;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a key, or of the name of a barrier or all-gather. Clamped to between 1 byte and 64 KiB.
    pub key_bytes: usize,
    /// Bytes of one value. Clamped to at most 1 GiB.
    pub value_bytes: usize,
    /// Number of keys held at a time.
    pub keys: usize,
    /// Bytes of keys and values held at a time; also the most that one all-gather may return. Clamped to at most 2 GiB.
    pub total_bytes: usize,
    /// Requests of one rank that may wait simultaneously.
    pub waiting: usize,
    /// Connections that have not yet proven the secret. One more closes the oldest of them: a rank needs one round trip
    /// to prove it, so the oldest is the least likely to be a rank.
    pub strangers: usize,
    /// How long a connection may take to join.
    pub join_time: Duration,
    /// How long a rank's connection may stand still in the middle of a message, in either direction.
    pub stall_time: Duration,
    /// How long the host of a rank may say nothing at all, not even to probes, before the rank counts as lost. Without
    /// [`Limits::within`] this is 14 s.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            key_bytes: 256,
            value_bytes: 1 << 20,
            keys: 1 << 16,
            total_bytes: 256 << 20,
            waiting: 64,
            strangers: 64,
            join_time: Duration::from_secs(5),
            stall_time: Duration::from_secs(30),
            silence: keepalive::SILENCE,
        }
    }
}

impl Limits {
    /// The same limits for a job whose waits last for `deadline`, or forever: a rank that is cut off is noticed before
    /// they end.
    pub fn within(self, deadline: Option<Duration>) -> Limits {
        Limits { silence: keepalive::silence(deadline), ..self }
    }

    /// Checks that a name and a value are small enough.
    pub(super) fn admit(&self, name: &str, value: &[u8]) -> Result<(), Refusal> {
        for (what, size, limit) in
            [(Limit::KeyBytes, name.len(), self.key_bytes), (Limit::ValueBytes, value.len(), self.value_bytes)]
        {
            if size > limit {
                return Err(Refusal::TooLarge { what, size, limit });
            }
        }
        Ok(())
    }

    /// Clamps the limits: lengths are sent as 32 bits and must leave room for the fields around them.
    pub(super) fn clamped(self) -> Limits {
        Limits {
            key_bytes: self.key_bytes.clamp(1, 64 << 10),
            value_bytes: self.value_bytes.min(1 << 30),
            total_bytes: self.total_bytes.min(2 << 30),
            strangers: self.strangers.max(1),
            waiting: self.waiting.max(1),
            ..self
        }
    }
}

/// One of the [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::key_bytes`].
    KeyBytes,
    /// [`Limits::value_bytes`].
    ValueBytes,
    /// [`Limits::keys`].
    Keys,
    /// [`Limits::total_bytes`].
    TotalBytes,
    /// [`Limits::waiting`].
    Waiting,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::KeyBytes => "key_bytes",
            Limit::ValueBytes => "value_bytes",
            Limit::Keys => "keys",
            Limit::TotalBytes => "total_bytes",
            Limit::Waiting => "waiting",
        })
    }
}
