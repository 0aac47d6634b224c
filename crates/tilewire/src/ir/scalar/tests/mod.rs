//! The definitions against independent, slower ones.

mod arith;
mod cast;
mod dynamic;
mod math;
mod narrow;

/// A small generator of pseudo-random bits (splitmix64): tests need variety, not quality.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}
