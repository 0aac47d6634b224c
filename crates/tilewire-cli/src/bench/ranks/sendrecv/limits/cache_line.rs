//! One word that travels back and forth. No message can be faster.

use crate::bench::ranks::sendrecv::messages::{Half, Payload};
use crate::bench::ranks::words::Word;
use anyhow::Result;
use std::sync::atomic::Ordering::Release;

/// Messages of one word: the first word of the payload, which is the message's number and so its own flag.
pub struct CacheLine<'l> {
    /// Written by this rank.
    out: Word<'l>,
    /// Written by the other.
    inp: Word<'l>,
    payload: Payload,
}

impl<'l> CacheLine<'l> {
    /// `words[r]` is written by rank r.
    pub fn new(rank: usize, words: [Word<'l>; 2], payload: Payload) -> CacheLine<'l> {
        let [zero, one] = words;
        let (out, inp) = if rank == 0 { (zero, one) } else { (one, zero) };
        CacheLine { out, inp, payload }
    }
}

impl Half for CacheLine<'_> {
    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        self.out.store(number, Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, number: u64) -> Result<()> {
        self.inp.wait(number)?;
        self.payload.target.set(0, number);
        Ok(())
    }

    fn exchange(&mut self, number: u64) -> Result<()> {
        self.send(number)?;
        self.receive(number)
    }
}
