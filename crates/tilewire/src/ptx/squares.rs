//! Transposes of 16-bit elements in squares of 64 × 64: whole lines of memory are read and written.
//!
//! Four warps share a square, and in each turn the warps of a role copy work on neighbouring squares. Asynchronous
//! copies bring the squares and hold no registers. So those of later turns are in flight while the body runs, as far as
//! shared memory allows:
//!
//! ```text
//!   memory                               shared memory                            the body
//!   eight lanes copy the 64 rows of a    a line of 128 bytes for every column:    eight lanes have the 64
//!   column, 16 bytes each: lane near ──▶ rows 8 r .. 8 r + 8 of column c are ───▶ columns of a row: a lane
//!   has rows 8 near .. 8 near + 8        its 16 bytes number r xor (c / 8)        has 8 of them, for 4 rows
//! ```
//! Eight neighbouring lanes touch all banks once, on the way in (one c, all r) and out (one r, all c / 8).
//!
//! ```text
//!   turn       i - 2   i - 1     i   i + 1       copies of turn i replace those of turn i - stages: the barrier orders
//!   copies      ├───────────────────┤            everybody's reads before them, and all lanes' landed copies before
//!   the body
//!   body                        ├───────┤
//! ```

use super::batch::Body;
use super::each::{Position, is_long};
use super::place::Address;
use super::role::RoleCode;
use super::text::{Label, Reg};
use super::transposed::Transposed;
use crate::ir::Inst;

/// Rows and columns of a square.
const SIDE: u32 = 64;
/// Elements in 16 bytes: rows per copy, columns per store.
pub(super) const VECTOR: u32 = 8;
/// Columns that a lane copies, and rows that it runs the body for.
const ROWS: u32 = 4;
/// Bytes of a column in shared memory, and of a square.
const LINE: u32 = 128;
const BYTES: u32 = SIDE * LINE;
/// Warps that share a square.
const WARPS: u32 = 4;
/// Turns whose copies are in flight or being read.
const MOST_STAGES: u32 = 3;
/// Estimated instructions per element: a longer body is better in a loop than unrolled for all rows of a lane.
const MOST_WEIGHT: u32 = 32;
/// The number of a square that does not exist.
const NO_SQUARE: u32 = 1 << 30;

/// How the squares of a body are distributed.
pub(super) struct Squares {
    extents: [u64; 2],
    /// The number of squares: in all, in a column of them, and in a turn.
    total: u32,
    down: u32,
    count: u32,
    /// Turns that shared memory has room for.
    stages: u32,
    /// Rows of a lane that the body processes together.
    rows: u32,
}

impl RoleCode<'_> {
    /// How `loads` loads of a body go through squares, with `room` bytes for all warps of the block; `None` if they
    /// should not.
    pub fn squares(&self, body: &Body<'_>, extents: [u64; 2], loads: usize, room: u32) -> Option<Squares> {
        let warps: u32 = self.kernel.roles.values().map(|role| role.warps * role.copies).sum();
        let stages = (room / (warps * BYTES / WARPS * loads as u32)).min(MOST_STAGES);
        let mine = self.lanes / 32;
        let busy = mine / WARPS * WARPS;
        let weight = body.weight;
        let rows = match weight {
            // Elements that are only moved stay packed.
            0..=2 => ROWS,
            _ if is_long(weight) => 1,
            _ => 2,
        };
        let [down, across] = extents.map(|extent| extent.div_ceil(u64::from(SIDE)));
        let total = u32::try_from(down.checked_mul(across)?).ok().filter(|&total| total < NO_SQUARE / 2)?;
        let fits = stages >= 1 && 4 * busy >= 3 * mine && weight <= MOST_WEIGHT;
        fits.then_some(Squares { extents, total, down: down.max(1) as u32, count: mine / WARPS, stages, rows })
    }

    /// The body, square by square.
    pub fn each_squares(
        &mut self,
        each: Inst,
        body: &mut Body<'_>,
        (transposed, squares): (&Transposed, &Squares),
        end: Label,
    ) {
        body.set_width(self.kernel, VECTOR as usize);
        let &Squares { total, count, stages, .. } = squares;
        let area = count * BYTES;
        let stage = area * transposed.loads.len() as u32;
        self.exchange_bytes = self.exchange_bytes.max(stages * stage);

        let lane = self.t.r("and.b32", &[&self.fixed.lane, &31]);
        let warp = self.t.r("shr.u32", &[&self.fixed.lane, &5]);
        let square = self.t.r("shr.u32", &[&warp, &WARPS.trailing_zeros()]);
        let quarter = self.t.r("and.b32", &[&warp, &(WARPS - 1)]);
        let low = self.t.r("and.b32", &[&lane, &7]);
        let near = self.t.r("mul.lo.u32", &[&low, &VECTOR]);
        let high = self.t.r("shr.u32", &[&lane, &3]);
        let far = self.t.r("mul.lo.u32", &[&quarter, &(SIDE / WARPS)]);
        let far = self.t.r("mad.lo.u32", &[&high, &ROWS, &far]);
        let part = self.t.r("shr.u32", &[&far, &VECTOR.trailing_zeros()]);
        let part = self.t.r("xor.b32", &[&part, &low]);
        let start = self.t.r("add.u32", &[&self.fixed.frame, &self.exchange]);
        let start = self.t.r("mad.lo.u32", &[&square, &BYTES, &start]);
        let start = self.t.r("mad.lo.u32", &[&part, &16, &start]);
        // Destination of its 16 bytes of the first column, and source of its first row.
        let to = self.t.r("mad.lo.u32", &[&far, &LINE, &start]);
        let from = self.t.r("mad.lo.u32", &[&near, &LINE, &start]);
        let upper = self.t.r("and.b32", &[&high, &1]);
        let from = self.t.r("mad.lo.u32", &[&upper, &(ROWS * 2), &from]);

        let number = match self.lanes / 32 == count * WARPS {
            true => self.t.copy(square),
            // Leftover warps, too few for a square, get none.
            false => {
                let busy = self.t.p("setp.lt.u32", &[&square, &count]);
                self.t.r("selp.b32", &[&square, &NO_SQUARE, &busy])
            }
        };
        let [near, far] = [near, far].map(|x| self.t.d("cvt.u64.u32", &[&x]));
        let (first, slot) = (self.t.r_const(0), self.t.r_const(0));

        let (again, read, ran, done) = (self.t.label(), self.t.label(), self.t.label(), self.t.label());
        self.t.at(again);
        let behind = (stages - 1) * count;
        let more = self.t.p("setp.lt.u32", &[&first, &(total + behind)]);
        self.t.jump_unless(more, done);
        if stages > 1 {
            self.t.line(format_args!("cp.async.wait_group {};", stages - 2));
        }
        self.barrier();
        let to = self.t.r("add.u32", &[&to, &slot]);
        let place = self.place_in(squares, number, [near, far], read);
        self.read_columns(each, body, transposed, place, (to, area), end);
        self.t.at(read);
        self.t.line("cp.async.commit_group;");
        if stages == 1 {
            self.t.line("cp.async.wait_group 0;");
            self.barrier();
        }
        // The next slot for copies is the one with the oldest copies.
        self.t.op("add.u32", slot, &[&slot, &stage]);
        let last = self.t.p("setp.eq.u32", &[&slot, &(stages * stage)]);
        self.t.op("selp.b32", slot, &[&0, &slot, &last]);
        // Before the first turn that is ready, a number that does not exist.
        let older = self.t.r("sub.u32", &[&number, &behind]);
        let from = self.t.r("add.u32", &[&from, &slot]);
        let place = self.place_in(squares, older, [far, near], ran);
        self.run_rows(each, body, (transposed, squares), place, (from, area), end);
        self.t.at(ran);
        self.t.op("add.u32", first, &[&first, &count]);
        self.t.op("add.u32", number, &[&number, &count]);
        self.t.jump(again);
        self.t.at(done);
    }

    /// Row and column of a place in a square; jumps to `none` if it is out of range.
    fn place_in(&mut self, squares: &Squares, number: Reg, at: [Reg; 2], none: Label) -> (Reg, Reg) {
        let inside = self.t.p("setp.lt.u32", &[&number, &squares.total]);
        self.t.branch_unless(inside, none);
        // Squares are numbered down the columns, so that a turn reads contiguous memory.
        let down = squares.down;
        let numbers = match down.is_power_of_two() {
            true => [("and.b32", down - 1), ("shr.u32", down.trailing_zeros())],
            false => [("rem.u32", down), ("div.u32", down)],
        };
        let mut axis = |k: usize| {
            let (op, by) = numbers[k];
            let square = self.t.r(op, &[&number, &by]);
            let square = self.t.d("cvt.u64.u32", &[&square]);
            let at = self.t.d("mad.lo.s64", &[&square, &SIDE, &at[k]]);
            if !squares.extents[k].is_multiple_of(u64::from(SIDE)) {
                let inside = self.t.p("setp.lt.s64", &[&at, &squares.extents[k]]);
                self.t.branch_unless(inside, none);
            }
            at
        };
        (axis(0), axis(1))
    }

    /// Memory → shared memory: eight rows of some columns.
    fn read_columns(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        transposed: &Transposed,
        place: (Reg, Reg),
        (to, area): (Reg, u32),
        end: Label,
    ) {
        let batch = self.places(each, body, &transposed.slice, place, end);
        for (number, load) in transposed.loads.iter().enumerate() {
            let index = self.of(&batch, load.at.index, 0);
            let from = self.address(&load.at, index, load.unit);
            let step = load.step.expect("squares are of loads that move by a constant");
            for k in 0..ROWS {
                let to = Address::shared(to).plus(i64::from(number as u32 * area + k * LINE)).place();
                let from = from.plus(i64::from(k) * step).place();
                self.t.line(format_args!("cp.async.cg.shared.global {to}, {from}, 16;"));
            }
        }
    }

    /// The body, for eight columns of some rows.
    fn run_rows(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        (transposed, squares): (&Transposed, &Squares),
        (row, col): (Reg, Reg),
        (from, area): (Reg, u32),
        end: Label,
    ) {
        // From every load, two words of each column: four rows.
        let words: Vec<Vec<[Reg; 2]>> = (0..transposed.loads.len() as u32)
            .map(|number| {
                let columns = (0..VECTOR).map(|k| {
                    let [a, b] = [self.t.new_r(), self.t.new_r()];
                    let from = Address::shared(from).plus(i64::from(number * area + k * LINE)).place();
                    self.t.line(format_args!("ld.shared.v2.b32 {{{a}, {b}}}, {from};"));
                    [a, b]
                });
                columns.collect()
            })
            .collect();
        let pointers = self.store_pointers(each, body, transposed, (row, col), end);
        for first in (0..ROWS).step_by(squares.rows as usize) {
            let rows = first..first + squares.rows;
            let positions: Vec<Position> = rows
                .clone()
                .map(|k| Position { row: Some(self.t.d("add.s64", &[&row, &k])), col, guard: None })
                .collect();
            let mut batch = self.batch(each, &positions, VECTOR as usize, end);
            for (load, words) in transposed.loads.iter().zip(&words) {
                let Some(result) = self.kernel.insts[load.inst].result else { continue };
                let rows = rows.clone().flat_map(|row| self.row_words(words, row)).collect();
                batch.words.insert(result, rows);
            }
            let guards = vec![None; squares.rows as usize];
            self.run_batch(body, transposed, &mut batch, &pointers, (first, &guards));
        }
    }

    /// Eight columns of one row, from the words of each column.
    fn row_words(&mut self, columns: &[[Reg; 2]], row: u32) -> Vec<Reg> {
        let halves = if row.is_multiple_of(2) { "0x5410" } else { "0x7632" };
        let word = row as usize / 2;
        columns.chunks(2).map(|pair| self.t.r("prmt.b32", &[&pair[0][word], &pair[1][word], &halves])).collect()
    }
}
