//! Bulk copies between scratch and memory: asynchronous if the target has them and addresses and size are multiples of
//! 16 bytes, otherwise by the lanes.
//!
//! ```text
//!   to memory      leader: cp.async.bulk, commit_group            BulkWait: leader waits for its groups
//!   to scratch     leader: expect bytes on an mbarrier, then      BulkWait: all lanes wait for the oldest mbarriers
//!                  cp.async.bulk, which completes them
//! ```
//! The copies of a role copy are counted: copy n to scratch uses mbarrier n mod [`MBARRIERS`], in phase n /
//! [`MBARRIERS`]. Copies by the lanes count as well, as an empty group or as an arrival without bytes, so that a
//! `BulkWait` always counts from the latest. It ends with a barrier, which makes the lanes' copies visible to all of
//! them. A `ProxyFence` is the fence by every lane, and a barrier. No lane exits the role while a copy is in flight:
//! the copy would touch shared memory that belongs to another block by then.

use super::place::Address;
use super::role::RoleCode;
use super::text::Reg;
use crate::ir::{Base, BulkDone, Inst, Kernel, Op, Place, Region, Value};

/// Most copies to scratch in flight.
const MBARRIERS: u32 = 16;
/// Bytes of an mbarrier, and of all of a role copy.
const MBARRIER: u32 = 8;
pub(super) const MBARRIER_BYTES: u32 = MBARRIERS * MBARRIER;

/// A role copy's state for its bulk copies.
#[derive(Clone, Copy)]
pub(super) struct BulkState {
    /// True if there are copies to memory, and to scratch.
    puts: bool,
    gets: bool,
    /// Copies to scratch so far, and those that were waited for.
    issued: Reg,
    waited: Reg,
    /// Frame offset of the mbarriers.
    mbarriers: u32,
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToMemory,
    ToScratch,
    /// Done by the lanes.
    Other,
}

fn way(dst: &Place, src: &Place) -> Way {
    match (dst.base, src.base) {
        (Base::Param(_), Base::Scratch(_)) => Way::ToMemory,
        (Base::Scratch(_), Base::Param(_)) => Way::ToScratch,
        _ => Way::Other,
    }
}

/// The directions of a region's copies: to memory, to scratch.
pub(super) fn ways(kernel: &Kernel, region: Region) -> [bool; 2] {
    let mut found = [false; 2];
    kernel.walk(region, &mut |inst: Inst| {
        if let Op::BulkCopy { dst, src, .. } = &kernel.insts[inst].op {
            match way(dst, src) {
                Way::ToMemory => found[0] = true,
                Way::ToScratch => found[1] = true,
                Way::Other => {}
            }
        }
    });
    found
}

impl RoleCode<'_> {
    /// Initialises the mbarriers; comes before everything else in the role.
    pub fn begin_bulk(&mut self, [puts, gets]: [bool; 2], mbarriers: u32) {
        let (issued, waited) = (self.t.r_const(0), self.t.r_const(0));
        self.bulk = Some(BulkState { puts, gets, issued, waited, mbarriers });
        if gets {
            let leader = self.fixed.leader;
            for k in 0..MBARRIERS {
                let frame = self.fixed.frame;
                let offset = mbarriers + k * MBARRIER;
                self.t.line(format_args!("@{leader} mbarrier.init.shared::cta.b64 [{frame}+{offset}], 1;"));
            }
            self.t.line(format_args!("@{leader} fence.mbarrier_init.release.cluster;"));
            self.barrier();
        }
    }

    /// Waits for all copies at the end of the role.
    pub fn end_bulk(&mut self) {
        if let Some(bulk) = self.bulk {
            self.land_bulk(bulk, 0, BulkDone::Complete);
        }
    }

    pub fn proxy_fence(&mut self) {
        if self.bulk.is_some() {
            self.t.line("fence.proxy.async;");
        }
        self.barrier();
    }

    pub fn bulk_wait(&mut self, pending: u32, done: BulkDone) {
        if let Some(bulk) = self.bulk {
            // If copies go both ways, the latest ones of each direction are not counted.
            self.land_bulk(bulk, if bulk.puts && bulk.gets { 0 } else { pending }, done);
        }
        self.barrier();
    }

    /// Waits until at most `pending` copies of each direction are in flight.
    fn land_bulk(&mut self, bulk: BulkState, pending: u32, done: BulkDone) {
        if bulk.puts {
            let read = if done == BulkDone::Read { ".read" } else { "" };
            let leader = self.fixed.leader;
            self.t.line(format_args!("@{leader} cp.async.bulk.wait_group{read} {pending};"));
        }
        if bulk.gets {
            self.land_gets(bulk, pending);
        }
    }

    fn land_gets(&mut self, bulk: BulkState, pending: u32) {
        let (again, look, done) = (self.t.label(), self.t.label(), self.t.label());
        self.t.at(again);
        let under_way = self.t.r("sub.u32", &[&bulk.issued, &bulk.waited]);
        let enough = self.t.p("setp.le.u32", &[&under_way, &pending]);
        self.t.jump_if(enough, done);
        let mbarrier = self.mbarrier(bulk, bulk.waited);
        let phase = self.t.r("shr.u32", &[&bulk.waited, &MBARRIERS.trailing_zeros()]);
        let parity = self.t.r("and.b32", &[&phase, &1]);
        self.t.at(look);
        let complete = self.t.p("mbarrier.try_wait.parity.shared::cta.b64", &[&format_args!("[{mbarrier}]"), &parity]);
        self.t.branch_unless(complete, look);
        self.t.op("add.u32", bulk.waited, &[&bulk.waited, &1]);
        self.t.jump(again);
        self.t.at(done);
    }

    /// Waits for the oldest copy if all mbarriers are taken. All lanes do it together: a phase must not end twice
    /// before every lane has polled it.
    fn make_room(&mut self, bulk: BulkState) {
        // Lanes usually jump over this barrier, so it must not count as a synchronisation.
        let before = (self.unsynced, self.reading);
        let room = self.t.label();
        let under_way = self.t.r("sub.u32", &[&bulk.issued, &bulk.waited]);
        let free = self.t.p("setp.lt.u32", &[&under_way, &MBARRIERS]);
        self.t.jump_if(free, room);
        self.land_gets(bulk, MBARRIERS - 1);
        self.barrier();
        self.t.at(room);
        (self.unsynced, self.reading) = before;
    }

    fn mbarrier(&mut self, bulk: BulkState, number: Reg) -> Reg {
        let number = self.t.r("and.b32", &[&number, &(MBARRIERS - 1)]);
        let first = self.t.r("add.u32", &[&self.fixed.frame, &bulk.mbarriers]);
        self.t.r("mad.lo.u32", &[&number, &MBARRIER, &first])
    }

    pub fn bulk_copy(&mut self, dst: &Place, src: &Place, count: Value) {
        let size = self.kernel.base_type(dst.base).map_or(1, |ty| ty.size() as u32);
        let [(to, to_index), (from, from_index)] = [dst, src].map(|place| (place, self.value(place.index)));
        let (to, from) = (self.address(to, to_index, size), self.address(from, from_index, size));
        let count = self.value(count);
        let bytes = self.t.d("mul.lo.s64", &[&count, &size]);
        let (way, bulk) = (way(dst, src), self.bulk);
        if let (Way::ToScratch, Some(bulk)) = (way, bulk) {
            self.make_room(bulk);
        }

        let mut bits = bytes;
        for place in [to, from] {
            let wide = match place.reg {
                Reg::D(_) => place.reg,
                _ => self.t.d("cvt.u64.u32", &[&place.reg]),
            };
            bits = self.t.d("or.b64", &[&bits, &wide]);
        }
        let low = self.t.d("and.b64", &[&bits, &15]);
        let (odd, slow, done) = (self.t.p("setp.ne.u64", &[&low, &0]), self.t.label(), self.t.label());
        self.t.jump_if(odd, slow);
        match (way, bulk) {
            (Way::ToMemory | Way::ToScratch, Some(bulk)) => {
                let nothing = self.t.p("setp.eq.s64", &[&bytes, &0]);
                self.t.jump_if(nothing, slow);
                self.start_copy(bulk, way, to, from, bytes);
            }
            _ => self.copy_loop(to, from, bytes, 16),
        }
        self.t.jump(done);
        self.t.at(slow);
        self.copy_loop(to, from, bytes, size);
        let leader = self.fixed.leader;
        match (way, bulk) {
            (Way::ToMemory, Some(_)) => self.t.line(format_args!("@{leader} cp.async.bulk.commit_group;")),
            (Way::ToScratch, Some(bulk)) => {
                let (mbarrier, state) = (self.mbarrier(bulk, bulk.issued), self.t.new_d());
                self.t.line(format_args!("@{leader} mbarrier.arrive.shared::cta.b64 {state}, [{mbarrier}];"));
            }
            _ => {}
        }
        self.t.at(done);
        if let (Way::ToScratch, Some(bulk)) = (way, bulk) {
            self.t.op("add.u32", bulk.issued, &[&bulk.issued, &1]);
        }
    }

    /// One copy, by the leader.
    fn start_copy(&mut self, bulk: BulkState, way: Way, to: Address, from: Address, bytes: Reg) {
        let (leader, size) = (self.fixed.leader, self.t.r("cvt.u32.u64", &[&bytes]));
        let (to, from) = (to.reg, from.reg);
        if way == Way::ToMemory {
            self.t
                .line(format_args!("@{leader} cp.async.bulk.global.shared::cta.bulk_group [{to}], [{from}], {size};"));
            return self.t.line(format_args!("@{leader} cp.async.bulk.commit_group;"));
        }
        let (mbarrier, state) = (self.mbarrier(bulk, bulk.issued), self.t.new_d());
        self.t.line(format_args!("@{leader} mbarrier.arrive.expect_tx.shared::cta.b64 {state}, [{mbarrier}], {size};"));
        self.t.line(format_args!(
            "@{leader} cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {size}, [{mbarrier}];"
        ));
    }

    fn copy_loop(&mut self, to: Address, from: Address, bytes: Reg, unit: u32) {
        let (again, done) = (self.t.label(), self.t.label());
        let at = self.t.d("mul.lo.s64", &[&self.fixed.wide_lane, &unit]);
        let place = |code: &mut Self, base: Address| match base.reg {
            Reg::D(_) => code.t.d("add.s64", &[&base.reg, &at]),
            _ => {
                let at = code.t.r("cvt.u32.u64", &[&at]);
                code.t.r("add.u32", &[&base.reg, &at])
            }
        };
        self.t.at(again);
        let inside = self.t.p("setp.lt.s64", &[&at, &bytes]);
        self.t.branch_unless(inside, done);
        let (source, target) = (place(self, from), place(self, to));
        let (kind, data) = match unit {
            16 => {
                let data = [0; 4].map(|_| self.t.new_r().to_string()).join(", ");
                ("v4.b32".to_string(), format!("{{{data}}}"))
            }
            8 => ("b64".to_string(), self.t.new_d().to_string()),
            _ => (format!("b{}", unit * 8), self.t.new_r().to_string()),
        };
        self.t.line(format_args!("ld.{}.{kind} {data}, [{source}];", from.space()));
        self.t.line(format_args!("st.{}.{kind} [{target}], {data};", to.space()));
        self.t.op("add.s64", at, &[&at, &(u64::from(self.lanes) * u64::from(unit))]);
        self.t.line(format_args!("bra {again};"));
        self.t.at(done);
    }
}
