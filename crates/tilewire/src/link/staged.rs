//! The numbers of a staged pipeline, given once, for your own schedules.

use super::{Transport, check_transfer};
use crate::hook::{Block, Regs, RoleCtx};
use crate::schedule::{Packing, Peer, Position, StagedPlan, StagedRecv, StagedSend, Tiling, recv_tiles, send_tiles};
use crate::transport::{Protocol, Rank, Transfer, TransferError};
use std::marker::PhantomData;
use std::ops::Deref;

/// A chunk that goes from rank to rank in tiles, through slots of as many bytes as a tile needs: protocol, plan, tiling
/// and packing in one. `R` names the types of the values that travel for one element.
///
/// All ranks must say the same numbers.
///
/// ```
/// use tilewire::collective::Launch;
/// use tilewire::link::{ShmOptions, ShmTransport, Staged};
/// use tilewire::transport::World;
/// use tilewire::{Tensor, kernel};
///
/// World::threads(2).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let peer = world.next();
///     let x = Tensor::from_fn(1000, |i| (i as u32 + world.rank().number()) as f32);
///     let y = Tensor::<f32>::zeros(1000);
///     let leg = Staged::<f32>::new(&link, 1000).tile(256).depth(2).with(peer)?;
///     let traced = kernel("swap", |k| {
///         let (x, y) = (k.input(&x), k.output(&y));
///         let (tx, rx) = (leg.sender(k), leg.receiver(k));
///         k.role("send", 4).run(|r| tx.send(r, |at| x.load(at.pos)));
///         k.role("receive", 4).run(|r| rx.recv(r, |at, v| y.store(at.pos, v)));
///     })?;
///     Launch::new(&link, &traced)?.run()?;
///     assert_eq!(y.get(7), (7 + peer.number()) as f32);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Staged<'l, R> {
    link: &'l dyn Transport,
    /// `None` for a chunk without a shape.
    rows: Option<usize>,
    cols: usize,
    tile: usize,
    depth: usize,
    blocks: usize,
    first_block: usize,
    last_per: usize,
    types: PhantomData<fn() -> R>,
}

impl<'l, R: Regs> Staged<'l, R> {
    /// A chunk of `len` positions, over this transport: in tiles of 1024 positions, through 4 slots, by one block.
    pub fn new(link: &'l dyn Transport, len: usize) -> Self {
        let (tile, depth, blocks, first_block, last_per) = (1024, 4, 1, 0, 1);
        Staged { link, rows: None, cols: len, tile, depth, blocks, first_block, last_per, types: PhantomData }
    }

    /// A chunk of rows and columns, otherwise as [`new`](Self::new).
    pub fn shaped(link: &'l dyn Transport, rows: usize, cols: usize) -> Self {
        Staged { rows: Some(rows), ..Self::new(link, cols) }
    }

    /// Positions of a tile, at most. A slot holds one tile.
    pub fn tile(self, tile: usize) -> Self {
        Staged { tile, ..self }
    }

    /// Slots of a block: that many tiles may be under way.
    pub fn depth(self, depth: usize) -> Self {
        Staged { depth, ..self }
    }

    /// Blocks of the kernel that share the tiles.
    pub fn blocks(self, blocks: usize) -> Self {
        Staged { blocks, ..self }
    }

    /// The transport block that block 0 uses, as [`StagedPlan::from_block`]: for two pipelines to one peer in a launch.
    pub fn from_block(self, first_block: usize) -> Self {
        Staged { first_block, ..self }
    }

    /// Neighbours that share the last of several values, as [`Packing::last_per`].
    pub fn last_per(self, last_per: usize) -> Self {
        Staged { last_per, ..self }
    }

    /// The pipeline to or from one peer. Returns an error if the transport cannot carry it: everything that
    /// [`check_transfer`] and [`StagedPlan::new`] refuse.
    pub fn with(&self, peer: Rank) -> Result<StagedLeg<'l, R>, TransferError> {
        let &Staged { link, rows, cols, tile, depth, blocks, first_block, last_per, .. } = self;
        let tiling = match rows {
            None => Tiling::flat(cols, tile, blocks),
            Some(rows) => Tiling::shaped(rows, cols, tile, blocks),
        };
        let packing = Packing::new(R::TYPES, tiling.tile_len()).last_per(last_per);
        let (slot_bytes, dtype) = (packing.bytes(), R::TYPES[0]);
        let protocol = Protocol::Staged { slot_bytes, depth };
        let bytes = rows.unwrap_or(1).saturating_mul(cols).saturating_mul(dtype.size());
        check_transfer(link, &Transfer { peer, bytes, dtype, blocks, protocol }, &[])?;
        let plan = StagedPlan::new(&link.link(peer), slot_bytes, depth, blocks)?.from_block(first_block)?;
        Ok(StagedLeg { link, peer, protocol, numbers: Numbers { plan, tiling, packing }, types: PhantomData })
    }
}

/// A [`Staged`] pipeline between this rank and one peer, which the transport can carry.
#[derive(Clone, Copy)]
pub struct StagedLeg<'l, R> {
    link: &'l dyn Transport,
    peer: Rank,
    protocol: Protocol,
    numbers: Numbers,
    types: PhantomData<fn() -> R>,
}

#[derive(Clone, Copy)]
struct Numbers {
    plan: StagedPlan,
    tiling: Tiling,
    packing: Packing,
}

impl<R: Regs> StagedLeg<'_, R> {
    /// How the chunk is cut into tiles.
    pub fn tiling(&self) -> Tiling {
        self.numbers.tiling
    }

    /// Binds a kernel to the peer, to send to it.
    pub fn sender<'t>(&self, k: &Block<'t>) -> StagedSender<'t, R> {
        let peer = self.link.sender(k, self.peer, self.protocol, None);
        StagedSender { peer, numbers: self.numbers, types: PhantomData }
    }

    /// Binds a kernel to the peer, to receive from it.
    pub fn receiver<'t>(&self, k: &Block<'t>) -> StagedReceiver<'t, R> {
        let peer = self.link.receiver(k, self.peer, self.protocol);
        StagedReceiver { peer, numbers: self.numbers, types: PhantomData }
    }
}

macro_rules! ends {
    ($($(#[$doc:meta])* $name:ident: $begun:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name<'t, R> {
            peer: Peer<'t>,
            numbers: Numbers,
            types: PhantomData<fn() -> R>,
        }

        impl<'t, R: Regs> $name<'t, R> {
            /// The slots.
            pub fn plan(&self) -> StagedPlan {
                self.numbers.plan
            }

            /// How the chunk is cut into tiles.
            pub fn tiling(&self) -> Tiling {
                self.numbers.tiling
            }

            /// Where the parts of an element lie in a slot.
            pub fn packing(&self) -> Packing {
                self.numbers.packing
            }

            /// Begins a launch, for steps written by hand.
            pub fn begin<'r>(&'r self, r: &'r RoleCtx<'t>) -> $begun<'r, 't> {
                $begun::begin(r, &self.peer, self.numbers.plan)
            }
        }

        impl<'t, R> Deref for $name<'t, R> {
            type Target = Peer<'t>;
            fn deref(&self) -> &Peer<'t> {
                &self.peer
            }
        }
    )*};
}

ends! {
    /// The sending end of a [`Staged`] pipeline, in a kernel being traced.
    StagedSender: StagedSend;
    /// The receiving end of a [`Staged`] pipeline, in a kernel being traced.
    StagedReceiver: StagedRecv;
}

impl<'t, R: Regs> StagedSender<'t, R> {
    /// Sends this block's tiles, as [`send_tiles`] does.
    #[track_caller]
    pub fn send(&self, r: &RoleCtx<'t>, produce: impl Fn(&Position<'t>) -> R::Of<'t>) {
        let Numbers { plan, tiling, packing } = self.numbers;
        send_tiles::<R>(r, &self.peer, plan, tiling, packing, produce);
    }
}

impl<'t, R: Regs> StagedReceiver<'t, R> {
    /// Receives this block's tiles, as [`recv_tiles`] does.
    #[track_caller]
    pub fn recv(&self, r: &RoleCtx<'t>, consume: impl Fn(&Position<'t>, R::Of<'t>)) {
        let Numbers { plan, tiling, packing } = self.numbers;
        recv_tiles::<R>(r, &self.peer, plan, tiling, packing, consume);
    }
}
