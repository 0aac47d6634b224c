//! The number of a rank.
#![forbid(unsafe_code)]

use std::fmt;

/// One member of a world, by number: 0 to the world's size − 1.
///
/// A separate type, so that a rank is never mistaken for a count, a block or an index into something else.
///
/// ```
/// use tilewire::transport::Rank;
/// let next = Rank::new(3).after(1, 4);
/// assert_eq!(next, Rank::new(0));
/// assert_eq!((next.index(), next.to_string()), (0, "0".to_string()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u32);

impl Rank {
    /// The rank with this number.
    pub const fn new(number: u32) -> Rank {
        Rank(number)
    }

    /// The number, as sent between ranks and shown in messages.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The number, as an index into anything that has one entry per rank.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank `steps` further along the ring of `world_size` ranks.
    ///
    /// # Panics
    /// If the world is empty.
    pub const fn after(self, steps: usize, world_size: usize) -> Rank {
        Rank(((self.0 as usize + steps % world_size) % world_size) as u32)
    }

    /// All ranks of a world, in order.
    pub fn all(world_size: usize) -> impl Iterator<Item = Rank> {
        (0..world_size as u32).map(Rank)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
