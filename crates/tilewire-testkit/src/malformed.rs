//! Kernels that bytes of input break: a fuzz target for the IR's verifier and its printer.

use crate::kernels;
use crate::random::Random;
use tilewire::ir::{
    Base, Const, Def, Entity, Inst, Kernel, Op, Param, ParamId, Region, RoleId, ScratchId, Shape, Site, Type, Value,
    VarId, fingerprint, inst_text, verify,
};

/// The first byte chooses a kernel, and every 8 bytes after it break the kernel once more. The verifier, the printer
/// and the fingerprint must not panic, and a kernel that passes can be read without checks. Returns true if it passed.
pub fn ir(data: &[u8]) -> bool {
    thread_local!(static KERNELS: Vec<(&'static str, Kernel)> = kernels::all());
    let (which, breaks) = data.split_first().unwrap_or((&0, &[]));
    let mut kernel = KERNELS.with(|kernels| kernels[usize::from(*which) % kernels.len()].1.clone());
    for chunk in breaks.chunks(8).take(8) {
        let seed = chunk.iter().fold(0, |seed, &byte| seed << 8 | u64::from(byte));
        mutate(&mut kernel, &mut Random::new(seed));
    }
    let passed = match verify(&kernel) {
        Err(errors) => {
            assert!(!errors.0.is_empty());
            assert!(errors.to_string().starts_with("error: "));
            false
        }
        Ok(()) => {
            look_without_checks(&kernel);
            true
        }
    };
    assert_eq!(kernel.to_string(), kernel.clone().to_string());
    assert!(format!("{kernel:#}").starts_with("kernel"));
    fingerprint(&kernel);
    for inst in kernel.insts.keys() {
        inst_text(&kernel, inst);
    }
    passed
}

/// Reads a verified kernel as an engine does.
fn look_without_checks(kernel: &Kernel) {
    for role in kernel.roles.values() {
        kernel.walk(role.body, &mut |inst| {
            kernel.line(inst);
            let data = &kernel.insts[inst];
            for v in data.op.operands().into_iter().chain(data.result).chain(data.indices.iter().copied()) {
                let _ = (kernel.ty(v), kernel.shape(v), kernel.def(v), kernel.as_const(v));
            }
            for at in data.op.places() {
                assert!(kernel.base_type(at.base).is_some());
            }
            if let Op::ReadVar(var) | Op::WriteVar { var, .. } = data.op {
                let _ = &kernel.vars[var];
            }
        });
    }
}

fn mutate(kernel: &mut Kernel, random: &mut Random) {
    let inst = Inst::new(random.below(kernel.insts.len()));
    let region = Region::new(random.below(kernel.regions.len()));
    let value = Value::new(random.below(kernel.values.len()));
    let (insts, regions, values, sites) =
        (kernel.insts.len(), kernel.regions.len(), kernel.values.len(), kernel.sites.len());
    match random.below(14) {
        0..=2 => {
            let target = random.below(4);
            let mut position = 0;
            kernel.insts[inst].op.map_operands(&mut |v| {
                position += 1;
                if position - 1 == target { key(random, values) } else { v }
            });
        }
        3 => {
            let new = key(random, regions);
            match &mut kernel.insts[inst].op {
                Op::If { then, .. } if random.below(2) == 0 => *then = new,
                Op::If { otherwise: body, .. }
                | Op::While { body, .. }
                | Op::For { body, .. }
                | Op::Each { body, .. } => *body = new,
                op => *op = Op::Each { extent: vec![value; random.below(4)], body: new },
            }
        }
        4 => {
            let list = &mut kernel.regions[region];
            let at = random.below(list.len() + 1);
            list.insert(at, key(random, insts));
        }
        5 => {
            let list = &mut kernel.regions[region];
            if !list.is_empty() {
                list.remove(random.below(list.len()));
            }
        }
        6 => {
            let list = &mut kernel.regions[region];
            if list.len() > 1 {
                let (a, b) = (random.below(list.len()), random.below(list.len()));
                list.swap(a, b);
            }
        }
        7 => {
            let other = Inst::new(random.below(insts));
            kernel.insts[inst].op = kernel.insts[other].op.clone();
        }
        8 => match random.below(4) {
            0 => kernel.insts[inst].result = None,
            1 => kernel.insts[inst].result = Some(key(random, values)),
            2 => kernel.insts[inst].indices.push(key(random, values)),
            _ => kernel.insts[inst].site = key::<Site>(random, sites),
        },
        9 => match random.below(4) {
            0 => kernel.values[value].ty = Type::ALL[random.below(Type::ALL.len())],
            1 => kernel.values[value].shape = [Shape::Uniform, Shape::Lane][random.below(2)],
            2 => kernel.values[value].def = Def::Result(key(random, insts)),
            _ => kernel.values[value].def = Def::Index { inst: key(random, insts), axis: random.below(3) },
        },
        10 => {
            let bits = [0, 1, 64, u64::MAX, i64::MIN as u64, i64::MAX as u64][random.below(6)];
            if let Op::Const(c) = &mut kernel.insts[inst].op {
                *c = Const { ty: c.ty, bits };
            }
        }
        11 => rebase(&mut kernel.insts[inst].op, random),
        12 if !kernel.params.is_empty() => {
            let param: ParamId = ParamId::new(random.below(kernel.params.len()));
            let odd = [0, 1, 3, 8, u32::MAX][random.below(5)];
            match &mut kernel.params[param] {
                Param::Buffer { banks, .. } | Param::Slots { banks, .. } if random.below(3) == 0 => *banks = odd,
                Param::Buffer { len, .. } | Param::Slots { len, .. } if random.below(2) == 0 => {
                    *len = [0, 1, u64::MAX][random.below(3)]
                }
                Param::Buffer { align: number, .. } | Param::Slots { stride: number, .. } => *number = odd,
                other => *other = Param::Queue { name: String::new() },
            }
        }
        _ => {
            let role = RoleId::new(random.below(kernel.roles.len()));
            let odd = [0, 1, 15, u32::MAX][random.below(4)];
            match random.below(5) {
                0 => kernel.roles[role].warps = odd,
                1 => kernel.roles[role].copies = odd,
                2 => kernel.roles[role].body = key(random, regions),
                3 if !kernel.vars.is_empty() => kernel.vars[VarId::new(0)].role = key(random, 1),
                _ if !kernel.scratches.is_empty() => kernel.scratches[ScratchId::new(0)].role = key(random, 1),
                _ => kernel.blocks = odd,
            }
        }
    }
}

/// Points an op at other parameters, scratch or variables.
fn rebase(op: &mut Op, random: &mut Random) {
    match op {
        Op::Scalar(param) | Op::Post { queue: param, .. } => *param = key(random, 4),
        Op::ReadVar(var) | Op::WriteVar { var, .. } => *var = key(random, 1),
        Op::Load { at, .. }
        | Op::Store { at, .. }
        | Op::Put { at, .. }
        | Op::Get { at, .. }
        | Op::PacketPut { at, .. }
        | Op::PacketGet { at, .. }
        | Op::BulkCopy { src: at, .. } => {
            at.base = match random.below(2) {
                0 => Base::Param(key(random, 4)),
                _ => Base::Scratch(key(random, 1)),
            }
        }
        Op::Signal { slot, .. } | Op::Wait { slot, .. } | Op::Test { slot, .. } => slot.slots = key(random, 6),
        _ => {}
    }
}

/// A key of a table of `len` items, or one of the three after its end.
fn key<K: Entity>(random: &mut Random, len: usize) -> K {
    K::new(random.below(len + 3))
}
