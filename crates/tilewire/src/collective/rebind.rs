//! Rebinding: other tensors take the place of those that a prepared kernel uses. This file finds which arguments lie in
//! the old tensors and where they lie in the new ones, and refuses tensors that do not fit.
//!
//! A prepared kernel was lowered for its arguments: their rows, their alignment, and which of them share bytes. Tensors
//! that agree in all of these properties can take their place. Windows take the place of windows on all ranks together,
//! since every rank has the addresses of the others' windows.

use super::windows::{UsedWindows, WindowOf};
use crate::ir::Type;
use crate::link::Transport;
use crate::tensor::{AnyTensor, Arg, Grid, Memory, ReachableFrom};
use crate::transport::{PeerEndpoint, Rank};

/// The tensors that a kernel is bound to.
#[derive(Clone)]
pub(super) struct Bound {
    /// The output and the input.
    pub tensors: [AnyTensor; 2],
    /// The windows that were given when it was built.
    pub windows: UsedWindows,
    /// True if peers have the addresses of what lies in them.
    pub is_reached: bool,
    /// True if posts write them: their registrations are part of the kernel.
    pub is_posted: bool,
}

/// What takes the place of the output, or of the input.
pub(super) enum Taker {
    /// A tensor of this rank.
    Tensor(AnyTensor),
    /// A window. All ranks bind theirs.
    Window(WindowOf),
}

/// The reason why other tensors cannot take the place of those that a kernel was prepared for. The kernel still uses
/// the old tensors.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RebindError {
    /// The new tensor has elements of another type.
    #[non_exhaustive]
    Type {
        /// `output` or `input`.
        tensor: &'static str,
        /// The type of the new tensor.
        is: Type,
        /// The type of the old tensor.
        must: Type,
    },
    /// The new tensor has other rows, columns or another row stride.
    #[non_exhaustive]
    Shape {
        /// `output` or `input`.
        tensor: &'static str,
        /// The rows, columns and row stride of the new tensor.
        is: [usize; 3],
        /// The rows, columns and row stride of the old tensor.
        must: [usize; 3],
    },
    /// The new tensor's address is less aligned than the kernel relies on.
    #[non_exhaustive]
    Alignment {
        /// `output` or `input`.
        tensor: &'static str,
        /// The alignment of the new address, at most 64.
        is: usize,
        /// The alignment that the kernel relies on.
        must: usize,
    },
    /// The new tensor's memory is reached from other places.
    #[non_exhaustive]
    Reach {
        /// `output` or `input`.
        tensor: &'static str,
        /// The places from which the new tensor can be reached.
        is: ReachableFrom,
        /// The places from which the old tensor could be reached.
        must: ReachableFrom,
    },
    /// The new tensors do not share bytes in the way that the old ones did.
    #[non_exhaustive]
    Overlap {
        /// `output` or `input`.
        tensor: &'static str,
        /// The other tensor, or the argument.
        with: String,
        /// True if the old tensors shared bytes.
        did: bool,
    },
    /// Peers have the address of the old tensor.
    #[non_exhaustive]
    Reached {
        /// `output` or `input`.
        tensor: &'static str,
    },
    /// A window for a tensor that was in none.
    #[non_exhaustive]
    NoWindow {
        /// `output` or `input`.
        tensor: &'static str,
    },
    /// A window that has another length on some rank.
    #[non_exhaustive]
    WindowLength {
        /// `output` or `input`.
        tensor: &'static str,
        /// The rank.
        rank: Rank,
        /// Bytes there; `None` if the rank cannot be reached.
        is: Option<usize>,
        /// Those of the old window.
        must: Option<usize>,
    },
    /// A window that far peers write by posts.
    #[non_exhaustive]
    Posted {
        /// `output` or `input`.
        tensor: &'static str,
    },
    /// An input that posts cannot read where it lies, in place of one that they read so.
    #[non_exhaustive]
    NotInPlace {
        /// The rank that they go to.
        peer: Rank,
        /// True if it is lent for the time of a closure.
        is_lent: bool,
    },
}

errors! {
    enum RebindError {
        Type { tensor, is, must } =>
            "the {tensor} has elements of {is}, but the kernel was built for {must}: build the collective again",
        Shape { tensor, is: [rows, cols, stride], must: [had_rows, had_cols, had_stride] } =>
            "the {tensor} is [{rows}, {cols}] with rows {stride} apart, but the kernel was built for \
             [{had_rows}, {had_cols}] with rows {had_stride} apart: build the collective again",
        Alignment { tensor, is, must } =>
            "the {tensor} is aligned to {is} bytes where the kernel relies on {must}: align the buffer to {must} bytes, \
             or build the collective again",
        Reach { tensor, is, must } =>
            "the {tensor} is reached from {is}, but the kernel was built for memory reached from {must}: build the \
             collective again",
        Overlap { tensor, with, did: true } =>
            "the {tensor} must overlap {with} exactly as the old one did, because the kernel was built for that: pass \
             tensors that overlap in the same way, or build the collective again",
        Overlap { tensor, with, did: false } =>
            "the {tensor} shares bytes with {with}, but the kernel was built for tensors that do not: pass tensors that \
             do not overlap, or build the collective again",
        Reached { tensor } =>
            "the {tensor} is in a window, so peers have its address: all ranks call rebind_window(..), \
             rebind_input_window(..) or rebind_windows(..) with another window",
        NoWindow { tensor } =>
            "the {tensor} was in no window when the kernel was built: give a tensor in its place, or build the collective again with \
             .window(&window)",
        WindowLength { tensor, rank, is, must } => { |f| {
            let bytes = |bytes: &Option<usize>| match bytes {
                Some(bytes) => format!("has {bytes} bytes"),
                None => "is out of reach".to_string(),
            };
            write!(
                f,
                "the window for the {tensor} {} on rank {rank}, where the old one {}: all ranks allocate windows of the old \
                 lengths on the same transport, or build the collective again",
                bytes(is),
                bytes(must)
            )
        } },
        Posted { tensor } =>
            "the {tensor} is in a window that far peers write by posts, and the kernel names its registration: all ranks \
             build the collective again",
        NotInPlace { peer, is_lent: true } =>
            "the input was lent by Tensor::lend, and the kernel posts its input to rank {peer} from where it lies: give \
             memory that a network may keep, or build the collective again",
        NotInPlace { peer, is_lent: false } =>
            "the network to rank {peer} cannot read the new input where it lies, as it reads the old one: give memory of the \
             host, or build the collective again",
    }
}

const NAMES: [&str; 2] = ["output", "input"];

/// The new tensors of a kernel, and its new windows.
#[derive(Clone)]
pub(super) struct Rebound {
    pub tensors: [AnyTensor; 2],
    pub windows: UsedWindows,
    /// The control lines that move: old and new.
    pub lines: Vec<[Memory; 2]>,
}

/// The control lines of the old and of the new windows of a launch, for all peers that this rank reaches by loads and
/// stores.
fn moved_lines(link: &dyn Transport, old: &UsedWindows, new: &UsedWindows) -> Vec<[Memory; 2]> {
    let (old, new) = (old.lines(), new.lines());
    if old.number() == new.number() {
        return Vec::new();
    }
    let peers = Rank::all(link.world_size()).filter(|&peer| peer != link.rank());
    let both = peers.filter_map(|peer| Some([link.endpoint_of(peer, &old)?, link.endpoint_of(peer, &new)?]));
    let lines = |endpoint: &PeerEndpoint| {
        let PeerEndpoint { here, starts, .. } = endpoint;
        let there = endpoint.mapped().map(|there| [there.signals.ready.clone(), there.signals.done.clone()]);
        let here = [here.signals.ready.clone(), here.signals.done.clone(), starts.clone()];
        here.into_iter().chain(there.into_iter().flatten()).collect::<Vec<_>>()
    };
    both.flat_map(|[old, new]| lines(&old).into_iter().zip(lines(&new)).map(|(old, new)| [old, new])).collect()
}

impl Bound {
    /// The tensors and windows after these have taken the place of the output and of the input.
    pub(super) fn taken(&self, by: [Taker; 2], link: Option<&dyn Transport>) -> Result<Rebound, RebindError> {
        let mut windows = self.windows.clone();
        let mut tensors = self.tensors.clone();
        let is_window = matches!(by[0], Taker::Window(_));
        for (k, taker) in by.into_iter().enumerate() {
            match taker {
                Taker::Tensor(tensor) => tensors[k] = tensor,
                Taker::Window(new) if k == 0 && self.windows.spare_output => tensors[0] = self.spare(&new)?,
                Taker::Window(new) => {
                    let old = self.windows.of[k].as_ref().ok_or(RebindError::NoWindow { tensor: NAMES[k] })?;
                    self.window_alike(k, old, &new)?;
                    windows.of[k] = Some(new);
                }
            }
        }
        // Where a tensor lay in an old window, it lies in the new one.
        for (k, window) in windows.of.iter().enumerate() {
            let (Some(old), Some(new)) = (&self.windows.of[k], window) else { continue };
            let lies_in = |tensor: &AnyTensor| old.own.offset_of(tensor.memory()).filter(|_| tensor.len() > 0);
            if let Some(offset) = lies_in(&self.tensors[k]) {
                let there = || self.tensors[k].moved_to(new.own.part_like(self.tensors[k].memory(), offset));
                let stays = tensors[k].memory().is(self.tensors[k].memory());
                if stays && !old.own.is(&new.own) {
                    tensors[k] = there();
                }
            }
        }
        // A send has no output: its input stands in for it.
        let [out, inp] = &self.tensors;
        if is_window && out.memory().is(inp.memory()) && tensors[0].memory().is(out.memory()) {
            tensors[0] = tensors[1].clone();
        }
        let lines = link.map_or_else(Vec::new, |link| moved_lines(link, &self.windows, &windows));
        Ok(Rebound { tensors, windows, lines })
    }

    /// The output in a window that peers do not reach: it is a tensor like any other.
    fn spare(&self, new: &WindowOf) -> Result<AnyTensor, RebindError> {
        let (old, tensor) = (&self.tensors[0], NAMES[0]);
        if old.ty() != new.ty {
            return Err(RebindError::Type { tensor, is: new.ty, must: old.ty() });
        }
        if old.memory().bytes() != new.own.bytes() {
            let shape = |memory: &Memory| [1, memory.bytes() / new.ty.size(), memory.bytes() / new.ty.size()];
            return Err(RebindError::Shape { tensor, is: shape(&new.own), must: shape(old.memory()) });
        }
        Ok(old.moved_to(new.own.clone()))
    }

    /// Checks that a window is like the old one on every rank.
    fn window_alike(&self, k: usize, old: &WindowOf, new: &WindowOf) -> Result<(), RebindError> {
        let tensor = NAMES[k];
        if self.is_posted {
            return Err(RebindError::Posted { tensor });
        }
        if old.ty != new.ty {
            return Err(RebindError::Type { tensor, is: new.ty, must: old.ty });
        }
        let ranks = old.peers.len().max(new.peers.len());
        let bytes = |window: &WindowOf, rank| match window.bytes_of(rank) {
            0 if !window.is_mapped(rank) && window.posted_bytes_of(rank).is_none() => None,
            bytes => Some(bytes),
        };
        for rank in Rank::all(ranks) {
            let (is, must) = (bytes(new, rank), bytes(old, rank));
            if is != must || new.is_mapped(rank) != old.is_mapped(rank) {
                return Err(RebindError::WindowLength { tensor, rank, is, must });
            }
        }
        Ok(())
    }

    /// The arguments with these tensors and windows in place of the old ones. `aligned` says that the kernel relies on
    /// the alignment of the old tensors. `name` returns the name of an argument.
    pub(super) fn moved(
        &self,
        args: &[Arg],
        to: &Rebound,
        aligned: bool,
        name: &dyn Fn(usize) -> String,
    ) -> Result<Vec<Arg>, RebindError> {
        for k in 0..2 {
            self.alike(k, to)?;
        }
        let [(out, inp), (new_out, new_inp)] =
            [&self.tensors, &to.tensors].map(|[out, inp]| (out.memory(), inp.memory()));
        if !share_alike([out, inp], [new_out, new_inp]) {
            return Err(RebindError::Overlap { tensor: NAMES[0], with: "the input".into(), did: out.overlaps(inp) });
        }
        let moves = self.moves(to);
        let mut moved = Vec::with_capacity(args.len());
        for (k, arg) in args.iter().enumerate() {
            let line = |memory: &Memory| {
                let of = |[old, new]: &[Memory; 2]| {
                    let offset = old.offset_of(memory).filter(|_| memory.covered() > 0)?;
                    Some(new.part_like(memory, offset))
                };
                to.lines.iter().find_map(of)
            };
            moved.push(match arg {
                Arg::Buffer(banks) => {
                    let bank =
                        |memory: &Memory| line(memory).map_or_else(|| bank(memory, &moves, aligned, || name(k)), Ok);
                    Arg::Buffer(banks.iter().map(bank).collect::<Result<_, _>>()?)
                }
                Arg::Slots(banks) => {
                    let bank = |memory: &Memory| line(memory).unwrap_or_else(|| memory.clone());
                    Arg::Slots(banks.iter().map(bank).collect())
                }
                arg => arg.clone(),
            });
        }
        Ok(moved)
    }

    /// Every memory that moves, with its tensor: the tensors themselves, and the windows of all ranks.
    fn moves<'m>(&'m self, to: &'m Rebound) -> Vec<(&'static str, &'m Memory, &'m Memory)> {
        let tensors = (0..2).map(|k| (NAMES[k], self.tensors[k].memory(), to.tensors[k].memory()));
        let windows = (0..2).filter_map(|k| Some((NAMES[k], self.windows.of[k].as_ref()?, to.windows.of[k].as_ref()?)));
        let of_ranks = windows.flat_map(|(name, old, new)| {
            let both = old.peers.iter().zip(&new.peers);
            both.filter_map(move |(old, new)| Some((name, old.as_ref()?, new.as_ref()?)))
        });
        tensors.chain(of_ranks).collect()
    }

    /// Checks that a tensor is like the old one.
    fn alike(&self, k: usize, to: &Rebound) -> Result<(), RebindError> {
        let (old, new, tensor) = (&self.tensors[k], &to.tensors[k], NAMES[k]);
        if old.ty() != new.ty() {
            return Err(RebindError::Type { tensor, is: new.ty(), must: old.ty() });
        }
        if old.grid() != new.grid() {
            let of = |Grid { rows, cols, stride }: Grid| [rows, cols, stride];
            return Err(RebindError::Shape { tensor, is: of(new.grid()), must: of(old.grid()) });
        }
        let reach = |tensor: &AnyTensor| tensor.memory().reachable_from().clone();
        if reach(old) != reach(new) {
            return Err(RebindError::Reach { tensor, is: reach(new), must: reach(old) });
        }
        // In a window that peers reach, it moves with the window or not at all.
        let windows = self.windows.of.iter().zip(&to.windows.of);
        for (was, is) in windows.filter_map(|(was, is)| was.as_ref().zip(is.as_ref())) {
            let Some(offset) = was.own.offset_of(old.memory()).filter(|_| self.is_reached && old.len() > 0) else {
                continue;
            };
            if !is.own.part_like(old.memory(), offset).is(new.memory()) {
                return Err(RebindError::Reached { tensor });
            }
        }
        Ok(())
    }
}

/// The arguments with other tensors in place of these, whatever they overlap.
pub(super) fn placed(args: &[Arg], of: &[AnyTensor; 2], to: &[AnyTensor; 2]) -> Vec<Arg> {
    let bank = |memory: &Memory| {
        let moves = of.iter().zip(to);
        let mut parts = moves.filter_map(|(old, new)| {
            let offset = old.memory().offset_of(memory).filter(|_| memory.covered() > 0)?;
            Some(new.memory().part_like(memory, offset))
        });
        parts.next().unwrap_or_else(|| memory.clone())
    };
    let moved = |arg: &Arg| match arg {
        Arg::Buffer(banks) => Arg::Buffer(banks.iter().map(bank).collect()),
        arg => arg.clone(),
    };
    args.iter().map(moved).collect()
}

/// The memory that takes the place of this one: the same part of what moves, or itself.
fn bank(
    memory: &Memory,
    moves: &[(&'static str, &Memory, &Memory)],
    aligned: bool,
    name: impl Fn() -> String,
) -> Result<Memory, RebindError> {
    for &(tensor, old, new) in moves {
        let Some(offset) = old.offset_of(memory).filter(|_| memory.covered() > 0) else { continue };
        let part = new.part_like(memory, offset);
        let (is, must) = (alignment(&part), alignment(memory));
        if aligned && is < must {
            return Err(RebindError::Alignment { tensor, is, must });
        }
        return Ok(part);
    }
    // Not a part of them: it stays, and must share with the new memory what it shared with the old one.
    for &(tensor, old, new) in moves {
        if !share_alike([old, memory], [new, memory]) {
            return Err(RebindError::Overlap { tensor, with: name(), did: old.overlaps(memory) });
        }
    }
    Ok(memory.clone())
}

/// True if the second pair of memories overlaps exactly like the first pair, or neither pair overlaps.
fn share_alike([a, b]: [&Memory; 2], [x, y]: [&Memory; 2]) -> bool {
    let distance = |a: &Memory, b: &Memory| a.start().addr().get().wrapping_sub(b.start().addr().get());
    match (a.overlaps(b), x.overlaps(y)) {
        (true, true) => distance(a, b) == distance(x, y),
        (did, does) => did == does,
    }
}

/// The alignment of a memory, as far as kernels rely on it: at most 64.
fn alignment(memory: &Memory) -> usize {
    1 << memory.start().addr().get().trailing_zeros().min(6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    #[test]
    fn parts_of_tensors_move_and_alignment_counts_where_it_is_relied_on() {
        let tensor = |len: usize| Tensor::<f32>::zeros(len);
        let (out, inp, other) = (tensor(64), tensor(64), tensor(64));
        let (tensors, windows) = ([(&out).into(), (&inp).into()], UsedWindows::default());
        let bound = Bound { tensors, windows: windows.clone(), is_reached: false, is_posted: false };
        let buffer = |memory: Memory| Arg::Buffer(vec![memory]);
        let args = [&out, &inp].map(|x| buffer(x.slice(16..32).memory().clone()));
        let moved = |to: &Tensor<f32>, aligned| {
            let to = Rebound { tensors: [(&other).into(), to.into()], windows: windows.clone(), lines: Vec::new() };
            bound.moved(&args, &to, aligned, &|k| format!("argument {k}"))
        };
        let off = tensor(65).slice(1..65);
        let error = moved(&off, true).unwrap_err();
        assert_eq!(error, RebindError::Alignment { tensor: "input", is: 4, must: 64 });
        assert!(error.to_string().contains("aligned to 4 bytes where the kernel relies on 64"));
        let [Arg::Buffer(out), Arg::Buffer(inp)] = &moved(&off, false).unwrap()[..] else { panic!("two buffers") };
        assert!(out[0].is(other.slice(16..32).memory()) && inp[0].is(off.slice(16..32).memory()));
    }
}
