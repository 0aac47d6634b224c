//! Addresses that advance by a constant from turn to turn of a loop: computed once before it, then added to.
//!
//! ```text
//!   index of an access    base + stride · i + step · ⌊i / group⌋         (the access analysis)
//!   when i advances by n  it advances by stride · n + step · n / group, if group divides n
//! ```

use super::batch::{Batch, Body};
use super::place::Address;
use super::role::RoleCode;
use super::text::Reg;
use crate::ir::access::{MemoryAccess, place};
use crate::ir::{Base, Inst, Op, Shape, Value};
use std::collections::HashMap;

/// Most vectors of a lane in a turn. An instruction adds less than 2³¹ bytes to an address.
const MOST_VECTORS: i64 = 16;

/// Addresses of a body's accesses in this turn, and values that are the same in all turns.
#[derive(Clone, Default)]
pub(super) struct Moving {
    places: HashMap<Inst, Place>,
    /// For the elements of a batch: true if the element is the first of its group.
    pub leaders: HashMap<Value, Vec<Reg>>,
}

#[derive(Clone, Copy)]
struct Place {
    /// Address of the first vector.
    first: Address,
    /// Bytes from vector to vector, if constant.
    vector: Option<i64>,
    /// Bytes from turn to turn.
    turn: i64,
}

impl Moving {
    /// The address of a vector.
    pub fn of(&self, inst: Inst, vector: usize) -> Option<Address> {
        let place = self.places.get(&inst)?;
        if vector == 0 { Some(place.first) } else { Some(place.first.plus(vector as i64 * place.vector?)) }
    }

    /// The same, starting at that vector.
    pub fn from(&self, vector: usize) -> Moving {
        let place = |(&inst, place): (&Inst, &Place)| Some((inst, Place { first: self.of(inst, vector)?, ..*place }));
        Moving { places: self.places.iter().filter_map(place).collect(), leaders: HashMap::new() }
    }
}

impl RoleCode<'_> {
    /// The advancing addresses of a body: `vector` elements from one vector to the next, `turn` from turn to turn. The
    /// batch has the indices of the first turn.
    pub fn moving(&mut self, body: &Body<'_>, batch: &mut Batch, vector: u64, turn: u64) -> Moving {
        let mut moving = Moving::default();
        for access in &body.accesses {
            let op = &self.kernel.insts[access.inst].op;
            let Some(at) = place(op).filter(|at| matches!(at.base, Base::Param(_))) else { continue };
            let (unit, mask) = match op {
                Op::Load { .. } => (self.kernel.base_type(at.base).map_or(1, |ty| ty.size()), None),
                Op::Store { x, mask, .. } => (self.kernel.ty(*x).size(), *mask),
                Op::Get { .. } => (1, None),
                Op::Put { mask, .. } => (1, *mask),
                _ => continue,
            };
            let bytes = |by: i64| by.wrapping_mul(unit as i64);
            if let Some(turn) = moved(access, turn).map(bytes)
                && self.is_known(batch, at.index)
            {
                let index = self.of(batch, at.index, 0);
                let first = self.address(at, index, unit as u32);
                let vector = moved(access, vector).map(bytes);
                let vector = vector.filter(|by| by.saturating_mul(MOST_VECTORS).unsigned_abs() < 1 << 31);
                moving.places.insert(access.inst, Place { first, vector, turn });
            }
            let Some(mask) = mask else { continue };
            if body.analysis.group_leader(mask).is_some_and(|size| turn.is_multiple_of(u64::from(size))) {
                let defines = |inst: &&Inst| self.kernel.insts[**inst].result == Some(mask);
                if let Some(&inst) = body.insts.iter().find(defines)
                    && self.kernel.insts[inst].op.operands().into_iter().all(|v| self.is_known(batch, v))
                {
                    self.batch_op(body, batch, inst);
                    moving.leaders.extend(batch.lanes.get(&mask).map(|leaders| (mask, leaders.clone())));
                }
            }
        }
        moving
    }

    /// True if a value is computed already. Values that a body computes from its indices through other types are not.
    fn is_known(&self, batch: &Batch, v: Value) -> bool {
        self.kernel.shape(v) == Shape::Uniform || batch.lanes.contains_key(&v)
    }

    /// Advances to the next turn.
    pub fn next_turn(&mut self, moving: &Moving) {
        let mut places: Vec<_> = moving.places.iter().collect();
        places.sort_by_key(|(inst, _)| **inst);
        for (_, place) in places.into_iter().filter(|(_, place)| place.turn != 0) {
            self.move_on(place.first.reg, place.turn);
        }
    }
}

/// How far an index advances when the innermost index of the `each` advances by `n`, if constant.
fn moved(access: &MemoryAccess, n: u64) -> Option<i64> {
    let (index, n) = (access.index.as_ref()?, n as i64);
    let along = index.innermost().as_const()?.wrapping_mul(n);
    match &index.group {
        None => Some(along),
        Some((size, step)) if n % i64::from(*size) == 0 => {
            Some(along.wrapping_add(step.as_const()?.wrapping_mul(n / i64::from(*size))))
        }
        Some(_) => None,
    }
}
