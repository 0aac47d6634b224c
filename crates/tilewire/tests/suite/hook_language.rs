//! Every feature of the hook language, and the kernel it becomes.

use std::fmt::Display;
use tilewire::hook::{Regs, Tile, Traced};
use tilewire::ir::{Access, BulkDone, Op, Order, Param, Scope, Type};
use tilewire::prelude::*;
use tilewire::{Arg, Memory, Scalar, Tensor, kernel, map};

/// The body of the only role, one trimmed line per instruction.
fn lines(traced: &Traced) -> Vec<String> {
    let text = traced.kernel.to_string();
    let body = text.lines().skip_while(|line| !line.starts_with("role")).skip(1);
    body.map(|line| line.trim().to_string()).filter(|line| !line.is_empty()).collect()
}

/// Asserts that the kernel has these lines, in this order. Others may stand between them.
#[track_caller]
fn has(result: Result<Traced, impl Display>, expected: &[&str]) -> Traced {
    let traced = result.unwrap_or_else(|error| panic!("{error}"));
    let lines = lines(&traced);
    let mut rest = lines.iter();
    for line in expected {
        assert!(rest.any(|is| is == line), "no line `{line}` at its place in\n{}", traced.kernel);
    }
    traced
}

fn names(traced: &Traced) -> Vec<(String, Access)> {
    let buffer = |param: &Param| match param {
        Param::Buffer { name, access, .. } => Some((name.clone(), *access)),
        _ => None,
    };
    traced.kernel.params.values().filter_map(buffer).collect()
}

// ---- arithmetic -------------------------------------------------------------------------------------------------

/// Traces `ops` on the elements of a tensor. Returns the ops of the `each` without loads, stores and constants.
fn ops_of<T: tilewire::ir::scalar::Element>(ops: impl for<'t> Fn(Value<'t, T>)) -> Vec<String> {
    let x = Tensor::<T>::zeros(8);
    let traced = kernel("ops", |k| {
        let x = k.input(&x);
        k.main(|r| r.each(8, |i| ops(x.load(i))));
    });
    let traced = traced.unwrap_or_else(|error| panic!("{error}"));
    let inner = lines(&traced).into_iter().skip_while(|line| !line.contains("load")).skip(1);
    let op = |line: String| line.split(" = ").nth(1).map(|op| op.split(' ').next().unwrap().to_string());
    inner.filter_map(op).filter(|op| op != "const").collect()
}

#[test]
fn operators_take_values_numbers_and_scalars_on_both_sides() {
    let s = Scalar::new(2.0f32);
    let found = ops_of::<f32>(|x| {
        let _ = (x + x, x - 1.0, 1.0 - x, x * &s, &s / x, -x);
    });
    assert_eq!(found, ["add", "sub", "sub", "scalar", "mul", "scalar", "div", "neg"]);
    let found = ops_of::<u32>(|x| {
        let _ = (x % 3, 3 % x, x & 1, 1 | x, x ^ x, x << 2, 1 << x, x >> 1, !x);
    });
    assert_eq!(found, ["rem", "rem", "and", "or", "xor", "shl", "shl", "shr", "not"]);
    let found = ops_of::<F16>(|x| {
        let _ = (x + x, x * F16::from_f32(2.0), F16::from_f32(1.0) - x);
    });
    assert_eq!(found, ["add", "mul", "sub"]);
}

#[test]
fn methods_of_floats() {
    let found = ops_of::<f32>(|x| {
        let _ = (x.min(1.0), x.max(x), x.abs(), x.sqrt(), x.rsqrt(), x.rcp(), x.exp(), x.log(), x.tanh());
        let _ = (x.floor(), x.ceil(), x.trunc(), x.round_even(), x.fma(2.0, x));
    });
    let expected = ["min", "max", "abs", "sqrt", "rsqrt", "rcp", "exp", "log", "tanh", "floor", "ceil", "trunc"];
    assert_eq!(found, [&expected[..], &["round_even", "fma"]].concat());
}

#[test]
fn comparisons_casts_and_groups() {
    let found = ops_of::<i32>(|x| {
        let (a, b) = (x.lt(1).and(x.ge(-1)), x.eq(x).or(true));
        let _: Value<'_, i32> = (a & !b ^ x.ne(0)).select(x, 7);
        let _ = (x.le(1), x.gt(1), x.mul_hi(x), x.cast::<f32>(), x.bitcast::<f32>(), x.cast::<i32>());
        let _ = (x.group_max(4), x.group_min(4), x.group_sum(32), x.group_scan(32));
    });
    let rest = ["le", "gt", "mul_hi", "cast", "bitcast", "group_max", "group_min", "group_sum", "group_scan"];
    let logic = ["lt", "ge", "and", "eq", "or", "not", "and", "ne", "xor", "select"];
    assert_eq!(found, [&logic[..], &rest[..]].concat());
}

// ---- parameters -------------------------------------------------------------------------------------------------

#[test]
fn one_tensor_is_one_parameter() {
    let (x, s) = (Tensor::<f32>::zeros(8), Scalar::new(1.0f32));
    let traced = kernel("in place", |k| {
        let (a, b, c) = (k.input(&x), k.output(&x.clone()), k.input(&x));
        k.main(|r| r.each(8, |i| b.store(i, a.load(i) + c.load(i) + x.at(i) + &s + &s.clone())));
    })
    .unwrap();
    assert_eq!(names(&traced), [("arg0".to_string(), Access::InOut)]);
    assert!(matches!(&traced.args[..], [Arg::Buffer(m), Arg::Scalar(n)] if m[0].is(x.memory()) && n.is(s.memory())));
}

#[test]
fn captured_tensors_become_inputs() {
    let (table, y) = (Tensor::<u16>::zeros(8), Tensor::<u16>::zeros(8));
    let traced = kernel("captured", |k| {
        let y = k.output(&y).named("y");
        k.main(|r| r.each(8, |i| y.store(i, table.at(table.at(i)))));
    });
    let traced =
        has(traced, &["v2: lane u16 = load p1[v1]", "v3: lane i64 = cast v2 to i64", "v4: lane u16 = load p1[v3]"]);
    assert_eq!(names(&traced), [("y".to_string(), Access::Out), ("captured".to_string(), Access::In)]);
}

#[test]
fn slices_that_share_bytes_with_an_output_are_no_plain_inputs() {
    let x = Tensor::<f32>::zeros(64);
    let accesses = |input: Tensor<f32>, output: Tensor<f32>| {
        let traced = kernel("shift", |k| {
            let (a, b) = (k.input(&input), k.output(&output));
            k.main(|r| r.each(8, |i| b.store(i, a.load(i))));
        });
        names(&traced.unwrap()).into_iter().map(|(_, access)| access).collect::<Vec<_>>()
    };
    assert_eq!(accesses(x.slice(0..32), x.slice(32..64)), [Access::In, Access::Out]);
    assert_eq!(accesses(x.slice(0..32), x.slice(31..63)), [Access::InOut, Access::InOut]);
}

#[test]
fn parameters_know_their_size_and_alignment() {
    let (x, banks) = (Tensor::<f32>::zeros(64), [Memory::zeroed(4096), Memory::zeroed(4096)]);
    let traced = kernel("params", |k| {
        k.input(&x.slice(1..9));
        k.buffer::<f16>("window", &banks, Access::Out);
        k.slots("tail", &banks, 128);
        k.queue("queue", &banks[0]);
        k.main(|_| {});
    })
    .unwrap();
    let params: Vec<Param> = traced.kernel.params.values().cloned().collect();
    assert!(matches!(params[0], Param::Buffer { ty: Type::F32, len: 8, banks: 1, align: 4, .. }), "{params:?}");
    assert!(matches!(params[1], Param::Buffer { ty: Type::F16, len: 2048, banks: 2, align: 64, .. }), "{params:?}");
    assert!(matches!(params[2], Param::Slots { len: 32, stride: 128, banks: 2, .. }), "{params:?}");
    assert!(matches!(params[3], Param::Queue { .. }));
    assert!(matches!(&traced.args[2], Arg::Slots(m) if m.len() == 2));
}

#[allow(non_camel_case_types)]
type f16 = F16;

// ---- views ------------------------------------------------------------------------------------------------------

#[test]
fn views_load_and_store() {
    let (x, y) = (Tensor::<f32>::zeros(8), Tensor::<f32>::zeros(8));
    let traced = kernel("views", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| {
            r.each(8, |i| {
                let inside = i.lt(4);
                let v = x.load_if(inside, i, 0.0);
                y.store_if(inside, i, v);
            });
            y.store(7, x.at(3u8));
        });
    });
    let expected = [
        "v5: lane f32 = load p0[v1] if v3 else v4",
        "store p1[v1], v5 if v3",
        "v6: i64 = const 3",
        "v7: f32 = load p0[v6]",
        "v8: i64 = const 7",
        "store p1[v8], v7",
    ];
    has(traced, &expected);
}

#[test]
fn a_masked_access_may_lie_outside() {
    let (x, bank) = (Tensor::<f32>::zeros(8), [Memory::zeroed(64)]);
    let traced = kernel("masked", |k| {
        let (x, region) = (k.inout(&x), k.region("staging", &bank));
        k.main(|r| {
            let never = r.rank().lt(0);
            x.store_if(never, 8, x.load_if(never, -1, 0.0));
            x.shape(2, 4).store_if(never, 2, 4, 0.0);
            region.put_if(never, 0, 64, region.get_if(never, 0, 64, 1u8));
        });
    });
    assert!(traced.is_ok(), "{}", traced.unwrap_err());
}

#[test]
fn parts_and_shapes_compute_indices() {
    let x = Tensor::<f32>::zeros(64);
    let traced = kernel("parts", |k| {
        let x = k.inout(&x);
        k.main(|r| {
            let half = x.part(32, 32);
            half.part(8, 8).store(1, 0.0);
            half.part(r.block() * 8, 8).shape(2, 4).store(1, 3, 1.0);
            let m = x.shape_strided(4, 10, 16);
            assert_eq!((m.rows(), m.cols(), m.row_stride(), m.flat().len()), (4, 10, 16, 64));
            r.each2(m.rows(), m.cols(), |row, col| m.store(row, col, m.at(row, col)));
        });
    });
    let traced = has(traced, &["v1: i64 = const 41", "store p0[v1], v0"]);
    assert!(lines(&traced).iter().any(|line| line.starts_with("each") && line.contains(", ")), "{}", traced.kernel);
}

#[test]
fn atomics() {
    let n = Tensor::<u32>::zeros(4);
    let traced = kernel("count", |k| {
        let n = k.inout(&n);
        k.main(|_| {
            let before = n.atomic_add(0, 1, Order::AcqRel, Scope::System);
            n.atomic_add_if(before.lt(9), 1, before, Order::AcqRel, Scope::System);
        });
    })
    .unwrap();
    let atomic = |op: &Op| matches!(op, Op::AtomicAdd { order: Order::AcqRel, scope: Scope::System, .. });
    assert_eq!(traced.kernel.insts.values().filter(|inst| atomic(&inst.op)).count(), 2);
}

// ---- control flow -----------------------------------------------------------------------------------------------

#[test]
fn control_flow_nests() {
    let n = Scalar::new(5i32);
    let traced = kernel("control", |k| {
        k.main(|r| {
            let best = r.var(0i64);
            r.for_(0..10, |i| {
                r.if_else(i.gt(best.get()), || best.set(i), || best.set(best.get() + 1));
            });
            r.for_(..&n, |_| r.barrier());
            r.while_(|| best.get().gt(0), || best.set(best.get() - 1));
        });
    });
    let traced = traced.unwrap_or_else(|error| panic!("{error}"));
    let ops: Vec<&str> = traced.kernel.regions[traced.kernel.roles.values().next().unwrap().body]
        .iter()
        .filter_map(|&inst| match traced.kernel.insts[inst].op {
            Op::For { .. } => Some("for"),
            Op::While { .. } => Some("while"),
            Op::WriteVar { .. } => Some("write"),
            _ => None,
        })
        .collect();
    assert_eq!(ops, ["write", "for", "for", "while"]);
}

#[test]
fn copies_take_turns() {
    let traced = kernel("turns", |k| {
        k.blocks(3);
        k.role("send", 2).copies(4, |r| r.for_turns(100, |_| r.barrier()));
    });
    let traced = has(traced, &["v0: i64 = copy", "v1: i64 = copies"]);
    let role = traced.kernel.roles.values().next().unwrap();
    assert_eq!((role.name.as_str(), role.warps, role.copies, traced.kernel.blocks), ("send", 2, 4, 3));
}

#[test]
fn specials_are_uniform_numbers() {
    let traced = kernel("specials", |k| {
        k.main(|r| {
            let sum = r.rank() + r.world_size() + r.block() + r.blocks() + r.copy() + r.copies();
            r.var(sum);
        });
    });
    has(traced, &["v0: i64 = rank", "v1: i64 = world_size"]);
}

#[test]
fn source_lines_are_the_users() {
    let y = Tensor::<f32>::zeros(8);
    let line = line!() + 4;
    let traced = kernel("lines", |k| {
        let y = k.output(&y);
        k.main(|r| {
            let x = r.rank().cast::<f32>();
            let x = x + 1.0;
            r.each(8, |i| {
                y.store(i, x.max(0.0));
            });
        });
    })
    .unwrap();
    for (inst, _) in traced.kernel.insts.iter() {
        let at = traced.kernel.line(inst);
        assert!(at.file.ends_with("hook_language.rs") && (line..line + 4).contains(&at.line), "{at}");
    }
}

// ---- the wire ---------------------------------------------------------------------------------------------------

#[test]
fn regions_and_slots() {
    let (banks, slots) = ([Memory::zeroed(4096), Memory::zeroed(4096)], [Memory::zeroed(4096), Memory::zeroed(4096)]);
    let traced = kernel("wire", |k| {
        let (region, tail) = (k.region("staging", &banks), k.slots("tail", &slots, 128));
        k.main(|r| {
            let peer = r.rank() ^ 1;
            r.each(64, |i| {
                region.put(peer, i * 4, i.cast::<f32>());
                region.put_if(i.lt(8), peer, i * 2, F16::from_f32(1.0));
            });
            r.signal(tail.slot(peer, 3), 1u64);
            r.wait(tail.slot(r.rank(), 3), r.block() + 1);
            r.if_(!r.test(tail.slot(peer, 0), 2), || r.signal_credit(tail.slot(peer, 1), 7));
            r.each(64, |i| {
                let x = region.get::<f32>(r.rank(), i * 4);
                let y = region.get_if(i.lt(8), r.rank(), i * 4, 0.0f32);
                region.put(peer, i * 4, x + y);
                region.packet_put(peer, i, i.cast::<u64>(), 6);
                region.packet_get(peer, i + 64, 5);
            });
        });
    });
    let traced = traced.unwrap_or_else(|error| panic!("{error}"));
    let count = |f: &dyn Fn(&Op) -> bool| traced.kernel.insts.values().filter(|inst| f(&inst.op)).count();
    assert_eq!(count(&|op| matches!(op, Op::Put { at, .. } if at.bank.is_some())), 3);
    assert_eq!(count(&|op| matches!(op, Op::Get { to: Type::F32, .. })), 2);
    assert_eq!(count(&|op| matches!(op, Op::Signal { .. } | Op::Wait { .. } | Op::Test { .. })), 3);
    assert_eq!(count(&|op| matches!(op, Op::SignalCredit { .. })), 1);
    assert_eq!(count(&|op| matches!(op, Op::PacketPut { .. } | Op::PacketGet { .. })), 2);
}

#[test]
fn the_only_bank_needs_no_name() {
    let bank = [Memory::zeroed(64)];
    let traced = kernel("one bank", |k| {
        let region = k.region("staging", &bank);
        k.main(|_| region.put(0, 0, 1u8));
    })
    .unwrap();
    assert!(traced.kernel.insts.values().any(|inst| matches!(inst.op, Op::Put { at, .. } if at.bank.is_none())));
}

#[test]
fn bulk_copies_and_posts() {
    let (x, banks, ring) = (Tensor::<f32>::zeros(64), [Memory::zeroed(64), Memory::zeroed(64)], Memory::zeroed(64));
    let traced = kernel("bulk", |k| {
        let (x, region, queue) = (k.input(&x), k.region("staging", &banks), k.queue("proxy", &ring));
        k.main(|r| {
            let tile = r.scratch::<f32>(32);
            r.bulk_copy(tile, x.part(r.block() * 32, 32), 32);
            r.bulk_wait(0, BulkDone::Complete);
            r.proxy_fence();
            r.post(queue, 1, region.bank(0), 0, 64);
            r.post_signal(queue, 1, 2, 3);
        });
    });
    let traced = traced.unwrap_or_else(|error| panic!("{error}"));
    let kinds = traced.kernel.insts.values().filter(|inst| inst.result.is_none()).count();
    assert_eq!(kinds, 5, "{}", traced.kernel);
}

// ---- hooks ------------------------------------------------------------------------------------------------------

#[test]
fn a_plain_map_copies() {
    let (out, inp) = (Tensor::<f32>::zeros(8), Tensor::<f32>::zeros(8));
    has(map(&out, &inp).trace(), &["v2: lane f32 = load p0[v1]", "store p1[v1], v2"]);
    // Code that the user did not write has the line of the call.
    let line = line!() + 1;
    let traced = map(&out, &inp).trace().unwrap();
    let access = |op: &Op| matches!(op, Op::Load { .. } | Op::Store { .. });
    let found =
        traced.kernel.insts.iter().filter(|(_, inst)| access(&inst.op)).map(|(id, _)| traced.kernel.line(id).line);
    assert_eq!(found.collect::<Vec<_>>(), [line, line]);
}

#[test]
fn a_chunk_arrives_transposed() {
    let (out, inp) = (Tensor::<f32>::zeros(6), Tensor::<f32>::zeros(6));
    let traced = map(&out, &inp).chunk_shape(2, 3).output_shape(3, 2).produce(|c| c.input.at(c.col(), c.row())).trace();
    // Output [3, 2]: position = row * 2 + col; input [2, 3]: index = col * 3 + row.
    let expected = [
        "v0: i64 = const 3",
        "v1: i64 = const 2",
        "each v2, v3 in v0, v1 {",
        "v5: lane i64 = mul v2, v4",
        "v6: lane i64 = add v5, v3",
        "v8: lane i64 = mul v3, v7",
        "v9: lane i64 = add v8, v2",
        "v10: lane f32 = load p0[v9]",
        "store p1[v6], v10",
    ];
    has(traced, &expected);
}

#[test]
fn hooks_carry_one_two_or_three_values() {
    let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::<Bf16>::zeros(64));
    let scale = Tensor::<f32>::zeros(2);
    let traced = map(&out, &inp)
        .blocks(2)
        .produce2(|c| {
            let x = c.input.load(c.pos()).cast::<f32>();
            let scale = x.abs().group_max(32);
            ((x / scale).cast::<F8E4M3>(), scale)
        })
        .consume(|c, (x, s)| c.output.store(c.pos(), x.cast::<f32>() * s * scale.at(c.pos() / 32)))
        .trace();
    assert_eq!(traced.unwrap().args.len(), 3);
    let traced = map(&out, &inp).produce3(|c| (c.rank(), c.pos(), c.input.load(c.pos())));
    let traced = traced.consume(|c, (rank, pos, x)| c.output.store(pos, rank.cast::<f32>() + x.cast::<f32>())).trace();
    assert!(traced.is_ok(), "{}", traced.unwrap_err());
    assert_eq!(<(F8E4M3, f32) as Regs>::TYPES, [Type::F8E4M3, Type::F32]);
}

#[test]
fn a_context_knows_what_the_schedule_says() {
    let (x, y, banks) = (Tensor::<f32>::zeros(8), Tensor::<f32>::zeros(8), [Memory::zeroed(64), Memory::zeroed(64)]);
    let traced = kernel("schedule", |k| {
        let (x, y, region) = (k.input(&x), k.output(&y), k.region("staging", &banks));
        k.main(|r| {
            let tile = Tile { region, bank: r.rank() ^ 1, offset: r.block() * 32 };
            r.each(8, |i| {
                let c = Ctx::new(r, x.into(), y.into()).pos(i).peer(tile.bank).step(3).region(tile).build();
                let _ = (c.rows(), c.cols(), c.chunk(), c.tile(), c.tile_rows(), c.tile_cols(), c.slot(), c.shard());
                let _ = (c.num_blocks(), c.recv_peer(), c.world_size(), c.input.row_stride());
                assert_eq!((c.role(), c.input.rows(), c.output.cols()), ("main", 1, 8));
                let tile = c.region.expect("the schedule gave one");
                let at = tile.offset + c.pos() * 4;
                tile.region.put(tile.bank, at, c.input.load(c.pos()) + c.step().cast::<f32>());
                let x = tile.region.get::<f32>(c.rank(), at);
                c.output.store(c.pos(), x + c.peer().cast::<f32>());
            });
        });
    });
    assert!(traced.is_ok(), "{}", traced.unwrap_err());
}

#[test]
fn builds_nest() {
    let outer = kernel("outer", |k| {
        k.main(|r| {
            let inner = kernel("inner", |k| k.main(|r| r.barrier())).unwrap();
            assert_eq!(inner.kernel.name, "inner");
            r.var(r.rank() + inner.kernel.insts.len() as i64);
        });
    });
    assert_eq!(outer.unwrap().kernel.vars.len(), 1);
}
