//! How the rounds of an exchange share a launch: each as a role in every block, or each with its own blocks.
//!
//! ```text
//!   Roles    block b:   receive from 3 | receive from 2 | send to 1 | send to 2 | … | own
//!   Blocks   block b:   receive | send         serve round b / blocks, as block b % blocks of it
//!   Legs     block b:   serves leg b / blocks, as block b % blocks of it
//! ```
//! Where some peers are far, legs to near and far peers have different numbers of blocks. A round then has legs of one
//! kind, and the grid is the sum of all rounds' blocks, so that no block is idle:
//!
//! ```text
//!   Blocks   blocks 0 … 15: own | 16 … 31: near peer | 32 … 35: far peer | 36 … 39: far peer
//! ```
//! The own chunk may also be handled by the first sending leg (`exchange_plan.rs`).

use crate::hook::{Block, RoleCtx};
use std::rc::Rc;

/// How the rounds of a collective share a launch. In round i, a rank sends to the rank i after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Each round is a separate role in every block. This needs few blocks, which suits the threads of a processor. If
    /// the world has more ranks than a block has roles for, with their copies, this acts as `Blocks`.
    Roles,
    /// Each round has its own blocks: a grid of rounds × blocks, which suits a GPU. With far peers, rounds have
    /// different numbers of blocks.
    Blocks,
    /// Each leg has its own blocks. Senders and receivers never share a block, and all lanes of a block do the same
    /// work.
    Legs,
}

/// Warps of role copies, if the user specified them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Warps {
    pub send: Option<u32>,
    pub receive: Option<u32>,
}

impl Warps {
    /// For a role that both sends and receives.
    pub(super) fn both(self) -> Option<u32> {
        self.send.or(self.receive)
    }

    fn are_open(self) -> bool {
        self.both().is_none()
    }
}

/// Warps of a role on the CPU, where they only describe what a GPU would use.
const WARPS: u32 = 4;
/// Warps and roles per block: the limit of a GPU's threads and barriers.
const BLOCK_WARPS: u32 = 32;
const BLOCK_ROLES: usize = 15;

/// Warps that write the windows of several ranks simultaneously, beside one that signals. With all 31 available they
/// get in each other's way (docs/decisions/0014).
const WRITERS: u32 = 27;

/// Factor by which blocks have fewer warps, and threads more registers, if a kernel holds more values than those it
/// moves.
pub(super) const FEWER: u32 = 2;

/// Warps of a block on a GPU that has roles for near and for far peers. Threads need more registers there, for posts
/// and for all the peers that one role may serve: with 32 warps each has 64, and ptxas spills; with 24 each has 80.
const MESH_WARPS: u32 = 24;
/// Those of them that serve far peers. A starting value, not measured yet: a network needs few warps.
const FAR_WARPS: u32 = 8;

/// Warps for each of `role_copies` role copies in a block. Unless the user specified them, the copies share all warps
/// of a block on a GPU.
pub(super) fn warps_of(on_gpu: bool, said: Option<u32>, role_copies: u32) -> u32 {
    share_of(BLOCK_WARPS, on_gpu, said, role_copies)
}

/// As [`warps_of`], for copies that share some warps of a block.
fn share_of(warps: u32, on_gpu: bool, said: Option<u32>, role_copies: u32) -> u32 {
    let share = (warps / role_copies.max(1)).max(1);
    said.unwrap_or(if on_gpu { share } else { share.min(WARPS) })
}

/// Traces code into a role.
pub(super) type Trace<'b, 't> = Box<dyn Fn(&RoleCtx<'t>) + 'b>;

/// The code of one leg.
pub(super) struct LegCode<'b, 't> {
    /// Name of its role, if it has a role to itself.
    pub name: String,
    /// Number of blocks that share it.
    pub blocks: usize,
    /// True if it connects this rank with a far one.
    pub is_far: bool,
    /// True if the first copy of the role does it alone.
    pub once: bool,
    pub trace: Trace<'b, 't>,
}

impl<'t> LegCode<'_, 't> {
    /// Traces it in a role of `blocks` blocks. If it has fewer, the others have nothing to do in it.
    fn run(&self, r: &RoleCtx<'t>, blocks: usize) {
        let [takes_part, is_first] =
            [(self.blocks < blocks).then(|| r.block().lt(self.blocks as i64)), self.once.then(|| r.copy().eq(0))];
        match takes_part.into_iter().chain(is_first).reduce(|a, b| a & b) {
            Some(has_work) => r.if_(has_work, || (self.trace)(r)),
            None => (self.trace)(r),
        }
    }
}

/// The code for the chunk that a rank passes to itself.
pub(super) struct OwnCode<'b, 't> {
    /// Name of its role, if it has a role to itself.
    pub name: &'static str,
    /// Number of blocks that share it.
    pub blocks: usize,
    /// True if several roles can share the work.
    pub is_shared: bool,
    pub trace: Rc<TraceShare<'b, 't>>,
}

/// Traces a share in a role.
type TraceShare<'b, 't> = dyn Fn(&RoleCtx<'t>, Share) + 'b;

impl<'b, 't: 'b> OwnCode<'b, 't> {
    fn leg(&self, share: Share) -> LegCode<'b, 't> {
        let trace = Rc::clone(&self.trace);
        let (name, blocks) = (self.name.to_string(), self.blocks);
        LegCode { name, blocks, is_far: false, once: false, trace: Box::new(move |r| trace(r, share)) }
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
    /// Number of blocks that share the work of one round: the most of any leg.
    pub blocks: usize,
    /// True if all legs use packets. A sender of packets waits for nothing that its peer does in this launch, so it may
    /// come first, and one role is cheaper to start than many.
    pub packets: bool,
    /// True if receivers only signal and wait, because the data lands directly in its final place.
    pub windows: bool,
    /// Copies of a role that take the steps of a leg in turn.
    pub copies: u32,
    /// Warps of roles that serve near peers, and of those that serve far peers only.
    pub warps: Warps,
    pub far_warps: Warps,
    /// True in a world of GPUs, or the rehearsal of one.
    pub for_gpu: bool,
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
            Rounds::Roles if one_role || legs * self.copies as usize <= BLOCK_ROLES => self.in_roles(k, legs, one_role),
            Rounds::Legs => self.split().in_blocks(k, "exchange"),
            _ => self.in_blocks(k, "send"),
        }
    }

    fn in_roles(self, k: &Block<'t>, legs: usize, one_role: bool) {
        let blocks = self.blocks;
        k.blocks(blocks as u32);
        let of = |which: usize| self.rounds.iter().filter_map(move |round| round[which].as_ref());
        if one_role {
            return k.role("exchange", self.warps_of(self.warps.both(), 1)).run(|r| {
                of(SEND).for_each(|leg| leg.run(r, blocks));
                self.own.iter().for_each(|own| own.leg(Share::ALL).run(r, blocks));
                of(RECEIVE).for_each(|leg| leg.run(r, blocks));
            });
        }
        // Receivers come first: if one thread runs all roles, the permission to send that they give (READY) must not
        // wait until this rank has finished sending. The own chunk comes last: it can always run, so it fills the time
        // while the others wait.
        let warps = |said| self.warps_of(said, legs as u32 * self.copies);
        for which in [RECEIVE, SEND] {
            for leg in of(which) {
                let said = if leg.is_far { self.far_warps } else { self.warps };
                let said = if which == SEND { said.send } else { said.receive };
                k.role(&*leg.name, warps(said)).copies(self.copies, |r| leg.run(r, blocks));
            }
        }
        if let Some(own) = &self.own {
            let leg = own.leg(Share::ALL);
            k.role(own.name, warps(self.warps.both())).copies(self.copies, |r| leg.run(r, blocks));
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
    fn in_blocks(mut self, k: &Block<'t>, sender: &str) {
        let rounds = self.take_rounds();
        // The first block of every round, and the number of all blocks.
        let mut firsts = vec![0];
        rounds.iter().for_each(|round| firsts.push(firsts[firsts.len() - 1] + round.blocks));
        k.blocks(firsts[rounds.len()] as u32);
        let blocks = rounds[0].blocks;
        let alike = rounds.iter().all(|round| round.blocks == blocks);
        for BlockRole { name, warps, copies, which, serves } in self.block_roles(&rounds, sender) {
            let run = |round: usize, r: &RoleCtx<'t>| {
                let legs = which.iter().filter_map(|&which| rounds[round].legs[which].as_ref());
                legs.for_each(|leg| leg.run(r, rounds[round].blocks));
            };
            k.role(name, warps).copies(copies, |r| {
                if rounds.len() == 1 {
                    return run(0, r);
                }
                if alike {
                    let (number, part) = match blocks {
                        1 => (r.block(), r.as_block(0, 1)),
                        _ => (r.block() / blocks as i64, r.as_block(r.block() % blocks as i64, blocks)),
                    };
                    for round in serves {
                        r.if_(number.eq(round as i64), || run(round, &part));
                    }
                    return;
                }
                for round in serves {
                    let (first, blocks) = (firsts[round] as i64, rounds[round].blocks);
                    match blocks {
                        1 => r.if_(r.block().eq(first), || run(round, &r.as_block(0, 1))),
                        _ => {
                            let number = r.block() - first;
                            let is_here = number.ge(0) & number.lt(blocks as i64);
                            r.if_(is_here, || run(round, &r.as_block(number, blocks)));
                        }
                    }
                }
            });
        }
    }

    /// The rounds of the launch, starting with the own chunk.
    fn take_rounds(&mut self) -> Vec<RoundCode<'b, 't>> {
        let rounds = std::mem::take(&mut self.rounds);
        let receives = rounds.iter().any(|round| round[RECEIVE].is_some());
        // Leaves no lanes idle in the blocks of the own chunk.
        let two_roles = receives && self.signallers(receives) == 0 && !self.packets;
        let own = self.own.take().map(|own| own.round(two_roles));
        let has_far = rounds.iter().flatten().flatten().any(|leg| leg.is_far);
        if !has_far {
            let round = |legs| RoundCode { legs, blocks: self.blocks, is_far: false };
            return own.into_iter().chain(rounds).map(round).collect();
        }
        let (sends, receives): (Vec<_>, Vec<_>) = rounds.into_iter().map(|[send, receive]| (send, receive)).unzip();
        let of_kind = |legs: Vec<Option<LegCode<'b, 't>>>| -> [Vec<_>; 2] {
            let (far, near) = legs.into_iter().flatten().partition(|leg| leg.is_far);
            [near, far]
        };
        let ([near_sends, far_sends], [near_receives, far_receives]) = (of_kind(sends), of_kind(receives));
        let pairs = |sends: Vec<_>, receives: Vec<_>| {
            let count = sends.len().max(receives.len());
            let (mut sends, mut receives) = (sends.into_iter(), receives.into_iter());
            (0..count).map(|_| [sends.next(), receives.next()]).collect::<Vec<_>>()
        };
        let near = own.into_iter().chain(pairs(near_sends, near_receives)).map(|legs| (legs, false));
        let far = pairs(far_sends, far_receives).into_iter().map(|legs| (legs, true));
        let round = |(legs, is_far): ([Option<LegCode<'b, 't>>; 2], bool)| {
            let blocks = legs.iter().flatten().map(|leg| leg.blocks).max().unwrap_or(1);
            RoundCode { legs, blocks, is_far }
        };
        near.chain(far).map(round).collect()
    }

    /// Warps of a role that only signals. It must not take lanes from roles that copy.
    fn signallers(&self, receives: bool) -> u32 {
        u32::from(receives && self.windows && self.on_gpu)
    }

    /// The roles of every block.
    fn block_roles(&self, rounds: &[RoundCode<'b, 't>], sender: &str) -> Vec<BlockRole> {
        let (copies, on_gpu) = (self.copies, self.on_gpu);
        let role = |name: &str, warps, copies, which: &'static [usize], is_far: Option<bool>| {
            let has_leg = |round: &RoundCode<'b, 't>| which.iter().any(|&which| round.legs[which].is_some());
            let is_served = |round: &RoundCode<'b, 't>| is_far.is_none_or(|far| far == round.is_far) && has_leg(round);
            let serves: Vec<usize> = (0..rounds.len()).filter(|&round| is_served(&rounds[round])).collect();
            (!serves.is_empty()).then(|| BlockRole { name: name.to_string(), warps, copies, which, serves })
        };
        if self.packets {
            let warps = self.warps_of(self.warps.both(), copies);
            return role("exchange", warps, copies, &[SEND, RECEIVE], None).into_iter().collect();
        }
        let has = |which: usize, is_far: Option<bool>| {
            let of = |round: &&RoundCode<'b, 't>| is_far.is_none_or(|far| far == round.is_far);
            rounds.iter().filter(of).any(|round| round.legs[which].is_some())
        };
        let roles_of = |is_far| u32::from(has(SEND, is_far)) + u32::from(has(RECEIVE, is_far));
        if !self.splits(rounds) {
            let warps = |said| self.warps_of(said, roles_of(None) * copies);
            let signallers = self.signallers(has(RECEIVE, None));
            let send_warps = match self.warps.send {
                None if signallers > 0 && has(SEND, None) => {
                    (if rounds.len() > 1 { WRITERS } else { BLOCK_WARPS - signallers }) / copies
                }
                said => warps(said),
            };
            let recv_warps = if signallers > 0 { signallers } else { warps(self.warps.receive) };
            let receive = role("receive", recv_warps, copies, &[RECEIVE], None);
            return receive.into_iter().chain(role(sender, send_warps, copies, &[SEND], None)).collect();
        }
        // Far legs wait for the network most of the time: they have one copy.
        let [near_roles, far_roles] = [false, true].map(|far| roles_of(Some(far)));
        let near_said = [self.warps.receive, self.warps.send];
        let near_taken: u32 = near_said.iter().flatten().map(|warps| warps * copies).sum();
        let left = FAR_WARPS.min(BLOCK_WARPS.saturating_sub(near_taken));
        let [far_receive, far_send] =
            [self.far_warps.receive, self.far_warps.send].map(|said| share_of(left, on_gpu, said, far_roles));
        let far_taken = u32::from(has(RECEIVE, Some(true))) * far_receive + u32::from(has(SEND, Some(true))) * far_send;
        let [near_receive, near_send] =
            near_said.map(|said| share_of(MESH_WARPS.saturating_sub(far_taken), on_gpu, said, near_roles * copies));
        [
            role("receive", near_receive, copies, &[RECEIVE], Some(false)),
            role(sender, near_send, copies, &[SEND], Some(false)),
            role("receive far", far_receive, 1, &[RECEIVE], Some(true)),
            role(&format!("{sender} far"), far_send, 1, &[SEND], Some(true)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// True if far legs have roles of their own: where near and far peers need different numbers of warps. On a CPU one
    /// thread runs all roles, so fewer are better.
    fn splits(&self, rounds: &[RoundCode<'b, 't>]) -> bool {
        let open = self.warps.are_open() && self.far_warps.are_open();
        let differ = open || self.warps != self.far_warps;
        self.for_gpu && differ && !self.windows && rounds.iter().any(|round| round.is_far)
    }
}

/// The code of a round, which has blocks of its own.
struct RoundCode<'b, 't> {
    legs: [Option<LegCode<'b, 't>>; 2],
    blocks: usize,
    /// True if its legs connect this rank with far ones.
    is_far: bool,
}

/// A role of every block, which serves one round in each.
struct BlockRole {
    name: String,
    warps: u32,
    copies: u32,
    /// The legs of a round that it runs.
    which: &'static [usize],
    /// The rounds that it serves.
    serves: Vec<usize>,
}
