//! Plans of posts into windows: through an outbox, and straight from the input.

use super::exchanges::MEDLEY;
use super::posted::{self, exchange, floats, slots, world};
use super::{Cases, before};
use tilewire::check::Plan;
use tilewire::collective::Rounds;
use tilewire::link::{Transport, Window};
use tilewire::rehearsal::RehearsalRank;
use tilewire::{
    Knobs, Primitive, Rank, RunError, Tensor, Traced, all_gather, all_to_all, broadcast, gather, scatter, sendrecv,
};

/// The cases in a world with these domains. `links` is the name of this arrangement.
pub(super) fn cases_in(cases: &mut Cases, blocks: usize, links: &str, domains: &[Vec<usize>]) {
    let how = |in_place| if in_place { "in place" } else { "through an outbox" };
    // If a wait for arrivals comes before an outbox is filled, swapping the two is no mistake. So schedules with legs
    // are checked in place only.
    let is_one = |what: &str, in_place: bool| in_place || !what.contains("legs");
    for (&(collective, what, trace), in_place) in DIRECT.iter().flat_map(|case| [(case, false), (case, true)]) {
        if !is_one(what, in_place) {
            continue;
        }
        let (domains, is_scatter) = (domains.to_vec(), collective == "scatter");
        let name = match what {
            "" => format!("direct {}, {links}", how(in_place)),
            _ => format!("direct{what}, {}, {links}", how(in_place)),
        };
        cases.add(collective, name, move || direct(&domains, blocks, (in_place, is_scatter), trace));
    }
    for in_place in [false, true] {
        let domains = domains.to_vec();
        let name = format!("{MEDLEY}, {}, {links}", how(in_place));
        cases.add("all_to_all", name, move || medley(&domains, blocks, in_place));
    }
}

/// Traces one launch of an exchange into windows. It takes the output and its window, the input, and the knobs.
type Direct = fn(&RehearsalRank, (&Tensor<f32>, &Window<f32>), &Tensor<f32>, Knobs, bool) -> Result<Traced, RunError>;

macro_rules! hooked {
    ($exchange:expr, $window:expr, $knobs:expr, $in_place:expr) => {{
        let exchange = $exchange.window($window).config($knobs);
        match $in_place {
            true => exchange.trace(),
            false => exchange.produce(|c| c.input.load(c.pos()) * 2.0).trace(),
        }
    }};
}

/// For each collective: the way in which the rounds share a launch, if it is specified.
const DIRECT: &[(&str, &str, Direct)] = &[
    ("sendrecv", "", |link, (out, window), inp, knobs, in_place| {
        let (to, from) = link.neighbours();
        hooked!(sendrecv(link, out, &inp.slice(0..out.len()), to, from), window, knobs, in_place)
    }),
    ("all_to_all", "", |link, (out, window), inp, knobs, in_place| {
        hooked!(all_to_all(link, out, inp), window, knobs, in_place)
    }),
    ("all_gather", "", |link, (out, window), inp, knobs, in_place| {
        hooked!(all_gather(link, out, &inp.slice(0..out.len() / link.world_size())), window, knobs, in_place)
    }),
    ("broadcast", "", |link, (out, window), inp, knobs, in_place| {
        hooked!(broadcast(link, out, inp, Rank::new(1)), window, knobs, in_place)
    }),
    ("gather", "", |link, (out, window), inp, knobs, in_place| {
        hooked!(gather(link, out, &inp.slice(0..out.len() / link.world_size()), Rank::new(1)), window, knobs, in_place)
    }),
    ("scatter", "", |link, (out, window), inp, knobs, in_place| {
        // An output is a whole window, so the root's input is as long as all of them together.
        hooked!(scatter(link, out, inp, Rank::new(1)), window, knobs, in_place)
    }),
    ("all_to_all", ", rounds as blocks", |link, (out, window), inp, knobs, in_place| {
        hooked!(all_to_all(link, out, inp).rounds(Rounds::Blocks), window, knobs, in_place)
    }),
    ("all_to_all", ", legs as blocks", |link, (out, window), inp, knobs, in_place| {
        hooked!(all_to_all(link, out, inp).rounds(Rounds::Legs), window, knobs, in_place)
    }),
    // Only near peers exchange, so no hook is involved.
    ("all_to_all", ", kept while sent", |link, (out, window), inp, knobs, in_place| {
        let exchange = all_to_all(link, out, inp).rounds(Rounds::Roles).keep_while_sending();
        hooked!(exchange, window, Knobs { blocks: Some(1), ..knobs }, in_place)
    }),
    ("all_gather", ", kept while sent", |link, (out, window), inp, knobs, in_place| {
        let exchange = all_gather(link, out, &inp.slice(0..out.len() / link.world_size()));
        let exchange = exchange.rounds(Rounds::Roles).keep_while_sending();
        hooked!(exchange, window, Knobs { blocks: Some(1), ..knobs }, in_place)
    }),
];

/// To the previous rank.
const BACK: Direct = |link, (out, window), inp, knobs, in_place| {
    let (to, from) = link.neighbours();
    hooked!(sendrecv(link, out, &inp.slice(0..out.len()), from, to), window, knobs, in_place)
};

/// Launches into the same windows from the same inputs and outboxes. One of them has another number of blocks. The last
/// block has fewer elements.
fn direct(
    domains: &[Vec<usize>],
    blocks: usize,
    (in_place, is_scatter): (bool, bool),
    trace: Direct,
) -> Result<Plan, RunError> {
    let ranks: usize = domains.iter().map(Vec::len).sum();
    let len = ranks * (blocks * 37 - 3);
    let tensors = |len: usize| -> Vec<Tensor<f32>> { (0..ranks).map(|_| Tensor::zeros(len)).collect() };
    let (windows, inputs) = (tensors(len), tensors(if is_scatter { len * ranks } else { len }));
    world(ranks, blocks, domains).plan(6, |link, launch| {
        let (rank, blocks) = (link.number() as usize, if launch == 4 { 1 } else { blocks });
        let knobs =
            Knobs { primitive: Some(Primitive::Direct), blocks: Some(blocks), granule: Some(1), ..Knobs::default() };
        // The neighbours alone exchange first, as in `after_neighbours`. There are two launches to the next rank,
        // because a single launch meets nothing left by an earlier one. One launch goes the other way, because the next
        // rank may be near, and the counters of far peers must differ as well.
        let trace = match launch {
            0 | 1 => DIRECT[0].2,
            2 => BACK,
            _ => trace,
        };
        trace(link, (&windows[rank], &link.window(&windows)), &inputs[rank], knobs, in_place)
    })
}

/// Exchanges of all kinds, one after the other, through slots and into windows, over one transport.
fn medley(domains: &[Vec<usize>], blocks: usize, in_place: bool) -> Result<Plan, RunError> {
    let ranks: usize = domains.iter().map(Vec::len).sum();
    let len = ranks * (blocks * 37 - 3);
    let tensors = || -> Vec<Tensor<f32>> { (0..ranks).map(|_| Tensor::zeros(len)).collect() };
    let (windows, inputs) = (tensors(), tensors());
    let of = |collective: &str| DIRECT.iter().find(|case| case.0 == collective).expect("it is listed").2;
    world(ranks, blocks, domains).plan(14, |link, launch| {
        let rank = link.number() as usize;
        let knobs =
            Knobs { primitive: Some(Primitive::Direct), blocks: Some(blocks), granule: Some(1), ..Knobs::default() };
        let direct =
            |trace: Direct| trace(link, (&windows[rank], &link.window(&windows)), &inputs[rank], knobs, in_place);
        let (one, all) = (|| floats(posted::len(blocks)), || floats(ranks * posted::len(blocks)));
        match launch {
            0 => exchange(link, blocks, Primitive::Staged, 0),
            // As in `direct`, with one more launch to the next rank, so that data from the root does not hide a
            // mistake.
            1..=3 => direct(of("sendrecv")),
            4 => direct(BACK),
            5 => all_to_all(link, &all(), &all()).config(slots(blocks, 0)).trace(),
            6 => direct(of("broadcast")),
            7 => before::staged(link, 2 * blocks, (64, 8)),
            8 => direct(of("all_gather")),
            9 => scatter(link, &one(), &all(), Rank::new(1)).config(slots(blocks, 1)).trace(),
            10 => direct(of("gather")),
            11 => all_to_all(link, &all(), &all()).config(slots(blocks, 2)).rounds(Rounds::Blocks).trace(),
            _ => direct(of("all_to_all")),
        }
    })
}
