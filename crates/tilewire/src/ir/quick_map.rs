//! A hash map for keys that the compiler makes itself: ids, lines, ops. No adversary chooses them, and building a
//! kernel looks up thousands of them, so each word is mixed with one multiplication.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A standard map with a fast hash. Its order is unspecified, as for any `HashMap`.
pub(crate) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// Mixes words into one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mixer(u64);

/// 2^64 divided by the golden ratio, made odd: neighbouring numbers end far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Mixer {
    #[inline]
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(SPREAD);
    }
}

impl Hasher for Mixer {
    /// The upper bits depend on every bit that was mixed in, the lower ones on few. Maps use both ends.
    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|&word| self.mix(u64::from_le_bytes(word)));
        rest.iter().for_each(|&byte| self.mix(byte.into()));
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.mix(n.into());
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.mix(n.into());
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.mix(n.into());
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    fn hash(key: impl Hash) -> u64 {
        BuildHasherDefault::<Mixer>::default().hash_one(key)
    }

    #[test]
    fn ids_and_lines_fill_both_ends_of_the_hash() {
        let hashes: Vec<u64> = (0..4096u32).map(hash).chain((0..4096u32).map(|n| hash(("some/file.rs", n)))).collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
        // Of 8192 keys in 4096 places a good hash leaves about 13% empty, and it uses all 128 tags.
        let places = hashes.iter().map(|hash| hash % 4096).collect::<HashSet<_>>().len();
        assert!(places > 3000, "{places} of 4096 places");
        assert_eq!(hashes.iter().map(|hash| hash >> 57).collect::<HashSet<_>>().len(), 128);
    }
}
