//! `reduce_scatter` and `all_reduce`.

use super::algorithm::ReduceOp;
use super::builder::Reduction;
use super::operation::{Kind, Operation};
use crate::ir::scalar::Element;
use crate::link::Transport;
use crate::tensor::Tensor;

/// Combines the inputs of all ranks chunk by chunk: the combination of all chunks `p` becomes the output of rank `p`.
/// The input has one chunk per rank, all of equal size. Collective.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::{ReduceOp, Tensor, reduce_scatter};
/// World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let me = world.rank().number();
///     let (inp, out) = (Tensor::from_fn(6, |i| (10 * me + i as u32) as f32), Tensor::<f32>::zeros(2));
///     reduce_scatter(&link, &out, &inp).op(ReduceOp::Max).run()?;
///     assert_eq!(out.to_vec(), [20.0 + 2.0 * me as f32, 21.0 + 2.0 * me as f32]);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// `produce` returns this rank's value for a position of the chunk of rank `c.peer()`. `consume` gets the combined
/// value of all ranks, so `c.recv_peer()` is not available there. In place is allowed if the output is this rank's
/// chunk of the input. Of that chunk, hooks may then read only the position that they write.
#[track_caller]
pub fn reduce_scatter<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
) -> Reduction<'h, 'l, In, Out, In> {
    Reduction::over(Operation::Reduction(Kind::ReduceScatter, ReduceOp::Sum), link, out, inp)
}

/// Combines the inputs of all ranks position by position; every rank gets the result. Collective.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::{Bf16, Tensor, all_reduce};
/// World::threads(4).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let x = Tensor::from_fn(1000, |i| Bf16::from_f32((i % 7) as f32));
///     let sum = Tensor::<Bf16>::zeros(1000);
///     all_reduce(&link, &sum, &x).run()?; // summed in f32, rounded once
///     assert_eq!(sum.get(6).to_f32(), 24.0);
///     all_reduce(&link, &x, &x).run()?; // in place
///     assert_eq!(x.get(6).to_f32(), 24.0);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// Hooks see the whole tensors, whichever algorithm runs: `c.pos()` is the position in the output, and `c.shard()` is
/// the rank whose shard contains it. The value from `produce` goes to the outputs of all ranks, so `c.peer()` is not
/// available there. The value for `consume` comes from the inputs of all ranks, so `c.recv_peer()` is not available
/// there. If hooks reduce over groups of neighbours, every shard must start at a group boundary. Shard `s` is
/// accumulated over the ranks in the order `s + 1`, …, `s` (wrapping around), so all algorithms, runs and ranks give
/// the same bits.
#[track_caller]
pub fn all_reduce<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
) -> Reduction<'h, 'l, In, Out, In> {
    Reduction::over(Operation::Reduction(Kind::AllReduce, ReduceOp::Sum), link, out, inp)
}
