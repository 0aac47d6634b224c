//! The knobs of a collective.

use super::algorithm::Algorithm;
use super::rounds::{Rounds, Warps};
use crate::transport::LinkKind;

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Primitive {
    /// The flag travels with the data. For small messages.
    Packet,
    /// Step by step through the receiver's staging. Works for any size and any buffers, with both hooks.
    Staged,
    /// Also step by step, but by asynchronous copies through scratch (shared memory on a GPU). Works with both hooks.
    /// Slots are at most 32 KiB.
    Bulk,
    /// In one hop into the receiver's window, with a produce hook only. Reductions instead read from the windows of all
    /// ranks, without a produce hook.
    Direct,
}

/// The user's settings for how a collective runs. All ranks must arrive at the same settings. Anything that is `None`
/// is chosen from the size of the message and the constants of the transport.
///
/// Every knob is also a method of the builders, and the two combine in any order:
///
/// ```
/// use tilewire::{Algorithm, Config, Knobs, Tensor, all_reduce};
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// World::threads(2).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let x = Tensor::<f32>::zeros(100_000);
///     let near = Knobs { slot_bytes: Some(32 << 10), depth: Some(4), ..Knobs::default() };
///     let config = Config { algorithm: Some(Algorithm::Ring), near, ..Config::default() };
///     all_reduce(&link, &x, &x).blocks(2).config(config).run()?; // `.config(near)` also works, for knobs alone
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
    /// How the rounds share a launch.
    pub rounds: Option<Rounds>,
    /// Knobs for peers whose memory is reachable by loads and stores. They apply to all peers if `far` is `None`.
    pub near: Knobs,
    /// Knobs for peers across a network ([`LinkKind::Fabric`]). Unset values are chosen automatically, not taken from
    /// `near`.
    pub far: Option<Knobs>,
    /// Number of vectors of neighbouring elements that a GPU lane keeps in flight:
    /// [`ptx::Options::unroll`](crate::ptx::Options::unroll).
    pub unroll: Option<u32>,
}

/// The knobs of a message between two ranks. Anything that is `None` is chosen automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// How bytes travel.
    pub primitive: Option<Primitive>,
    /// Number of blocks that share the message.
    pub blocks: Option<usize>,
    /// Warps of one copy of a sending role on a GPU. The two sides may use different values, except in a one-shot
    /// all-reduce. A role that both sends and receives, or that combines, uses this value, or `recv_warps` if this is
    /// `None`.
    pub send_warps: Option<u32>,
    /// Warps of one copy of a receiving role.
    pub recv_warps: Option<u32>,
    /// Bytes per staging slot.
    pub slot_bytes: Option<usize>,
    /// Slots per block.
    pub depth: Option<usize>,
    /// Each group of this many neighbours stays within one tile. The default is 64, or 1024 for large tiles.
    pub granule: Option<usize>,
}

impl Config {
    /// Takes unset values from `other`.
    ///
    /// ```
    /// use tilewire::{Config, Knobs};
    /// let few = Config { unroll: Some(2), ..Config::from(Knobs { blocks: Some(2), ..Knobs::default() }) };
    /// let both = few.or(Knobs { blocks: Some(4), depth: Some(8), ..Knobs::default() }.into());
    /// assert_eq!((both.near.blocks, both.near.depth, both.unroll), (Some(2), Some(8), Some(2)));
    /// ```
    pub fn or(self, other: Config) -> Config {
        Config {
            algorithm: self.algorithm.or(other.algorithm),
            rounds: self.rounds.or(other.rounds),
            near: self.near.or(other.near),
            far: match (self.far, other.far) {
                (Some(far), Some(other)) => Some(far.or(other)),
                (far, other) => far.or(other),
            },
            unroll: self.unroll.or(other.unroll),
        }
    }

    /// The knobs for peers over this kind of link.
    pub(super) fn knobs(&self, kind: LinkKind) -> Knobs {
        self.far.filter(|_| kind == LinkKind::Fabric).unwrap_or(self.near)
    }
}

impl From<Knobs> for Config {
    fn from(near: Knobs) -> Config {
        Config { near, ..Config::default() }
    }
}

impl From<Knobs> for Warps {
    fn from(knobs: Knobs) -> Warps {
        Warps { send: knobs.send_warps, receive: knobs.recv_warps }
    }
}

impl Knobs {
    /// The same number of warps for sending and receiving roles.
    pub const fn warps(warps: u32) -> Knobs {
        Knobs {
            primitive: None,
            blocks: None,
            send_warps: Some(warps),
            recv_warps: Some(warps),
            slot_bytes: None,
            depth: None,
            granule: None,
        }
    }

    /// Takes unset values from `other`.
    pub fn or(self, other: Knobs) -> Knobs {
        Knobs {
            primitive: self.primitive.or(other.primitive),
            blocks: self.blocks.or(other.blocks),
            send_warps: self.send_warps.or(other.send_warps),
            recv_warps: self.recv_warps.or(other.recv_warps),
            slot_bytes: self.slot_bytes.or(other.slot_bytes),
            depth: self.depth.or(other.depth),
            granule: self.granule.or(other.granule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_knobs_are_those_of_peers_across_a_network() {
        let (near, far) = (Knobs::warps(4), Knobs { blocks: Some(1), ..Knobs::default() });
        let config = Config { far: Some(far), ..near.into() };
        for kind in [LinkKind::SameDevice, LinkKind::Shm, LinkKind::Nvlink] {
            assert_eq!(config.knobs(kind), near, "{kind:?}");
        }
        assert_eq!(config.knobs(LinkKind::Fabric), far);
        // If nothing is set for far peers, the general knobs apply.
        assert_eq!(Config::from(near).knobs(LinkKind::Fabric), near);
        let twice = Config { far: Some(Knobs::warps(2)), ..Config::default() }.or(config);
        assert_eq!(twice.far, Some(Knobs { blocks: Some(1), ..Knobs::warps(2) }));
    }
}
