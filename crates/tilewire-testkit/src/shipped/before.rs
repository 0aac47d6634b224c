//! What a rank does before the schedule that is checked: every rank sends to the next one round the ring.
//!
//! A collective is seldom the first on its transport. It must cope with what earlier launches left behind:
//!
//! - **Slots that have not been read yet.** Ranks that answer each other (a ring, two phases) usually know from the
//!   data they have received that a slot is free. They do not know this of slots that another launch filled. Only the
//!   credit and the drain protect those. Here every slot is filled, and none twice, so that only the schedule under
//!   test waits for credits.
//! - **Counters that differ.** If all peers have exchanged the same number of steps, their counters are equal, and
//!   taking one peer's counter for another's has no effect. Here the next and the previous rank are ahead of the
//!   others, each in its own direction.

use tilewire::link::{Transport, Window, WindowPart};
use tilewire::rehearsal::RehearsalRank;
use tilewire::schedule::{Tiling, recv_direct, send_direct};
use tilewire::{Knobs, Primitive, Rank, RunError, Tensor, Traced, kernel, recv, send, sendrecv};

/// The usual slot bytes and depth of [`staged`].
pub(super) const SLOTS: (usize, usize) = (64, 2);

/// Every block sends as many steps as there are slots.
pub(super) fn staged(
    link: &RehearsalRank,
    blocks: usize,
    (slot_bytes, depth): (usize, usize),
) -> Result<Traced, RunError> {
    let len = blocks * depth * slot_bytes / size_of::<f32>();
    let (x, y) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len));
    let (to, from) = link.neighbours();
    let config = Knobs {
        primitive: Some(Primitive::Staged),
        blocks: Some(blocks),
        slot_bytes: Some(slot_bytes),
        depth: Some(depth),
        granule: Some(1),
        ..Knobs::default()
    };
    sendrecv(link, &y, &x, to, from).config(config).trace()
}

/// One message of every block.
pub(super) fn packet(link: &RehearsalRank, blocks: usize) -> Result<Traced, RunError> {
    let (x, y) = (Tensor::<u64>::zeros(blocks * 8), Tensor::<u64>::zeros(blocks * 8));
    let (to, from) = link.neighbours();
    sendrecv(link, &y, &x, to, from).config(super::packet_knobs(link, blocks, SLOTS)).trace()
}

/// The first rank of every domain sends a message in packets to the second rank, if there is one. If other ranks answer
/// each other over far peers as well, this message alone shows that packets need their waits.
pub(super) fn packet_within(link: &RehearsalRank, blocks: usize) -> Result<Traced, RunError> {
    let domain = |rank: Rank| link.domain(rank);
    let own: Vec<Rank> = Rank::all(link.world_size()).filter(|&rank| domain(rank) == domain(link.rank())).collect();
    let x = Tensor::<u64>::zeros(blocks * 8);
    let knobs = super::packet_knobs(link, blocks, SLOTS);
    match own[..] {
        [first, second, ..] if link.rank() == first => send(link, &x, second).config(knobs).trace(),
        [first, second, ..] if link.rank() == second => recv(link, &x, first).config(knobs).trace(),
        _ => Ok(kernel("nothing", |k| k.main(|_| {}))?),
    }
}

/// `len` elements into the window of the next rank, with the control lines of the window.
pub(super) fn direct(
    link: &RehearsalRank,
    blocks: usize,
    window: &Window<f32>,
    len: usize,
) -> Result<Traced, RunError> {
    let ((to, from), max_blocks) = (link.neighbours(), link.link(link.rank()).max_blocks);
    let x = Tensor::<f32>::zeros(len);
    let tiling = Tiling::flat(len, 1, blocks).bands(1);
    Ok(kernel("direct", |k| {
        k.blocks(blocks as u32);
        let x = k.input(&x).named("input");
        let tx = link.window_sender(k, to, window.lines(), WindowPart::Mapped(window.peer(to)));
        let rx = link.window_receiver(k, from, window.lines());
        k.role("send", 4).run(|r| send_direct::<f32>(r, &tx, max_blocks, tiling, |at| x.load(at.pos)));
        k.role("receive", 4).run(|r| recv_direct(r, &rx, max_blocks, blocks));
    })?)
}

/// Computes between two collectives: writes every element of a tensor anew.
pub(super) fn fill(tensor: &Tensor<f32>) -> Result<Traced, RunError> {
    Ok(kernel("fill", |k| {
        let x = k.output(tensor).named("window");
        k.main(|r| r.each(tensor.len() as i64, |i| x.store(i, 1.0f32)));
    })?)
}
