//! The exchanges. Each is an [`Exchange`] with its own pattern, and runs in one launch.

use super::builder::Exchange;
use super::error::RunError;
use super::operation::Operation;
use super::pattern::Pattern;
use super::prepared::PreparedExchange;
use crate::hook::Traced;
use crate::ir::SourceLine;
use crate::ir::scalar::Element;
use crate::link::Transport;
use crate::tensor::Tensor;
use crate::transport::Rank;
use std::time::Duration;

/// Sends a tensor to a rank, which receives it with [`recv`].
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::{Rank, World};
/// use tilewire::{Tensor, recv, send};
///
/// let (first, second) = (Rank::new(0), Rank::new(1));
/// World::threads(2).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     if world.rank() == first {
///         let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0]);
///         send(&link, &x, second).produce(|c| c.input.load(c.pos()) * 10.0).run()?;
///     } else {
///         let y = Tensor::<f32>::zeros(3);
///         recv(&link, &y, first).consume(|c, x| c.output.store(c.pos(), x + 1.0)).run()?;
///         assert_eq!(y.to_vec(), [11.0, 21.0, 31.0]);
///     }
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// This side has no output: a hook that writes `c.output` is a misuse.
#[track_caller]
pub fn send<'h, 'l, In: Element>(link: &'l dyn Transport, inp: &Tensor<In>, to: Rank) -> Exchange<'h, 'l, In, In, In> {
    Exchange::over(Operation::Exchange(Pattern::Pair { to: Some(to), from: None }), link, inp, inp)
}

/// Receives the data that a rank sends with [`send`] into a tensor. It expects as many elements as the tensor has, of
/// the tensor's type unless [`Exchange::carries`] specifies another.
#[track_caller]
pub fn recv<'h, 'l, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    from: Rank,
) -> Exchange<'h, 'l, Out, Out, Out> {
    Exchange::over(Operation::Exchange(Pattern::Pair { to: None, from: Some(from) }), link, out, out)
}

/// Sends a tensor to one rank and simultaneously receives one from the same rank or another.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::{Tensor, sendrecv};
///
/// // A ring: every rank gets the previous rank's tensor, transposed on the way.
/// let sums = World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let inp = Tensor::from_fn(6, |i| i as f32 + 10.0 * world.rank().number() as f32);
///     let out = Tensor::<f32>::zeros(6);
///     let (next, previous) = (world.next(), world.previous());
///     let mut shift = sendrecv(&link, &out, &inp, next, previous)
///         .chunk_shape(2, 3)
///         .output_shape(3, 2)
///         .produce(|c| c.input.at(c.col(), c.row()))
///         .build()?;
///     shift.run()?; // any number of times
///     drop(shift);
///     link.close()?;
///     Ok(out.to_vec())
/// })?;
/// assert_eq!(sums[0], [20.0, 23.0, 21.0, 24.0, 22.0, 25.0]);
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[track_caller]
pub fn sendrecv<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
    to: Rank,
    from: Rank,
) -> Exchange<'h, 'l, In, Out, In> {
    Exchange::over(Operation::Exchange(Pattern::Pair { to: Some(to), from: Some(from) }), link, out, inp)
}

/// Sends chunk `p` of the input to rank `p`, where it becomes chunk `rank` of the output. Both tensors have one chunk
/// per rank, all of equal size. Collective: all ranks call it.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::{Tensor, all_to_all};
///
/// let (rows, cols) = (2, 3);
/// World::threads(4).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let me = world.rank().index();
///     let inp = Tensor::from_fn(4 * rows * cols, |i| (100 * me + i) as f32);
///     let out = Tensor::<f32>::zeros(4 * rows * cols);
///     // Every received [rows, cols] chunk arrives transposed.
///     all_to_all(&link, &out, &inp)
///         .chunk_shape(rows, cols)
///         .output_shape(cols, rows)
///         .produce(|c| c.input.at(c.col(), c.row()))
///         .run()?;
///     // Row 1, column 0 of the chunk received from rank 2 is row 0, column 1 of rank 2's chunk for this rank.
///     assert_eq!(out.get(2 * 6 + 2), (200 + me * 6 + 1) as f32);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// A rank's own chunk also passes through both hooks, but not over the wire. In a hook, `c.input` and `c.output` are
/// the chunks for the peer of the leg, and `c.shard()` is the number of the chunk in the receiver's output. Output and
/// input must not overlap.
#[track_caller]
pub fn all_to_all<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
) -> Exchange<'h, 'l, In, Out, In> {
    Exchange::over(Operation::Exchange(Pattern::AllToAll), link, out, inp)
}

/// Concatenates the inputs of all ranks, in rank order, into the output of every rank. Collective.
///
/// In place is allowed if the input is this rank's chunk of the output and there are no hooks. The value from `produce`
/// goes to the outputs of all ranks, so `c.peer()` is not available there.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::{Tensor, all_gather};
/// World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let (inp, out) = (Tensor::from_slice(&[world.rank().number(); 2]), Tensor::<u32>::zeros(6));
///     all_gather(&link, &out, &inp).produce(|c| c.input.load(c.pos()) * 10).run()?;
///     assert_eq!(out.to_vec(), [0, 0, 10, 10, 20, 20]);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[track_caller]
pub fn all_gather<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
) -> Exchange<'h, 'l, In, Out, In> {
    Exchange::over(Operation::Exchange(Pattern::AllGather), link, out, inp)
}

/// Copies the input of `root` to the output of every rank. Collective. The inputs of the other ranks are ignored.
///
/// In place is allowed if the root's output is its input and there are no hooks. The value from `produce` goes to the
/// outputs of all ranks, so `c.peer()` is not available there.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::{Rank, World};
/// use tilewire::{Tensor, broadcast};
/// World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let x = Tensor::from_slice(&[world.rank().number(); 4]);
///     broadcast(&link, &x, &x, Rank::new(2)).run()?;
///     assert_eq!(x.to_vec(), [2; 4]);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[track_caller]
pub fn broadcast<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
    root: Rank,
) -> Exchange<'h, 'l, In, Out, In> {
    Exchange::over(Operation::Exchange(Pattern::Broadcast { root }), link, out, inp)
}

/// Concatenates the inputs of all ranks, in rank order, into the output of `root`. Collective. The outputs of the other
/// ranks are ignored.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::{Rank, World};
/// use tilewire::{Tensor, gather};
/// World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let (inp, root) = (Tensor::from_slice(&[world.rank().number()]), Rank::new(1));
///     let out = Tensor::<u32>::zeros(if world.rank() == root { 3 } else { 0 });
///     gather(&link, &out, &inp, root).run()?;
///     assert!(world.rank() != root || out.to_vec() == [0, 1, 2]);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[track_caller]
pub fn gather<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
    root: Rank,
) -> Exchange<'h, 'l, In, Out, In> {
    Exchange::over(Operation::Exchange(Pattern::Gather { root }), link, out, inp)
}

/// Copies chunk `p` of the input of `root` to the output of rank `p`. Collective. The inputs of the other ranks are
/// ignored.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::{Rank, World};
/// use tilewire::{Tensor, scatter};
/// World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let (inp, out, root) = (Tensor::from_slice(&[5u32, 6, 7]), Tensor::<u32>::zeros(1), Rank::new(0));
///     scatter(&link, &out, &inp, root).run()?;
///     assert_eq!(out.get(0), 5 + world.rank().number());
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[track_caller]
pub fn scatter<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
    root: Rank,
) -> Exchange<'h, 'l, In, Out, In> {
    Exchange::over(Operation::Exchange(Pattern::Scatter { root }), link, out, inp)
}

/// A barrier: a launch ends only after all ranks have launched it. On the CPU, `run` returns at that point. On a GPU,
/// later work on the stream waits until then. The barrier does not publish what a rank's host wrote to shared memory
/// earlier; use the other collectives for that.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::barrier;
/// let here = AtomicU32::new(0);
/// World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     here.fetch_add(1, Relaxed);
///     barrier(&link).run()?;
///     assert_eq!(here.load(Relaxed), 3);
///     // To run it several times, build it once.
///     let mut meet = barrier(&link).build()?;
///     meet.run()?;
///     meet.run()?;
///     drop(meet);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[track_caller]
pub fn barrier<'l>(link: &'l dyn Transport) -> Barrier<'l> {
    Barrier { link, deadline: link.deadline(), at: SourceLine::caller() }
}

/// A builder for a [`barrier`]. It has neither hooks nor knobs, because it moves one number between any two ranks.
#[must_use = "nothing happens before run(), build() or trace()"]
pub struct Barrier<'l> {
    link: &'l dyn Transport,
    deadline: Option<Duration>,
    at: SourceLine,
}

impl<'l> Barrier<'l> {
    /// How long a wait may last without progress. The default is the world's deadline; `None` means forever.
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.deadline = deadline.into();
        self
    }

    /// Builds the barrier and announces it to the other ranks; see [`Exchange::build`].
    pub fn build(self) -> Result<PreparedExchange<'l>, RunError> {
        self.exchange()?.build()
    }

    /// Builds the barrier and launches it once.
    pub fn run(self) -> Result<(), RunError> {
        self.build()?.run()
    }

    /// Describes what would happen, as text to read; see [`Exchange::explain`].
    pub fn explain(&self) -> Result<String, RunError> {
        self.exchange()?.explain()
    }

    /// Traces the kernel and stops there; see [`Exchange::trace`].
    pub fn trace(self) -> Result<Traced, RunError> {
        self.exchange()?.trace()
    }

    /// A barrier is an all-gather of one number from each rank, which nobody reads.
    fn exchange(&self) -> Result<Exchange<'static, 'l, u64, u64>, RunError> {
        // An element of eight bytes fills a packet by itself, so no packing is needed.
        let zeros = |len| match self.link.seat() {
            Some(seat) => seat.stream.device().zeros::<u64>(len),
            None => Ok(Tensor::zeros(len)),
        };
        let (inp, out) = (zeros(1)?, zeros(self.link.world_size())?);
        let operation = Operation::Exchange(Pattern::Barrier);
        Ok(Exchange::at(operation, Some(self.link), &out, &inp, self.at.clone()).deadline(self.deadline))
    }
}
