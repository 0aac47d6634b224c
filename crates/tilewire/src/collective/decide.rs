//! Default choices for how a message travels: measured constants, and the rules that use them.

use super::config::{Knobs, Primitive};
use super::facts::WorldFacts;
use crate::ir::Type;
use crate::link::{Machine, Processor};
use crate::schedule::{BulkPlan, PacketPlan, Packing};
use crate::transport::layout::LINE;
use crate::transport::{LinkKind, LinkShape, Protocol};

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The constants of the link it uses.
    pub link: LinkShape,
    pub protocol: Protocol,
    pub blocks: usize,
    /// Maximum number of positions in a tile.
    pub tile: usize,
    pub granule: usize,
}

/// The defaults of an engine.
struct Choices {
    /// Messages of up to this many bytes go in packets. Above it, a flag for every 8 bytes costs more than a signal.
    packets_up_to: usize,
    /// Bytes per block, with and without packets, until the maximum number of blocks is reached.
    packets_for_block: usize,
    bytes_for_block: usize,
    most_for_packets: usize,
    most_blocks: usize,
    /// Blocks of the smallest message that goes in slots.
    least_blocks: usize,
    /// Target number of steps for a block's share: slots grow with the share to stay at or below it, from `least_slot`
    /// to `largest_slot`.
    steps: usize,
    /// Smaller steps would cost more in signals than their overlap saves. Using one size for all smaller messages also
    /// means that no launch has to drain the slots of the previous one.
    least_slot: usize,
    /// Larger steps would leave the cache before the receiver has read them, or take too long to fill the pipeline.
    largest_slot: usize,
    /// The largest steps for payloads of several parts. Such payloads are computed, so the delay caused by one step
    /// matters more (docs/decisions/0014).
    largest_of_parts: usize,
    /// Shares of at least the first size use slots of the second. At that size, signals cost more than filling the
    /// pipeline.
    huge: (usize, usize),
    /// Total staging in flight on a device. Any more would leave the cache before it is read.
    staging: usize,
    /// Staging of a block at one peer, in units of the size of a core's second-level cache. The ring gets as many slots
    /// as fit in it, but at least [`DEPTH`].
    ring: usize,
}

/// One thread runs all blocks, so having more than one gains nothing. Slots stay in the second-level cache. A message
/// of 1 KiB is faster with a signal than in packets (docs/decisions/0005). When both ranks send, packets stay ahead up
/// to larger sizes, because one role serves both legs.
const CPU: Choices = Choices {
    packets_up_to: 512,
    packets_for_block: usize::MAX,
    bytes_for_block: usize::MAX,
    most_for_packets: 1,
    most_blocks: 1,
    least_blocks: 1,
    steps: 64,
    least_slot: 32 << 10,
    largest_slot: LARGEST_SLOT,
    largest_of_parts: 64 << 10,
    huge: (usize::MAX, 0),
    staging: usize::MAX,
    ring: 0,
};

/// Data that one core has just written is fetched by another core from the writer's second-level cache. Data that has
/// already moved to the third level arrives faster, so a ring is twice as large as that cache. Intel's processors keep
/// smaller rings, because larger ones were never measured there.
///
/// In rings of more than 1 MiB, slots are larger, as long as [`DEPTH`] of them fit. This means fewer signals, and fewer
/// turns on ranks that both send and receive. docs/decisions/0009 has the figures for both.
const NOT_INTEL: Choices = Choices { steps: 16, largest_slot: 256 << 10, ring: 2, ..CPU };

/// The rings of all ranks on a machine together must stay in its third-level cache.
const RINGS: usize = 16 << 20;

/// A block copies about 50 GB/s. Copies of a role take slots in turn, so a share is cut into at least one slot per
/// copy.
const GPU: Choices = Choices {
    packets_up_to: 128 << 10,
    packets_for_block: 2 << 10,
    bytes_for_block: 64 << 10,
    most_for_packets: 32,
    most_blocks: 16,
    least_blocks: 1,
    steps: 8,
    least_slot: 32 << 10,
    largest_slot: LARGEST_SLOT,
    largest_of_parts: 40 << 10,
    huge: (3 << 20, 128 << 10),
    staging: 32 << 20,
    ring: 0,
};

/// Starting values for near peers of GPUs that have far peers as well, not measured yet: many blocks and small steps,
/// as links between GPUs want them.
const NEAR_GPU: Choices =
    Choices { least_blocks: 8, least_slot: LARGEST_SLOT, largest_of_parts: LARGEST_SLOT, huge: (usize::MAX, 0), ..GPU };

/// Starting values for peers across a network, not measured yet: few blocks, and large steps, since each step is a
/// descriptor, a write and a notice. Only the bytes of a tile travel, so a large slot costs a small message nothing.
const FAR_GPU: Choices = Choices {
    bytes_for_block: 1 << 20,
    most_blocks: 4,
    least_slot: FAR_SLOT,
    largest_slot: FAR_SLOT,
    largest_of_parts: FAR_SLOT,
    huge: (usize::MAX, 0),
    ..GPU
};
const FAR_CPU: Choices = Choices { least_slot: FAR_SLOT, largest_slot: FAR_SLOT, largest_of_parts: FAR_SLOT, ..CPU };
/// Slots for far peers, where the staging has room.
const FAR_SLOT: usize = 256 << 10;

/// Shards of an all-reduce go round a ring across the network from this size on. A starting value, not measured yet: a
/// ring waits for the network twice for every rank, which pays once its steps are large ones.
pub(super) const RING_SHARD: usize = FAR_SLOT;

impl Choices {
    fn of(facts: &WorldFacts, kind: LinkKind) -> &'static Choices {
        match facts.machine {
            _ if facts.is_gpu_mesh() && kind == LinkKind::Fabric => &FAR_GPU,
            _ if facts.is_gpu_mesh() => &NEAR_GPU,
            Machine::Gpu { .. } => &GPU,
            Machine::Cpu(_) if kind == LinkKind::Fabric => &FAR_CPU,
            Machine::Cpu(Processor { intel: true, .. }) => &CPU,
            Machine::Cpu(_) => &NOT_INTEL,
        }
    }
}

/// The largest slots, unless the ring has room for larger ones.
const LARGEST_SLOT: usize = 64 << 10;
/// Number of slots in a ring, unless more are better.
const DEPTH: usize = 8;
const GRANULE: usize = 64;

impl Knobs {
    /// Decides how `len` elements with parts of these types travel, where `last_per` neighbours share the last part.
    /// `at_once` counts the messages in the launch, including this one. This never fails: `check_transfer` refuses
    /// whatever is impossible.
    ///
    /// All ranks must reach the same decision. So it depends only on the knobs, the message, the constants of the link
    /// and [`WorldFacts`].
    pub(super) fn decide(
        &self,
        facts: &WorldFacts,
        link: &LinkShape,
        types: &'static [Type],
        (len, last_per): (usize, usize),
        window_bytes: Option<usize>,
        at_once: usize,
    ) -> Way {
        let choices = Choices::of(facts, link.kind);
        let bytes = Packing::new(types, len).last_per(last_per).bytes_of_parts();
        let granule = self.granule.unwrap_or(GRANULE).max(1);
        let small = match self.primitive {
            Some(primitive) => primitive == Primitive::Packet,
            // Posts carry whole slots, even of a message without any bytes.
            None if link.kind == LinkKind::Fabric => false,
            None => window_bytes.is_none() && bytes <= choices.packets_up_to,
        };
        let for_block = if small { choices.packets_for_block } else { choices.bytes_for_block };
        // All blocks of all ranks on a device run simultaneously.
        let (sharers, room, second_level) = match facts.machine {
            Machine::Gpu { sharers, multiprocessors, .. } => (sharers, multiprocessors / sharers / at_once, 0),
            Machine::Cpu(Processor { second_level, .. }) => (1, usize::MAX, second_level),
        };
        let most = if small { choices.most_for_packets } else { choices.most_blocks };
        let most = most.min(link.max_blocks).min(room).max(1);
        let least = if small { 1 } else { choices.least_blocks.min(most) };
        let blocks = self.blocks.unwrap_or_else(|| bytes.div_ceil(for_block).clamp(least, most));
        let share = len.div_ceil(blocks.max(1));
        let primitive = self.primitive.unwrap_or_else(|| {
            let packets = PacketPlan::new(link, blocks).message_packets();
            match window_bytes {
                Some(_) => Primitive::Direct,
                None if small && PacketPlan::packets(types, share) <= packets => Primitive::Packet,
                None => Primitive::Staged,
            }
        });
        let protocol = match primitive {
            Primitive::Packet => Protocol::Packet,
            Primitive::Direct => Protocol::Direct { window_bytes: window_bytes.unwrap_or(0) },
            Primitive::Staged | Primitive::Bulk => {
                let lines = link.block_bytes() / LINE;
                let copies = facts.copies as usize;
                let share = bytes / blocks.max(1);
                let wanted = (share / choices.steps).checked_next_power_of_two().unwrap_or(usize::MAX);
                let ring = (choices.ring * second_level).min(RINGS / (facts.ranks * at_once).max(1));
                // Slots above `LARGEST_SLOT` are allowed only if `DEPTH` of them fit in the ring.
                let largest = choices.largest_slot.min((1 << (ring / DEPTH).max(1).ilog2()).max(LARGEST_SLOT));
                let largest = largest.max(choices.least_slot);
                // Bulk copies always use small slots, and as many as there is room for.
                let largest = if primitive == Primitive::Bulk { largest.min(LARGEST_SLOT) } else { largest };
                let wanted = wanted.max(choices.least_slot).min(largest);
                let wanted = match types {
                    // A group that shares a part is never split.
                    [_, _, ..] if Packing::fitting_shared(types, last_per, choices.largest_of_parts).is_some() => {
                        wanted.min(choices.largest_of_parts)
                    }
                    _ if share >= choices.huge.0 => choices.huge.1,
                    _ => wanted,
                };
                // Use only as many slots as fit at the wanted size.
                let ring = ring.min(link.block_bytes()) / self.slot_bytes.unwrap_or(wanted).max(1);
                let usual = DEPTH.max(1 << ring.max(1).ilog2());
                let usual = usual.min(link.max_slots).min(lines) / copies * copies;
                // Across a network, fewer slots are better than smaller ones.
                let large = link.block_bytes() / choices.least_slot / copies * copies;
                let is_far = link.kind == LinkKind::Fabric && primitive == Primitive::Staged;
                let usual = if is_far && large >= 2 { usual.min(large) } else { usual };
                // Keep the user's value, even if it has to be refused later.
                let depth = self.depth.unwrap_or(usual.max(2.max(copies)));
                let room = link.block_bytes() / depth.max(1);
                // Slots start on cache lines if there is room, and always at the alignment of the largest element.
                let room = if room < LINE { room / 8 * 8 } else { room / LINE * LINE };
                let slot_bytes = self.slot_bytes.unwrap_or_else(|| {
                    let slots = sharers * at_once * blocks.max(1) * depth.max(1);
                    let cached = (choices.staging / slots).max(choices.least_slot);
                    wanted.min(1 << cached.ilog2()).min(room)
                });
                match primitive {
                    Primitive::Bulk => {
                        // Keep the user's value, even if it has to be refused later. Every copy of a role has at least
                        // two stages.
                        let scratch = facts.bulk_scratch();
                        let most = slot_bytes.min(BulkPlan::LARGEST_SLOT).min(scratch / copies / 2);
                        // If there is room, use the alignment that several parts need.
                        let align = if most < Packing::ALIGN { BulkPlan::ALIGN } else { Packing::ALIGN };
                        let most = most / align * align;
                        Protocol::Bulk { slot_bytes: self.slot_bytes.unwrap_or(most), depth }
                    }
                    _ => Protocol::Staged { slot_bytes, depth },
                }
            }
        };
        let tile = match protocol {
            Protocol::Staged { slot_bytes, .. } | Protocol::Bulk { slot_bytes, .. } => {
                // Bulk copies move whole parts, so a shared last part is copied for every element.
                let last_per = if matches!(protocol, Protocol::Bulk { .. }) { 1 } else { last_per };
                let packing = Packing::fitting_shared(types, last_per, slot_bytes);
                let most = packing.map_or(1, |packing| packing.elements());
                // A granule that the user requests must divide the tile.
                if self.granule.is_some() && most >= granule { most / granule * granule } else { most }
            }
            _ => share.next_multiple_of(if blocks > 1 { granule } else { 1 }).max(1),
        };
        Way { link: *link, protocol, blocks, tile, granule }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{ShmOptions, ShmTransport, Transport, check_transfer};
    use crate::transport::{Transfer, World};

    const WORDS: &[Type] = &[Type::F32];
    /// Message sizes as powers of two, in words: up to 1 GiB.
    const SIZES: std::ops::RangeInclusive<u32> = 0..=28;

    /// Runs `body` with the choices for each kind of processor, on a transport of two ranks.
    fn on_each(options: ShmOptions, body: impl Fn(&WorldFacts, &ShmTransport) + Sync) {
        let result = World::threads(2).run(|world| {
            let link = ShmTransport::rendezvous(&world, options)?;
            for processor in [true, false].map(|intel| Processor { intel, ..Processor::here() }) {
                body(&WorldFacts { machine: Machine::Cpu(processor), ..WorldFacts::of(&link) }, &link);
            }
            Ok(link.close()?)
        });
        result.unwrap();
    }

    fn chosen(knobs: Knobs, facts: &WorldFacts, link: &ShmTransport, len: usize, at_once: usize) -> Way {
        knobs.decide(facts, &link.link(link.rank()), WORDS, (len, 1), None, at_once)
    }

    fn choices(facts: &WorldFacts) -> &'static Choices {
        Choices::of(facts, LinkKind::Shm)
    }

    fn slots(decision: &Way) -> (usize, usize) {
        match decision.protocol {
            Protocol::Staged { slot_bytes, depth } | Protocol::Bulk { slot_bytes, depth } => (slot_bytes, depth),
            other => panic!("{other} has no slots"),
        }
    }

    const STAGED: Knobs =
        Knobs { primitive: Some(Primitive::Staged), send_warps: None, recv_warps: None, ..Knobs::warps(0) };

    #[test]
    fn small_messages_go_in_packets_and_larger_ones_in_slots() {
        let words = |link: &ShmTransport| {
            CPU.packets_up_to.min(PacketPlan::new(&link.link(link.rank()), 1).message_packets() * 8) / 4
        };
        // Room for the packets of more than a small message, of less than one, and no room at all.
        for packet_bytes in [256 << 10, 8 << 10, 0] {
            on_each(ShmOptions { packet_bytes: Some(packet_bytes), ..ShmOptions::default() }, |facts, link| {
                let most = words(link);
                for len in [1, 2, 15, 16, 17, 100, most, most + 1, 1000, 1 << 20] {
                    let is = chosen(Knobs::default(), facts, link, len, 1).protocol;
                    assert_eq!(
                        is == Protocol::Packet,
                        len <= most,
                        "{len} words, {packet_bytes} bytes of packets: {is}"
                    );
                }
            });
        }
    }

    #[test]
    fn far_peers_get_slots_whatever_the_size() {
        on_each(ShmOptions::default(), |facts, link| {
            let far = LinkShape { kind: LinkKind::Fabric, packet_bytes: 0, ..link.link(link.rank()) };
            for len in [0, 1, 100, 1 << 20] {
                let way = Knobs::default().decide(facts, &far, WORDS, (len, 1), None, 1);
                assert!(matches!(way.protocol, Protocol::Staged { .. }), "{len} words: {}", way.protocol);
            }
        });
    }

    #[test]
    fn larger_messages_take_larger_slots_and_fewer_steps() {
        on_each(ShmOptions::default(), |facts, link| {
            let all: Vec<_> = SIZES.map(|size| chosen(STAGED, facts, link, 1 << size, 1)).collect();
            assert!(
                all.is_sorted_by_key(|decision| slots(decision).0),
                "a larger message, and a smaller slot: {all:?}"
            );
            let (small, large) = (slots(&all[10]).0, slots(&all[28]).0);
            assert!(
                small == choices(facts).least_slot && large > small && large <= choices(facts).largest_slot,
                "{small}, {large}"
            );
            // A tile fills its slot.
            assert!(all.iter().all(|decision| decision.tile * 4 == slots(decision).0));
            let steps = |size: usize| (1usize << size).div_ceil(all[size].tile);
            let stays = (18..28).filter(|&size| steps(size + 1) == steps(size)).count();
            assert!(stays > 0, "no message of twice the size goes in as many steps");
            assert!(steps(28) <= (4 << 28) / choices(facts).least_slot / 2, "{} steps", steps(28));
        });
    }

    #[test]
    fn what_is_chosen_never_outgrows_the_staging() {
        let usual = ShmOptions::default();
        // The same geometry as the transport of a world of `ranks`.
        let of_world = |ranks| {
            let of = usual.geometry(ranks);
            ShmOptions {
                per_peer_bytes: Some(of.per_peer_bytes),
                max_blocks_per_peer: Some(of.max_blocks_per_peer),
                max_slots: Some(of.max_slots),
                packet_bytes: Some(of.packet_bytes),
                ..usual
            }
        };
        let worlds = [8, 12, 16, 23, 32, 48, 64, 128].map(of_world);
        let odd = [
            usual,
            ShmOptions { per_peer_bytes: Some(1 << 20), ..usual },
            ShmOptions { per_peer_bytes: Some(100_000), max_blocks_per_peer: Some(3), ..usual },
            ShmOptions { per_peer_bytes: Some(2048), max_slots: Some(2), packet_bytes: Some(0), ..usual },
            ShmOptions { per_peer_bytes: Some(64 << 20), max_blocks_per_peer: Some(1), max_slots: Some(300), ..usual },
        ];
        for options in odd.into_iter().chain(worlds) {
            on_each(options, |facts, link| {
                let peer = link.rank().after(1, 2);
                for (primitive, blocks, size) in [None, Some(Primitive::Staged), Some(Primitive::Bulk)]
                    .into_iter()
                    .flat_map(|primitive| [None, Some(1), options.max_blocks_per_peer].map(|b| (primitive, b)))
                    .flat_map(|(primitive, blocks)| SIZES.map(move |size| (primitive, blocks, size)))
                {
                    let config = Knobs { primitive, blocks, ..Knobs::default() };
                    for (len, at_once) in [(1 << size, 1), ((1 << size) + 13, 7)] {
                        let Way { protocol, blocks, tile, .. } = chosen(config, facts, link, len, at_once);
                        let what = format!("{len} words by {config:?} on {options:?}: {protocol}");
                        let transfer = Transfer { peer, bytes: len * 4, dtype: Type::F32, blocks, protocol };
                        check_transfer(link, &transfer, &[]).unwrap_or_else(|error| panic!("{what}: {error}"));
                        if let Protocol::Staged { slot_bytes, depth } | Protocol::Bulk { slot_bytes, depth } = protocol
                        {
                            let shape = link.link(link.rank());
                            assert!(slot_bytes * depth <= shape.block_bytes() && tile * 4 <= slot_bytes, "{what}");
                            assert!((2..=shape.max_slots).contains(&depth), "{what}");
                        }
                    }
                }
            });
        }
    }

    #[test]
    fn a_ring_stays_in_the_caches_it_is_made_for() {
        let room = ShmOptions {
            per_peer_bytes: Some(64 << 20),
            max_blocks_per_peer: Some(1),
            max_slots: Some(512),
            ..Default::default()
        };
        on_each(room, |facts, link| {
            for (size, at_once) in SIZES.flat_map(|size| [1, 3, 20].map(|at_once| (size, at_once))) {
                let (slot_bytes, depth) = slots(&chosen(STAGED, facts, link, 1 << size, at_once));
                // The limit covers all messages in flight together, but a pipeline gets its minimum number of slots
                // however little room there is.
                let Machine::Cpu(Processor { second_level, .. }) = facts.machine else { unreachable!() };
                let ring = (choices(facts).ring * second_level).min(RINGS / (2 * at_once)).max(DEPTH * LARGEST_SLOT);
                assert!(slot_bytes * depth <= ring, "{depth} slots of {slot_bytes} bytes in a ring of {ring}");
                assert!(depth >= DEPTH, "{depth} slots");
            }
        });
    }

    #[test]
    fn far_peers_get_few_blocks_and_large_slots() {
        let gpu = Machine::Gpu { sharers: 4, multiprocessors: 132, shared_bytes: 227 << 10 };
        on_each(
            ShmOptions { max_blocks_per_peer: Some(16), per_peer_bytes: Some(64 << 20), ..Default::default() },
            |facts, link| {
                for (machine, size) in
                    [gpu, facts.machine].into_iter().flat_map(|m| (10..27).map(move |size| (m, size)))
                {
                    let facts = WorldFacts { machine, has_far: true, ..*facts };
                    let near = link.link(link.rank());
                    let far = LinkShape { kind: LinkKind::Fabric, packet_bytes: 0, ..near };
                    let way = Knobs::default().decide(&facts, &far, WORDS, (1 << size, 1), None, 4);
                    assert!(slots(&way).0 >= 256 << 10 && way.blocks <= 4, "{way:?}");
                    let near = STAGED.decide(&facts, &near, WORDS, (1 << size, 1), None, 4);
                    assert!(slots(&near).0 <= 256 << 10 && near.blocks <= 16, "{near:?}");
                }
            },
        );
    }

    #[test]
    fn what_the_user_says_stays() {
        on_each(ShmOptions::default(), |facts, link| {
            for (slot_bytes, depth) in [(4096, 5), (1 << 30, 2), (0, 0)] {
                let config = Knobs { slot_bytes: Some(slot_bytes), depth: Some(depth), blocks: Some(3), ..STAGED };
                let decision = chosen(config, facts, link, 1 << 20, 1);
                assert_eq!((slots(&decision), decision.blocks), ((slot_bytes, depth), 3));
            }
        });
    }
}
