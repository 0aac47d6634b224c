//! Plain loops over the same provider: what libfabric itself does with these bytes.

use super::Kind;
use super::pairs::Entrant;
use super::rival::Rival;
use crate::bench::ranks::links::Links;
use crate::bench::ranks::side::{Limit, Run, Side};
use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tilewire::link::{ShmTransport, Transport};
use tilewire::{Tensor, all_gather};
use tilewire_fabric::{Library, Plain, Provider, Query};

/// The most writes under way in a pipelined loop.
const UNDER_WAY: u64 = 8;
/// Words of a description that is exchanged: its length, and its bytes.
const CARD: usize = 65;

/// The loops over the provider that our sides use. Collective.
pub fn sides<'l>(links: &'l Links, kind: Kind, bytes: usize) -> Result<Vec<(Entrant, Side<'l>)>> {
    let chosen = links.network().context("no network")?;
    let query = Query { provider: Some(chosen.provider.clone()), ..Query::default() };
    let mut all = Provider::list(Library::open()?, &query)?;
    all.retain(|provider| provider.device() == chosen.device);
    let provider = all.into_iter().next().with_context(|| format!("{} is gone", chosen.provider))?;
    let rank = links.shm.rank().index();
    // Its key is known to this program's processes alone, and it is closed after the contest.
    let key = u64::from(std::process::id()) << 32 | rank as u64;
    let (mut plain, card) = Plain::open(Arc::new(provider), bytes, key)?;
    plain.connect(&exchanged(&links.shm, &card)?)?;
    let plain = Rc::new(RefCell::new(plain));
    let side = |rival: Rival| {
        let under_way = if rival == Rival::Plain { UNDER_WAY } else { 1 };
        let run = Loop { plain: plain.clone(), is_first: rank == 0, bytes, kind, under_way };
        (Entrant::Rival(rival), Side::limit(rival.name(), Limit::Plain, run))
    };
    Ok(match kind {
        Kind::PingPong => vec![side(Rival::PlainInject)],
        _ => vec![side(Rival::Plain), side(Rival::PlainSingly)],
    })
}

/// The other rank's description.
fn exchanged(link: &ShmTransport, card: &[u8]) -> Result<Vec<u8>> {
    let words: Vec<u64> =
        card.chunks(8).map(|bytes| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))).collect();
    ensure!(words.len() < CARD, "a description of {} bytes", card.len());
    let own = Tensor::<u64>::zeros(CARD);
    own.set(0, card.len() as u64);
    words.iter().enumerate().for_each(|(k, &word)| own.set(1 + k, word));
    let both = Tensor::<u64>::zeros(2 * CARD);
    all_gather(link, &both, &own).run()?;
    let other = both.slice(if link.rank().index() == 0 { CARD..2 * CARD } else { 0..CARD }).to_vec();
    let mut bytes: Vec<u8> = other[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(other[0] as usize);
    Ok(bytes)
}

struct Loop {
    plain: Rc<RefCell<Plain>>,
    is_first: bool,
    bytes: usize,
    kind: Kind,
    under_way: u64,
}

impl Run for Loop {
    fn run(&mut self, steps: u64) -> Result<()> {
        let (mut plain, bytes, is_first) = (self.plain.borrow_mut(), self.bytes, self.is_first);
        match self.kind {
            Kind::PingPong => plain.ping_pong(bytes, is_first, u32::try_from(steps)?)?,
            _ => plain.stream(bytes, is_first, steps, self.under_way)?,
        };
        Ok(())
    }

    // The provider alone touches the bytes, which are the same every time. The number of arrivals is checked.
    fn fill(&mut self) {}

    fn verify(&mut self) -> Result<()> {
        Ok(())
    }
}
