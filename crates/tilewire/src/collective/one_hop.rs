//! Defaults in one hop: a second kernel beside the staged one, for ranks that reach each other's tensors.
//!
//! ```text
//!   build()          the staged kernel, as always; and if one hop would be faster, a kernel of `direct` that is bound
//!                    to stand-ins for the peers' tensors. The card says what peers need to reach this rank's own
//!   first launch     all cards offer, in the same terms ──▶ each rank accepts what it needs of the offers
//!                    (processes: they tell each other whether that worked) ──▶ the stand-ins become real
//!                    any rank offers nothing, or cannot accept ──▶ all ranks take the staged kernel
//! ```
//! Every rank of a collective hears all cards, and all answers, so all decide alike. In a `sendrecv` the two ranks of
//! each direction decide for it alone: there is a kernel in which both legs take one hop, and one for each leg.
//!
//! Peers keep the addresses that they accepted. If a user rebinds a tensor that they reach, the launch makes a
//! *detour*: it copies the new tensors into the old ones, launches, copies the result out, and restores the old ones.
//! That is right because nobody else touches the old ones: only memory that tilewire has made is offered. A tensor that
//! no peer reaches takes part in the detour only if it overlaps one that the detour overwrites.
//! So rebinding stays a call of one rank, at the price of these copies.

use super::agreement::Pending;
use super::algorithm::Algorithm;
use super::call::Call;
use super::error::RunError;
use super::itinerary::{Itinerary, Leg, Legs, Work};
use super::launch::{Launch, LaunchOptions, realign};
use super::operation::{Kind, Operation};
use super::pattern::Pattern;
use super::rebind::placed;
use super::request::Request;
use super::windows::WindowOf;
use crate::hook::Traced;
use crate::link::Transport;
use crate::tensor::{AccessError, AnyTensor, Arg, Axis, Memory, copy_bytes, overwrite};
use crate::transport::layout::Side;
use crate::transport::{Offer, Pairing, Protocol, Rank, Ticket, TransferError, TransportError};
use crate::vm::LaunchError;
use std::sync::Arc;
use std::time::Duration;

/// Chunks of at least this many bytes go in one hop. Smaller ones gain less by the missing copy than they lose by
/// waiting until the receiver has launched, too (docs/decisions/0038).
const FROM: usize = 8 << 10;
/// Stand-ins have numbers for this many ranks.
const MOST_RANKS: usize = 1 << 12;

/// Kernels in one hop that are ready but for the addresses of the peers' tensors.
pub(super) struct OneHop {
    /// The only one of a collective, or those of a `sendrecv`.
    pub kernels: Vec<HopKernel>,
    call: Call,
    /// The output and the input.
    tensors: [AnyTensor; 2],
    /// This rank's own, if peers reach them.
    offers: [Option<Offer>; 2],
    /// What both sides of what this rank sends must say alike, and of what it receives. The same in a collective.
    terms: [Option<String>; 2],
}

/// A kernel in which what is sent, what is received, or both take one hop.
pub(super) struct HopKernel {
    sides: Sides,
    pub traced: Traced,
    options: LaunchOptions,
    stand_ins: Vec<StandIn>,
}

/// Whether what is sent takes one hop, and what is received. In a collective both do.
pub(super) type Sides = [bool; 2];

/// What the ranks agree on: a kernel, and the memory of the peers for it.
pub(super) type Settled = (usize, Vec<Memory>);

/// Stands for a tensor of a peer.
#[derive(Clone)]
pub(super) struct StandIn {
    rank: Rank,
    /// 0: the output, 1: the input.
    tensor: usize,
    memory: Memory,
}

/// Which tensors peers reach in one hop, and how their kernel is planned.
pub(super) struct Candidate {
    /// This rank's output, and its input.
    own: [bool; 2],
    /// The windows that stand for the tensors of all ranks.
    windows: Vec<WindowOf>,
    stand_ins: Vec<StandIn>,
    offers: [Option<Offer>; 2],
    /// For a `sendrecv`: the legs that may take one hop.
    pair: Option<Sides>,
}

/// How this call could go in one hop, or why it does not.
pub(super) fn candidate(request: &Request<'_, '_>, staged: &Itinerary) -> Result<Candidate, String> {
    let no = |why: &str| Err(why.to_string());
    let (link, facts, hooks) = (request.link(), &staged.facts, &request.hooks);
    let (knobs, size) = (&request.config.near, hooks.types[0].size());
    if facts.ranks < 2 || facts.ranks > MOST_RANKS || !staged.faults.is_empty() {
        return no("there is nothing to send");
    }
    if !request.windows.is_empty() {
        return no("it was given a window");
    }
    if knobs.primitive.is_some() || knobs.slot_bytes.is_some() || knobs.depth.is_some() {
        return no("the caller chose how bytes travel");
    }
    let may_choose = matches!(request.operation, Operation::Exchange(_));
    if !matches!(request.config.algorithm, None | Some(Algorithm::OneShot))
        || request.config.algorithm.is_some() && !may_choose
    {
        return no("the caller chose the algorithm");
    }
    if facts.has_far || staged.algorithm == Algorithm::TwoLevel {
        return no("some ranks are reached by a network");
    }
    if facts.on_gpu() || link.seat().is_some() {
        return no("on a GPU, outputs are reached through windows only: give one by .window(..)");
    }
    if !request.watched {
        return no("an unwatched launch does not notice that a peer has failed");
    }
    let is_staged = |protocol: &Protocol| matches!(protocol, Protocol::Staged { .. });
    let may = |leg: &Leg| is_staged(&leg.protocol) && leg.tiling.len() * size >= FROM;
    let mut pair = None;
    let (expected, protocol, bytes) = match &staged.work {
        Work::Map { .. } => return no("a map stays on its rank"),
        Work::Legs(legs) => {
            let Some(leg) = legs.to_peers().max_by_key(|leg| leg.tiling.len()) else {
                return no("there is nothing to send");
            };
            if let (Operation::Exchange(Pattern::Pair { .. }), [[Some(send), Some(receive)]]) =
                (request.operation, &legs.rounds[..])
            {
                pair = Some([may(send), may(receive)]);
            }
            (owners(request, legs)?, leg.protocol, leg.tiling.len() * size)
        }
        Work::Shards(of) => {
            let owns = |tensor: &AnyTensor| vec![Some(tensor.memory().bytes()); facts.ranks];
            let out = if of.kind == Kind::AllReduce { owns(&request.out) } else { vec![None; facts.ranks] };
            ([out, owns(&request.inp)], of.protocol, of.shards[0].range.len() * size)
        }
    };
    if !is_staged(&protocol) || bytes < FROM {
        return Err(format!("chunks of {bytes} bytes are faster otherwise: one hop pays from {FROM} bytes on"));
    }
    let all_reduce = matches!(request.operation, Operation::Reduction(Kind::AllReduce, _));
    match request.operation {
        Operation::Exchange(_) if !hooks.stores() => {
            return no("a consume hook runs at the receiver, where only staging arrives");
        }
        Operation::Exchange(_) if hooks.types.len() != 1 => return no("several values travel side by side"),
        Operation::Reduction(..) if !hooks.copies => return no("peers read the input, so no produce hook runs"),
        Operation::Reduction(..) if all_reduce && !hooks.stores() => {
            return no("peers write the output, so no consume hook runs");
        }
        _ => {}
    }
    let me = link.rank().index();
    let own = [0, 1].map(|k| expected[k][me].is_some());
    let mut offers = [None, None];
    for (k, (tensor, name)) in [(&request.out, "output"), (&request.inp, "input")].into_iter().enumerate() {
        if !own[k] {
            continue;
        }
        let memory = tensor.memory();
        let must = if k == 0 { hooks.types[0] } else { tensor.ty() };
        let why = match expected[k][me] {
            _ if memory.is_lent() => "was lent, so its owner may take it back",
            _ if !memory.is_contiguous() || tensor.grid().is_expanded() => "has gaps between its rows",
            Some(bytes) if bytes != memory.bytes() || tensor.ty() != must => "is not as long as what arrives",
            _ => {
                offers[k] = link.offer(memory);
                "lies in memory of others, or out of the peers' reach: make it by link.zeros(..)"
            }
        };
        match (&offers[k], &mut pair) {
            (Some(_), _) => {}
            (None, Some([true, receives])) => *receives = false,
            (None, _) => return Err(format!("peers do not reach the {name}: it {why}")),
        }
    }
    // An all-reduce in place has one tensor for both. Peers may have two.
    let mut stand_ins = Vec::new();
    let mut windows = Vec::new();
    for (k, tensor) in [&request.out, &request.inp].into_iter().enumerate() {
        if expected[k].iter().all(Option::is_none) {
            continue;
        }
        let mut peer = |(rank, bytes): (Rank, &Option<usize>)| {
            let bytes = bytes.as_ref()?;
            if rank.index() == me {
                return Some(tensor.memory().clone());
            }
            let memory = Memory::stand_in(2 * rank.index() + k, *bytes);
            stand_ins.push(StandIn { rank, tensor: k, memory: memory.clone() });
            Some(memory)
        };
        let peers = Rank::all(facts.ranks).zip(&expected[k]).map(&mut peer).collect();
        let ty = if k == 0 { hooks.types[0] } else { tensor.ty() };
        let own = tensor.memory().clone();
        windows.push(WindowOf::of_tensors(peers, own, ty));
    }
    Ok(Candidate { own, windows, stand_ins, offers, pair })
}

/// The bytes that every rank's output must have if peers write it, by rank. No input of an exchange is reached.
fn owners(request: &Request<'_, '_>, legs: &Legs) -> Result<[Vec<Option<usize>>; 2], String> {
    let Operation::Exchange(pattern) = request.operation else { unreachable!("only exchanges have legs") };
    let (me, ranks) = (request.link().rank(), request.link().world_size());
    let size = request.hooks.types[0].size();
    let len = legs.to_peers().next().map_or(0, |leg| leg.tiling.len()) * size;
    let side = |side: Side| legs.to_peers().find(|leg| leg.side == side).map(|leg| leg.tiling.len() * size);
    let of = |rank: Rank| match pattern {
        Pattern::AllToAll | Pattern::AllGather => Some(ranks * len),
        Pattern::Barrier => None,
        Pattern::Broadcast { root } | Pattern::Scatter { root } => (rank != root).then_some(len),
        Pattern::Gather { root } => (rank == root).then_some(ranks * len),
        Pattern::Pair { .. } if rank == me => side(Side::Receive),
        Pattern::Pair { to, .. } => side(Side::Send).filter(|_| Some(rank) == to),
    };
    match pattern {
        Pattern::Pair { to, from } if to.is_none() || from.is_none() => {
            Err("a send and a receive are calls of their own, so the sender may end first".to_string())
        }
        _ => Ok([Rank::all(ranks).map(of).collect(), vec![None; ranks]]),
    }
}

/// What all ranks must say alike for one hop, or why this plan takes none. For a `sendrecv`: of the legs of this side.
/// What the cards compare is not repeated.
fn terms(plan: &Itinerary, side: Option<Side>) -> Result<String, String> {
    let is_direct = |protocol: &Protocol| matches!(protocol, Protocol::Direct { .. });
    let no = || Err("its plan does not go in one hop".to_string());
    let (tiling, more) = match &plan.work {
        Work::Legs(legs) => {
            let mut legs = legs.to_peers().filter(|leg| side.is_none_or(|side| leg.side == side));
            let Some(first) = legs.next() else { return no() };
            if !is_direct(&first.protocol) || !legs.all(|leg| is_direct(&leg.protocol)) {
                return no();
            }
            let grid = plan.out.grid();
            let in_columns = side.is_none() && plan.axes[1] == Axis::Cols && grid.rows > 1;
            let columns = if in_columns { format!("{} rows of {}", grid.rows, grid.cols) } else { String::new() };
            (first.tiling, columns)
        }
        Work::Shards(of) if is_direct(&of.protocol) && of.windows.is_some() => {
            let place = if plan.in_place && of.kind == Kind::AllReduce { "in place" } else { "" };
            (of.shards[0].tiling, format!("{} {place}", plan.algorithm.name()))
        }
        _ => return no(),
    };
    let (rows, cols) = (tiling.tile_rows(), tiling.tile_cols());
    Ok(format!("{} blocks, tiles of [{rows}, {cols}], {more}", tiling.blocks()))
}

impl Candidate {
    /// The kernels that the ranks may agree on.
    pub(super) fn sides(&self) -> Vec<Sides> {
        let Some([sends, receives]) = self.pair else { return vec![[true, true]] };
        let all = [[true, true], [true, false], [false, true]];
        all.into_iter().filter(|sides| (sends || !sides[0]) && (receives || !sides[1])).collect()
    }

    /// The windows for one of them.
    pub(super) fn windows(&self, sides: Sides) -> Vec<WindowOf> {
        let only = match sides {
            [true, false] => Some(Side::Send),
            [false, true] => Some(Side::Receive),
            _ => None,
        };
        self.windows.iter().map(|window| window.clone().only_for(only)).collect()
    }

    /// With its kernels, and the plans that were made with its windows.
    pub(super) fn traced(self, made: Vec<(Sides, Itinerary, Traced, LaunchOptions)>) -> Result<OneHop, String> {
        let Candidate { stand_ins, offers, pair, .. } = self;
        let (mut kernels, mut terms_of, mut bound) = (Vec::new(), [None, None], None);
        for (sides, plan, traced, options) in made {
            for (k, side) in [Side::Send, Side::Receive].into_iter().enumerate().filter(|(k, _)| sides[*k]) {
                terms_of[k] = Some(terms(&plan, pair.map(|_| side))?);
            }
            // A rank that this one does not touch may have launched and taken back its offer before this one meets it.
            // One that it does touch waits for it in its launch.
            let banks =
                traced.args.iter().filter_map(|arg| if let Arg::Buffer(banks) = arg { Some(banks) } else { None });
            let banks: Vec<&Memory> = banks.flatten().collect();
            let is_used = |stand_in: &&StandIn| banks.iter().any(|bank| stand_in.memory.offset_of(bank).is_some());
            let stand_ins = stand_ins.iter().filter(is_used).cloned().collect();
            kernels.push(HopKernel { sides, traced, options, stand_ins });
            bound = Some((plan.call, [plan.out, plan.inp]));
        }
        let (call, tensors) = bound.ok_or("there is nothing to send")?;
        Ok(OneHop { kernels, call, tensors, offers, terms: terms_of })
    }

    /// What is offered, in words.
    pub(super) fn describe(&self) -> &'static str {
        match self.own {
            [true, true] => "this rank's output and input are offered",
            [true, false] => "this rank's output is offered",
            [false, true] => "this rank's input is offered",
            [false, false] => "peers reach no tensor of this rank",
        }
    }
}

impl OneHop {
    /// What this rank says on a card: the terms, and what it offers. Nothing if what the card is about takes no hop.
    pub(super) fn say(&self, pairing: Pairing) -> String {
        let Some(terms) = &self.terms[usize::from(pairing == Pairing::Receive)] else { return String::new() };
        let text = |offer: &Option<Offer>| offer.as_ref().map_or("-".to_string(), |offer| offer.text().to_string());
        let [out, inp] = self.offers.each_ref().map(text);
        match pairing {
            Pairing::Send => format!("{terms};-;-"),
            _ => format!("{terms};{out};{inp}"),
        }
    }

    /// What the peer of this side offers, if it does so in the terms of this rank.
    fn offered<'h>(&self, ticket: &Ticket, heard: &'h str) -> Result<[&'h str; 2], String> {
        let words: Vec<&str> = heard.split(';').collect();
        let mine = self.terms[usize::from(ticket.pairing == Pairing::Receive)].as_deref();
        match (&words[..], mine) {
            (&[terms, out, inp], Some(mine)) if terms == mine => Ok([out, inp]),
            (&[terms, ..], Some(mine)) if words.len() == 3 => {
                Err(format!("rank {} would move {terms}, this rank {mine}", ticket.peer))
            }
            (_, Some(_)) => Err(format!("rank {} does not offer its part", ticket.peer)),
            (_, None) => Err("this rank does not offer its part".to_string()),
        }
    }

    /// Decides with all other sides. `told` are the sides of this rank, and `heard` what each of them has heard. `Err`
    /// inside: why the ranks take staging.
    pub(super) fn settle(
        &self,
        link: &dyn Transport,
        told: &[Pending],
        heard: &[String],
        deadline: Option<Duration>,
    ) -> Result<Result<Settled, String>, RunError> {
        let is_pair = told.iter().any(|side| side.ticket().pairing != Pairing::Together);
        let mut offers = Vec::new();
        let mut why = None;
        for (side, heard) in told.iter().zip(heard) {
            match self.offered(side.ticket(), heard) {
                Ok(texts) => offers.push((side, texts)),
                Err(reason) => why = why.or(Some(reason)),
            }
        }
        // One of two directions may take one hop alone.
        if let Some(why) = why.take_if(|_| !is_pair || offers.is_empty()) {
            return Ok(Err(why));
        }
        let does = |pairing: Pairing| offers.iter().any(|(side, _)| side.ticket().pairing == pairing);
        let sides = if is_pair { [does(Pairing::Send), does(Pairing::Receive)] } else { [true, true] };
        let of = |sides: Sides| self.kernels.iter().position(|kernel| kernel.sides == sides);
        let Some(stand_ins) = of(sides).map(|k| &self.kernels[k].stand_ins) else {
            return Ok(Err("its plan does not go in one hop".to_string()));
        };
        // In a pair, only the card of the receiving side offers anything.
        let accept = |stand_in: &StandIn| {
            let is_it = |(side, texts): &&(&Pending, [&str; 2])| {
                side.ticket().peer == stand_in.rank && texts[stand_in.tensor] != "-"
            };
            let (_, texts) = offers.iter().find(is_it)?;
            let memory = link.accept(stand_in.rank, texts[stand_in.tensor]);
            memory.filter(|memory| memory.bytes() == stand_in.memory.bytes())
        };
        let mut accepted: Vec<Option<Memory>> = stand_ins.iter().map(accept).collect();
        let missing = stand_ins.iter().zip(&accepted).find(|(_, memory)| memory.is_none());
        let missing = missing.map(|(stand_in, _)| stand_in.rank);
        let cannot = |rank: Rank| format!("this rank cannot map the memory of rank {rank}");
        let own = || self.offers.iter().flatten().map(Offer::text);
        let is_text = |text: &&str| *text != "-";
        // Both sides of every direction, and all ranks of a collective, see the same offers.
        let any_may_fail =
            offers.iter().flat_map(|(_, texts)| *texts).filter(is_text).chain(own()).any(Offer::may_fail);
        let asks = |(side, texts): &&(&Pending, [&str; 2])| match side.ticket().pairing {
            Pairing::Together => any_may_fail,
            Pairing::Send => texts.iter().copied().filter(is_text).any(Offer::may_fail),
            Pairing::Receive => own().any(Offer::may_fail),
        };
        let mut agreed = sides;
        for (side, _) in offers.iter().filter(asks) {
            side.answer(link, missing.is_none() || side.ticket().pairing == Pairing::Receive)?;
        }
        for (side, _) in offers.iter().filter(asks) {
            let Ticket { peer, pairing, .. } = *side.ticket();
            let can = side.hear_answer(link, deadline)?;
            let mine = missing.filter(|_| pairing != Pairing::Receive);
            if !can || mine.is_some() {
                let reason = mine.map_or(format!("rank {peer} cannot map the memory that it needs"), cannot);
                why = why.or(Some(reason));
                match pairing {
                    Pairing::Send => agreed[0] = false,
                    Pairing::Receive => agreed[1] = false,
                    Pairing::Together => agreed = [false, false],
                }
            }
        }
        let sends = !is_pair || agreed[0];
        if let (Some(rank), true) = (missing, sends && agreed != [false, false]) {
            // Its rank has taken back what it offered, so it has failed, and may have said why.
            if let Some(cause) = link.broken() {
                return Err(TransferError::Broken { cause }.into());
            }
            let what = "it no longer offers the memory of a collective that was not launched yet".to_string();
            return Err(RunError::Transport(Arc::new(TransportError::Peer { rank, what })));
        }
        if !sends {
            accepted.clear();
        }
        match of(agreed) {
            Some(k) => Ok(Ok((k, accepted.into_iter().flatten().collect()))),
            None => Ok(Err(why.unwrap_or("its plan does not go in one hop".to_string()))),
        }
    }

    /// The launch of a kernel with the memory of the peers in place of the stand-ins.
    pub(super) fn bind<'l>(
        self,
        link: &'l dyn Transport,
        (kernel, memory): Settled,
    ) -> Result<(Launch<'l>, Hop), RunError> {
        let OneHop { mut kernels, call, tensors, offers, .. } = self;
        let HopKernel { sides, traced: Traced { mut kernel, args }, options, stand_ins } = kernels.swap_remove(kernel);
        let real = |bank: &Memory| {
            let both = stand_ins.iter().zip(&memory);
            let mut parts = both.filter_map(|(stand_in, memory)| {
                stand_in.memory.offset_of(bank).map(|offset| memory.part_like(bank, offset))
            });
            parts.next().unwrap_or_else(|| bank.clone())
        };
        let bound = |arg: &Arg| match arg {
            Arg::Buffer(banks) => Arg::Buffer(banks.iter().map(real).collect()),
            arg => arg.clone(),
        };
        let args: Vec<Arg> = args.iter().map(bound).collect();
        realign(&mut kernel, &args);
        let launch = Launch::with(&[link], Traced { kernel, args }, options, call)?;
        let is_reached = [0, 1].map(|k: usize| offers[k].is_some() && sides[1]);
        let lent = tensors.iter().zip(is_reached).filter(|(_, is_reached)| *is_reached);
        let to_processes = offers.iter().flatten().any(|offer| Offer::may_fail(offer.text()));
        let launch = launch.lending(lent.map(|(tensor, _)| tensor.memory().clone()).collect(), to_processes);
        let in_place = tensors[0].memory().overlaps(tensors[1].memory());
        let named = |k: usize| match in_place || is_reached[k] {
            true => tensors[k].clone(),
            false => tensors[k].moved_to(tensors[k].memory().place()),
        };
        let named = [named(0), named(1)];
        let args = placed(launch.args(), &tensors, &named);
        Ok((launch, Hop { sides, is_reached, tensors: named, args, detour: None, _offers: offers }))
    }
}

/// A collective in one hop: what its kernel and its peers are bound to, and what its user has bound since.
pub(super) struct Hop {
    sides: Sides,
    /// True for the output, and for the input, if peers have its address.
    is_reached: [bool; 2],
    /// The output and the input that it was built with. A tensor that later launches need not touch is named only by
    /// its place: it may belong to others again.
    tensors: [AnyTensor; 2],
    /// The arguments for these tensors.
    args: Vec<Arg>,
    /// From the user's tensors to those of the kernel.
    detour: Option<Detour>,
    /// Peers that meet later still have to accept them.
    _offers: [Option<Offer>; 2],
}

/// How a kernel in one hop is bound for a user's tensors.
pub(super) struct Rebinding {
    /// The output and the input of the kernel.
    pub tensors: [AnyTensor; 2],
    detour: Option<Detour>,
}

/// Between the user's output and input, and those of the kernel, where they differ.
struct Detour([Option<Stretch>; 2]);

/// Copies between two tensors. The buffers are made once, when the user rebinds.
struct Stretch {
    user: Memory,
    kernel: Memory,
    /// What is carried.
    bytes: Vec<u8>,
    /// What the kernel's tensor has back afterwards. Nothing for one that was made for the detour.
    kept: Vec<u8>,
}

impl Stretch {
    fn of(user: &Memory, kernel: &Memory, is_own: bool) -> Option<Stretch> {
        let room = |has: bool| vec![0; if has { kernel.covered() } else { 0 }];
        let differs = !user.is(kernel);
        differs.then(|| Stretch { user: user.clone(), kernel: kernel.clone(), bytes: room(true), kept: room(!is_own) })
    }
}

impl Hop {
    /// The output and the input that it was built with: every rebinding is compared with them.
    pub(super) fn tensors(&self) -> &[AnyTensor; 2] {
        &self.tensors
    }

    /// The arguments for these tensors.
    pub(super) fn args(&self) -> &[Arg] {
        &self.args
    }

    /// What goes in one hop, in words.
    pub(super) fn describe(&self) -> &'static str {
        match (&self.detour, self.sides) {
            (Some(_), _) => {
                "in one hop, with copies: peers have the addresses of the tensors it was built with, and it was bound \
                 to others"
            }
            (None, [true, true]) => "in one hop: all ranks reach the tensors that they need",
            (None, [sends, _]) if sends => "in one hop: what it sends; what it receives goes through staging",
            (None, _) => "in one hop: what it receives; what it sends goes through staging",
        }
    }

    /// How these tensors of the user can be bound without the peers: the kernel keeps a tensor that they reach.
    pub(super) fn rebinding(&self, to: &[AnyTensor; 2]) -> Rebinding {
        let is_same = |k: usize| to[k].memory().is(self.tensors[k].memory());
        if (0..2).all(|k| !self.is_reached[k] || is_same(k)) {
            return Rebinding { tensors: to.clone(), detour: None };
        }
        let [out, inp] = &self.tensors;
        let in_place = out.memory().overlaps(inp.memory());
        let mut is_own = [false; 2];
        let mut bound = |k: usize| {
            let first = &self.tensors[k];
            if in_place || self.is_reached[k] {
                return first.clone();
            }
            // The other one is reached, and the detour overwrites it.
            if !to[k].memory().overlaps(self.tensors[1 - k].memory()) {
                return to[k].clone();
            }
            is_own[k] = true;
            let memory = first.memory();
            first.moved_to(Memory::zeroed(memory.bytes()).part_like(memory, 0))
        };
        let tensors = [bound(0), bound(1)];
        let stretch = |k: usize| Stretch::of(to[k].memory(), tensors[k].memory(), is_own[k]);
        let detour = Detour([0, 1].map(stretch));
        Rebinding { tensors, detour: Some(detour) }
    }

    /// The kernel has been bound like that.
    pub(super) fn is_bound(&mut self, by: Rebinding) {
        self.detour = by.detour;
    }

    /// True if launches copy between the user's tensors and those of the kernel.
    pub(super) fn has_detour(&self) -> bool {
        self.detour.is_some()
    }

    /// Launches for the user's tensors, through those of the kernel, which have their bytes back afterwards.
    #[cold]
    pub(super) fn run(&mut self, rank: Rank, launch: &mut Launch<'_>) -> Result<(), RunError> {
        let Some(Detour(stretches)) = &mut self.detour else { return launch.run_through() };
        let returned = |_: AccessError| RunError::from(LaunchError::Returned { rank: rank.index() });
        let there = |stretches: &mut [Option<Stretch>; 2]| {
            // Whatever overlaps, everything is read before anything is written.
            for Stretch { user, kernel, bytes, kept } in stretches.iter_mut().flatten() {
                copy_bytes(user, bytes)?;
                if !kept.is_empty() {
                    copy_bytes(kernel, kept)?;
                }
            }
            stretches.iter().flatten().try_for_each(|stretch| overwrite(&stretch.kernel, &stretch.bytes))
        };
        // Peers have launched, or will: they must hear of it.
        there(stretches).map_err(|error| launch.fails(returned(error)))?;
        let ran = launch.run_through();
        let back = |stretches: &mut [Option<Stretch>; 2]| {
            if let Some(out) = &mut stretches[0] {
                copy_bytes(&out.kernel, &mut out.bytes)?;
            }
            let kept = stretches.iter().flatten().filter(|stretch| !stretch.kept.is_empty());
            kept.into_iter().try_for_each(|stretch| overwrite(&stretch.kernel, &stretch.kept))?;
            match &stretches[0] {
                Some(out) if ran.is_ok() => overwrite(&out.user, &out.bytes),
                _ => Ok(()),
            }
        };
        let back = back(stretches);
        ran?;
        back.map_err(|error| launch.fails(returned(error)))
    }
}
