//! Conditions that must hold when the kernel runs.

use super::role::RoleCtx;
use super::value::{IntoIndex, IntoValue, Known, Value};
use crate::ir::{Op, RequiredSpan, SourceLine, Type};

impl<'t> RoleCtx<'t> {
    /// Ends the launch on all ranks unless `cond`, a uniform value, holds. The error names the rank and this line. What
    /// follows in this role copy does not happen then. A condition that always holds costs nothing. Not in an `each`.
    ///
    /// ```
    /// use tilewire::{LaunchError, Prepared, Scalar, Tensor, kernel};
    /// let (x, n) = (Tensor::<f32>::zeros(8), Scalar::new(8i64));
    /// let traced = kernel("fill", |k| {
    ///     let x = k.output(&x);
    ///     k.main(|r| {
    ///         let n = r.scalar(&n);
    ///         r.require(n.le(8));
    ///         r.each(n, |i| x.store(i, 1.0));
    ///     });
    /// })?;
    /// let mut fill = Prepared::new(&traced.kernel, &traced.args)?;
    /// fill.run()?;
    /// n.set(9);
    /// assert!(matches!(fill.run(), Err(LaunchError::Required { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn require(&self, cond: impl IntoValue<'t, bool>) {
        let (trace, at) = (self.trace, SourceLine::caller());
        if trace.not_in_each("require", &at) {
            let cond = trace.uniform("a requirement", cond.into_ir(trace, &at), &at);
            trace.emit(Op::Require { cond, span: None }, &at);
        }
    }

    /// Ends the launch on all ranks unless `bytes` bytes from byte `offset` on lie inside the `size` bytes of a rank's
    /// memory. The error names these numbers and this line. All are uniform, and `size` is not negative. Not in an
    /// `each`.
    ///
    /// ```
    /// use tilewire::ir::RequiredBytes;
    /// use tilewire::{LaunchError, Prepared, Scalar, Tensor, kernel};
    /// let (x, first) = (Tensor::<u8>::zeros(64), Scalar::new(61i64));
    /// let traced = kernel("four bytes", |k| {
    ///     let x = k.output(&x);
    ///     k.main(|r| {
    ///         let first = r.scalar(&first);
    ///         r.require_inside(0, first, 4, 64);
    ///         r.each(4, |i| x.store(first + i, 1u8));
    ///     });
    /// })?;
    /// let error = Prepared::new(&traced.kernel, &traced.args)?.run().unwrap_err();
    /// let LaunchError::Required { span: Some(span), .. } = error else { panic!("{error}") };
    /// assert_eq!(span, RequiredBytes { rank: 0, offset: 61, bytes: 4, size: 64 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn require_inside(
        &self,
        rank: impl IntoIndex<'t>,
        offset: impl IntoIndex<'t>,
        bytes: impl IntoIndex<'t>,
        size: impl IntoIndex<'t>,
    ) {
        let (trace, at) = (self.trace, SourceLine::caller());
        if !trace.not_in_each("require_inside", &at) {
            return;
        }
        let number = |what, x: Known<'t>| Value::<i64>::new(trace, x.as_uniform(trace, what, &at));
        let rank = number("the rank of a requirement", Known::any(trace, rank, &at));
        let offset = number("the offset of a requirement", Known::any(trace, offset, &at));
        let bytes = number("the bytes of a requirement", Known::any(trace, bytes, &at));
        let size = number("the size of a requirement", Known::any(trace, size, &at));
        // As unsigned numbers, negative ones are too large. The difference is not negative if the first part holds.
        let unsigned =
            |x: Value<'t, i64>| Value::<u64>::new(trace, trace.raw(Op::Cast { x: x.ir, to: Type::U64 }, &at));
        let fits = unsigned(bytes).le(unsigned(size)) & unsigned(offset).le(unsigned(size - bytes));
        let span = RequiredSpan { rank: rank.ir, offset: offset.ir, bytes: bytes.ir, size: size.ir };
        trace.emit(Op::Require { cond: fits.ir, span: Some(span) }, &at);
    }
}
