//! Loop-invariant motion: where a pure op stands.

use super::super::op::Op;
use super::super::types::Shape;
use super::rewrite::Rewriter;

impl Rewriter<'_> {
    /// The outermost open region, not inside a loop that none of the operands needs, where a pure op can stand.
    ///
    /// Pure ops are total (division by zero and the like are defined), so running one that a loop of no turns or an
    /// untaken branch would have skipped is exact. Without a loop to leave, an op stays in its branch: it costs nothing
    /// when the branch is not taken. Lane values exist only in their `each`, so ops on them stay by themselves; a group
    /// reduction is a lane value whatever its operand.
    pub(super) fn level(&self, op: &Op) -> usize {
        let here = self.levels.len() - 1;
        match op {
            Op::Group { .. } => return here,
            // Numbers of the whole launch stand at the top, where every later use can share them.
            Op::Const(_) | Op::Special(_) | Op::Scalar(_) => return 0,
            _ => {}
        }
        let mut deepest = 0;
        op.for_each_operand(|v| {
            debug_assert!(self.kernel.shape(v) == Shape::Uniform || self.levels[here].each);
            deepest = deepest.max(self.depth(v));
        });
        match (deepest + 1..=here).find(|&level| self.levels[level].repeats) {
            Some(inner) => inner - 1,
            None => here,
        }
    }
}
