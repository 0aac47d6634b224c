//! Access analysis as a specification: one rule per test.

use std::collections::HashMap;
use tilewire::ir::access::{self, Class, Granularity, Uniform};
use tilewire::ir::scalar::dynamic;
use tilewire::ir::{
    Access, Base, BinaryOp, Builder, CompareOp, GroupOp, Inst, Kernel, Op, Param, ParamId, Place, Region, SourceLine,
    Type, Value,
};
use tilewire_testkit::random::Random;

/// One role with one `each`, built around a closure that fills the body.
struct Body {
    b: Builder,
    at: SourceLine,
    index: Vec<Value>,
    n: Value,
    m: Value,
    src: ParamId,
    dst: ParamId,
    bytes: ParamId,
}

impl Body {
    fn op(&mut self, op: Op) -> Value {
        self.b.value(op, &self.at)
    }
    fn int(&mut self, n: i64) -> Value {
        self.b.constant(Type::I64, n as u64, &self.at)
    }
    fn bin(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.op(Op::Binary { op, a, b })
    }
    /// `a op n`
    fn with(&mut self, op: BinaryOp, a: Value, n: i64) -> Value {
        let n = self.int(n);
        self.bin(op, a, n)
    }
    fn load(&mut self, index: Value) -> Value {
        let base = Base::Param(self.src);
        self.op(Op::Load { at: Place { base, bank: None, index }, mask: None })
    }
    fn store(&mut self, index: Value, x: Value) {
        let base = Base::Param(self.dst);
        self.b.push(Op::Store { at: Place { base, bank: None, index }, x, mask: None }, &self.at);
    }
    fn get(&mut self, index: Value) -> Value {
        let base = Base::Param(self.bytes);
        self.op(Op::Get { at: Place { base, bank: None, index }, to: Type::F32, mask: None })
    }
}

/// Builds an `each` of the given constant extents (0 stands for the scalar parameter n). Returns the kernel, the
/// `each`, and the closure's result.
fn each<R>(extents: &[i64], fill: impl FnOnce(&mut Body) -> R) -> (Kernel, Inst, R) {
    let at = SourceLine::caller();
    let mut b = Builder::new("test", 1);
    let buffer =
        |name: &str, ty, access| Param::Buffer { name: name.into(), ty, len: 1 << 20, banks: 1, access, align: 64 };
    let src = b.param(buffer("src", Type::F32, Access::In));
    let dst = b.param(buffer("dst", Type::F32, Access::InOut));
    let bytes = b.param(buffer("bytes", Type::U8, Access::InOut));
    let n = b.param(Param::Scalar { name: "n".into(), ty: Type::I64 });
    let m = b.param(Param::Scalar { name: "m".into(), ty: Type::I64 });
    b.open_role("role", 1, 1, &at);
    let n = b.value(Op::Scalar(n), &at);
    let m = b.value(Op::Scalar(m), &at);
    let extent = extents.iter().map(|&e| if e == 0 { n } else { b.constant(Type::I64, e as u64, &at) }).collect();
    let body: Region = b.open(true);
    let (inst, index) = b.loop_head(Op::Each { extent, body }, &at);
    let mut build = Body { b, at, index, n, m, src, dst, bytes };
    let result = fill(&mut build);
    let mut b = build.b;
    b.close();
    b.place(inst);
    b.close();
    (b.finish(), inst, result)
}

/// The class, strides and alignment of the only access of an `each`.
fn only(extents: &[i64], fill: impl FnOnce(&mut Body) -> Value) -> (Class, Option<access::Affine>, u32) {
    let (kernel, each, _) = each(extents, |b| {
        let index = fill(b);
        b.load(index)
    });
    let mut found = access::accesses(&kernel, each);
    let found = found.pop().expect("one access");
    (found.class, found.index, found.align)
}

#[test]
fn the_index_itself_is_contiguous_and_as_aligned_as_the_buffer() {
    let (class, form, align) = only(&[0], |b| b.index[0]);
    assert_eq!((class, align), (Class::Contiguous, 64));
    assert!(form.unwrap().innermost().is_const(1));
}

#[test]
fn a_uniform_offset_keeps_contiguity_and_loses_alignment() {
    let (class, form, align) = only(&[0], |b| b.bin(BinaryOp::Add, b.n, b.index[0]));
    assert_eq!((class, align), (Class::Contiguous, 4), "an unknown offset is one of whole elements");
    assert!(matches!(form.unwrap().base, Uniform::Value(_)));
}

#[test]
fn known_low_zero_bits_of_an_offset_keep_alignment() {
    let (_, _, align) = only(&[0], |b| {
        let rows = b.with(BinaryOp::Mul, b.n, 12);
        let at = b.with(BinaryOp::Add, rows, 8);
        b.bin(BinaryOp::Add, at, b.index[0])
    });
    assert_eq!(align, 16, "4 elements of 4 bytes");
}

#[test]
fn a_uniform_index_is_a_broadcast() {
    assert_eq!(only(&[0], |b| b.n).0, Class::Broadcast);
}

#[test]
fn multiples_and_shifts_of_the_index_are_strided() {
    let (class, form, _) = only(&[0], |b| b.with(BinaryOp::Shl, b.index[0], 3));
    assert_eq!(class, Class::Strided);
    assert!(form.unwrap().innermost().is_const(8));
    let (class, form, _) = only(&[0], |b| b.bin(BinaryOp::Mul, b.m, b.index[0]));
    assert_eq!(class, Class::Strided);
    assert!(matches!(form.unwrap().innermost(), Uniform::Value(_)));
}

#[test]
fn a_reversed_walk_is_strided_by_minus_one() {
    let (class, form, _) = only(&[0], |b| {
        let last = b.with(BinaryOp::Sub, b.n, 1);
        b.bin(BinaryOp::Sub, last, b.index[0])
    });
    assert_eq!(class, Class::Strided);
    assert!(form.unwrap().innermost().is_const(-1));
}

#[test]
fn equal_terms_cancel() {
    let (class, ..) = only(&[0], |b| {
        let there = b.bin(BinaryOp::Add, b.n, b.index[0]);
        let twice = b.with(BinaryOp::Mul, b.index[0], 2);
        b.bin(BinaryOp::Sub, twice, there)
    });
    assert_eq!(class, Class::Contiguous, "2 i - (n + i) = i - n");
}

#[test]
fn rows_and_columns_show_which_axis_is_contiguous() {
    let row_major = |b: &mut Body| {
        let row = b.with(BinaryOp::Mul, b.index[0], 32);
        b.bin(BinaryOp::Add, row, b.index[1])
    };
    let (class, form, align) = only(&[16, 32], row_major);
    assert_eq!((class, align), (Class::Contiguous, 64));
    assert!(form.unwrap().stride[0].is_const(32));

    let (kernel, each, _) = each(&[16, 32], |b| {
        let column = b.with(BinaryOp::Mul, b.index[1], 16);
        let index = b.bin(BinaryOp::Add, column, b.index[0]);
        b.load(index)
    });
    let transposed = &access::accesses(&kernel, each)[0];
    assert_eq!(transposed.class, Class::Strided);
    assert!(transposed.index.as_ref().unwrap().stride[0].is_const(1));
    assert_eq!(transposed.align, 4, "row starts are one element apart");
    assert_eq!(access::align_along(&kernel, each, transposed, 0), 64, "column starts are 16 elements apart");
}

#[test]
fn bytes_of_a_region_are_contiguous_at_the_size_of_the_value() {
    for (step, class) in [(4, Class::Contiguous), (1, Class::Strided), (8, Class::Strided)] {
        let (kernel, each, _) = each(&[0], |b| {
            let index = b.with(BinaryOp::Mul, b.index[0], step);
            b.get(index)
        });
        assert_eq!(access::accesses(&kernel, each)[0].class, class, "step {step}");
    }
}

#[test]
fn quotients_of_the_index_are_groups() {
    for (op, by) in [(BinaryOp::Div, 128), (BinaryOp::Shr, 7)] {
        let (class, form, _) = only(&[0], |b| b.with(op, b.index[0], by));
        assert_eq!(class, Class::Grouped { size: 128 });
        assert_eq!(form.unwrap().group, Some((128, Uniform::Const(1))));
    }
    let (class, ..) = only(&[0], |b| b.with(BinaryOp::Div, b.index[0], 3));
    assert_eq!(class, Class::Grouped { size: 3 }, "sizes need not be powers of two");
}

#[test]
fn quotients_of_quotients_are_larger_groups() {
    let (class, ..) = only(&[0], |b| {
        let fours = b.with(BinaryOp::Div, b.index[0], 4);
        b.with(BinaryOp::Div, fours, 8)
    });
    assert_eq!(class, Class::Grouped { size: 32 });
}

#[test]
fn a_tile_offset_that_the_group_divides_splits_off() {
    // n / 1024 whole tiles: (tile * 1024 + i) / 128 for i < 1024
    let index = |b: &mut Body, by| {
        let tiles = b.with(BinaryOp::Shr, b.n, 12);
        let start = b.with(BinaryOp::Mul, tiles, 1024);
        let at = b.bin(BinaryOp::Add, start, b.index[0]);
        b.with(BinaryOp::Shr, at, by)
    };
    let (class, form, _) = only(&[1024], |b| index(b, 7));
    assert_eq!(class, Class::Grouped { size: 128 });
    assert!(matches!(form.unwrap().base, Uniform::Div(_, 128)));
    // The start of a tile is not always a multiple of 2048.
    assert_eq!(only(&[1024], |b| index(b, 11)).0, Class::Gather);
}

#[test]
fn a_quotient_that_may_be_negative_or_wrap_is_a_gather() {
    let (class, ..) = only(&[0], |b| {
        let start = b.with(BinaryOp::Mul, b.n, 128);
        let at = b.bin(BinaryOp::Add, start, b.index[0]);
        b.with(BinaryOp::Div, at, 128)
    });
    assert_eq!(class, Class::Gather, "n * 128 may be negative");
}

#[test]
fn remainders_are_gathers_unless_they_cancel() {
    assert_eq!(only(&[0], |b| b.with(BinaryOp::Rem, b.index[0], 10)).0, Class::Gather);
    assert_eq!(only(&[0], |b| b.with(BinaryOp::And, b.index[0], 15)).0, Class::Gather);
    let (class, ..) = only(&[0], |b| {
        let quotient = b.with(BinaryOp::Div, b.index[0], 10);
        let tens = b.with(BinaryOp::Mul, quotient, 10);
        let ones = b.with(BinaryOp::Rem, b.index[0], 10);
        b.bin(BinaryOp::Add, tens, ones)
    });
    assert_eq!(class, Class::Contiguous);
}

#[test]
fn a_narrow_detour_and_a_loaded_index_are_gathers() {
    let (class, ..) = only(&[0], |b| {
        let narrow = b.op(Op::Cast { x: b.index[0], to: Type::I32 });
        b.op(Op::Cast { x: narrow, to: Type::I64 })
    });
    assert_eq!(class, Class::Gather);
    let (kernel, each, _) = each(&[0], |b| {
        let at = b.load(b.index[0]);
        let index = b.op(Op::Cast { x: at, to: Type::I64 });
        b.load(index)
    });
    let classes: Vec<Class> = access::accesses(&kernel, each).iter().map(|a| a.class).collect();
    assert_eq!(classes, [Class::Contiguous, Class::Gather]);
}

#[test]
fn a_detour_through_u64_keeps_the_form() {
    let (class, ..) = only(&[0], |b| {
        let unsigned = b.op(Op::Cast { x: b.index[0], to: Type::U64 });
        b.op(Op::Bitcast { x: unsigned, to: Type::I64 })
    });
    assert_eq!(class, Class::Contiguous);
}

#[test]
fn uniform_ops_in_the_body_are_uniform() {
    let (class, form, _) = only(&[0], |b| {
        let product = b.bin(BinaryOp::Mul, b.n, b.m);
        b.bin(BinaryOp::Add, product, b.index[0])
    });
    assert_eq!(class, Class::Contiguous);
    assert!(matches!(form.unwrap().base, Uniform::Value(_)));
}

#[test]
fn the_first_of_a_group_is_recognised_in_every_spelling() {
    type Spelling = fn(&mut Body) -> (Value, Value);
    let spellings: [Spelling; 4] = [
        |b| (b.with(BinaryOp::Rem, b.index[0], 64), b.int(0)),
        |b| (b.int(0), b.with(BinaryOp::And, b.index[0], 63)),
        |b| {
            let quotient = b.with(BinaryOp::Shr, b.index[0], 6);
            (b.with(BinaryOp::Shl, quotient, 6), b.index[0])
        },
        |b| {
            let start = b.with(BinaryOp::Mul, b.n, 64);
            let at = b.bin(BinaryOp::Add, start, b.index[0]);
            (b.with(BinaryOp::And, at, 63), b.int(0))
        },
    ];
    for (k, spelling) in spellings.into_iter().enumerate() {
        let (kernel, each, cond) = each(&[4096], |b| {
            let (x, y) = spelling(b);
            b.op(Op::Compare { op: CompareOp::Eq, a: x, b: y })
        });
        assert_eq!(access::group_leader(&kernel, each, cond), Some(64), "spelling {k}");
    }
    let (kernel, each, cond) = each(&[4096], |b| {
        let rest = b.with(BinaryOp::Rem, b.index[0], 64);
        let one = b.int(1);
        b.op(Op::Compare { op: CompareOp::Eq, a: rest, b: one })
    });
    assert_eq!(access::group_leader(&kernel, each, cond), None);
}

#[test]
fn granularity_follows_groups_rows_and_uniform_values() {
    let (kernel, each, values) = each(&[8, 0], |b| {
        let quotient = b.with(BinaryOp::Div, b.index[1], 32);
        let scale = b.load(quotient);
        let x = b.load(b.index[1]);
        let max = b.op(Op::Group { op: GroupOp::Max, x, size: 48 });
        let scan = b.op(Op::Group { op: GroupOp::Scan, x, size: 48 });
        let both = b.bin(BinaryOp::Mul, max, scale);
        let row = b.load(b.index[0]);
        let same = b.load(b.n);
        let scaled = b.bin(BinaryOp::Mul, row, max);
        vec![
            (quotient, Granularity::Group(32)),
            (scale, Granularity::Group(32)),
            (x, Granularity::Lane),
            (max, Granularity::Group(48)),
            (scan, Granularity::Lane),
            (both, Granularity::Group(16)),
            (row, Granularity::Row),
            (same, Granularity::Uniform),
            (scaled, Granularity::Group(48)),
            (b.n, Granularity::Uniform),
        ]
    });
    for (value, expected) in values {
        assert_eq!(access::granularity(&kernel, each, value), expected, "{value}");
    }
}

#[test]
fn a_load_of_memory_the_each_writes_is_not_shared() {
    let (kernel, each, x) = each(&[0], |b| {
        let at = Place { base: Base::Param(b.dst), bank: None, index: b.n };
        let x = b.op(Op::Load { at, mask: None });
        b.store(b.index[0], x);
        x
    });
    assert_eq!(access::granularity(&kernel, each, x), Granularity::Lane);
}

// ---- random index expressions: the forms against the arithmetic itself ---------------------------------------------

/// The values of a body of arithmetic ops for one element.
fn run(kernel: &Kernel, each: Inst, scalars: [i64; 2], index: &[i64]) -> HashMap<Value, u64> {
    let mut known: HashMap<Value, u64> = HashMap::new();
    let mut seen = 0;
    for (&v, &i) in kernel.insts[each].indices.iter().zip(index) {
        known.insert(v, i as u64);
    }
    kernel.walk(kernel.roles.values().next().unwrap().body, &mut |inst| {
        let data = &kernel.insts[inst];
        let bits = match &data.op {
            Op::Const(c) => c.bits,
            Op::Scalar(_) => {
                seen += 1;
                scalars[seen - 1] as u64
            }
            Op::Binary { op, a, b } => dynamic::binary(*op, kernel.ty(*a), known[a], known[b]),
            Op::Unary { op, x } => dynamic::unary(*op, kernel.ty(*x), known[x]),
            Op::Compare { op, a, b } => u64::from(dynamic::compare(*op, kernel.ty(*a), known[a], known[b])),
            _ => return,
        };
        known.insert(data.result.unwrap(), bits);
    });
    known
}

fn uniform(x: &Uniform, known: &HashMap<Value, u64>) -> i64 {
    match x {
        Uniform::Const(n) => *n,
        Uniform::Value(v) => known[v] as i64,
        Uniform::Add(a, b) => uniform(a, known).wrapping_add(uniform(b, known)),
        Uniform::Mul(a, b) => uniform(a, known).wrapping_mul(uniform(b, known)),
        Uniform::Div(x, c) => {
            let x = uniform(x, known);
            assert_eq!(x % i64::from(*c), 0, "a division that promised to be exact");
            x / i64::from(*c)
        }
    }
}

#[test]
fn random_index_expressions_equal_their_forms() {
    let mut found = [0; 4]; // forms, groups, leaders, gathers
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (rows, columns) = (1 + random.below(5) as i64, 1 + random.below(200) as i64);
        let (kernel, each, (values, conds)) = each(&[rows, columns], |b| {
            // A scalar whose range is known, as the number of tiles is.
            let small = b.with(BinaryOp::And, b.m, 0xffff);
            let mut values = vec![b.index[0], b.index[1], b.index[1], b.n, small];
            let mut conds = Vec::new();
            for _ in 0..8 {
                let (x, y) = (values[random.below(values.len())], values[random.below(values.len())]);
                let g = [2, 3, 4, 8, 32, 96, 128][random.below(7)];
                let v = match random.below(10) {
                    0 | 1 => b.bin(BinaryOp::Add, x, y),
                    2 => b.bin(BinaryOp::Sub, x, y),
                    3 => b.with(BinaryOp::Mul, x, g),
                    4 => b.bin(BinaryOp::Mul, x, y),
                    5 | 6 => b.with(BinaryOp::Div, x, g),
                    7 => b.with(BinaryOp::Shr, x, 1 + random.below(6) as i64),
                    8 => b.with(BinaryOp::Rem, x, g),
                    _ => b.with(BinaryOp::And, x, [1, 3, 7, 31, 6][random.below(5)]),
                };
                values.push(v);
                let against = if random.below(2) == 0 { b.int(0) } else { x };
                conds.push(b.op(Op::Compare { op: CompareOp::Eq, a: v, b: against }));
                b.load(v);
            }
            (values, conds)
        });
        let mut analysis = access::Analysis::new(&kernel, each);
        let accesses = analysis.accesses();
        let forms: Vec<_> = values.iter().map(|&v| (v, analysis.affine(v))).collect();
        let leaders: Vec<_> = conds.iter().filter_map(|&c| Some((c, analysis.group_leader(c)?))).collect();
        found[0] += forms.iter().filter(|(_, f)| f.is_some()).count();
        found[1] += forms.iter().filter(|(_, f)| f.as_ref().is_some_and(|f| f.group.is_some())).count();
        found[2] += leaders.len();
        found[3] += accesses.iter().filter(|a| a.class == Class::Gather).count();
        for scalars in [[0, 0], [random.next() as i64, random.next() as i64], [i64::MAX - 3, 5], [-7, -1]] {
            for row in 0..rows {
                let first = run(&kernel, each, scalars, &[row, 0]);
                for access in &accesses {
                    let Op::Load { at, .. } = &kernel.insts[access.inst].op else { unreachable!() };
                    let address = first[&at.index].wrapping_mul(4);
                    assert_eq!(address % u64::from(access.align), 0, "seed {seed}: alignment");
                }
                let mut before: HashMap<Value, u64> = HashMap::new();
                for column in 0..columns {
                    let known = run(&kernel, each, scalars, &[row, column]);
                    for (v, form) in &forms {
                        let Some(form) = form else { continue };
                        let mut sum = uniform(&form.base, &known);
                        for (stride, i) in form.stride.iter().zip([row, column]) {
                            sum = sum.wrapping_add(uniform(stride, &known).wrapping_mul(i));
                        }
                        if let Some((size, step)) = &form.group {
                            let group = column / i64::from(*size);
                            sum = sum.wrapping_add(uniform(step, &known).wrapping_mul(group));
                        }
                        assert_eq!(sum, known[v] as i64, "seed {seed}: {v} = {form:?} at {row}, {column}");
                    }
                    for (cond, g) in &leaders {
                        assert_eq!(known[cond] != 0, column % i64::from(*g) == 0, "seed {seed}: leader of {g}");
                    }
                    for &v in &values {
                        let shared = match analysis.granularity(v) {
                            Granularity::Uniform | Granularity::Row => column > 0,
                            Granularity::Group(g) => column % i64::from(g) != 0,
                            Granularity::Lane => false,
                        };
                        assert!(!shared || before[&v] == known[&v], "seed {seed}: granularity of {v}");
                    }
                    before = known;
                }
            }
        }
    }
    println!("forms {}, groups {}, leaders {}, gathers {}", found[0], found[1], found[2], found[3]);
    assert!(found.iter().all(|&n| n > 20), "the generator reaches every kind: {found:?}");
}
