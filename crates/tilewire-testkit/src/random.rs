//! Reproducible pseudo-random numbers.

/// SplitMix64 (Steele, Lea, Flood 2014): a seed names a sequence forever. Tests need variety, not quality.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The sequence of a numbered case. Neighbouring numbers give unrelated sequences.
    pub fn of_case(number: u64) -> Random {
        let mut random = Random(number);
        let high = random.below_u64(1 << 32);
        Random(high << 32 ^ random.below_u64(1 << 32))
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// A number below `n`, or 0 if `n` is 0. The bias of the remainder does not matter here.
    pub fn below(&mut self, n: usize) -> usize {
        self.below_u64(n as u64) as usize
    }

    /// The same for 64 bits.
    pub fn below_u64(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// True with a probability of 1 in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below_u64(n) == 0
    }

    /// One of the items.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Shuffles items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|i| items.swap(i, self.below(i + 1)));
    }

    /// A permutation of `0..n`.
    pub fn permutation(&mut self, n: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..n).collect();
        self.shuffle(&mut all);
        all
    }
}

/// A number whose every bit depends on every bit of `x`.
pub fn mixed(x: u64) -> u64 {
    let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
