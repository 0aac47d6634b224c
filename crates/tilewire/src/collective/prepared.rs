//! A compiled exchange. The first launch compares it with its peers. After that, it can be launched any number of
//! times.

use super::agreement::{Card, Cards, Pending};
use super::call::Call;
use super::error::RunError;
use super::launch::{Launch, LaunchOptions};
use super::one_hop::{Hop, OneHop, Settled};
use super::rebind::{Bound, RebindError, Rebound, Taker, placed};
use super::windows::WindowOf;
use crate::hook::Traced;
use crate::ir::{Kernel, scalar::Element};
use crate::link::{PostFrom, Transport, Window};
use crate::schedule::PostedWindow;
use crate::tensor::{Arg, Between, Tensor};
use crate::transport::proxy::PostedRegion;
use crate::transport::{AbortCode, Cause, Door, Pairing, Rank};
use std::fmt;
use std::time::Duration;

/// A compiled collective, [`send`](super::send), [`recv`](super::recv), [`sendrecv`](super::sendrecv) or
/// [`map`](super::map).
///
/// It borrows its transport and keeps its tensors alive. Launches of one transport run one after another, on the thread
/// that holds it.
///
/// It stays on the thread that built it, because its tensors do (`docs/decisions/0028`). So build it on the thread that
/// runs it, and send data there:
/// ```
/// use tilewire::{RunError, Tensor, map};
/// let (steps, todo) = std::sync::mpsc::channel::<Vec<f32>>();
/// let worker = std::thread::spawn(move || {
///     let (x, y) = (Tensor::<f32>::zeros(4), Tensor::<f32>::zeros(4));
///     let mut double = map(&y, &x).produce(|c| c.input.load(c.pos()) * 2.0).build()?;
///     let mut sum = 0.0;
///     for step in todo {
///         x.copy_from(&step);
///         double.run()?;
///         sum += y.get(0);
///     }
///     Ok::<f32, RunError>(sum)
/// });
/// (0..3).for_each(|k| steps.send(vec![k as f32; 4]).unwrap());
/// drop(steps);
/// assert_eq!(worker.join().unwrap()?, 6.0);
/// # Ok::<(), RunError>(())
/// ```
/// ```compile_fail,E0277
/// fn moves<T: Send>(_: T) {}
/// fn elsewhere(sum: tilewire::collective::PreparedExchange<'static>) { moves(sum) } // not `Send`
/// ```
/// ```compile_fail,E0277
/// fn shares<T: Sync>(_: &T) {}
/// fn elsewhere(sum: &tilewire::collective::PreparedExchange<'static>) { shares(sum) } // not `Sync`
/// ```
pub struct PreparedExchange<'l> {
    /// `None` for a `map`.
    link: Option<&'l dyn Transport>,
    launch: Launch<'l>,
    bound: Bound,
    /// True if it uses windows, which may have been deregistered. Small messages look at nothing more than this.
    has_windows: bool,
    /// What this rank told the others when it was built.
    cards: Vec<(Pairing, Rank, Card)>,
    peers: Peers,
    way: Way,
    deadline: Option<Duration>,
    /// Dropped after the launch, which on a GPU waits for its end.
    registered: Registered,
}

/// What posts need as long as the exchange can be launched.
#[derive(Default)]
pub(super) struct Registered {
    /// The windows that its posts write, with their ranks, and what posts read.
    pub posted: Vec<(Rank, PostedWindow)>,
    /// The regions that posts of others write.
    #[expect(dead_code, reason = "deregistered when it is dropped")]
    pub regions: Vec<PostedRegion>,
}

/// Whether the ranks reach each other's tensors.
enum Way {
    /// They do not, or this is not known to be faster: why.
    Planned(String),
    /// They will know when they have met.
    Offered(Box<OneHop>),
    OneHop(Box<Hop>),
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
        let (link, cards, peers, deadline) = (None, Vec::new(), Peers::Agree, None);
        let (way, has_windows) = (Way::Planned("a map stays on its rank".to_string()), false);
        PreparedExchange { link, launch, bound, has_windows, cards, peers, way, deadline, registered }
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
        hop: Result<OneHop, String>,
    ) -> Result<Self, RunError> {
        let (me, together) = (link.rank(), !matches!(cards, Cards::Pairs(_)));
        number(&mut traced.args, link, together);
        let way = match hop {
            Ok(mut hop) => {
                hop.kernels.iter_mut().for_each(|kernel| number(&mut kernel.traced.args, link, together));
                Way::Offered(Box::new(hop))
            }
            Err(why) => Way::Planned(why),
        };
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
        let (deadline, registered, has_windows) = (options.deadline, Registered::default(), bound.windows.are_some());
        let link = Some(link);
        let mut prepared =
            PreparedExchange { link, launch, bound, has_windows, cards, peers, way, deadline, registered };
        prepared.tell(|card| card.clone())?;
        Ok(prepared)
    }

    /// Tells all peers a card that is made of the first one. The next launch compares it with theirs.
    fn tell(&mut self, card: impl Fn(&Card) -> Card) -> Result<(), RunError> {
        let Some(link) = self.link else { return Ok(()) };
        if let Peers::Agree = self.peers {
            let together = self.cards.iter().all(|(pairing, ..)| *pairing == Pairing::Together);
            self.peers = Peers::Pending { told: Vec::new(), all: together };
        }
        for (pairing, peer, first) in &self.cards {
            let offers = match &self.way {
                Way::Offered(hop) => hop.say(*pairing),
                _ => String::new(),
            };
            let pending = Pending::tell(link, (*pairing, *peer), card(first), (self.launch.call(), &offers));
            let pending = pending.map_err(|error| self.launch.judged(error).during(self.launch.call()))?;
            // Added one by one: if telling the next peer fails, dropping this exchange breaks the transport for those
            // already told.
            if let Peers::Pending { told, .. } = &mut self.peers {
                told.push(pending);
            }
        }
        Ok(())
    }

    /// Runs to completion: afterwards the sent data may be overwritten, and the received data is available. On a GPU,
    /// this only starts the launch. Later work on the rank's stream, and host access to its tensors, waits for it.
    /// [`sync`](Self::sync) or the next call reports how it ended.
    #[inline]
    pub fn run(&mut self) -> Result<(), RunError> {
        let may_run = matches!(self.peers, Peers::Agree) && !(self.has_windows && self.bound.windows.are_over());
        if may_run && self.launch.takes_shortcut() { Ok(()) } else { self.run_through() }
    }

    fn run_through(&mut self) -> Result<(), RunError> {
        self.bound.windows.check()?;
        if !matches!(self.peers, Peers::Agree) {
            self.meet()?;
        }
        match &mut self.way {
            Way::OneHop(hop) if hop.has_detour() => {
                let rank = self.link.map_or(Rank::new(0), |link| link.rank());
                hop.run(rank, &mut self.launch)
            }
            _ => self.launch.run_through(),
        }
    }

    /// Says, as text to read, whether the ranks move the data in one hop, and if not, why. Before the first
    /// [`run`](Self::run) the ranks have not met, so this is not known.
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport};
    /// use tilewire::{Tensor, World, all_gather};
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let (inp, out) = (Tensor::<f32>::zeros(1 << 16), Tensor::<f32>::zeros(1 << 17));
    ///     let mut gather = all_gather(&link, &out, &inp).build()?;
    ///     gather.run()?;
    ///     assert!(gather.explain().contains("in one hop"), "{}", gather.explain());
    ///     drop(gather);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn explain(&self) -> String {
        let call = self.launch.call();
        match &self.way {
            Way::Planned(why) => format!("{call}\n  as planned, not in one hop: {why}"),
            Way::Offered(_) => format!("{call}\n  in one hop, if the others agree at the first launch"),
            Way::OneHop(hop) => format!("{call}\n  {}", hop.describe()),
        }
    }

    /// Waits until all launches have ended, and reports how they ended. On the CPU they already have. Over a network,
    /// what they sent may still be on its way; when this returns, it has arrived.
    pub fn sync(&mut self) -> Result<(), RunError> {
        self.launch.sync()
    }

    /// Starts a launch on a CUDA stream of others: it runs after the work that is on the stream now, and later work
    /// there runs after it. Returns as [`run`](Self::run) does on a GPU, but if threads of this process share the GPU,
    /// only when those that the launch waits for have called it too. Launches of a transport run one after another,
    /// whichever streams they are for. The other ranks may use streams of their own, or none; but among threads that
    /// share a GPU either all of them replay a captured launch, or none, for replays of others' graphs are not seen
    /// here.
    ///
    /// If the stream is being captured, its graph gets the launch, with the tensors and scalars of now, and keeps all
    /// it needs alive. This needs [`NvlOptions::foreign_captures`](crate::link::NvlOptions::foreign_captures). If only
    /// this stream has used the transport so far, the graph must always be replayed on it, and others are refused from
    /// then on. Otherwise the graph gets external event nodes, which order replays with all launches and cost about 1
    /// µs a replay. A replay that runs beside another one or beside a launch all the same ends both by
    /// [`CudaError::Overlapped`](crate::cuda::CudaError::Overlapped). [`sync`](Self::sync) and later calls return the
    /// errors of replays, but only the stream's owner can wait for them: before reading a tensor, and before closing
    /// the transport.
    ///
    /// On a CPU it is refused. For a [`map`](super::map) it works as for a collective, and may be captured anywhere.
    #[cfg(feature = "cuda")]
    pub fn run_on(&mut self, stream: &crate::cuda::ForeignStream) -> Result<(), RunError> {
        self.bound.windows.check()?;
        if !matches!(self.peers, Peers::Agree) {
            self.meet()?;
        }
        self.launch.run_on(stream)
    }

    /// Uses other tensors from the next launch on: of the same types, shapes and row strides, and overlapping as the
    /// old ones did. Nothing is traced or compared again. On a CPU the kernel is lowered again. On a GPU its parameters
    /// change: launches in flight keep the old tensors, and addresses must be at least as aligned as the old ones. For
    /// a [`send`](super::send) or [`recv`](super::recv), give its tensor twice.
    ///
    /// Tensors that hooks captured stay, unless they are the input or the output or a part of it. Graphs that were
    /// captured on a GPU keep the old tensors. A tensor in a window stays, because the peers have its address: all
    /// ranks together give another one by [`rebind_window`](Self::rebind_window). Without a window, if
    /// [`explain`](Self::explain) says that the call goes in one hop, peers have the address as well. Launches then
    /// copy the new tensors to the old ones and back, which is slower. The old tensors stay the kernel's until it is
    /// dropped: their bytes change in a launch, and are restored before it returns. So nobody else may write them then.
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
        self.rebind_to([Taker::Tensor(out.into()), Taker::Tensor(inp.into())])
    }

    /// As [`rebind`](Self::rebind), where the output lies in a window: `window` takes the place of the one that was
    /// given when this was built. The output takes the place in it that it had in the old one.
    ///
    /// Collective: every rank that takes part calls it for the same window, between the same two launches. It waits for
    /// nobody. The next [`run`](Self::run) compares the ranks as the first one did: different windows, or a rank that
    /// does something else, are an error on all of them. Launch it afterwards: a peer may be waiting for that. Windows
    /// must be as long as the old ones, on every rank. A window that far peers write by posts stays.
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport, Window};
    /// use tilewire::{Tensor, World, all_gather};
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let inp = Tensor::from_fn(3, |i| 10 * world.rank().number() + i as u32);
    ///     // While one window is read, the other one is written.
    ///     let windows = [Window::<u32>::allocate(&link, 6)?, Window::allocate(&link, 6)?];
    ///     let mut gather = all_gather(&link, windows[0].tensor(), &inp).window(&windows[0]).build()?;
    ///     for step in 0..4 {
    ///         gather.rebind_window(&windows[step % 2], &inp)?;
    ///         gather.run()?;
    ///         assert_eq!(windows[step % 2].tensor().to_vec(), [0, 1, 2, 10, 11, 12]);
    ///     }
    ///     drop(gather);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn rebind_window<Out: Element, In: Element>(
        &mut self,
        out: &Window<Out>,
        inp: &Tensor<In>,
    ) -> Result<(), RunError> {
        self.rebind_to([Taker::Window(WindowOf::of(out)), Taker::Tensor(inp.into())])
    }

    /// As [`rebind_window`](Self::rebind_window), where the input lies in a window: a
    /// [`reduce_scatter`](super::reduce_scatter) whose inputs peers read.
    pub fn rebind_input_window<Out: Element, In: Element>(
        &mut self,
        out: &Tensor<Out>,
        inp: &Window<In>,
    ) -> Result<(), RunError> {
        self.rebind_to([Taker::Tensor(out.into()), Taker::Window(WindowOf::of(inp))])
    }

    /// As [`rebind_window`](Self::rebind_window), where both lie in windows: an [`all_reduce`](super::all_reduce) of
    /// them.
    pub fn rebind_windows<Out: Element, In: Element>(
        &mut self,
        out: &Window<Out>,
        inp: &Window<In>,
    ) -> Result<(), RunError> {
        self.rebind_to([WindowOf::of(out), WindowOf::of(inp)].map(Taker::Window))
    }

    fn rebind_to(&mut self, by: [Taker; 2]) -> Result<(), RunError> {
        if let Peers::Refused(error) = &self.peers {
            return Err(error.clone());
        }
        let is_collective = by.iter().any(|taker| matches!(taker, Taker::Window(_)));
        for taker in &by {
            if let Taker::Window(window) = taker {
                window.check()?;
            }
        }
        let name = |k: usize| self.launch.param_name(k);
        if let Way::OneHop(hop) = &mut self.way {
            let to = self.bound.taken(by, self.link)?;
            self.bound.moved(hop.args(), &to, false, &name)?;
            let rebinding = hop.rebinding(&to.tensors);
            self.launch.rebind(placed(hop.args(), &self.bound.tensors, &rebinding.tensors))?;
            // Nothing has failed, so nothing is changed by halves.
            hop.is_bound(rebinding);
            return Ok(());
        }
        let to = self.bound.taken(by, self.link)?;
        let mut args = self.bound.moved(self.launch.args(), &to, self.launch.relies_on_alignment(), &name)?;
        let posted = self.posted_from(&to)?;
        // The launches are those of another operation, so that a rank that has not rebound is not taken for one that
        // has.
        if let Some(link) = self.link.filter(|_| is_collective) {
            number(&mut args, link, self.cards.iter().all(|(pairing, ..)| *pairing == Pairing::Together));
        }
        self.launch.rebind(args)?;
        self.registered.posted = posted;
        self.has_windows = to.windows.are_some();
        self.bound = Bound { tensors: to.tensors, windows: to.windows, ..self.bound.clone() };
        if !is_collective {
            return Ok(());
        }
        let windows = self.bound.windows.name();
        let told = self.tell(|card| card.bound_to(&windows));
        told.inspect_err(|error| self.peers = Peers::Refused(error.clone()))
    }

    /// What posts read from the new input: registered before anything changes. Nothing is under way from the old one: a
    /// launch on a CPU returns when its posts have been read.
    fn posted_from(&self, to: &Rebound) -> Result<Vec<(Rank, PostedWindow)>, RunError> {
        let (old, new) = (self.bound.tensors[1].memory(), to.tensors[1].memory());
        let again = |(peer, window): &(Rank, PostedWindow)| {
            let (peer, source) = (*peer, window.source.memory());
            let offset = old.offset_of(source).filter(|_| window.in_place && !old.is(new));
            let Some((offset, link)) = offset.zip(self.link) else { return Ok((peer, window.clone())) };
            let part = new.part_like(source, offset);
            if part.is_lent() || !link.reads_in_place(peer, &part) || self.launch.relies_on_alignment() {
                return Err(RunError::from(RebindError::NotInPlace { peer, is_lent: part.is_lent() }));
            }
            let source = link.post_source(peer, PostFrom::Memory(&part))?;
            Ok((peer, PostedWindow { source, ..window.clone() }))
        };
        self.registered.posted.iter().map(again).collect()
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
            let (mut first, mut heard) = (Ok(()), Vec::new());
            for side in told {
                first = first.and(side.meet(link, self.deadline).map(|offers| heard.push(offers)));
                if first.is_err() && !all {
                    break;
                }
            }
            let mut taken = None;
            if let (Ok(()), Way::Offered(hop)) = (&first, &self.way) {
                match hop.settle(link, told, &heard, self.deadline) {
                    Ok(settled) => taken = Some(settled),
                    Err(error) => {
                        // The others take this rank's launch for granted.
                        self.give_up(AbortCode::Failed);
                        first = Err(error);
                    }
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
            if let Some(settled) = taken {
                self.take(link, settled).inspect_err(|error| {
                    // The others have agreed and launch.
                    self.give_up(AbortCode::Failed);
                    self.peers = Peers::Refused(error.clone());
                })?;
            }
        }
        match &self.peers {
            Peers::Refused(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The ranks have agreed: takes one hop with this memory of the peers, or the kernel that was planned.
    fn take(&mut self, link: &'l dyn Transport, settled: Result<Settled, String>) -> Result<(), RunError> {
        let settled = match settled {
            Ok(settled) => settled,
            Err(why) => {
                self.way = Way::Planned(why);
                return Ok(());
            }
        };
        let Way::Offered(hop) = std::mem::replace(&mut self.way, Way::Planned(String::new())) else { return Ok(()) };
        let (launch, hop) = hop.bind(link, settled)?;
        self.launch = launch;
        // The user may have bound other tensors since it was built.
        let now = std::mem::replace(&mut self.bound.tensors, hop.tensors().clone());
        let is_same = now.iter().zip(hop.tensors()).all(|(x, y)| x.memory().is(y.memory()));
        self.way = Way::OneHop(Box::new(hop));
        if is_same { Ok(()) } else { self.rebind_to(now.map(Taker::Tensor)) }
    }

    /// Breaks the transport: a peer may have launched an operation that this rank will not launch.
    fn give_up(&self, code: AbortCode) {
        if let Some(link) = self.link {
            link.fail(Cause { code, rank: link.rank().index(), reason: 0 });
        }
    }
}

/// Gives the signals and packets of these arguments the number of the next operation with each peer. `together`: all
/// ranks take part in it.
fn number(args: &mut [Arg], link: &dyn Transport, together: bool) {
    let operation = |Between { from, to, .. }: Between| {
        let me = link.rank().number();
        let (pairing, peer) = if from == me { (Pairing::Send, to) } else { (Pairing::Receive, from) };
        let pairing = if together { Pairing::Together } else { pairing };
        link.ticket(pairing, Rank::new(peer)).operation()
    };
    for arg in args {
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
            let peer = world.next();
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
