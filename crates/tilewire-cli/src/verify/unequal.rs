//! Exchanges that send more than they receive, or less: the two legs may use different protocols and numbers of blocks.

use tilewire::link::{AnyTransport, Tensors};
use tilewire::sendrecv;
use tilewire::transport::{RankError, World};
use tilewire_testkit::random::Random;

/// Elements that a rank sends: packets of one block and of several, slots of one block and of several.
const LENGTHS: [usize; 5] = [1 << 20, 5, 40_000, 1000, 300_001];
const LAUNCHES: u64 = 3;

/// Every rank sends to the next the number of elements of its turn.
pub fn unequal(world: &World, link: &AnyTransport, seed: u64) -> Result<(), RankError> {
    let (me, ranks) = (world.rank(), world.size());
    if ranks < 2 {
        return Ok(());
    }
    let (next, previous) = (me.after(1, ranks), me.after(ranks - 1, ranks));
    for round in 0..LENGTHS.len() {
        // The last rank and the first differ as well.
        let len = |rank: usize| LENGTHS[(rank + round + usize::from(rank + 1 == ranks)) % LENGTHS.len()];
        let data = |rank: usize, launch: u64| -> Vec<u32> {
            let mut random = Random::new(seed ^ launch << 40 ^ (rank as u64) << 20 ^ round as u64);
            (0..len(rank)).map(|_| random.next() as u32).collect()
        };
        let (inp, out) = (link.zeros::<u32>(len(me.index()))?, link.zeros::<u32>(len(previous.index()))?);
        let mut exchange = sendrecv(link, &out, &inp, next, previous).build()?;
        for launch in 0..LAUNCHES {
            inp.try_copy_from(&data(me.index(), launch))?;
            out.try_fill(0)?;
            exchange.run()?;
            exchange.sync()?;
            let (is, must) = (out.try_to_vec()?, data(previous.index(), launch));
            if let Some(at) = (0..must.len()).find(|&at| is[at] != must[at]) {
                let (sent, got) = (len(me.index()), must.len());
                return Err(format!(
                    "sendrecv of {sent} and {got} elements, launch {launch}, rank {me}: element {at} is {:#x}, not {:#x}",
                    is[at], must[at]
                )
                .into());
            }
        }
    }
    Ok(())
}
