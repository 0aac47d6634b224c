//! Scalar semantics (being written on branch `scalar`; this is the seam).
use super::Type;

/// A Rust type that is an element type of the language.
pub trait Element: Copy + Default + std::fmt::Debug + Send + Sync + 'static {
    /// The type in the IR.
    const TYPE: Type;
    /// From the low bits.
    fn from_bits(bits: u64) -> Self;
    /// To bits, zero-extended.
    fn to_bits(self) -> u64;
}

impl Element for f32 {
    const TYPE: Type = Type::F32;
    fn from_bits(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }
    fn to_bits(self) -> u64 {
        f32::to_bits(self) as u64
    }
}
