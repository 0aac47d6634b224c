//! A compiled exchange. The first launch compares it with its peers. After that, it can be launched any number of
//! times.

use super::agreement::{Cards, Pending};
use super::call::Call;
use super::error::RunError;
use super::launch::{Launch, LaunchOptions};
use super::rebind::Bound;
use crate::hook::Traced;
use crate::ir::{Kernel, scalar::Element};
use crate::link::Transport;
use crate::schedule::PostedWindow;
use crate::tensor::{AnyTensor, Arg, Between, Tensor};
use crate::transport::proxy::PostedRegion;
use crate::transport::{AbortCode, Cause, Door, Pairing, Rank};
use std::fmt;
use std::time::Duration;

/// A compiled collective, [`send`](super::send), [`recv`](super::recv), [`sendrecv`](super::sendrecv) or
/// [`map`](super::map).
///
/// It borrows its transport and keeps its tensors alive. Launches of one transport run one after another, on the thread
/// that holds it.
pub struct PreparedExchange<'l> {
    /// `None` for a `map`.
    link: Option<&'l dyn Transport>,
    launch: Launch<'l>,
    bound: Bound,
    peers: Peers,
    deadline: Option<Duration>,
    /// Dropped after the launch, which on a GPU waits for its end.
    registered: Registered,
}

/// What posts need as long as the exchange can be launched.
#[derive(Default)]
pub(super) struct Registered {
    /// The windows that its posts write, and what they read.
    #[expect(dead_code, reason = "deregistered when it is dropped")]
    pub posted: Vec<PostedWindow>,
    /// The regions that posts of others write.
    #[expect(dead_code, reason = "deregistered when it is dropped")]
    pub regions: Vec<PostedRegion>,
}

/// The state of the agreement with the other sides.
enum Peers {
    /// All of them agree.
    Agree,
    /// This rank has sent its cards, but has not yet received theirs. `all`: every rank sends its card to all others,
    /// so every rank sees which rank differs.
    Pending { told: Vec<Pending>, all: bool },
    /// They do not agree, and never will.
    Refused(RunError),
}

impl<'l> PreparedExchange<'l> {
    /// A kernel for this rank alone.
    pub(super) fn alone(launch: Launch<'l>, bound: Bound) -> Self {
        let registered = Registered::default();
        PreparedExchange { link: None, launch, bound, peers: Peers::Agree, deadline: None, registered }
    }

    /// The same, keeping this registered.
    pub(super) fn keeping(self, registered: Registered) -> Self {
        let mut prepared = self;
        prepared.registered = registered;
        prepared
    }

    /// Compiles a kernel and announces it to the peers. Its signals and packets carry the numbers of the announced
    /// tickets.
    pub(super) fn over(
        link: &'l dyn Transport,
        mut traced: Traced,
        cards: Cards,
        options: LaunchOptions,
        (call, bound): (Call, Bound),
    ) -> Result<Self, RunError> {
        let (me, together) = (link.rank(), !matches!(cards, Cards::Pairs(_)));
        let operation = |Between { from, to, .. }: Between| {
            let (pairing, peer) = if from == me.number() { (Pairing::Send, to) } else { (Pairing::Receive, from) };
            let pairing = if together { Pairing::Together } else { pairing };
            link.ticket(pairing, Rank::new(peer)).operation()
        };
        for arg in &mut traced.args {
            if let Arg::Slots(banks) | Arg::Buffer(banks) = arg {
                for bank in banks {
                    if let Some(between) = bank.between() {
                        *bank = bank.clone().for_operation(operation(between));
                    }
                }
            }
            if let Arg::Queue(queue) = arg
                && let Some(between) = queue.entries().between()
            {
                *queue = queue.clone().for_operation(operation(between));
            }
        }
        let launch = Launch::with(&[link], traced, options, call)?;
        let cards = match cards {
            Cards::Pairs(cards) => cards,
            Cards::All(card) => {
                let peers = Rank::all(link.world_size()).filter(|&peer| peer != me);
                peers.map(|peer| (Pairing::Together, peer, card.clone())).collect()
            }
            Cards::Nothing => Vec::new(),
        };
        let peers = Peers::Pending { told: Vec::new(), all: together };
        let (deadline, registered) = (options.deadline, Registered::default());
        let mut prepared = PreparedExchange { link: Some(link), launch, bound, peers, deadline, registered };
        for (pairing, peer, card) in cards {
            let pending = Pending::tell(link, (pairing, peer), card, prepared.launch.call());
            let pending = pending.map_err(|error| error.during(prepared.launch.call()))?;
            // Added one by one: if telling the next peer fails, dropping `prepared` breaks the transport for those
            // already told.
            if let Peers::Pending { told, .. } = &mut prepared.peers {
                told.push(pending);
            }
        }
        Ok(prepared)
    }

    /// Runs to completion: afterwards the sent data may be overwritten, and the received data is available. On a GPU,
    /// this only starts the launch. Later work on the rank's stream, and host access to its tensors, waits for it.
    /// [`sync`](Self::sync) or the next call reports how it ended.
    #[inline]
    pub fn run(&mut self) -> Result<(), RunError> {
        let is_over = matches!(self.peers, Peers::Agree) && self.launch.takes_shortcut();
        if is_over { Ok(()) } else { self.run_through() }
    }

    fn run_through(&mut self) -> Result<(), RunError> {
        if !matches!(self.peers, Peers::Agree) {
            self.meet()?;
        }
        self.launch.run_through()
    }

    /// Waits until all launches have ended, and reports how they ended. On the CPU they already have.
    pub fn sync(&mut self) -> Result<(), RunError> {
        self.launch.sync()
    }

    /// Uses other tensors from the next launch on: of the same types, shapes and row strides, and overlapping as the
    /// old ones did. Nothing is traced or compared again. On a CPU the kernel is lowered again. On a GPU its parameters
    /// change, after the launches that still use the old tensors, and addresses must be at least as aligned as the old
    /// ones. For a [`send`](super::send) or [`recv`](super::recv), give its tensor twice.
    ///
    /// Tensors that hooks captured stay, unless they are the input or the output or a part of it. Graphs that were
    /// captured on a GPU keep the old tensors. A tensor in a window stays, because the peers have its address.
    ///
    /// ```
    /// use tilewire::{RunError, Tensor, map};
    /// let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::from_fn(64, |i| i as f32));
    /// let mut double = map(&out, &inp).produce(|c| c.input.load(c.pos()) * 2.0).build()?;
    /// let (other_out, other_inp) = (Tensor::<f32>::zeros(64), Tensor::from_fn(64, |i| 100.0 + i as f32));
    /// double.rebind(&other_out, &other_inp)?;
    /// double.run()?;
    /// assert_eq!((out.get(1), other_out.get(1)), (0.0, 202.0));
    /// // In place would be another kernel.
    /// let error = double.rebind(&other_out, &other_out).unwrap_err();
    /// assert!(matches!(error, RunError::Rebind(_)));
    /// assert!(error.to_string().contains("build the collective again"), "{error}");
    /// # Ok::<(), RunError>(())
    /// ```
    pub fn rebind<Out: Element, In: Element>(&mut self, out: &Tensor<Out>, inp: &Tensor<In>) -> Result<(), RunError> {
        self.rebind_any([out.into(), inp.into()])
    }

    fn rebind_any(&mut self, to: [AnyTensor; 2]) -> Result<(), RunError> {
        let name = |k: usize| self.launch.param_name(k);
        let args = self.bound.moved(self.launch.args(), &to, self.launch.relies_on_alignment(), &name)?;
        self.launch.rebind(args)?;
        self.bound.tensors = to;
        Ok(())
    }

    /// The kernel as it was traced, for printing or for translating to PTX with [`ptx::emit`](crate::ptx::emit).
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport};
    /// use tilewire::transport::World;
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

    /// The bytecode or the PTX, as text to read.
    pub fn disassembly(&self) -> String {
        self.launch.disassembly()
    }

    /// Compares with all peers. A collective receives the cards of all of them even if the first differs, because each
    /// card that was sent must be taken. A transfer stops at the first error, because the transport is then broken.
    /// Waiting for another peer, which may be late, would only delay telling the others.
    #[cold]
    fn meet(&mut self) -> Result<(), RunError> {
        if let (Peers::Pending { told, all }, Some(link)) = (&self.peers, self.link) {
            let mut first = Ok(());
            for side in told {
                first = first.and(side.meet(link, self.deadline));
                if first.is_err() && !all {
                    break;
                }
            }
            if let Err(error) = &first
                && told.len() > 1
                && !all
            {
                // The peer of the other leg may agree, launch, and count a step that this rank does not count. So it is
                // told why this rank does not launch.
                let code = match error {
                    RunError::Mismatch(mismatch) => {
                        link.door()
                            .and_then(Door::status)
                            .iter()
                            .for_each(|status| status.tell_all(&mismatch.verdict()));
                        AbortCode::Mismatched
                    }
                    _ => AbortCode::Failed,
                };
                // If ranks have status lines, all abort words are already set. A GPU also has its own word, which this
                // sets.
                self.give_up(code);
            }
            let refused = |error| Peers::Refused(self.launch.judged(error).during(self.launch.call()));
            self.peers = first.map_or_else(refused, |()| Peers::Agree);
        }
        match &self.peers {
            Peers::Refused(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Breaks the transport: a peer may have launched an operation that this rank will not launch.
    fn give_up(&self, code: AbortCode) {
        if let Some(link) = self.link {
            link.fail(Cause { code, rank: link.rank().index(), reason: 0 });
        }
    }
}

impl Drop for PreparedExchange<'_> {
    fn drop(&mut self) {
        if matches!(&self.peers, Peers::Pending { told, .. } if !told.is_empty()) {
            let code = if std::thread::panicking() { AbortCode::Panicked } else { AbortCode::Dropped };
            self.give_up(code);
        }
    }
}

impl fmt::Debug for PreparedExchange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedExchange({:?})", self.launch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{recv, send};
    use super::*;
    use crate::ir::scalar::Element;
    use crate::link::{ShmOptions, ShmTransport};
    use crate::tensor::Tensor;
    use crate::transport::World;
    use std::time::Instant;

    /// One rank sends messages of `len` elements to the other, all but the first by the shortcut. If messages go in
    /// slots, every fourth one must first ask for credit, and takes the long way.
    fn by_shortcut<T: Element + From<u8> + PartialEq>(len: usize) {
        let in_slots = len * size_of::<T>() > 512;
        let first = |k: u8| Tensor::<T>::from_fn(len, |i| T::from((i as u8).wrapping_add(k)));
        let go = |exchange: &mut PreparedExchange<'_>| {
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
