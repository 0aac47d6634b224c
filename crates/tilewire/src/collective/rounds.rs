//! How the rounds of an exchange share a launch: as roles of every block, or with blocks of their own.
//!
//! ```text
//!   Roles    block b:   receive from 3 | receive from 2 | send to 1 | send to 2 | … | own
//!   Blocks   block b:   receive | send         serve round b / blocks, as block b % blocks of it
//! ```

use super::link::Link;
use crate::hook::{Block, RoleCtx};
use crate::transport::{LinkKind, Rank};

/// How the rounds of a collective share a launch. In round i a rank sends to the rank i after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Each is a role of its own in every block: few blocks, which is what threads of a processor want. In worlds of more ranks than a
    /// block has roles for, as `Blocks`.
    Roles,
    /// Each has blocks of its own: a grid of rounds × blocks, which is what a GPU wants.
    Blocks,
}

impl Rounds {
    /// What is usual for what lies between the ranks.
    pub(super) fn usual(link: &impl Link) -> Rounds {
        let memory = |rank| rank == link.rank() || link.link_kind(rank) == LinkKind::Shm;
        if Rank::all(link.world_size()).all(memory) { Rounds::Roles } else { Rounds::Blocks }
    }
}

/// Warps of a role, where there is room for them.
pub(super) const WARPS: u32 = 4;
/// Warps of a block, and roles: what a GPU has threads and barriers for.
const BLOCK_WARPS: u32 = 32;
const BLOCK_ROLES: usize = 15;

/// The code of one leg.
pub(super) struct LegCode<'b, 't> {
    /// Name of its role, where it has one to itself.
    pub name: String,
    pub trace: Box<dyn Fn(&RoleCtx<'t>) + 'b>,
}

/// The legs of a rank in a kernel being traced.
pub(super) struct RoundsCode<'b, 't> {
    pub own: Option<LegCode<'b, 't>>,
    /// What is sent and what is received, round by round.
    pub rounds: Vec<[Option<LegCode<'b, 't>>; 2]>,
    /// Blocks that share the work of one round.
    pub blocks: usize,
    /// Whether all legs go in packets. A sender of packets waits for nothing that this launch of its peer does, so it may come first, and
    /// one role costs less to start than many.
    pub packets: bool,
}

const SEND: usize = 0;
const RECEIVE: usize = 1;

impl<'t> RoundsCode<'_, 't> {
    /// Gives every leg its role.
    pub(super) fn trace(self, k: &Block<'t>, how: Rounds) {
        if self.own.is_none() && self.rounds.is_empty() {
            // In place in a world of one: all is where it must be.
            return k.role("nothing to do", WARPS).run(|_| {});
        }
        let legs = self.rounds.iter().flatten().chain([&self.own]).flatten().count();
        let one_role = self.packets && legs > 1;
        match how {
            Rounds::Roles if one_role || legs <= BLOCK_ROLES => self.in_roles(k, legs, one_role),
            _ => self.in_blocks(k),
        }
    }

    fn in_roles(self, k: &Block<'t>, legs: usize, one_role: bool) {
        k.blocks(self.blocks as u32);
        let of = |which: usize| self.rounds.iter().filter_map(move |round| round[which].as_ref());
        if one_role {
            return k.role("exchange", WARPS).run(|r| {
                of(SEND).chain(&self.own).chain(of(RECEIVE)).for_each(|leg| (leg.trace)(r));
            });
        }
        // Receivers first: what they permit (READY) must not wait until this rank has sent its own, where one thread runs all. The own
        // chunk last: it can always run, so it fills the time in which the others wait.
        for leg in of(RECEIVE).chain(of(SEND)).chain(&self.own) {
            k.role(&*leg.name, WARPS.min(BLOCK_WARPS / legs as u32)).run(|r| (leg.trace)(r));
        }
    }

    fn in_blocks(self, k: &Block<'t>) {
        let blocks = self.blocks;
        let own = self.own.map(|own| [Some(own), None]);
        let rounds: Vec<[Option<LegCode<'_, 't>>; 2]> = own.into_iter().chain(self.rounds).collect();
        let rounds = &rounds;
        k.blocks((rounds.len() * blocks) as u32);
        let role = |name: &str, which: &[usize]| {
            let legs = |round: usize| which.iter().filter_map(move |&which| rounds[round][which].as_ref());
            let served: Vec<usize> = (0..rounds.len()).filter(|&round| legs(round).next().is_some()).collect();
            if served.is_empty() {
                return;
            }
            k.role(name, WARPS).run(|r| {
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
            role("exchange", &[SEND, RECEIVE]);
        } else {
            role("receive", &[RECEIVE]);
            role("send", &[SEND]);
        }
    }
}
