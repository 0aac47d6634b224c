//! Ring shifts by `sendrecv` among virtual ranks of one GPU, every byte compared: dtypes, hooks, sizes, blocks,
//! protocols.

use crate::run::{Case, Hook, PROTOCOLS, Peers, prepare};
use anyhow::{Result, bail};
use std::sync::Arc;
use tilewire::collective::Rounds;
use tilewire::cuda::Device;
use tilewire::ir::Type;
use tilewire::link::{AnyTransport, NvlOptions, NvlTransport};
use tilewire::transport::{RankError, World};
use tilewire::{Knobs, Primitive};
use tilewire_testkit::random::Random;

/// Launches of a case, with new data each.
const LAUNCHES: u64 = 3;

/// `count` random cases for `ranks` ranks.
pub fn cases(ranks: usize, seed: u64, count: usize) -> Vec<Case> {
    if ranks < 2 {
        return Vec::new();
    }
    let mut random = Random::new(seed ^ (ranks as u64) << 32);
    (0..count).map(|number| case(number, &mut random)).collect()
}

fn case(number: usize, random: &mut Random) -> Case {
    let dtype = Type::ALL[number % Type::ALL.len()];
    let hook = loop {
        let hook = random.pick(&Hook::FEW);
        if hook.takes(dtype) {
            break hook;
        }
    };
    let primitive = random.pick(&PROTOCOLS);
    let primitive = primitive.filter(|p| !(hook == Hook::Quantise && *p == Primitive::Direct));
    // Sizes around those of vectors, some of a slot, some of many steps.
    let most = if primitive == Some(Primitive::Packet) { 6 } else { 9 };
    let bytes = [0, 1, 15, 16, 17, 1000, 65_536, 300_000, 3_000_000][random.below(most)];
    let len = if bytes < 20 { bytes } else { bytes / dtype.size() };
    let blocks = random.pick(&[None, Some(1), Some(2), Some(3), Some(8)]);
    let (slot_bytes, depth) = match primitive {
        Some(Primitive::Staged) => random.pick(&[(None, None), (Some(4096), None), (Some(1 << 15), Some(4))]),
        _ => (None, None),
    };
    let granule = (hook == Hook::Quantise).then_some(32);
    let rounds = random.pick(&[None, None, Some(Rounds::Legs)]);
    let config = Knobs { primitive, blocks, slot_bytes, depth, granule, ..Knobs::default() };
    Case { dtype, hook, len, config, rounds }
}

/// Runs one: every rank sends to the next.
pub fn shift(device: &Arc<Device>, ranks: usize, case: &Case, seed: u64) -> Result<()> {
    let options = NvlOptions { per_peer_bytes: Some(8 << 20), packet_bytes: Some(8 << 20), ..NvlOptions::default() };
    let body = |world: World| -> Result<Option<String>, RankError> {
        let (me, size) = (world.rank(), world.size());
        let link = AnyTransport::from(NvlTransport::rendezvous(&world, device, options)?);
        let peers = Peers { to: Some(me.after(1, size)), from: Some(me.after(size - 1, size)) };
        let mut ring = prepare(&link, case, peers, seed)?;
        let mut wrong = None;
        for turn in 0..LAUNCHES {
            ring.fill(turn)?;
            ring.launch()?;
            if let (Err(error), None) = (ring.check(turn), &wrong) {
                wrong = Some(format!("rank {me}, launch {turn}: {error}"));
            }
        }
        drop(ring);
        link.close()?;
        Ok(wrong)
    };
    match World::threads(ranks).run(body)?.into_iter().flatten().next() {
        Some(wrong) => bail!("{wrong}"),
        None => Ok(()),
    }
}
