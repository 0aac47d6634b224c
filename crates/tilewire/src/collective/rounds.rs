//! How the rounds of an exchange share a launch: each as a role in every block, or each with its own blocks.
//!
//! ```text
//!   Roles    block b:   receive from 3 | receive from 2 | send to 1 | send to 2 | … | own
//!   Blocks   block b:   receive | send         serve round b / blocks, as block b % blocks of it
//!   Legs     block b:   serves leg b / blocks, as block b % blocks of it
//! ```
//! The own chunk may also be handled by the first sending leg (`exchange_plan.rs`).

use crate::hook::{Block, RoleCtx};
use std::rc::Rc;

/// How the rounds of a collective share a launch. In round i, a rank sends to the rank i after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Each round is a separate role in every block. This needs few blocks, which suits the threads of a processor. If
    /// the world has more ranks than a block has roles for, this acts as `Blocks`.
    Roles,
    /// Each round has its own blocks: a grid of rounds × blocks, which suits a GPU.
    Blocks,
    /// Each leg has its own blocks. Senders and receivers never share a block, and all lanes of a block do the same
    /// work.
    Legs,
}

/// Warps of role copies, if the user specified them.
#[derive(Clone, Copy)]
pub(super) struct Warps {
    pub send: Option<u32>,
    pub receive: Option<u32>,
}

impl Warps {
    /// For a role that both sends and receives.
    pub(super) fn both(self) -> Option<u32> {
        self.send.or(self.receive)
    }
}

/// Warps of a role on the CPU, where they only describe what a GPU would use.
const WARPS: u32 = 4;
/// Warps and roles per block: the limit of a GPU's threads and barriers.
const BLOCK_WARPS: u32 = 32;
const BLOCK_ROLES: usize = 15;

/// Warps that write the windows of several ranks simultaneously, beside one that signals. With all 31 available they
/// get in each other's way. H200, four ranks of 64 MiB and 16 blocks:
///
/// | warps | 16 | 24 | 26 | 27 | 28 | 30 | 31 |
/// |---|---|---|---|---|---|---|---|
/// | µs | 171 | 154 | 151 | 151 | 153 | 155 | 157 |
///
/// One way between two ranks, 28 and 31 perform alike.
const WRITERS: u32 = 27;

/// Factor by which blocks have fewer warps, and threads more registers, if a kernel holds more values than those it
/// moves.
pub(super) const FEWER: u32 = 2;

/// Warps for each of `role_copies` role copies in a block. Unless the user specified them, the copies share all warps
/// of a block on a GPU.
pub(super) fn warps_of(on_gpu: bool, said: Option<u32>, role_copies: u32) -> u32 {
    let share = (BLOCK_WARPS / role_copies.max(1)).max(1);
    said.unwrap_or(if on_gpu { share } else { share.min(WARPS) })
}

/// The code of one leg.
pub(super) struct LegCode<'b, 't> {
    /// Name of its role, if it has a role to itself.
    pub name: String,
    pub trace: Box<dyn Fn(&RoleCtx<'t>) + 'b>,
}

/// The code for the chunk that a rank passes to itself.
pub(super) struct OwnCode<'b, 't> {
    /// Name of its role, if it has a role to itself.
    pub name: &'static str,
    /// True if several roles can share the work.
    pub is_shared: bool,
    pub trace: Rc<TraceShare<'b, 't>>,
}

/// Traces a share in a role.
type TraceShare<'b, 't> = dyn Fn(&RoleCtx<'t>, Share) + 'b;

impl<'b, 't: 'b> OwnCode<'b, 't> {
    fn leg(&self, share: Share) -> LegCode<'b, 't> {
        let trace = Rc::clone(&self.trace);
        LegCode { name: self.name.to_string(), trace: Box::new(move |r| trace(r, share)) }
    }

    /// The work as a round. If blocks have two roles and the work can be shared, each role gets half.
    fn round(&self, two_roles: bool) -> [Option<LegCode<'b, 't>>; 2] {
        match two_roles && self.is_shared {
            true => [0, 1].map(|number| Some(self.leg(Share { number, of: 2 }))),
            false => [Some(self.leg(Share::ALL)), None],
        }
    }
}

/// One of several equal shares of the work.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub number: u32,
    pub of: u32,
}

impl Share {
    const ALL: Share = Share { number: 0, of: 1 };
}

/// The legs of a rank in a kernel being traced.
pub(super) struct RoundsCode<'b, 't> {
    pub own: Option<OwnCode<'b, 't>>,
    /// The sending and the receiving leg of each round.
    pub rounds: Vec<[Option<LegCode<'b, 't>>; 2]>,
    /// Blocks that share the work of one round.
    pub blocks: usize,
    /// True if all legs use packets. A sender of packets waits for nothing that its peer does in this launch, so it may
    /// come first, and one role is cheaper to start than many.
    pub packets: bool,
    /// True if receivers only signal and wait, because the data lands directly in its final place.
    pub windows: bool,
    /// Copies of a role that take the steps of a leg in turn.
    pub copies: u32,
    pub warps: Warps,
    /// True if arriving data is combined. Combining holds so many values that a thread benefits from twice the
    /// registers.
    pub combines: bool,
    /// True on a GPU, where the number of warps matters.
    pub on_gpu: bool,
}

const SEND: usize = 0;
const RECEIVE: usize = 1;

impl<'b, 't: 'b> RoundsCode<'b, 't> {
    /// Assigns a role to every leg.
    pub(super) fn trace(self, k: &Block<'t>, how: Rounds) {
        if self.own.is_none() && self.rounds.is_empty() {
            // In place in a world of one: everything is already where it belongs.
            return k.role("nothing to do", WARPS).run(|_| {});
        }
        let legs = self.rounds.iter().flatten().flatten().count() + usize::from(self.own.is_some());
        let one_role = self.packets && legs > 1;
        match how {
            Rounds::Roles if one_role || legs <= BLOCK_ROLES => self.in_roles(k, legs, one_role),
            Rounds::Legs => self.split().in_blocks(k, "exchange"),
            _ => self.in_blocks(k, "send"),
        }
    }

    fn in_roles(self, k: &Block<'t>, legs: usize, one_role: bool) {
        k.blocks(self.blocks as u32);
        let of = |which: usize| self.rounds.iter().filter_map(move |round| round[which].as_ref());
        if one_role {
            return k.role("exchange", self.warps_of(self.warps.both(), 1)).run(|r| {
                of(SEND).for_each(|leg| (leg.trace)(r));
                self.own.iter().for_each(|own| (own.trace)(r, Share::ALL));
                of(RECEIVE).for_each(|leg| (leg.trace)(r));
            });
        }
        // Receivers come first: if one thread runs all roles, the permission to send that they give (READY) must not
        // wait until this rank has finished sending. The own chunk comes last: it can always run, so it fills the time
        // while the others wait.
        let warps = |said| self.warps_of(said, legs as u32 * self.copies);
        for (which, said) in [(RECEIVE, self.warps.receive), (SEND, self.warps.send)] {
            for leg in of(which) {
                k.role(&*leg.name, warps(said)).copies(self.copies, |r| (leg.trace)(r));
            }
        }
        if let Some(own) = &self.own {
            k.role(own.name, warps(self.warps.both())).copies(self.copies, |r| (own.trace)(r, Share::ALL));
        }
    }

    fn warps_of(&self, said: Option<u32>, role_copies: u32) -> u32 {
        // Packets being polled for also occupy registers.
        let fewer = if self.combines || self.packets { FEWER } else { 1 };
        warps_of(self.on_gpu, said, role_copies * fewer)
    }

    /// Makes every leg a separate round. Receivers come first, as they do among roles.
    fn split(mut self) -> Self {
        let rounds = std::mem::take(&mut self.rounds);
        let (sends, receives): (Vec<_>, Vec<_>) = rounds.into_iter().map(|[send, receive]| (send, receive)).unzip();
        let legs = receives.into_iter().chain(sends).flatten();
        RoundsCode { rounds: legs.map(|leg| [Some(leg), None]).collect(), windows: false, ..self }
    }

    /// `sender`: the name of the role that runs the first leg of every round.
    fn in_blocks(self, k: &Block<'t>, sender: &str) {
        let (blocks, copies) = (self.blocks, self.copies);
        let sends = self.own.is_some() || self.rounds.iter().any(|round| round[SEND].is_some());
        let receives = self.rounds.iter().any(|round| round[RECEIVE].is_some());
        let roles = if self.packets { 1 } else { u32::from(sends) + u32::from(receives) };
        let warps = |said| self.warps_of(said, roles * copies);
        // A role that only signals must not take lanes from roles that copy.
        let signallers = u32::from(receives && self.windows && self.on_gpu);
        // Leaves no lanes idle in the blocks of the own chunk.
        let own = self.own.as_ref().map(|own| own.round(receives && signallers == 0 && !self.packets));
        let several = self.rounds.len() + usize::from(own.is_some()) > 1;
        let send_warps = match self.warps.send {
            None if signallers > 0 && sends => (if several { WRITERS } else { BLOCK_WARPS - signallers }) / copies,
            said => warps(said),
        };
        let recv_warps = if signallers > 0 { signallers } else { warps(self.warps.receive) };
        let both_warps = warps(self.warps.both());
        let rounds: Vec<[Option<LegCode<'b, 't>>; 2]> = own.into_iter().chain(self.rounds).collect();
        let rounds = &rounds;
        k.blocks((rounds.len() * blocks) as u32);
        let role = |name: &str, warps: u32, which: &[usize]| {
            let legs = |round: usize| which.iter().filter_map(move |&which| rounds[round][which].as_ref());
            let served: Vec<usize> = (0..rounds.len()).filter(|&round| legs(round).next().is_some()).collect();
            if served.is_empty() {
                return;
            }
            k.role(name, warps).copies(copies, |r| {
                if rounds.len() == 1 {
                    return legs(0).for_each(|leg| (leg.trace)(r));
                }
                let (number, part) = match blocks {
                    1 => (r.block(), r.as_block(0, 1)),
                    _ => (r.block() / blocks as i64, r.as_block(r.block() % blocks as i64, blocks)),
                };
                for round in served {
                    r.if_(number.eq(round as i64), || legs(round).for_each(|leg| (leg.trace)(&part)));
                }
            });
        };
        if self.packets {
            role("exchange", both_warps, &[SEND, RECEIVE]);
        } else {
            role("receive", recv_warps, &[RECEIVE]);
            role(sender, send_warps, &[SEND]);
        }
    }
}
