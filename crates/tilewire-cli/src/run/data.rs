//! What is sent, and a plain computation of what must arrive.

use super::case::{Case, Hook, Scaled};
use tilewire::F8E4M3;
use tilewire::ir::Type;
use tilewire::ir::scalar::{Element, dynamic};

/// Neighbours that share a scale when quantised.
pub const GROUP: usize = 32;
/// The largest finite f8e4m3.
pub const F8_MAX: f32 = 448.0;
/// The bits of what stands in an output that nobody has written.
pub const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Reproducible numbers: SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

fn mixed(x: u64) -> u64 {
    let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The data of one rank in one launch.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    case: Case,
    key: u64,
}

impl Data {
    /// What `rank` sends in this turn.
    pub fn new(case: Case, seed: u64, turn: u64, rank: usize) -> Data {
        Data { case, key: mixed(mixed(mixed(seed) ^ turn) ^ rank as u64) }
    }

    /// The factor of `scale` in this turn: exact in every type.
    pub fn factor<T: Element>() -> T {
        T::from_bits(dynamic::cast(Type::I32, T::TYPE, 3))
    }

    /// The input. Any bits at all, NaNs included, since moves keep them; numbers that can be quantised where that is what happens to them.
    ///
    /// A random word is as many elements as it has room for: a full `verify` makes hundreds of gigabytes.
    pub fn sent<T: Element>(&self) -> Vec<T> {
        let (len, room) = (self.case.len, size_of::<u64>() / size_of::<T>());
        let word = |i: usize| mixed(self.key.wrapping_add(i as u64));
        if self.case.hook == Hook::Quantise {
            let number = |i| (word(i) % 20_001) as f32 / 8.0 - 1250.0;
            let cast = |x: f32| T::from_bits(dynamic::cast(Type::F32, T::TYPE, Element::to_bits(x)));
            return (0..len).map(|i| cast(number(i))).collect();
        }
        let mut all = Vec::with_capacity(len + room);
        for i in 0..len.div_ceil(room) {
            // A byte of a `bool` is true unless it is 0, so only one bit of it is random: otherwise hardly any were false.
            let bits = if T::TYPE == Type::Bool { word(i) & 0x0101_0101_0101_0101 } else { word(i) };
            all.extend((0..room).map(|k| T::from_bits(bits >> (k * 8 * size_of::<T>()))));
        }
        all.truncate(len);
        all
    }

    /// Calls `visit` with every position and what must arrive there, until it gives something.
    pub fn arrive<T: Scaled, R>(&self, mut visit: impl FnMut(usize, T) -> Option<R>) -> Option<R> {
        let sent = self.sent::<T>();
        match self.case.hook {
            Hook::Copy => sent.into_iter().enumerate().find_map(|(i, x)| visit(i, x)),
            Hook::Scale => {
                let factor = Self::factor::<T>();
                sent.into_iter().enumerate().find_map(|(i, x)| visit(i, x.times(factor)))
            }
            Hook::Transpose => {
                let (rows, cols) = self.case.shape();
                for col in 0..cols {
                    for row in 0..rows {
                        if let found @ Some(_) = visit(col * rows + row, sent[row * cols + col]) {
                            return found;
                        }
                    }
                }
                None
            }
            Hook::Quantise => sent.chunks(GROUP).enumerate().find_map(|(group, xs)| {
                let wide = |x: T| <f32 as Element>::from_bits(dynamic::cast(T::TYPE, Type::F32, x.to_bits()));
                let narrow = |x: f32| T::from_bits(dynamic::cast(Type::F32, T::TYPE, Element::to_bits(x)));
                let scale = scale_of(xs.iter().fold(0.0, |most: f32, &x| most.max(wide(x).abs())));
                let arrives = |x: T| narrow(F8E4M3::from_f32(wide(x) / scale).to_f32() * scale);
                xs.iter().enumerate().find_map(|(i, &x)| visit(group * GROUP + i, arrives(x)))
            }),
        }
    }

    /// Where what has arrived first is not what must: its position, and the bits that should be there.
    pub fn differs<T: Scaled>(&self, arrived: &[T]) -> Option<(usize, u64)> {
        assert_eq!(arrived.len(), self.case.len);
        let exact = self.case.hook != Hook::Scale;
        self.arrive(|i, must: T| (!agree(exact, arrived[i], must)).then(|| (i, must.to_bits())))
    }
}

/// Whether two elements are the same. Of a NaN that arithmetic made, only that it is one is defined: there it is not `exact`.
pub fn agree<T: Element>(exact: bool, is: T, must: T) -> bool {
    let (is, must) = (is.to_bits(), must.to_bits());
    is == must || (!exact && dynamic::canonical_nan(T::TYPE, is) == dynamic::canonical_nan(T::TYPE, must))
}

/// The scale of a group whose largest magnitude is `most`.
fn scale_of(most: f32) -> f32 {
    if most == 0.0 { 1.0 } else { most / F8_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewire::Config;

    fn data(dtype: Type, hook: Hook, len: usize, turn: u64) -> Data {
        Data::new(Case { dtype, hook, len, config: Config::default(), rounds: None }, 1, turn, 0)
    }

    #[test]
    fn half_of_the_bools_are_false() {
        let all: Vec<bool> = data(Type::Bool, Hook::Copy, 1000, 0).sent();
        assert!((400..600).contains(&all.iter().filter(|x| **x).count()));
    }

    #[test]
    fn every_length_is_a_part_of_the_longest_and_every_turn_has_its_own() {
        let sent = |len, turn| data(Type::U8, Hook::Copy, len, turn).sent::<u8>();
        let long = sent(100, 0);
        assert!((0..100).all(|len| sent(len, 0) == long[..len]));
        assert_ne!(sent(100, 1), long);
        // Neighbours of one word are not copies of each other.
        assert!((0..12).any(|w| long[8 * w] != long[8 * w + 1]));
    }

    #[test]
    fn one_wrong_element_is_found_where_it_is() {
        for hook in Hook::ALL {
            let data = data(Type::F32, hook, 120, 3);
            let mut arrived = vec![0.0f32; 120];
            data.arrive::<f32, ()>(|i, x| {
                arrived[i] = x;
                None
            });
            assert_eq!(data.differs(&arrived), None, "{hook:?}");
            let must = arrived[77];
            arrived[77] = 12345.0;
            assert_eq!(data.differs(&arrived), Some((77, u64::from(must.to_bits()))), "{hook:?}");
        }
    }
}
