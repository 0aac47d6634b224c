//! Small messages that carry their flags: no signal follows the data, so no rank waits for two lines one after the
//! other.
//!
//! ```text
//!   16 bytes:  │ 12 of the message │ flag │     flag = the message's number
//! ```
//! A unit is written and read by one aligned 16-byte access, which processors with AVX do not tear: a reader that sees
//! the flag sees the bytes beside it. Loads of the sender and stores of the receiver are also 16 bytes, 12 apart. The
//! next store overwrites what a store puts beyond its 12 bytes, and there is room after the last.

use crate::bench::ranks::sendrecv::messages::{Half, Payload};
use crate::bench::ranks::words::until;
use anyhow::Result;
use std::arch::x86_64::*;
use tilewire::Memory;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::transport::Rank;

/// One rank's half.
pub struct Flagged<'l> {
    link: &'l ShmTransport,
    payload: Payload,
    units: usize,
    /// Units that the other rank reads.
    out: Memory,
    /// Units that the other rank writes.
    inp: Memory,
}

impl<'l> Flagged<'l> {
    /// The tensors of `payload` have at least one word after their ends. Collective.
    pub fn new(link: &'l ShmTransport, payload: Payload) -> Result<Flagged<'l>> {
        let units = payload.bytes().div_ceil(12);
        let window = Window::<u64>::allocate(link, units * 2)?;
        let (own, peer) = (link.rank(), Rank::new(1 - link.rank().number()));
        Ok(Flagged {
            link,
            payload,
            units,
            out: window.peer(peer).expect("ranks of one machine reach each other").clone(),
            inp: window.peer(own).expect("ranks of one machine reach each other").clone(),
        })
    }
}

impl Flagged<'_> {
    /// Unit `k` of message `number`, as soon as it has arrived.
    #[inline]
    fn unit(&self, k: usize, number: u64) -> Result<__m128i> {
        let from = self.inp.start().as_ptr().cast::<__m128i>();
        // SAFETY: SSE2 is part of x86-64.
        let mut unit = unsafe { _mm_setzero_si128() };
        until(self.link, || {
            // SAFETY: `k` is below `units`, so the unit is inside the window, and aligned; see `send`. SSE2 is part of
            // x86-64.
            unsafe {
                unit = from.add(k).read_volatile();
                _mm_cvtsi128_si32(_mm_srli_si128::<12>(unit)) == number as i32
            }
        })?;
        Ok(unit)
    }
}

impl Half for Flagged<'_> {
    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        let (from, to) = (self.payload.source.memory().start().as_ptr(), self.out.start().as_ptr().cast::<__m128i>());
        // SAFETY: unit `k` is inside the window, which is page-aligned. The 16 bytes read from 12k on end at most 16
        // bytes after the message, where the allocation still is. `write_volatile` keeps each store whole and in its
        // place. The other rank reads these bytes concurrently, only by such loads, and discards units with an old
        // flag.
        unsafe {
            let flag = _mm_slli_si128::<12>(_mm_cvtsi32_si128(number as i32));
            let data = _mm_srli_si128::<4>(_mm_set1_epi8(-1));
            for k in 0..self.units {
                let bytes = _mm_loadu_si128(from.add(k * 12).cast());
                to.add(k).write_volatile(_mm_or_si128(_mm_and_si128(bytes, data), flag));
            }
        }
        Ok(())
    }

    /// Units become visible in the order they were written, so the last is waited for: the others are then fetched in
    /// parallel. Their flags are checked anyway.
    #[inline]
    fn receive(&mut self, number: u64) -> Result<()> {
        self.unit(self.units - 1, number)?;
        let to = self.payload.target.memory().start().as_ptr();
        for k in 0..self.units {
            let unit = self.unit(k, number)?;
            // SAFETY: the 16 bytes end at most 16 bytes after the message, where the allocation still is.
            unsafe { _mm_storeu_si128(to.add(k * 12).cast(), unit) };
        }
        Ok(())
    }

    fn exchange(&mut self, number: u64) -> Result<()> {
        self.send(number)?;
        self.receive(number)
    }
}
