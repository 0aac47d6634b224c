//! Before the first launch, compares how the participants describe a transfer or collective, to find differences that
//! would corrupt data or cause a hang.

use super::call::Call;
use super::error::{Mismatch, RunError};
use super::hooks::Hooks;
use super::itinerary::{Itinerary, Leg, Work};
use crate::link::Transport;
use crate::schedule::Tiling;
use crate::transport::layout::Side;
use crate::transport::{AbortCode, Cause, Door, LinkKind, Pairing, Protocol, Rank, Ticket, TransportError};
use std::time::Duration;

/// A rank's description of its transfer or collective: names and values, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card(Vec<(&'static str, String)>);

impl Card {
    /// The card for a chunk that travels by this protocol. `way`: the algorithm, in words.
    fn of(plan: &Itinerary, hooks: &Hooks<'_>, way: &str, protocol: Protocol, tiling: &Tiling) -> Card {
        let types: Vec<String> = hooks.types.iter().map(ToString::to_string).collect();
        let shape = hooks.tiled_shape();
        let shape = shape.map_or("none".to_string(), |shape| {
            // Their tiles differ.
            let of = if shape.is_of_tensor { " of a tensor of rows" } else { "" };
            format!("[{}, {}]{of}", shape.rows, shape.cols)
        });
        let mut card = Card(vec![
            ("the collective", plan.operation.agreement()),
            ("the number of elements", tiling.len().to_string()),
            ("the element types on the wire", types.join(" and ")),
            ("the shape of the output chunk", shape),
            ("the neighbours that share the last value (last_per)", hooks.last_per.to_string()),
            ("the window", plan.windows.name()),
            // Unless the user sets them, the entries from here on follow from those above. If ranks differ in both
            // groups, the difference above is the one to report.
            ("the algorithm", way.to_string()),
        ]);
        card.0.extend(Card::WAY.into_iter().zip(Card::way(protocol, tiling)));
        card
    }

    /// The entries of how a chunk travels, and those for peers across a network where there are both kinds.
    const WAY: [&'static str; 5] =
        ["the protocol", "the number of blocks", "the bytes of a slot", "the depth", "the tile"];
    const FAR_WAY: [&'static str; 5] = [
        "the protocol to far peers",
        "the number of blocks for far peers",
        "the bytes of a slot for far peers",
        "the depth for far peers",
        "the tile for far peers",
    ];
    /// The value of an entry that a rank has nothing to say about: it agrees with every other.
    const ANY: &'static str = "-";

    fn way(protocol: Protocol, tiling: &Tiling) -> [String; 5] {
        let (slot_bytes, depth) = match protocol {
            Protocol::Staged { slot_bytes, depth } | Protocol::Bulk { slot_bytes, depth } => (slot_bytes, depth),
            _ => (0, 0),
        };
        [
            protocol.to_string(),
            tiling.blocks().to_string(),
            slot_bytes.to_string(),
            depth.to_string(),
            format!("[{}, {}]", tiling.tile_rows(), tiling.tile_cols()),
        ]
    }

    /// In a world with near and far peers, the ways to both. A rank may have only one kind.
    fn with_ways(mut self, near: Option<&Leg>, far: Option<&Leg>) -> Card {
        let way = |leg: Option<&Leg>| {
            leg.map_or([Card::ANY; 5].map(str::to_string), |leg| Card::way(leg.protocol, &leg.tiling))
        };
        self.0.retain(|(what, _)| !Card::WAY.contains(what));
        self.0.extend(Card::WAY.into_iter().zip(way(near)));
        self.0.extend(Card::FAR_WAY.into_iter().zip(way(far)));
        self
    }

    /// The card of the same kernel that all ranks bind to other windows.
    pub(super) fn bound_to(&self, windows: &str) -> Card {
        let entry = |(what, value): &(&'static str, String)| match *what {
            "the collective" => (*what, format!("{value}, bound to other windows")),
            "the window" => (*what, windows.to_string()),
            _ => (*what, value.clone()),
        };
        Card(self.0.iter().map(entry).collect())
    }

    /// Adds a hash of the hooks, if the ranks must have the same ones.
    fn with_hooks(mut self, hash: Option<u64>) -> Card {
        let value = hash.map_or("any".to_string(), |hash| format!("{hash:016x}"));
        self.0.push(("the hooks (same_hooks)", value));
        self
    }

    /// The first line describes the operation and may differ between ranks. The values that must match follow, one per
    /// line. The last line says what this rank offers; it may differ, too.
    fn to_bytes(&self, call: &Call, offers: &str) -> Vec<u8> {
        let values = self.0.iter().map(|(_, value)| value.as_str());
        let call = call.to_string().replace('\n', " ");
        let offers = format!("{OFFERS}{offers}");
        let lines = std::iter::once(call.as_str()).chain(values).chain([offers.as_str()]);
        lines.collect::<Vec<_>>().join("\n").into_bytes()
    }

    fn compare(&self, theirs: &[u8], (rank, call): (Rank, &str), peer: Rank) -> Result<(), Box<Mismatch>> {
        let theirs = String::from_utf8_lossy(theirs);
        let mut lines = theirs.lines();
        let there = lines.next().filter(|line| !line.is_empty()).unwrap_or("a call that it does not name");
        for (what, mine) in &self.0 {
            let theirs = lines.next().unwrap_or("nothing");
            if mine != theirs && ![mine, theirs].contains(&Card::ANY) {
                let (mine, theirs) = (mine.clone(), theirs.to_string());
                let calls = [call, there].map(str::to_string);
                return Err(Box::new(Mismatch { rank, peer, what: what.to_string(), mine, theirs, calls }));
            }
        }
        Ok(())
    }
}

/// The cards of a rank, and their recipients.
pub(super) enum Cards {
    /// Each card goes to one peer.
    Pairs(Vec<(Pairing, Rank, Card)>),
    /// Every rank sends the same card to all others. So all ranks see a difference, and none launches.
    All(Card),
    /// No cards.
    Nothing,
}

impl Cards {
    /// `hash`: the hash of the hooks, if the ranks must have the same ones.
    pub(super) fn of(plan: &Itinerary, hooks: &Hooks<'_>, hash: Option<u64>) -> Cards {
        let card = |way: &str, protocol, tiling: &Tiling| Card::of(plan, hooks, way, protocol, tiling).with_hooks(hash);
        match &plan.work {
            Work::Map { .. } => Cards::Nothing,
            Work::Legs(legs) => {
                let of_leg = |leg: &Leg| Card::of(plan, hooks, plan.algorithm.name(), leg.protocol, &leg.tiling);
                if !plan.operation.is_collective() {
                    let pairing = |leg: &Leg| if leg.side == Side::Send { Pairing::Send } else { Pairing::Receive };
                    let pair = |leg: &Leg| (pairing(leg), leg.peer, of_leg(leg).with_hooks(hash));
                    return Cards::Pairs(legs.all().map(pair).collect());
                }
                // In a collective, all chunks over one kind of link are alike.
                let of_kind = |is_far: bool| legs.to_peers().find(|leg| (leg.link.kind == LinkKind::Fabric) == is_far);
                let Some(first) = legs.all().next() else { return Cards::Nothing };
                let card = match plan.facts.has_far {
                    true => of_leg(first).with_ways(of_kind(false), of_kind(true)),
                    false => of_leg(first),
                };
                Cards::All(card.with_hooks(hash))
            }
            Work::Shards(of) => {
                // A waiting lane stalls its whole warp, so every rank must use the same number of warps here.
                let lanes = if of.swaps { format!(", {} warps", of.warps) } else { String::new() };
                // All ranks have the same shards, so the first stands for all. A difference in any of them is a
                // difference in the total length.
                let first = &of.shards[0].tiling;
                let whole = Tiling::flat(plan.out.len(), first.tile_len(), first.blocks());
                Cards::All(card(&format!("{}{lanes}", plan.algorithm.name()), of.protocol, &whole))
            }
        }
    }
}

/// One side of a comparison: it has sent its card and has not yet received the peer's.
pub(super) struct Pending {
    ticket: Ticket,
    card: Card,
    /// A description of the user's call.
    call: String,
}

impl Pending {
    pub(super) fn tell(
        link: &dyn Transport,
        (pairing, peer): (Pairing, Rank),
        card: Card,
        (call, offers): (&Call, &str),
    ) -> Result<Pending, RunError> {
        let ticket = link.ticket(pairing, peer);
        link.tell(&ticket, &card.to_bytes(call, offers))?;
        Ok(Pending { ticket, card, call: call.to_string() })
    }

    /// The ticket of this side.
    pub(super) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Waits for the peer's card and compares it with this rank's. Returns what the peer offers.
    pub(super) fn meet(&self, link: &dyn Transport, deadline: Option<Duration>) -> Result<String, RunError> {
        let theirs = self.hear(link, &self.ticket, deadline)?;
        let Ticket { rank, peer, .. } = self.ticket;
        self.card.compare(&theirs, (rank, &self.call), peer).map_err(RunError::Mismatch)?;
        let theirs = String::from_utf8_lossy(&theirs);
        Ok(theirs.lines().last().and_then(|last| last.strip_prefix(OFFERS)).unwrap_or_default().to_string())
    }

    /// Tells the peer whether this rank can accept what was offered.
    pub(super) fn answer(&self, link: &dyn Transport, accepts: bool) -> Result<(), RunError> {
        let words = if accepts { ACCEPTS } else { "no" };
        Ok(link.tell(&self.ticket.answer(), words.as_bytes())?)
    }

    /// Waits for the peer's answer.
    pub(super) fn hear_answer(&self, link: &dyn Transport, deadline: Option<Duration>) -> Result<bool, RunError> {
        Ok(self.hear(link, &self.ticket.answer(), deadline)? == ACCEPTS.as_bytes())
    }

    /// A peer that does not arrive breaks the transport: it may arrive later, and would then wait for a launch that no
    /// longer exists.
    fn hear(&self, link: &dyn Transport, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, RunError> {
        let heard = link.hear(ticket, deadline).inspect_err(|error| {
            let rank = link.rank().index();
            link.fail(match error {
                // All ranks must be told of a rank that has left. They already know of every other cause.
                TransportError::Broken { cause } if cause.code != AbortCode::Left => return,
                TransportError::Broken { cause } => *cause,
                TransportError::NotMet { late, .. } => Cause::timed_out(rank, Some(late.index())),
                _ => Cause { code: AbortCode::Failed, rank, reason: 0 },
            });
            // Not any earlier: until the abort words are set, the other ranks must see that this rank is waiting and is
            // not the late one.
            link.door().and_then(Door::status).iter().for_each(|status| status.goes_on());
        });
        Ok(heard?)
    }
}

/// Begins the last line of what a rank tells.
const OFFERS: &str = "offers ";
/// The answer of a rank that can accept all offers.
const ACCEPTS: &str = "yes";
