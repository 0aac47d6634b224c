//! Builds a kernel instruction by instruction. It types values by the rules of [`super::typing`] and never fails:
//! [`super::verify`] reports all errors together.

use super::entity::{Region, RoleId, ScratchId, Site, Table, Value, VarId};
use super::kernel::{Def, InstData, Kernel, Param, Role, Scratch, SourceLine, ValueData, Var};
use super::op::{Const, Op};
use super::purpose::Purpose;
use super::quick_map::QuickMap;
use super::types::{Shape, Type};
use super::{Inst, ParamId, typing};
use std::collections::BTreeMap;

/// A kernel under construction: an insertion point and the open regions around it.
#[derive(Debug)]
pub struct Builder {
    kernel: Kernel,
    /// Open regions, innermost last; the flag is true for the body of an `each`.
    open: Vec<(Region, bool)>,
    sites: QuickMap<SourceLine, Site>,
    /// The last site requested: most lines are requested several times in a row.
    last: Option<Site>,
}

/// Initial capacity for instructions: a small collective has a few hundred.
const USUAL: usize = 256;

impl Builder {
    /// An empty kernel.
    pub fn new(name: &str, blocks: u32) -> Self {
        Builder {
            kernel: Kernel {
                name: name.to_string(),
                blocks,
                params: Table::new(),
                roles: Table::new(),
                vars: Table::new(),
                scratches: Table::new(),
                values: Table::with_capacity(USUAL),
                insts: Table::with_capacity(USUAL),
                regions: Table::new(),
                sites: Table::new(),
                purposes: BTreeMap::new(),
                declared: BTreeMap::new(),
            },
            open: Vec::new(),
            sites: QuickMap::default(),
            last: None,
        }
    }

    /// The kernel so far.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Ends the construction.
    pub fn finish(self) -> Kernel {
        self.kernel
    }

    /// Changes the number of blocks.
    pub fn set_blocks(&mut self, blocks: u32) {
        self.kernel.blocks = blocks;
    }

    /// Adds a parameter.
    pub fn param(&mut self, param: Param) -> ParamId {
        self.kernel.params.push(param)
    }

    /// Sets the purpose of every bank of a parameter.
    pub fn set_purposes(&mut self, param: ParamId, banks: Vec<Purpose>) {
        self.kernel.purposes.insert(param, banks);
    }

    /// Records where a buffer was declared.
    pub fn set_declared(&mut self, param: ParamId, at: SourceLine) {
        self.kernel.declared.entry(param).or_insert(at);
    }

    /// The parameter, to change it while tracing (for example an input that turns out to be written).
    pub fn param_mut(&mut self, param: ParamId) -> &mut Param {
        &mut self.kernel.params[param]
    }

    /// Gives a parameter another name.
    pub fn rename(&mut self, param: ParamId, to: &str) {
        self.kernel.params[param].rename(to);
    }

    /// Adds a role and opens its body; close it with [`Builder::close`].
    pub fn open_role(&mut self, name: &str, warps: u32, copies: u32, at: &SourceLine) -> RoleId {
        let body = self.kernel.regions.push(Vec::new());
        let site = self.site(at);
        self.open.push((body, false));
        self.kernel.roles.push(Role { name: name.to_string(), warps, copies, body, site })
    }

    /// Adds a variable of a role.
    pub fn var(&mut self, role: RoleId, ty: Type) -> VarId {
        self.kernel.vars.push(Var { ty, role })
    }

    /// Adds scratch of a role.
    pub fn scratch(&mut self, role: RoleId, ty: Type, len: u64) -> ScratchId {
        self.kernel.scratches.push(Scratch { ty, len, role })
    }

    /// Makes scratch at least `len` elements long.
    pub fn widen_scratch(&mut self, scratch: ScratchId, len: u64) {
        let scratch = &mut self.kernel.scratches[scratch];
        scratch.len = scratch.len.max(len);
    }

    /// Opens a fresh region: instructions go there until [`Builder::close`].
    pub fn open(&mut self, in_each: bool) -> Region {
        let region = self.kernel.regions.push(Vec::new());
        self.open.push((region, in_each));
        region
    }

    /// Closes the innermost open region.
    pub fn close(&mut self) {
        self.open.pop().expect("a region is open");
    }

    /// True if instructions now go into the body of an `each`.
    pub fn in_each(&self) -> bool {
        self.open.last().is_some_and(|&(_, each)| each)
    }

    /// True if a region is open, so that instructions can be added.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Appends an op to the innermost open region; returns the value it defines, if any.
    pub fn push(&mut self, op: Op, at: &SourceLine) -> Option<Value> {
        let inst = self.add(op, at);
        let (region, _) = *self.open.last().expect("a region is open");
        self.kernel.regions[region].push(inst);
        self.kernel.insts[inst].result
    }

    /// Appends an op that is known to define a value.
    pub fn value(&mut self, op: Op, at: &SourceLine) -> Value {
        self.push(op, at).expect("the op defines a value")
    }

    /// Appends a constant.
    pub fn constant(&mut self, ty: Type, bits: u64, at: &SourceLine) -> Value {
        self.value(Op::Const(Const { ty, bits }), at)
    }

    /// Creates a `For` or `Each` without placing it, so that its index values can be used while its body (a region
    /// opened by [`Builder::open`]) is filled; place it with [`Builder::place`] when the body is closed.
    pub fn loop_head(&mut self, op: Op, at: &SourceLine) -> (Inst, Vec<Value>) {
        let (axes, shape) = match &op {
            Op::For { .. } => (1, Shape::Uniform),
            Op::Each { extent, .. } => (extent.len(), Shape::Lane),
            _ => panic!("only For and Each have index values"),
        };
        let inst = self.add(op, at);
        let indices: Vec<Value> = (0..axes)
            .map(|axis| self.kernel.values.push(ValueData { ty: Type::I64, shape, def: Def::Index { inst, axis } }))
            .collect();
        self.kernel.insts[inst].indices = indices.clone();
        (inst, indices)
    }

    /// Appends an instruction made by [`Builder::loop_head`] to the innermost open region.
    pub fn place(&mut self, inst: Inst) {
        let (region, _) = *self.open.last().expect("a region is open");
        self.kernel.regions[region].push(inst);
    }

    /// Interns a source line.
    pub fn site(&mut self, at: &SourceLine) -> Site {
        if let Some(last) = self.last.filter(|&last| self.kernel.sites[last] == *at) {
            return last;
        }
        let site = self.sites.get(at).copied().unwrap_or_else(|| {
            let site = self.kernel.sites.push(at.clone());
            self.sites.insert(at.clone(), site);
            site
        });
        self.last = Some(site);
        site
    }

    fn add(&mut self, op: Op, at: &SourceLine) -> Inst {
        let site = self.site(at);
        let result = typing::result(&self.kernel, &op, self.in_each());
        let inst = self.kernel.insts.push(InstData { op, result: None, indices: Vec::new(), site });
        if let Some((ty, shape)) = result {
            let value = self.kernel.values.push(ValueData { ty, shape, def: Def::Result(inst) });
            self.kernel.insts[inst].result = Some(value);
        }
        inst
    }
}
