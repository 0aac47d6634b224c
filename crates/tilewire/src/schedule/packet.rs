//! Packets: small messages whose flag travels with the data, so that no signal has to follow them.
//!
//! ```text
//!   a block's packets    ├ message 8k ┼ message 8k + 1 ┼ … ┼ message 8k + 7 ┤     message m of a block lies at m mod 8
//!
//!   sender, message m                                   receiver, message m
//!   m a multiple of 4: wait PACKET HEAD ≥ m - 4         get packets with flag m mod 2¹⁶
//!   put packets with flag m mod 2¹⁶                     m + 1 a multiple of 4: PACKET HEAD := m + 1
//! ```
//! **Credits** are given and checked once every four messages: a credit for each would cost every message a cache-line
//! transfer. At a multiple of four, the sender makes sure that there is room for the next four messages, which
//! overwrite messages m - 8 … m - 5.
//!
//! **Flags** also carry the number of the operation ([`matching`](crate::ir::matching)). They repeat after 2¹⁶
//! messages, and a packet left untouched since then would be mistaken for a new one. So with the last message before
//! the flags repeat, the receiver clears all packets of the block and then gives its credit. The sender waits for that
//! credit before its next message.
//!
//! Each eight-byte element is a packet by itself. Smaller elements, and several parts, are first packed in the role's
//! scratch.

use super::counters::{Counters, Keeps, Shape, block_of};
use super::peer::{Peer, Word};
use super::tiling::{Position, Spot, Tile, Tiling};
use crate::hook::{AnyValue, Payload, Region, Regs, RoleCtx, Value};
use crate::ir::{SourceLine, Type};
use crate::transport::LinkShape;
use crate::transport::layout::{PACKET, PACKET_DEPTH, Side, StartWord};

/// Credits are given for half of the messages that may be in flight.
const HALF: u64 = PACKET_DEPTH as u64 / 2;
/// Flags are message numbers modulo this power of two. These are the message's bits of a flag, beside the operation's.
const FLAGS: u64 = 1 << 16;
/// Set in every flag, so that no flag is 0.
const NOT_ZERO: u32 = 1 << 31;

/// The packets of a transfer. The host computes these numbers; they are equal on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPlan {
    /// Blocks of the kernel that take part, from block 0.
    pub blocks: usize,
    /// Blocks the transport has room for.
    pub max_blocks: usize,
    /// Packets per block.
    pub block_packets: usize,
}

impl PacketPlan {
    /// A plan with the constants of a link.
    pub fn new(shape: &LinkShape, blocks: usize) -> PacketPlan {
        PacketPlan { blocks, max_blocks: shape.max_blocks, block_packets: shape.block_packet_bytes() / PACKET }
    }

    /// Packets of one message of one block.
    pub fn message_packets(&self) -> usize {
        self.block_packets / PACKET_DEPTH
    }

    /// Packets that `elements` elements of these parts need.
    pub fn packets(types: &[Type], elements: usize) -> usize {
        types.iter().map(|ty| words(*ty, elements)).sum()
    }
}

fn words(ty: Type, elements: usize) -> usize {
    (ty.size() * elements).div_ceil(8)
}

/// One message of one block, in a kernel.
struct Message<'t> {
    counters: Counters<'t>,
    block: Value<'t, i64>,
    number: Value<'t, u64>,
    /// The number of the next message. Computed before the packets are awaited, although it is needed only afterwards:
    /// work done before that wait overlaps with their flight.
    next: Value<'t, u64>,
    flag: Value<'t, u32>,
    /// Its first packet.
    first: Value<'t, i64>,
}

/// The number of a block's next message to or from a peer, as loaded; nothing is computed from it yet. On a GPU one
/// load takes a microsecond and several take no longer, so a caller that needs several numbers loads all of them first.
struct Numbered<'t> {
    counters: Counters<'t>,
    block: Value<'t, i64>,
    number: Value<'t, u64>,
}

impl<'t> Numbered<'t> {
    /// The next message to or from each of these peers.
    fn next(
        r: &RoleCtx<'t>,
        peers: &[Peer<'t>],
        (plan, types): (PacketPlan, &[Type]),
        tiling: Tiling,
        side: Side,
    ) -> Vec<Numbered<'t>> {
        let (needed, room) = (PacketPlan::packets(types, tiling.tile_len().min(tiling.len())), plan.message_packets());
        assert!(needed <= room, "{needed} packets for a block that has {room}");
        // A block has one tile, and packs it into one message.
        let blocks = plan.blocks.min(tiling.blocks());
        assert!(tiling.tiles() <= blocks, "{} tiles for {blocks} blocks", tiling.tiles());
        let block = block_of(r, plan.blocks);
        let shape = Shape { max_blocks: plan.max_blocks, keeps: Keeps::One };
        let counters = peers.iter().map(|peer| Counters::of(r, peer, block, side, shape));
        counters.map(|counters| Numbered { counters, block, number: counters.get(StartWord::Packet) }).collect()
    }

    fn message(self, plan: PacketPlan) -> Message<'t> {
        let Numbered { counters, block, number } = self;
        let flag = (number | u64::from(NOT_ZERO)).cast::<u32>();
        let place = (number & (PACKET_DEPTH as u64 - 1)).cast::<i64>() * plan.message_packets() as i64;
        let first = if plan.blocks == 1 { place } else { block * plan.block_packets as i64 + place };
        Message { counters, block, number, next: number + 1, flag, first }
    }
}

impl<'t> Message<'t> {
    /// True if this message must check for credit, for itself and for the messages up to the next check.
    fn asks(&self) -> Value<'t, bool> {
        (self.number & (HALF - 1)).eq(0)
    }

    /// Waits for the credit that the last message to check must have. With `asking`, that is this message.
    fn wait_free(&self, r: &RoleCtx<'t>, peer: &Peer<'t>, asking: bool) {
        let number = if asking { self.number } else { self.number & !(HALF - 1) };
        let wrapped = (number & (FLAGS - 1)).eq(0);
        peer.wait(r, Word::PacketHead(self.block), wrapped.select(number, number.max(HALF) - HALF));
    }

    /// True if the receiver gives a credit with this message.
    fn is_credited(&self) -> Value<'t, bool> {
        (self.next & (HALF - 1)).eq(0)
    }

    /// True if flags repeat after this message.
    fn is_last(&self) -> Value<'t, bool> {
        (self.next & (FLAGS - 1)).eq(0)
    }

    fn credit(&self, r: &RoleCtx<'t>, peer: &Peer<'t>) {
        peer.credit(r, Word::PacketHead(self.block), self.next);
    }

    /// Clears all packets of the block, then gives the credit.
    fn clear(&self, r: &RoleCtx<'t>, peer: &Peer<'t>, plan: PacketPlan) {
        let first = self.block * plan.block_packets as i64;
        r.each(plan.block_packets, |k| peer.packet_clear(first + k));
        peer.signal(r, Word::PacketHead(self.block), self.next);
    }

    #[track_caller]
    fn end(self) {
        self.counters.set(StartWord::Packet, self.next);
    }
}

fn any<'t>(of: impl Iterator<Item = Value<'t, bool>>) -> Value<'t, bool> {
    of.reduce(|a, b| a | b).expect("a message goes to somebody")
}

/// Waits until there is room for these messages and the ones up to the next check. If one peer must be checked, all
/// are: on a GPU consecutive waits take as long as one, and peers that had room still have it.
fn wait_free<'t>(r: &RoleCtx<'t>, to: &[Peer<'t>], messages: &[Message<'t>]) {
    if to.is_empty() {
        return;
    }
    r.if_(any(messages.iter().map(Message::asks)), || {
        to.iter().zip(messages).for_each(|(peer, message)| message.wait_free(r, peer, to.len() == 1));
    });
}

/// Gives the receiver's credits for these messages, if any of them is due.
fn credit<'t>(r: &RoleCtx<'t>, from: &[Peer<'t>], messages: &[Message<'t>], plan: PacketPlan) {
    if from.is_empty() {
        return;
    }
    let all = || from.iter().zip(messages);
    r.if_(any(messages.iter().map(Message::is_credited)), || {
        let clears = || match all().collect::<Vec<_>>()[..] {
            [(peer, message)] => message.clear(r, peer, plan),
            ref all => {
                for &(peer, message) in all {
                    r.if_else(message.is_last(), || message.clear(r, peer, plan), || message.credit(r, peer));
                }
            }
        };
        let credits = || all().for_each(|(peer, message)| message.credit(r, peer));
        r.if_else(any(messages.iter().map(Message::is_last)), clears, credits);
    });
}

/// Sends this block's part of a message in packets. The tiling has one tile per block.
///
/// # Panics
/// If a tile does not fit a block's packets, or there are more tiles than blocks. In a kernel being traced, this is a
/// build error.
#[track_caller]
pub fn send_packets<'t, R: Regs>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: PacketPlan,
    tiling: Tiling,
    produce: impl Fn(&Position<'t>) -> R::Of<'t>,
) {
    share_packets(r, std::slice::from_ref(peer), (plan, R::TYPES), tiling, &|at| R::erase(produce(at))).end();
}

/// Messages that have been put but not yet counted. Nothing later in the launch waits for the count.
#[must_use = "the next launch would send messages of the same numbers"]
pub struct Sent<'t>(Vec<Message<'t>>);

impl Sent<'_> {
    /// Counts them.
    #[track_caller]
    pub fn end(self) {
        for message in self.0 {
            message.end();
        }
    }
}

/// Sends this block's part of one message to several peers: produced once, put to each of them. [`Sent::end`] counts
/// them.
#[track_caller]
pub fn share_packets<'t>(
    r: &RoleCtx<'t>,
    to: &[Peer<'t>],
    (plan, types): (PacketPlan, &'static [Type]),
    tiling: Tiling,
    produce: &dyn Fn(&Position<'t>) -> Payload<'t>,
) -> Sent<'t> {
    let numbered = Numbered::next(r, to, (plan, types), tiling, Side::Send);
    let zero = r.constant(0i64);
    let position = |spot: Spot<'t>| Position { spot, step: zero, slot: None, region: None };
    let elements = |tile: &Tile<'t>| tile.rows() * tile.cols();
    // Pack while the loads of the numbers are in flight.
    let packed = Packed::of(r, tiling, types, &|spot| produce(&position(spot)));
    let messages: Vec<_> = numbered.into_iter().map(|numbered| numbered.message(plan)).collect();
    wait_free(r, to, &messages);
    let put = |k: Value<'t, i64>, word: Value<'t, u64>| {
        for (peer, message) in to.iter().zip(&messages) {
            peer.packet_put(message.first + k, word, message.flag);
        }
    };
    tiling.for_tiles(r, |_, tile| match &packed {
        None => tile.each(r, |spot| {
            put(spot.index, produce(&position(spot)).only().to_word(&SourceLine::caller()));
        }),
        Some(scratch) => scratch.each_word(r, elements(&tile), |k, byte| put(k, scratch.bytes.get(0, byte))),
    });
    Sent(messages)
}

/// Called with the tile, the number of a word in it, the word that was sent, and the words that arrived.
type TakeWord<'a, 't> = dyn Fn(&Tile<'t>, Value<'t, i64>, Value<'t, u64>, &[Value<'t, u64>]) + 'a;

/// Sends this block's part of one message to several peers and receives theirs, word by word in one pass. `take` gets
/// the number of a word in a tile, the word that was sent, and the words that arrived. Elements are smaller than words,
/// and fill them.
///
/// No deadlock: no rank waits for a word before it has put its own, and a waiting rank holds back no smaller word
/// ([`Op::PacketGet`](crate::ir::Op::PacketGet)). So of all words being waited for, every rank has put the first, and
/// some rank makes progress.
#[track_caller]
pub(super) fn swap_packets<'t>(
    r: &RoleCtx<'t>,
    (to, from): (&[Peer<'t>], &[Peer<'t>]),
    (plan, types): (PacketPlan, &'static [Type]),
    tiling: Tiling,
    produce: &dyn Fn(&Position<'t>) -> Payload<'t>,
    take: &TakeWord<'_, 't>,
) {
    let [expected, numbered] = [(from, Side::Receive), (to, Side::Send)]
        .map(|(peers, side)| Numbered::next(r, peers, (plan, types), tiling, side));
    let zero = r.constant(0i64);
    let position = |spot: Spot<'t>| Position { spot, step: zero, slot: None, region: None };
    let packed = Packed::of(r, tiling, types, &|spot| produce(&position(spot)));
    let [taken, sent] = [expected, numbered]
        .map(|numbered| numbered.into_iter().map(|numbered| numbered.message(plan)).collect::<Vec<_>>());
    wait_free(r, to, &sent);
    tiling.for_tiles(r, |_, tile| {
        let packed = packed.as_ref().expect("elements smaller than words");
        packed.each_word(r, tile.rows() * tile.cols(), |k, byte| {
            let own = packed.bytes.get(0, byte);
            for (peer, message) in to.iter().zip(&sent) {
                peer.packet_put(message.first + k, own, message.flag);
            }
            let came = from.iter().zip(&taken).map(|(peer, message)| peer.packet_get(message.first + k, message.flag));
            take(&tile, k, own, &came.collect::<Vec<_>>());
        });
    });
    Taken(taken).end(r, from, plan);
    Sent(sent).end();
}

/// Receives this block's part of a message in packets.
#[track_caller]
pub fn recv_packets<'t, R: Regs>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: PacketPlan,
    tiling: Tiling,
    consume: impl Fn(&Position<'t>, R::Of<'t>),
) {
    recv_packets_any(r, peer, (plan, R::TYPES), tiling, &|at, payload| consume(at, R::restore(payload)));
}

/// [`recv_packets`] with the given types.
#[track_caller]
pub(crate) fn recv_packets_any<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    (plan, types): (PacketPlan, &'static [Type]),
    tiling: Tiling,
    consume: &dyn Fn(&Position<'t>, Payload<'t>),
) {
    let from = std::slice::from_ref(peer);
    let message = Numbered::next(r, from, (plan, types), tiling, Side::Receive).remove(0).message(plan);
    let zero = r.constant(0i64);
    let position = |spot: Spot<'t>| Position { spot, step: zero, slot: None, region: None };
    let get = |k: Value<'t, i64>| peer.packet_get(message.first + k, message.flag);
    if let [ty] = types
        && ty.size() == 8
    {
        tiling.for_tiles(r, |_, tile| {
            tile.each(r, |spot| {
                let x = AnyValue::from_word(get(spot.index), *ty, &SourceLine::caller());
                consume(&position(spot), x.into());
            });
        });
    } else if !tiling.is_empty() {
        let scratch = Packed::new(tiling, types, |bytes| r.passing_region(bytes));
        tiling.for_tiles(r, |_, tile| {
            scratch.each_word(r, tile.rows() * tile.cols(), |k, byte| scratch.bytes.put(0, byte, get(k)));
            tile.each(r, |spot| consume(&position(spot), scratch.get(spot.index)));
        });
    }
    credit(r, from, std::slice::from_ref(&message), plan);
    message.end();
}

/// The next messages from several peers, which [`reduce_packets`](super::reduce_packets) combines.
pub struct Expected<'t> {
    numbered: Vec<Numbered<'t>>,
    types: &'static [Type],
}

/// Reads the numbers of the next messages from several peers. Call it before sending, so that they are known by then.
#[track_caller]
pub fn expect_packets<'t>(
    r: &RoleCtx<'t>,
    from: &[Peer<'t>],
    (plan, types): (PacketPlan, &'static [Type]),
    tiling: Tiling,
) -> Expected<'t> {
    Expected { numbered: Numbered::next(r, from, (plan, types), tiling, Side::Receive), types }
}

/// Receives this block's part of a message from each of several peers into the role's scratch, for the caller to
/// combine. Polls for them side by side, since they arrive together.
#[track_caller]
pub(super) fn hold_packets<'t>(
    r: &RoleCtx<'t>,
    (from, Expected { numbered, types }): (&[Peer<'t>], Expected<'t>),
    plan: PacketPlan,
    tiling: Tiling,
) -> (Vec<Packed<'t>>, Taken<'t>) {
    let messages: Vec<_> = numbered.into_iter().map(|numbered| numbered.message(plan)).collect();
    let hold = |_| Packed::new(tiling, types, |bytes| r.scratch_region(bytes));
    let held: Vec<_> = from.iter().filter(|_| !tiling.is_empty()).map(hold).collect();
    if let Some(first) = held.first() {
        tiling.for_tiles(r, |_, tile| {
            first.each_word(r, tile.rows() * tile.cols(), |k, byte| {
                for ((peer, message), held) in from.iter().zip(&messages).zip(&held) {
                    held.bytes.put(0, byte, peer.packet_get(message.first + k, message.flag));
                }
            });
        });
    }
    (held, Taken(messages))
}

/// Messages that have been received.
pub(super) struct Taken<'t>(Vec<Message<'t>>);

impl<'t> Taken<'t> {
    /// Gives the credits that are due for messages from these peers, and counts the messages. No computation on them
    /// waits for this.
    #[track_caller]
    pub fn end(self, r: &RoleCtx<'t>, from: &[Peer<'t>], plan: PacketPlan) {
        credit(r, from, &self.0, plan);
        for message in self.0 {
            message.end();
        }
    }
}

/// The parts of a block's elements, one after the other in the role's scratch. Each part begins on a word boundary.
pub(super) struct Packed<'t> {
    bytes: Region<'t>,
    types: &'static [Type],
    /// Capacity in elements.
    elements: usize,
}

impl<'t> Packed<'t> {
    fn new(tiling: Tiling, types: &'static [Type], scratch: impl FnOnce(usize) -> Region<'t>) -> Packed<'t> {
        let elements = tiling.tile_len().min(tiling.len());
        let bytes = scratch(PacketPlan::packets(types, elements) * 8);
        Packed { bytes, types, elements }
    }

    /// Produces a block's elements into scratch if they must be packed. Eight-byte elements are words by themselves.
    #[track_caller]
    fn of(
        r: &RoleCtx<'t>,
        tiling: Tiling,
        types: &'static [Type],
        produce: &dyn Fn(Spot<'t>) -> Payload<'t>,
    ) -> Option<Packed<'t>> {
        let whole = matches!(types, [ty] if ty.size() == 8);
        if whole || tiling.is_empty() {
            return None;
        }
        let packed = Packed::new(tiling, types, |bytes| r.passing_region(bytes));
        tiling.for_tiles(r, |_, tile| {
            if !packed.is_full_of(tiling) {
                packed.pad(tile.rows() * tile.cols());
            }
            tile.each(r, |spot| packed.put(spot.index, produce(spot)));
        });
        Some(packed)
    }

    /// First word of a part.
    fn first(&self, part: usize) -> i64 {
        PacketPlan::packets(&self.types[..part], self.elements) as i64
    }

    /// Words that a part needs for `elements` elements.
    fn words(&self, part: usize, elements: Value<'t, i64>) -> Value<'t, i64> {
        match self.types[part].size() as i64 {
            8 => elements,
            size => (elements * size + 7) / 8,
        }
    }

    /// True if the elements of every tile fill their words.
    fn is_full_of(&self, tiling: Tiling) -> bool {
        self.types.iter().all(|ty| tiling.is_cut_by(8 / ty.size()))
    }

    /// Zeroes the last word of every part, which the elements may not fill.
    #[track_caller]
    fn pad(&self, elements: Value<'t, i64>) {
        for (part, ty) in self.types.iter().enumerate() {
            if ty.size() < 8 {
                let last = self.words(part, elements) - 1 + self.first(part);
                self.bytes.put(0, last * 8, 0u64);
            }
        }
    }

    /// Puts the parts of an element.
    #[track_caller]
    fn put(&self, index: Value<'t, i64>, payload: Payload<'t>) {
        for (part, &x) in payload.parts().iter().enumerate() {
            self.bytes.put_any(0, self.byte(part, index), x);
        }
    }

    /// Gets the parts of an element.
    #[track_caller]
    pub(super) fn get(&self, index: Value<'t, i64>) -> Payload<'t> {
        let mut parts = Vec::with_capacity(self.types.len());
        for (part, &ty) in self.types.iter().enumerate() {
            parts.push(self.bytes.get_any(0, self.byte(part, index), ty));
        }
        Payload::new(&parts)
    }

    fn byte(&self, part: usize, index: Value<'t, i64>) -> Value<'t, i64> {
        let (first, size) = (self.first(part) * 8, self.types[part].size() as i64);
        let offset = if size == 1 { index } else { index * size };
        if first == 0 { offset } else { offset + first }
    }

    /// Runs the body for all words, with the word's number in the message and its position in scratch.
    #[track_caller]
    fn each_word(&self, r: &RoleCtx<'t>, elements: Value<'t, i64>, body: impl Fn(Value<'t, i64>, Value<'t, i64>)) {
        for part in 0..self.types.len() {
            r.each(self.words(part, elements), |k| {
                let k = if part == 0 { k } else { k + self.first(part) };
                body(k, k * 8);
            });
        }
    }
}
