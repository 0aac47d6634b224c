//! An exchange that is ready: compared with its peers by the first launch, then launched any number of times.

use super::RunError;
use super::error::Timeout;
use super::link::{How, Launch, Link};
use super::pair::{Card, Pending};
use crate::cuda::{CudaError, Stopped};
use crate::hook::Traced;
use crate::ir::{Kernel, Param};
use crate::tensor::Arg;
use crate::transport::layout::Side;
use crate::transport::{AbortCode, Cause, PeerEndpoint, Rank};
use crate::vm::LaunchError;
use std::fmt;
use std::time::Duration;

/// A [`send`](super::send), [`recv`](super::recv), [`sendrecv`](super::sendrecv) or collective that is compiled.
///
/// It borrows its transport and keeps its tensors alive. Launches of one transport run one after the other, on the thread that has it.
pub struct PreparedExchange<'l, L: Link> {
    link: &'l L,
    launch: Launch<'l>,
    peers: Peers,
    deadline: Option<Duration>,
}

/// What is known of the other sides.
enum Peers {
    /// All agree.
    Agree,
    /// They have been told, and not been heard yet. `all`: all ranks told each other the same, so that who differs is seen by all.
    Pending { told: Vec<Pending>, all: bool },
    /// They do not agree, and will not.
    Refused(RunError),
}

impl<'l, L: Link> PreparedExchange<'l, L> {
    /// Compiles a kernel that nobody has been told of yet.
    pub(super) fn prepare(link: &'l L, mut traced: Traced, how: How) -> Result<Self, RunError> {
        name_peers(&mut traced, link);
        let launch = Launch::with(&[link], traced, how)?;
        let peers = Peers::Pending { told: Vec::new(), all: false };
        Ok(PreparedExchange { link, launch, peers, deadline: how.deadline })
    }

    /// Tells a peer of one leg.
    pub(super) fn tell(&mut self, side: Side, peer: Rank, card: Card) -> Result<(), RunError> {
        if let Peers::Pending { told, .. } = &mut self.peers {
            told.push(Pending::tell(self.link, side, peer, card)?);
        }
        Ok(())
    }

    /// Tells all ranks what is the same on all of them. Of two ranks the lower is the one that sends, whatever travels.
    pub(super) fn tell_all(&mut self, card: Card) -> Result<(), RunError> {
        let me = self.link.rank();
        for peer in Rank::all(self.link.world_size()).filter(|&peer| peer != me) {
            self.tell(if me < peer { Side::Send } else { Side::Receive }, peer, card.clone())?;
        }
        if let Peers::Pending { all, .. } = &mut self.peers {
            *all = true;
        }
        Ok(())
    }

    /// Runs it to the end: what is sent may be overwritten then, and what is received is there. On a GPU the launch is only started: what
    /// comes next on the rank's stream, and host access to its tensors, waits for it, and [`sync`](Self::sync) or the next call says how
    /// it ended.
    #[inline]
    pub fn run(&mut self) -> Result<(), RunError> {
        let is_over = matches!(self.peers, Peers::Agree) && self.launch.takes_shortcut();
        if is_over { Ok(()) } else { self.run_through() }
    }

    fn run_through(&mut self) -> Result<(), RunError> {
        if !matches!(self.peers, Peers::Agree) {
            self.meet()?;
        }
        self.launch.run_through().map_err(|error| self.name_peer(error))
    }

    /// Waits until all launches have ended, and says how. On the CPU they have.
    pub fn sync(&mut self) -> Result<(), RunError> {
        self.launch.sync().map_err(|error| self.name_peer(error))
    }

    /// The kernel as it was traced: to be printed, or written as PTX by [`ptx::emit`](crate::ptx::emit).
    ///
    /// ```
    /// use tilewire::transport::{ShmOptions, ShmTransport, World};
    /// use tilewire::{Tensor, all_gather};
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let (inp, out) = (Tensor::<f32>::zeros(4), Tensor::<f32>::zeros(8));
    ///     let mut gather = all_gather(&link, &out, &inp).build()?;
    ///     gather.run()?;
    ///     assert!(gather.kernel().to_string().contains("packet_put"));
    ///     drop(gather);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn kernel(&self) -> &Kernel {
        self.launch.kernel()
    }

    /// The bytecode, or the PTX, for people.
    pub fn disassembly(&self) -> String {
        self.launch.disassembly()
    }

    /// Compares with all peers. All are heard even if the first differs: each has told something that must be taken.
    #[cold]
    fn meet(&mut self) -> Result<(), RunError> {
        if let Peers::Pending { told, all } = &self.peers {
            let mut first = Ok(());
            for side in told {
                first = first.and(side.meet(self.link, self.deadline));
            }
            if first.is_err() && told.len() > 1 && !all {
                // The peer of the other leg may agree, launch, and count a step that this rank does not.
                self.give_up(AbortCode::Failed);
            }
            self.peers = first.map_or_else(Peers::Refused, |()| Peers::Agree);
        }
        match &self.peers {
            Peers::Refused(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Breaks the transport: a peer may have launched what this rank will not.
    fn give_up(&self, code: AbortCode) {
        self.link.fail(Cause { code, rank: self.link.rank().index(), reason: 0 });
    }

    /// Says for whom a wait was.
    #[cold]
    fn name_peer(&self, error: RunError) -> RunError {
        let what = match &error {
            RunError::Launch(LaunchError::Timeout { what, .. }) => what.clone(),
            RunError::Cuda(CudaError::Timeout(stopped)) => format!("{}[{}]", stopped.param, stopped.index),
            _ => return error,
        };
        let (Some(peer), rank) = (named_peer(&what), self.link.rank()) else { return error };
        let timeout = match error {
            RunError::Launch(LaunchError::Timeout { index, expected, seen, after, by, at, .. }) => {
                let slot = index.unwrap_or(0);
                Timeout { rank, peer, block: by.block, role: by.role, op: what, slot, expected, seen, after, at }
            }
            RunError::Cuda(CudaError::Timeout(stopped)) => {
                let Stopped { block, role, index, expected, seen, at, .. } = *stopped;
                let (block, slot, after) = (block as usize, index as i64, self.deadline.unwrap_or_default());
                Timeout { rank, peer, block, role, op: what, slot, expected, seen, after, at }
            }
            other => return other,
        };
        RunError::Timeout(Box::new(timeout))
    }
}

impl<L: Link> Drop for PreparedExchange<'_, L> {
    fn drop(&mut self) {
        if matches!(&self.peers, Peers::Pending { told, .. } if !told.is_empty()) {
            let code = if std::thread::panicking() { AbortCode::Panicked } else { AbortCode::Dropped };
            self.give_up(code);
        }
    }
}

impl<L: Link> fmt::Debug for PreparedExchange<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedExchange({:?})", self.launch)
    }
}

/// Says in the name of every slot and every packet area which rank a wait for it is for: a kernel may wait for many.
fn name_peers(traced: &mut Traced, link: &impl Link) {
    let peers = Rank::all(link.world_size()).filter(|&peer| peer != link.rank());
    let endpoints: Vec<(Rank, PeerEndpoint)> = peers.map(|peer| (peer, link.endpoint(peer))).collect();
    for (id, arg) in traced.kernel.params.keys().zip(&traced.args) {
        let memory = match arg {
            Arg::Slots(banks) | Arg::Buffer(banks) => &banks[..],
            _ => continue,
        };
        let [memory] = memory else { continue };
        let waited = |endpoint: &PeerEndpoint| endpoint.waited().iter().any(|waited| waited.is(memory));
        let Some((peer, _)) = endpoints.iter().find(|(_, endpoint)| waited(endpoint)) else { continue };
        if let Param::Slots { name, .. } | Param::Buffer { name, .. } = &mut traced.kernel.params[id] {
            name.push_str(&format!("{OF_RANK}{peer}"));
        }
    }
}

const OF_RANK: &str = " of rank ";

/// The rank that [`name_peers`] wrote into what was waited for.
fn named_peer(what: &str) -> Option<Rank> {
    let (_, rest) = what.rsplit_once(OF_RANK)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok().map(Rank::new)
}

#[cfg(test)]
mod tests {
    use super::super::{recv, send};
    use super::*;
    use crate::ir::scalar::Element;
    use crate::tensor::Tensor;
    use crate::transport::{ShmOptions, ShmTransport, World};
    use std::time::Instant;

    /// One rank sends messages of `len` elements to the other, all but the first by the short way; of those in slots a sender asks for
    /// credit first, once in four.
    fn by_shortcut<T: Element + From<u8> + PartialEq>(len: usize) {
        let in_slots = len * size_of::<T>() > 512;
        let first = |k: u8| Tensor::<T>::from_fn(len, |i| T::from((i as u8).wrapping_add(k)));
        let go = |exchange: &mut PreparedExchange<'_, ShmTransport>| {
            let start = Instant::now();
            while !exchange.launch.takes_shortcut() {
                assert!(start.elapsed() < Duration::from_secs(20), "{len} elements of {} bytes", size_of::<T>());
                std::thread::yield_now();
            }
        };
        let run = |world: World| {
            let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            let peer = world.rank().after(1, 2);
            let x = first(0);
            if world.rank() == Rank::new(0) {
                let mut out = send(&link, &x, peer).build()?;
                out.run()?;
                for k in 1..=40 {
                    x.copy_from(&first(k).to_vec());
                    if in_slots && k % 4 == 0 {
                        assert!(!out.launch.takes_shortcut());
                        out.run()?;
                    } else {
                        go(&mut out);
                    }
                }
            } else {
                let mut into = recv(&link, &x, peer).build()?;
                into.run()?;
                for k in 1..=40 {
                    go(&mut into);
                    assert!(x.to_vec() == first(k).to_vec(), "message {k} of {len} elements");
                }
            }
            Ok(link.close()?)
        };
        World::threads(2).run(run).unwrap();
    }

    #[test]
    fn a_small_message_goes_the_short_way() {
        by_shortcut::<u8>(8);
        by_shortcut::<u8>(200);
        by_shortcut::<u64>(1);
        by_shortcut::<u64>(17);
        by_shortcut::<f32>(16);
        by_shortcut::<u8>(1000);
        by_shortcut::<u64>(128);
        by_shortcut::<f32>(5000);
    }
}
