//! What a requirement that does not hold says.

use std::fmt;

/// The bytes that a requirement is about ([`Op::Require`](super::Op::Require)), as computed when it did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredBytes {
    /// The rank whose memory it is.
    pub rank: i64,
    /// The first byte.
    pub offset: i64,
    /// Number of bytes.
    pub bytes: i64,
    /// Number of bytes that there are.
    pub size: i64,
}

impl RequiredBytes {
    /// From the numbers in the order of the fields.
    pub fn of([rank, offset, bytes, size]: [i64; 4]) -> RequiredBytes {
        RequiredBytes { rank, offset, bytes, size }
    }

    /// Writes the message of a requirement that does not hold, up to its place.
    pub fn explain(span: Option<&RequiredBytes>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match span {
            Some(span) => write!(f, "{span}"),
            None => f.write_str("a requirement of the kernel does not hold"),
        }
    }
}

messages! {
    struct RequiredBytes {
        RequiredBytes { rank, offset, bytes, size } =>
            "{bytes} bytes at offset {offset} do not lie inside the {size} bytes of rank {rank}",
    }
}
