//! Memory of closed regions, which stays until no write of a peer can reach it any more.
//!
//! A provider may still be receiving a write when its region is closed, and only the sender learns when such a write
//! has ended. So the memory stays until every peer has said that its writes from before have ended.
//!
//! ```text
//!   this rank                                              every connected peer
//!   close: unregisters the memory, and keeps it
//!   "closing n" ──────── word in the peer's hall ───────▶  notes its writes that are under way
//!                                                          ... all of them are delivered
//!   lets go of it ◀───── word in this rank's hall ───────  "ended n"
//! ```
//! A word is followed by its seal, since a read may see half of a write. One word of each kind is under way between two
//! ranks, so a provider without order cannot confuse them. A peer that is gone says nothing, and the memory stays as
//! long as the carrier.
#![forbid(unsafe_code)]

use crate::tensor::Memory;
use std::collections::HashMap;

/// A word that a rank writes into a peer's hall.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Word {
    /// The number of closings of the writer.
    Closing,
    /// The number of closings of the reader, before which no write of the writer is under way.
    Ended,
}

/// The size of a word with its seal in bytes.
pub(super) const WORD_BYTES: usize = 16;

impl Word {
    /// The offset of the word behind the first one.
    pub fn offset(self) -> usize {
        self as usize * WORD_BYTES
    }
}

/// The bytes of a word.
pub(super) fn sealed(number: u64) -> [u8; WORD_BYTES] {
    let mut bytes = [0; WORD_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&seal(number).to_le_bytes());
    bytes
}

/// The number of a word. `None` if nothing was written, or half of something.
pub(super) fn number_of(bytes: [u8; WORD_BYTES]) -> Option<u64> {
    let [number, its] = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight")));
    (its == seal(number)).then_some(number)
}

fn seal(number: u64) -> u64 {
    !number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The closed memory of one rank, and its writes that peers wait for.
#[derive(Default)]
pub(super) struct Closing {
    /// Closed memory, with the number of its closing.
    kept: Vec<(u64, Memory)>,
    /// The number of closings so far.
    closings: u64,
    /// What was said between this rank and each connected one.
    peers: Vec<Said>,
    /// The writes of this rank that are not delivered, each with its receiver.
    writes: HashMap<u64, usize>,
    /// No write had this number yet, or a larger one.
    next: u64,
}

struct Said {
    rank: usize,
    /// The last closing of this rank that the peer was told of, and the last one that it has answered.
    told: u64,
    answered: u64,
    /// The last closing of the peer that this rank has heard of.
    heard: u64,
    /// A closing of the peer that is to be answered, once all writes to it with smaller numbers than the second are
    /// delivered.
    due: Option<(u64, u64)>,
}

impl Closing {
    pub fn connect(&mut self, rank: usize) {
        self.peers.push(Said { rank, told: 0, answered: 0, heard: 0, due: None });
    }

    /// Keeps memory that was just unregistered.
    pub fn keep(&mut self, memory: Memory) {
        self.closings += 1;
        self.kept.push((self.closings, memory));
    }

    /// True if some closed memory is still there.
    pub fn keeps(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Notes a write of this rank.
    pub fn begun(&mut self, id: u64, peer: usize) {
        self.writes.insert(id, peer);
        self.next = self.next.max(id + 1);
    }

    pub fn delivered(&mut self, id: u64) {
        self.writes.remove(&id);
    }

    /// Looks at the words that peers have written, and lets go of memory. Returns the words to be written, each with
    /// its receiver.
    pub fn step(&mut self, read: impl Fn(usize, Word) -> Option<u64>) -> Vec<(usize, Word, u64)> {
        let mut words = Vec::new();
        for said in &mut self.peers {
            let rank = said.rank;
            if said.answered < said.told && read(rank, Word::Ended) == Some(said.told) {
                said.answered = said.told;
            }
            if said.answered == said.told && said.told < self.closings {
                said.told = self.closings;
                words.push((rank, Word::Closing, said.told));
            }
            if let Some(number) = read(rank, Word::Closing).filter(|&number| number > said.heard) {
                said.heard = number;
                said.due = Some((number, self.next));
            }
            if let Some((number, before)) = said.due
                && !self.writes.iter().any(|(&id, &peer)| peer == rank && id < before)
            {
                said.due = None;
                words.push((rank, Word::Ended, number));
            }
        }
        let answered = self.peers.iter().map(|said| said.answered).min().unwrap_or(u64::MAX);
        self.kept.retain(|(number, _)| *number > answered);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The halls of ranks, as if all words arrived immediately: by receiver, sender and word.
    type Halls = RefCell<HashMap<(usize, usize, Word), u64>>;

    fn step(rank: usize, closing: &mut Closing, halls: &Halls) {
        let words = closing.step(|from, word| halls.borrow().get(&(rank, from, word)).copied());
        for (to, word, number) in words {
            halls.borrow_mut().insert((to, rank, word), number);
        }
    }

    #[test]
    fn memory_goes_when_the_writes_of_all_peers_have_ended_and_not_before() {
        let mut ranks = [0, 1, 2].map(|rank| {
            let mut closing = Closing::default();
            (0..3).filter(|&peer| peer != rank).for_each(|peer| closing.connect(peer));
            closing
        });
        let halls = Halls::default();
        let all = |ranks: &mut [Closing; 3]| {
            for _ in 0..3 {
                ranks.iter_mut().enumerate().for_each(|(rank, closing)| step(rank, closing, &halls));
            }
        };
        // Rank 1 writes to both of the others, and rank 2 to none.
        ranks[1].begun(7, 0);
        ranks[1].begun(8, 2);
        ranks[0].keep(Memory::zeroed(8));
        all(&mut ranks);
        assert!(ranks[0].keeps(), "a write of rank 1 is under way");
        // A later write does not count, and neither does one to another rank.
        ranks[1].begun(9, 0);
        ranks[1].delivered(7);
        all(&mut ranks);
        assert!(!ranks[0].keeps());
        // The next closing waits for what was later before.
        ranks[0].keep(Memory::zeroed(8));
        ranks[0].keep(Memory::zeroed(8));
        all(&mut ranks);
        assert!(ranks[0].keeps());
        ranks[1].delivered(9);
        all(&mut ranks);
        assert!(!ranks[0].keeps());
    }

    #[test]
    fn a_rank_without_peers_keeps_nothing_and_halves_of_words_are_none() {
        let mut closing = Closing::default();
        closing.keep(Memory::zeroed(8));
        assert_eq!(closing.step(|_, _| unreachable!("no peers")), []);
        assert!(!closing.keeps());
        assert_eq!(number_of(sealed(77)), Some(77));
        assert_eq!(number_of([0; WORD_BYTES]), None, "nothing was written");
        let (mut torn, old) = (sealed(78), sealed(77));
        torn[8..].copy_from_slice(&old[8..]);
        assert_eq!(number_of(torn), None);
    }
}
