//! Bulk copies: their own order of events between `BulkCopy` and the `BulkWait` that covers it.

use super::{BulkTiming, Instance};
use crate::check::error::EvalError;
use crate::check::memory::{MemoryId, World};
use crate::check::observer::{AccessKind, Observer};
use crate::ir::{BulkDone, Inst, Place};
use std::collections::VecDeque;
use std::ops::Range;

/// The copies of a role copy that are not complete, oldest first.
#[derive(Default)]
pub(super) struct BulkQueue {
    started: u64,
    open: VecDeque<BulkJob>,
}

impl BulkQueue {
    /// Number of copies started.
    pub fn started(&self) -> u64 {
        self.started
    }
}

struct BulkJob {
    number: u64,
    inst: Inst,
    from: (MemoryId, Range<u64>),
    to: (MemoryId, Range<u64>),
    /// The bytes, once they have been read.
    data: Option<Vec<u8>>,
}

impl Instance<'_> {
    pub(super) fn bulk_copy(
        &mut self,
        inst: Inst,
        dst: &Place,
        src: &Place,
        count: i64,
        world: &mut World,
        observer: &mut dyn Observer,
    ) -> Result<(), EvalError> {
        let number = self.bulk.started;
        self.bulk.started += 1;
        observer.bulk_copy(self.who, inst, number);
        if count == 0 {
            return Ok(());
        }
        let Ok(elements) = u64::try_from(count) else {
            let what = "the count of a bulk copy".to_string();
            return Err(EvalError::OutOfBounds { what, index: count, len: 0, by: self.location(inst) });
        };
        let size = self.kernel.base_type(dst.base).map_or(1, |ty| ty.size() as u64);
        let bytes = elements.saturating_mul(size);
        let to = self.span(inst, dst, None, size, bytes)?;
        let from = self.span(inst, src, None, size, bytes)?;
        if from.0 == to.0 && from.1.start < to.1.end && to.1.start < from.1.end {
            return Err(EvalError::CopyOverlaps { what: self.base_name(dst.base), by: self.location(inst) });
        }
        self.bulk.open.push_back(BulkJob { number, inst, from, to, data: None });
        if self.options.bulk == BulkTiming::AtOnce {
            self.bulk_advance(self.bulk.started, BulkDone::Complete, world, observer);
        }
        Ok(())
    }

    pub(super) fn bulk_wait(
        &mut self,
        inst: Inst,
        pending: u32,
        done: BulkDone,
        world: &mut World,
        observer: &mut dyn Observer,
    ) {
        let covered = self.bulk.started.saturating_sub(u64::from(pending));
        self.bulk_advance(covered, done, world, observer);
        observer.bulk_wait(self.who, inst, covered, done);
    }

    /// The body has finished: copies still in flight arrive.
    pub(super) fn bulk_finish(&mut self, world: &mut World, observer: &mut dyn Observer) {
        self.bulk_advance(self.bulk.started, BulkDone::Complete, world, observer);
    }

    /// Advances the copies before number `covered` to `done`.
    fn bulk_advance(&mut self, covered: u64, done: BulkDone, world: &mut World, observer: &mut dyn Observer) {
        let mut open = std::mem::take(&mut self.bulk.open);
        for job in open.iter_mut().filter(|job| job.number < covered && job.data.is_none()) {
            let (memory, bytes) = job.from.clone();
            self.touch(job.inst, None, AccessKind::BulkRead, memory, bytes.clone(), observer);
            job.data = Some(world.memories.bytes(memory)[bytes.start as usize..bytes.end as usize].to_vec());
        }
        if done == BulkDone::Complete {
            while open.front().is_some_and(|job| job.number < covered) {
                let job = open.pop_front().expect("looked at above");
                let (memory, bytes) = job.to;
                self.touch(job.inst, None, AccessKind::BulkWrite, memory, bytes.clone(), observer);
                let data = job.data.expect("read above");
                world.memories.bytes_mut(memory)[bytes.start as usize..bytes.end as usize].copy_from_slice(&data);
            }
        }
        self.bulk.open = open;
    }
}
