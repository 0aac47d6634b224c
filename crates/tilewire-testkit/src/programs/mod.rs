//! Random programs: verified kernels with arguments. Their results are the same on every correct engine.
//!
//! A program is a sequence of *sections*, each with its own outputs. Every role emits its parts of the sections in the
//! same order, and a part waits only for parts of its own section, so no program deadlocks. Blocks, elements and roles
//! write disjoint bytes unless a signal, a packet or an atomic orders them, so every schedule gives the same result (up
//! to NaNs made by arithmetic, see `expression.rs`).
//!
//! | file | holds |
//! |---|---|
//! | `sections.rs` | sections that one role runs alone: element-wise code, scratch, loops, turns | | `streams.rs` | the
//! same for bodies that engines treat specially: long ones, groups of small floats, transposes | | `exchanges.rs` |
//! sections in which roles, blocks or elements interact: atomics, regions, packets, bulk copies, messages | |
//! `expression.rs` | random expressions, and the rules for NaN |
//! | `hosted.rs` | [`Hosted`]: the arguments in host memory, for the engines |
//! | `data.rs` | random numbers, and initial data full of special values |
//! | `writer.rs` | [`Writer`]: a builder with short names and loops as closures |

pub mod data;
mod exchanges;
mod expression;
mod hosted;
mod sections;
mod streams;
pub mod writer;

pub use hosted::Hosted;
pub use writer::Writer;

use crate::random::Random;
use data::{element, elements};
use expression::Pool;
use sections::Section;
use std::fmt;
#[cfg(feature = "check")]
use tilewire::check::{Bank, Binding, Bound, Memories};
use tilewire::ir::scalar::dynamic;
use tilewire::ir::{Access, Entity, Kernel, Op, Param, ParamId, Special, Type};

/// A kernel and its arguments, as plain data.
#[derive(Clone)]
pub struct Program {
    pub seed: u64,
    pub sections: u64,
    pub kernel: Kernel,
    /// One entry per parameter, in order.
    pub params: Vec<ParamSpec>,
}

/// The argument of one parameter.
#[derive(Clone, Debug)]
pub enum ParamSpec {
    Buffer(BufferSpec),
    Scalar {
        ty: Type,
        bits: u64,
    },
    /// All slots are 0 at first.
    Slots {
        len: u64,
        stride: u32,
    },
}

/// A buffer argument. Each bank begins `offset` bytes after an address aligned to at least 64.
#[derive(Clone, Debug)]
pub struct BufferSpec {
    pub ty: Type,
    pub len: u64,
    /// The initial bytes of every bank.
    pub banks: Vec<Vec<u8>>,
    /// Distance from a well-aligned address, a multiple of the parameter's alignment.
    pub offset: u64,
    /// The earlier parameter whose memory this one shares, instead of having its own.
    pub alias: Option<usize>,
    /// True if the bytes after a run are specified, up to NaNs of type `ty`.
    pub compare: bool,
}

impl Program {
    /// The program of a seed. Fewer sections give a smaller program with the same first sections.
    pub fn new(seed: u64, count: u64) -> Program {
        let mut random = Random::new(seed);
        let blocks = random.pick(&[1, 1, 2, 3]);
        let roles = random.pick(&[1, 1, 2, 3]);
        let mut maker =
            Maker { c: Writer::new("random", blocks), params: Vec::new(), blocks: u64::from(blocks), roles };
        // Every section has its own random numbers, so that leaving out the last sections does not change the others.
        let mut planned: Vec<(Box<dyn Section>, u64)> = Vec::new();
        for _ in 0..count {
            let mut own = Random::new(random.next());
            planned.push((plan(&mut maker, &mut own), own.next()));
        }
        for role in 0..roles {
            let warps = planned.iter().map(|(section, _)| section.warps(role)).fold(1 + role % 2, u32::max);
            let id = maker.c.b.open_role(&format!("role{role}"), warps, 1, &writer::here());
            for (section, seed) in &planned {
                section.emit(&mut maker, role, id, &mut Random::new(seed ^ u64::from(role)));
            }
            maker.c.b.close();
        }
        if random.once_in(4) {
            sections::turns(&mut maker, &mut random);
        }
        Program { seed, sections: count, kernel: maker.c.finish(), params: maker.params }
    }

    /// The arguments for the evaluator.
    #[cfg(feature = "check")]
    pub fn bind(&self) -> (Binding, Memories) {
        let mut memories = Memories::new();
        let mut params: Vec<Bound> = Vec::new();
        for spec in &self.params {
            let bound = match spec {
                ParamSpec::Scalar { bits, .. } => Bound::Scalar(*bits),
                ParamSpec::Slots { len, stride } => {
                    let bytes = len * u64::from(*stride);
                    let memory = memories.add(vec![0; bytes as usize]);
                    Bound::Slots(vec![Bank { memory, offset: 0, len: bytes }])
                }
                ParamSpec::Buffer(BufferSpec { alias: Some(other), .. }) => params[*other].clone(),
                ParamSpec::Buffer(spec) => {
                    let banks = spec.banks.iter().map(|init| {
                        let mut bytes = vec![0xcc; spec.offset as usize];
                        bytes.extend_from_slice(init);
                        bytes.extend_from_slice(&[0xcc; 16]); // to be found untouched
                        Bank { memory: memories.add(bytes), offset: spec.offset, len: init.len() as u64 }
                    });
                    Bound::Buffer(banks.collect())
                }
            };
            params.push(bound);
        }
        (Binding::alone(params), memories)
    }

    /// The bytes of every parameter's banks in the evaluator's memory after a run, made comparable.
    #[cfg(feature = "check")]
    pub fn results(&self, binding: &Binding, after: &Memories) -> Vec<Vec<Vec<u8>>> {
        let banks = binding.params.iter().map(|bound| match bound {
            Bound::Buffer(banks) | Bound::Slots(banks) => banks.iter().map(|&bank| after.bank(bank).to_vec()).collect(),
            _ => Vec::new(),
        });
        self.comparable(banks.collect())
    }

    /// Makes results of two engines comparable: all NaNs become the same NaN, and unspecified buffers become empty.
    /// `results` has the bytes after the run for each parameter and bank (none for scalars).
    pub fn comparable(&self, mut results: Vec<Vec<Vec<u8>>>) -> Vec<Vec<Vec<u8>>> {
        for (spec, banks) in self.params.iter().zip(&mut results) {
            match spec {
                ParamSpec::Buffer(spec) if !spec.compare => banks.clear(),
                ParamSpec::Buffer(spec) if spec.ty.is_float() => {
                    for bytes in banks.iter_mut().flat_map(|bank| bank.chunks_exact_mut(spec.ty.size())) {
                        let mut bits = [0; 8];
                        bits[..bytes.len()].copy_from_slice(bytes);
                        let bits = dynamic::canonical_nan(spec.ty, u64::from_le_bytes(bits));
                        bytes.copy_from_slice(&bits.to_le_bytes()[..bytes.len()]);
                    }
                }
                _ => {}
            }
        }
        results
    }
}

/// The text that a failing test prints, with everything needed to read the program and run it again.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Program::new({:#x}, {})", self.seed, self.sections)?;
        writeln!(f, "{}", self.kernel)?;
        for (i, param) in self.params.iter().enumerate() {
            match param {
                ParamSpec::Buffer(BufferSpec { banks, offset, alias, .. }) => {
                    writeln!(f, "p{i}: offset {offset}, alias {alias:?}, {} bytes", banks[0].len())?;
                }
                other => writeln!(f, "p{i}: {other:?}")?,
            }
        }
        Ok(())
    }
}

/// The state from which sections are made.
pub struct Maker {
    pub c: Writer,
    pub params: Vec<ParamSpec>,
    pub blocks: u64,
    pub roles: u32,
}

/// How to declare a buffer.
#[derive(Clone, Copy)]
pub struct Wish {
    pub access: Access,
    pub align: u32,
    pub banks: u32,
    pub compare: bool,
}

impl Wish {
    pub fn new(access: Access) -> Self {
        Wish { access, align: 0, banks: 1, compare: true }
    }
}

impl Maker {
    /// Declares a buffer with these initial bytes, at any allowed alignment.
    pub fn buffer(&mut self, ty: Type, banks: Vec<Vec<u8>>, wish: Wish, random: &mut Random) -> ParamId {
        let len = (banks[0].len() / ty.size()) as u64;
        let align = wish.align.max(ty.size() as u32);
        let name = format!("p{}", self.params.len());
        let count = banks.len() as u32;
        let offset = u64::from(align) * random.pick(&[0, 0, 1, 3]);
        let spec = BufferSpec { ty, len, banks, offset, alias: None, compare: wish.compare };
        self.params.push(ParamSpec::Buffer(spec));
        self.c.b.param(Param::Buffer { name, ty, len, banks: count, access: wish.access, align })
    }

    /// Declares a buffer of random elements.
    pub fn random_buffer(&mut self, ty: Type, len: u64, wish: Wish, random: &mut Random) -> ParamId {
        let banks = (0..wish.banks).map(|_| elements(ty, len, random)).collect();
        self.buffer(ty, banks, wish, random)
    }

    /// Declares a second name of a buffer's memory.
    pub fn alias(&mut self, of: ParamId) -> ParamId {
        let ParamSpec::Buffer(mut spec) = self.params[of.index()].clone() else { unreachable!("a buffer") };
        spec.alias = Some(of.index());
        let name = format!("p{}", self.params.len());
        let param = match self.c.b.kernel().params[of].clone() {
            Param::Buffer { ty, len, banks, access, align, .. } => {
                Param::Buffer { name, ty, len, banks, access, align }
            }
            _ => unreachable!("a buffer"),
        };
        self.params.push(ParamSpec::Buffer(spec));
        self.c.b.param(param)
    }

    pub fn slots(&mut self, len: u64, random: &mut Random) -> ParamId {
        let stride = random.pick(&[8, 16, 128]);
        let name = format!("p{}", self.params.len());
        self.params.push(ParamSpec::Slots { len, stride });
        self.c.slots(&name, len, stride)
    }

    pub fn scalar(&mut self, ty: Type, bits: u64) -> ParamId {
        let name = format!("p{}", self.params.len());
        self.params.push(ParamSpec::Scalar { ty, bits });
        self.c.scalar(&name, ty)
    }

    /// A scope with a few uniform values to compute with.
    pub fn uniform_pool(&mut self, scalar: Option<ParamId>, random: &mut Random) -> Pool {
        let mut pool = Pool::default();
        // The number of copies is not in scope, because the engine chooses it.
        let all = [Special::Rank, Special::WorldSize, Special::Block, Special::Blocks];
        let v = self.c.special(random.pick(&all));
        pool.add(&self.c, v, true);
        if let Some(scalar) = scalar {
            let v = self.c.op(Op::Scalar(scalar));
            pool.add(&self.c, v, true);
        }
        let ty = random.pick(&Type::ALL);
        let v = self.c.bits(ty, element(ty, random));
        pool.add(&self.c, v, true);
        pool
    }
}

fn plan(maker: &mut Maker, random: &mut Random) -> Box<dyn Section> {
    match random.below_u64(18) {
        0..=5 => Box::new(sections::Elementwise::plan(maker, random)),
        6 | 7 => Box::new(sections::ThroughScratch::plan(maker, random)),
        8 | 9 => Box::new(sections::Loops::plan(maker, random)),
        10 => Box::new(exchanges::Atomics::plan(maker, random)),
        11 => Box::new(exchanges::PutGet::plan(maker, random)),
        12 => Box::new(exchanges::Packets::plan(maker, random)),
        13 => Box::new(exchanges::Bulk::plan(maker, random)),
        14 if random.once_in(2) => Box::new(streams::Transpose::plan(maker, random)),
        14 | 15 => Box::new(streams::Long::plan(maker, random)),
        _ => Box::new(exchanges::Messages::plan(maker, random)),
    }
}
