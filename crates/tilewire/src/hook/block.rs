//! The block: the argument of a kernel's closure. It declares parameters and roles.

use super::error::MisuseKind;
use super::legs::Overlap;
use super::role::RoleCtx;
use super::trace::{Brand, Lines, Trace};
use super::view::{View, any_argument, argument};
use super::wire::{Banks, Queue, Region, Slots};
use crate::ir::scalar::Element;
use crate::ir::{Access, Param, SourceLine, Type};
use crate::tensor::{self, AnyTensor, Arg, Memory, MixedBanks, Tensor};
use std::marker::PhantomData;

/// One block of a kernel: parameters, and the roles that run side by side in it.
pub struct Block<'t> {
    trace: &'t Trace,
    brand: Brand<'t>,
}

impl<'t> Block<'t> {
    pub(super) fn new(trace: &'t Trace) -> Self {
        Block { trace, brand: PhantomData }
    }

    /// Number of blocks of a launch; 1 by default.
    #[track_caller]
    pub fn blocks(&self, blocks: u32) {
        self.at_least_one("the number of blocks", blocks);
        self.trace.set_blocks(blocks);
    }

    // ---- tensors ------------------------------------------------------------------------------------------------

    /// A tensor the kernel only reads. A tensor that is also an output (in place) becomes one parameter. So do all its
    /// bytes that the kernel writes under any other name: they are read and written in program order.
    ///
    /// No *other* kernel may write it during the launch, even if it signals afterwards: engines keep what they have
    /// read, and a GPU reads it through a cache that sees no writes. Memory that peers write is a [`Block::region`], or
    /// a [`Block::buffer`] with [`Access::InOut`]. The checker reports a peer that writes an input
    /// (`written-during-launch`).
    #[track_caller]
    pub fn input<T: Element>(&self, tensor: &Tensor<T>) -> View<'t, T> {
        argument(self.trace, tensor, Access::In)
    }

    /// A tensor the kernel writes (it may read back what it wrote). No other kernel may write these bytes during the
    /// launch: see [`Block::input`].
    #[track_caller]
    pub fn output<T: Element>(&self, tensor: &Tensor<T>) -> View<'t, T> {
        argument(self.trace, tensor, Access::Out)
    }

    /// As [`Block::input`], for a tensor whose type is known only while tracing.
    pub(crate) fn any_input(&self, tensor: &AnyTensor) -> View<'t, ()> {
        any_argument(self.trace, tensor, Access::In)
    }

    /// As [`Block::output`], for a tensor whose type is known only while tracing.
    pub(crate) fn any_output(&self, tensor: &AnyTensor) -> View<'t, ()> {
        any_argument(self.trace, tensor, Access::Out)
    }

    /// A tensor the kernel reads and writes.
    #[track_caller]
    pub fn inout<T: Element>(&self, tensor: &Tensor<T>) -> View<'t, T> {
        argument(self.trace, tensor, Access::InOut)
    }

    // ---- what transports provide --------------------------------------------------------------------------------

    /// Typed memory in several banks (one per peer), all of one size.
    #[track_caller]
    pub fn buffer<T: Element>(&self, name: &str, banks: &[Memory], access: Access) -> Banks<'t, T> {
        let bytes = self.bank_bytes("a bank of a buffer", name, banks);
        let len = bytes / T::TYPE.size();
        let param = self.trace.buffer(name, T::TYPE, banks, len, access);
        Banks::new(self.trace, param, banks.len(), len, access)
    }

    /// Bytes in several banks (one per peer) that peers write too; see [`Region`].
    #[track_caller]
    pub fn region(&self, name: &str, banks: &[Memory]) -> Region<'t> {
        let len = self.bank_bytes("a bank of a region", name, banks);
        let param = self.trace.buffer(name, Type::U8, banks, len, Access::InOut);
        Region::new(Banks::new(self.trace, param, banks.len(), len, Access::InOut))
    }

    /// Signal slots in several banks (one per peer): u64 counters `stride` bytes apart, a multiple of 8.
    #[track_caller]
    pub fn slots(&self, name: &str, banks: &[Memory], stride: u32) -> Slots<'t> {
        if stride == 0 || !stride.is_multiple_of(8) {
            self.trace.report(&SourceLine::caller(), MisuseKind::Stride { stride });
        }
        let len = self.bank_bytes("a bank of slots", name, banks) as u64 / u64::from(stride.max(8));
        let param = Param::Slots { name: name.to_string(), len, stride, banks: banks.len() as u32 };
        let param = self.trace.param(param, Arg::Slots(banks.to_vec()));
        Slots::new(self.trace, param, banks.len())
    }

    /// The descriptor ring of a network proxy, with the region at the peers that posts write: see
    /// [`Ring::queue`](crate::tensor::Ring::queue).
    pub fn queue(&self, name: &str, queue: impl Into<tensor::Queue>) -> Queue<'t> {
        let param = self.trace.param(Param::Queue { name: name.to_string() }, Arg::Queue(queue.into()));
        Queue::new(self.trace, param)
    }

    // ---- roles --------------------------------------------------------------------------------------------------

    /// A role of `warps` warps (of 32 lanes, on a GPU); give it a body with [`RoleBuilder::run`] or
    /// [`RoleBuilder::copies`].
    ///
    /// ```
    /// use tilewire::kernel;
    /// let traced = kernel("two roles", |k| {
    ///     k.role("send", 4).run(|r| r.barrier());
    ///     k.role("receive", 2).copies(3, |r| r.for_turns(10, |step| { r.var(step); }));
    /// })?;
    /// assert_eq!(traced.kernel.roles.values().map(|role| role.copies).collect::<Vec<_>>(), [1, 3]);
    /// # Ok::<(), tilewire::BuildError>(())
    /// ```
    #[track_caller]
    pub fn role(&self, name: impl Into<String>, warps: u32) -> RoleBuilder<'t> {
        self.at_least_one("the number of warps of a role", warps);
        RoleBuilder { trace: self.trace, name: name.into(), warps, at: SourceLine::caller(), brand: PhantomData }
    }

    /// The only role of a kernel that has one: `main`, 8 warps.
    #[track_caller]
    pub fn main(&self, body: impl FnOnce(&RoleCtx<'t>)) {
        self.role("main", 8).run(body);
    }

    /// The first read of a traced hook from memory of `output` that may be overwritten before the read.
    pub(crate) fn overlap(&self, output: &Memory) -> Option<Overlap> {
        self.trace.overlap(output)
    }

    /// The lines of this kernel's ops, for code that is called through a table of methods.
    pub(crate) fn lines(&self) -> Lines<'t> {
        Lines { trace: self.trace, brand: PhantomData }
    }

    /// Records a misuse detected by code built on the language.
    pub(crate) fn report(&self, at: &SourceLine, kind: MisuseKind) {
        self.trace.report(at, kind);
    }

    #[track_caller]
    fn at_least_one(&self, what: &'static str, number: u32) {
        if number == 0 {
            self.trace.report(&SourceLine::caller(), MisuseKind::TooSmall { what, is: 0 });
        }
    }

    /// The size of all banks. They must agree on it, and on whether they carry an operation.
    #[track_caller]
    fn bank_bytes(&self, what: &'static str, name: &str, banks: &[Memory]) -> usize {
        let at = SourceLine::caller();
        if let Some(mixed) = MixedBanks::of(banks) {
            self.trace.report(&at, MisuseKind::MixedBanks { name: name.to_string(), mixed });
        }
        let Some(first) = banks.first() else {
            self.trace.report(&at, MisuseKind::TooSmall { what: "the number of banks", is: 0 });
            return 0;
        };
        if banks.iter().any(|bank| !bank.is_contiguous()) {
            self.trace.report(&at, MisuseKind::GapsInBank { name: name.to_string() });
        }
        for bank in banks.iter().filter(|bank| bank.bytes() != first.bytes()) {
            self.trace.report(&at, MisuseKind::Length { what, is: bank.bytes(), must: first.bytes() });
        }
        first.bytes()
    }
}

/// A role without a body yet.
#[must_use = "a role needs a body: call run or copies"]
pub struct RoleBuilder<'t> {
    trace: &'t Trace,
    name: String,
    warps: u32,
    at: SourceLine,
    brand: Brand<'t>,
}

impl<'t> RoleBuilder<'t> {
    /// Gives the role its body.
    #[track_caller]
    pub fn run(self, body: impl FnOnce(&RoleCtx<'t>)) {
        self.copies(1, body);
    }

    /// Gives the role its body, run by `copies` groups of lanes that take turns ([`RoleCtx::for_turns`]). The CPU
    /// engine runs one copy.
    #[track_caller]
    pub fn copies(self, copies: u32, body: impl FnOnce(&RoleCtx<'t>)) {
        if copies == 0 {
            let what = "the number of copies of a role";
            self.trace.report(&SourceLine::caller(), MisuseKind::TooSmall { what, is: 0 });
        }
        if let Some(role) = self.trace.open_role(&self.name, self.warps, copies.max(1), &self.at) {
            body(&RoleCtx::new(self.trace, role, self.name.into()));
            self.trace.close_role();
        }
    }
}
