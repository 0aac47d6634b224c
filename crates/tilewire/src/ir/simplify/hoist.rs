//! Loop-invariant code motion: the region of a pure op.

use super::super::op::Op;
use super::super::types::Shape;
use super::rewrite::Rewriter;

impl Rewriter<'_> {
    /// The outermost open region where a pure op can stand, without entering a loop that none of its operands needs.
    ///
    /// Pure ops are total (division by zero and the like are defined). So it is exact to run one that a loop without
    /// turns or an untaken branch would have skipped. If there is no loop to leave, an op stays in its branch, since it
    /// costs nothing when the branch is not taken. Lane values exist only in their `each`, so ops on them stay there. A
    /// group reduction is a lane value whatever its operand.
    pub(super) fn level(&self, op: &Op) -> usize {
        let here = self.levels.len() - 1;
        match op {
            Op::Group { .. } => return here,
            // Constants of the whole launch stand at the top, where every later use can share them.
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
