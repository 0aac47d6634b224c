//! The exchanges of all ranks: every one is an [`Exchange`] with another pattern, in one launch.

use super::RunError;
use super::exchange::Exchange;
use super::launch_exchange::PreparedExchange;
use super::pattern::Pattern;
use crate::ir::SourceLine;
use crate::ir::scalar::Element;
use crate::link::Transport;
use crate::tensor::Tensor;
use crate::transport::Rank;

/// Chunk `p` of the input goes to rank `p`, and becomes chunk `rank` of its output: both tensors have one equal chunk for each rank.
/// Collective: all ranks call it.
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
///     all_to_all(&link, &out, &inp).chunk_shape(rows, cols).output_shape(cols, rows).produce(|c| c.input.at(c.col(), c.row())).run()?;
///     // Row 1, column 0 of what came from rank 2 is row 0, column 1 of its chunk for this rank.
///     assert_eq!(out.get(2 * 6 + 2), (200 + me * 6 + 1) as f32);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// A rank's own chunk passes both hooks too, without the wire. In a hook, `c.input` and `c.output` are the chunks for the peer of the leg,
/// `c.shard()` is the chunk of the receiver's output. Output and input must not overlap.
#[track_caller]
pub fn all_to_all<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
) -> Exchange<'h, 'l, In, Out, In> {
    Exchange::new(link, out, inp, Pattern::AllToAll, SourceLine::caller())
}

/// The inputs of all ranks, in rank order, become the output of every rank. Collective.
///
/// In place where the input is this rank's chunk of the output, and no hook is given. What `produce` gives ends in the outputs of all ranks, so
/// it has no `c.peer()`.
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
    Exchange::new(link, out, inp, Pattern::AllGather, SourceLine::caller())
}

/// The input of `root` becomes the output of every rank. Collective; the input of the others is not looked at.
///
/// In place where the output of the root is its input, and no hook is given. What `produce` gives ends in the outputs of all ranks, so it has no
/// `c.peer()`.
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
    Exchange::new(link, out, inp, Pattern::Broadcast { root }, SourceLine::caller())
}

/// The inputs of all ranks, in rank order, become the output of `root`. Collective; the output of the others is not looked at.
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
    Exchange::new(link, out, inp, Pattern::Gather { root }, SourceLine::caller())
}

/// Chunk `p` of the input of `root` becomes the output of rank `p`. Collective; the input of the others is not looked at.
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
    Exchange::new(link, out, inp, Pattern::Scatter { root }, SourceLine::caller())
}

/// A barrier, to be launched any number of times: a launch is over when all ranks have launched it. On the CPU that is when `run` returns;
/// on a GPU what comes after it on the stream waits so long. What a rank's host wrote to shared memory before is not published by it: that
/// is what the other collectives are for.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::barrier;
/// let here = AtomicU32::new(0);
/// World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let mut meet = barrier(&link)?;
///     here.fetch_add(1, Relaxed);
///     meet.run()?;
///     assert_eq!(here.load(Relaxed), 3);
///     drop(meet);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[track_caller]
pub fn barrier(link: &dyn Transport) -> Result<PreparedExchange<'_>, RunError> {
    // An element of eight bytes is a packet by itself: nothing is packed.
    let zeros = |len| match link.seat() {
        Some(seat) => seat.stream.device().zeros::<u64>(len),
        None => Ok(Tensor::zeros(len)),
    };
    let (inp, out) = (zeros(1)?, zeros(link.world_size())?);
    Exchange::new(link, &out, &inp, Pattern::Barrier, SourceLine::caller()).build()
}
