//! Reductions in one hop: which windows they were given, and whether those will do.

use super::RunError;
use super::algorithm::Algorithm;
use super::config::{Decision, Primitive};
use super::reduction::{AnyReduction, Course, Kind, Reduction};
use super::terms::{Message, WindowOf};
use crate::hook::Regs;
use crate::ir::scalar::Element;
use crate::link::Window;
use crate::schedule::Tiling;
use crate::tensor::{Memory, Tensor};
use crate::transport::{Protocol, Rank, TransferError};

/// The windows of a reduction.
pub(super) struct Reached<'w> {
    /// Of the inputs.
    pub input: &'w WindowOf,
    /// Of the outputs, where all ranks get everything.
    pub output: Option<&'w WindowOf>,
}

impl Kind {
    /// The one algorithm that goes through windows.
    fn way_through_windows(self) -> Algorithm {
        match self {
            Kind::ReduceScatter => Algorithm::OneShot,
            Kind::AllReduce => Algorithm::TwoPhase,
        }
    }
}

impl Reached<'_> {
    /// What names them on all ranks.
    pub(super) fn number(&self) -> String {
        let output = self.output.map_or(String::new(), |output| format!(" and {}", output.number));
        format!("{}{output}", self.input.number)
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Regs> Reduction<'h, 'l, In, Out, R> {
    /// Combines in one hop: every rank reads its part of all inputs where they lie, and of an all-reduce stores the result in all outputs.
    /// The input must be this rank's part of a window, and so must the output of an all-reduce, of the same one (in place) or of a second:
    /// say this once for each. Nobody runs a produce hook then, nor the consume hook of an all-reduce.
    ///
    /// ```
    /// use tilewire::all_reduce;
    /// use tilewire::link::{ShmOptions, ShmTransport, Window};
    /// use tilewire::transport::World;
    /// World::threads(3).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let window = Window::<f32>::allocate(&link, 1000)?;
    ///     window.tensor().fill(world.rank().number() as f32);
    ///     all_reduce(&link, window.tensor(), window.tensor()).window(&window).run()?;
    ///     assert_eq!(window.tensor().get(999), 3.0);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn window<W: Element>(mut self, window: &Window<W>) -> Self {
        self.any.windows.push(WindowOf::of(window));
        self
    }

    /// As `window`, with memory of one thread: for kernels that are traced and never launched.
    pub(crate) fn rehearsed_window<W: Element>(mut self, of_all: &[Tensor<W>]) -> Self {
        self.any.windows.push(WindowOf::rehearsed(of_all, self.any.terms.link.rank()));
        self
    }
}

impl AnyReduction<'_, '_> {
    /// The windows, where it goes through them: because the user says so, or has given some and says nothing else.
    pub(super) fn reached(&self) -> Result<Option<Reached<'_>>, TransferError> {
        match self.terms.config.primitive {
            Some(Primitive::Direct) => {}
            None if !self.windows.is_empty() => {}
            _ => return Ok(None),
        }
        let unable = |why| Err(TransferError::Unable { protocol: Protocol::Direct { window_bytes: 0 }, why });
        let all = self.kind == Kind::AllReduce;
        if self.algorithm.is_some_and(|said| said != self.kind.way_through_windows()) {
            return unable(if all {
                "an all-reduce goes through windows in two phases: say two-phase, or nothing"
            } else {
                "a reduce-scatter goes through windows in one shot: say one-shot, or nothing"
            });
        }
        if !self.hooks.copies {
            return unable("nobody runs a produce hook when peers read the input where it lies: use staged or packet");
        }
        if all && !self.hooks.stores() {
            return unable("nobody runs a consume hook when peers write the output: use staged or packet");
        }
        let of = |memory: &Memory| self.windows.iter().find(|window| window.own.is(memory));
        let Some(input) = of(self.inp.memory()).filter(|window| window.ty == self.inp.ty()) else {
            return unable(
                "the input is not this rank's part of a window: give window.tensor() and say window(&window)",
            );
        };
        if !all {
            return Ok(Some(Reached { input, output: None }));
        }
        match of(self.out.memory()).filter(|window| self.hooks.types == [window.ty]) {
            Some(output) => Ok(Some(Reached { input, output: Some(output) })),
            None => unable(
                "the output is not this rank's part of a window: give window.tensor(), and say window(&window) for it too",
            ),
        }
    }

    /// How it runs through windows.
    pub(super) fn course_in_windows<'w>(&self, reached: Reached<'w>) -> Result<Course<'w>, RunError> {
        let (link, ranks) = (self.terms.link, self.terms.link.world_size());
        // The tensors are the windows, and equally long on all ranks: where those are not, every rank sees it.
        let windows = [Some(reached.input), reached.output].into_iter().flatten();
        let unreached = |window: &WindowOf| window.peers.iter().position(Option::is_none);
        if let Some(peer) = windows.clone().find_map(unreached) {
            return Err(TransferError::Unreachable { rank: link.rank(), peer: Rank::new(peer as u32) }.into());
        }
        let ranked = |window: &WindowOf| {
            let bytes = |window: &Option<Memory>| window.as_ref().map_or(0, Memory::bytes);
            window.peers.iter().map(bytes).enumerate().collect::<Vec<_>>()
        };
        let sizes = || windows.clone().flat_map(ranked);
        let (shortest, least) = sizes().min_by_key(|&(_, bytes)| bytes).unwrap_or((0, 0));
        let needed = sizes().map(|(_, bytes)| bytes).max().unwrap_or(0);
        if needed > least {
            let rank = Rank::new(shortest as u32);
            return Err(TransferError::WindowTooShort { rank, bytes: least, needed }.into());
        }
        if windows.clone().any(|window| window.peers.len() != ranks) {
            let why = "its windows are of another world: allocate them on this transport";
            return Err(TransferError::Unable { protocol: Protocol::Direct { window_bytes: least }, why }.into());
        }
        let shards = self.shards();
        // The first is the longest, so that all ranks decide alike.
        let (types, len, shape) = (self.hooks.types, shards[0].len(), None);
        let only = Some((Primitive::Direct, "a reduction through windows"));
        let message = Message { types, len, last_per: 1, shape: &shape, at_once: 1, only, consumed: false };
        let peer = (ranks > 1).then(|| link.rank().after(1, ranks));
        let (decision, _) = self.terms.settle(peer, message, Some(least))?;
        let Decision { protocol, blocks, tile, granule } = decision;
        let tilings = shards.iter().map(|shard| Tiling::flat(shard.len(), tile, blocks).bands(granule)).collect();
        Ok(Course {
            algorithm: self.kind.way_through_windows(),
            protocol,
            blocks,
            decision,
            tilings,
            shards,
            reached: Some(reached),
        })
    }

    /// What a rank combines of a peer's window.
    pub(super) fn part_of(&self, course: &Course<'_>, window: &WindowOf, peer: Rank) -> Memory {
        let me = self.terms.link.rank().index();
        let first = if self.kind == Kind::AllReduce { course.shards[me].start } else { me * self.out.len() };
        let size = window.ty.size();
        window.part_of(peer, first * size, course.shards[me].len() * size)
    }
}
