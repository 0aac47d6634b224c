//! Sections over neighbouring elements, with bodies and shapes that engines treat specially: long bodies whose loads
//! are moved ahead, groups of small floats, transposes of 16-bit elements.

use super::data::numbers;
use super::expression::{Known, Pool};
use super::sections::{Extent, Section, block_start};
use super::writer::{Writer, at};
use super::{Maker, Wish};
use crate::random::Random;
use tilewire::ir::{Access, BinaryOp, CompareOp, GroupOp, ParamId, RoleId, Type, UnaryOp, Value};

/// This many elements of any type fill whole units of 16 bytes.
const WHOLE: u64 = 16;

/// A buffer whose element `shift` is the first of the first block.
#[derive(Clone, Copy)]
struct Stream {
    param: ParamId,
    shift: u64,
}

impl Stream {
    /// A buffer of this many elements, usually placed so that an access can take 16 bytes at a time.
    fn plan(maker: &mut Maker, ty: Type, len: u64, access: Access, random: &mut Random) -> Self {
        let shift = if random.once_in(16) { 1 } else { random.pick(&[0, 0, 0, WHOLE, 3 * WHOLE]) };
        let align = if random.once_in(16) { 0 } else { 16 };
        let wish = Wish { align, ..Wish::new(access) };
        // A NaN or infinity usually determines the result of its whole group, so most inputs have none.
        let param = match random.once_in(4) {
            true => maker.random_buffer(ty, len + shift, wish, random),
            false => {
                let first = numbers(ty, len + shift, random);
                maker.buffer(ty, vec![first], wish, random)
            }
        };
        Stream { param, shift }
    }

    fn index(self, c: &mut Writer, start: Value, number: Value) -> Value {
        let shift = c.i64(self.shift as i64);
        let start = c.add(start, shift);
        c.add(start, number)
    }
}

/// A combination of groups.
#[derive(Clone, Copy)]
struct Grouped {
    op: GroupOp,
    size: u32,
    /// True if the group is made of loaded values, which may still be packed, and not of values computed from them.
    loaded: bool,
    magnitude: bool,
}

impl Grouped {
    fn plan(random: &mut Random) -> Self {
        Grouped {
            op: random.pick(&[GroupOp::Max, GroupOp::Max, GroupOp::Min, GroupOp::Min, GroupOp::Sum]),
            size: 2 << random.below_u64(9),
            loaded: !random.once_in(4),
            magnitude: random.once_in(2),
        }
    }
}

/// A long body in one dimension.
pub struct Long {
    role: u32,
    warps: u32,
    extent: Extent,
    /// The distance between the first elements of two blocks.
    span: u64,
    /// How often the body runs, one time after the other.
    rounds: u64,
    inputs: Vec<Stream>,
    /// The number of neighbours that share a value.
    shared: Option<(Stream, u32)>,
    groups: Vec<Grouped>,
    output: Stream,
    output_type: Type,
    /// A store by the first element of each group of this many.
    firsts: Option<(ParamId, u32)>,
}

impl Long {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let groups: Vec<Grouped> = (0..random.pick(&[0, 0, 1, 1, 2, 2])).map(|_| Grouped::plan(random)).collect();
        let (extent, span) = Long::extent(maker, &groups, random);
        let len = span * maker.blocks;
        // The 16-bit types come first in the list.
        let first =
            if groups.is_empty() || random.once_in(4) { random.pick(&LOADED) } else { random.pick(&LOADED[..6]) };
        let mut types = vec![first];
        if random.once_in(2) {
            types.push(if random.once_in(2) { first } else { random.pick(&LOADED) });
        }
        let in_place = random.once_in(4);
        let mut inputs: Vec<Stream> = Vec::new();
        for &ty in &types {
            let access = if in_place && inputs.is_empty() { Access::InOut } else { Access::In };
            inputs.push(Stream::plan(maker, ty, len, access, random));
        }
        let (output, output_type) = if in_place {
            // The input has the same or another name.
            let param = if random.once_in(2) { maker.alias(inputs[0].param) } else { inputs[0].param };
            (Stream { param, ..inputs[0] }, types[0])
        } else {
            // A larger element makes vectors of fewer elements, which are less than 16 bytes of the loaded type.
            let least = types.iter().map(|ty| ty.size()).min().unwrap_or(1);
            let most = if random.once_in(6) { 8 } else { least };
            let fits = |ty: &Type| ty.size() <= most && ty.size() >= most / 2;
            let fitting: Vec<Type> = Type::ALL.into_iter().filter(fits).collect();
            let ty = random.pick(&fitting);
            (Stream::plan(maker, ty, len, Access::Out, random), ty)
        };
        let mut plan = Long {
            role: random.below_u64(u64::from(maker.roles)) as u32,
            warps: random.pick(&[1, 1, 2, 3]),
            extent,
            span,
            rounds: if random.once_in(4) { 2 } else { 1 },
            inputs,
            shared: None,
            groups,
            output,
            output_type,
            firsts: None,
        };
        if random.once_in(5) {
            let size = random.pick(&[16, 32, 32, 128]);
            let len = plan.parts(size) * maker.blocks;
            let ty = random.pick(&[Type::F32, Type::F8E5M2, Type::BF16]);
            plan.shared = Some((Stream::plan(maker, ty, len, Access::In, random), size));
        }
        if random.once_in(3) {
            let size = plan.groups.first().map_or(64, |grouped| grouped.size);
            let len = plan.parts(size) * maker.blocks;
            let ty = random.pick(&[Type::F32, Type::F32, Type::U8, Type::BF16]);
            plan.firsts = Some((maker.random_buffer(ty, len, Wish::new(Access::Out), random), size));
        }
        plan
    }

    /// The number of elements: none, few, with a remainder, or whole groups. More blocks get fewer elements each.
    fn extent(maker: &mut Maker, groups: &[Grouped], random: &mut Random) -> (Extent, u64) {
        let largest = groups.iter().map(|grouped| u64::from(grouped.size)).max().unwrap_or(WHOLE);
        let some = MOST / maker.blocks;
        let n = match random.below_u64(8) {
            0 => random.pick(&[0, 1, 7, 31, 64, 100]),
            1 => 1 + random.below_u64(some / 4),
            2 => (1 + random.below_u64(some / 128)) * 128,
            3 => (1 + random.below_u64(some / 1024)) * 1024,
            _ => (1 + random.below_u64(some / largest)) * largest,
        };
        let runtime = random.once_in(4).then(|| maker.scalar(Type::I64, n));
        let span = if random.once_in(8) { n } else { n.next_multiple_of(WHOLE) + random.pick(&[0, 0, WHOLE]) };
        (Extent { rows: None, cols: n, runtime }, span)
    }

    /// The number of parts of this many elements in a block.
    fn parts(&self, size: u32) -> u64 {
        self.extent.cols.div_ceil(u64::from(size))
    }

    fn body(&self, c: &mut Writer, number: Value, random: &mut Random) {
        let start = block_start(c, self.span);
        let (mut pool, mut loaded) = (Pool::default(), Vec::new());
        for input in &self.inputs {
            let index = input.index(c, start, number);
            loaded.push(wide(c, &mut pool, input.param, index));
        }
        if let Some((stream, size)) = self.shared {
            let (start, by) = (block_start(c, self.parts(size)), c.i64(i64::from(size)));
            let part = c.binary(BinaryOp::Div, number, by);
            let index = stream.index(c, start, part);
            wide(c, &mut pool, stream.param, index);
        }
        let mut x = loaded[0];
        if let Some(&other) = loaded.get(1) {
            let difference = c.binary(BinaryOp::Sub, x.v, other.v);
            x = pool.add(c, difference, false);
        }
        let steps = 3 + random.below_u64(4);
        x = pool.chain(c, x, steps, random);
        let mut first = x;
        for grouped in &self.groups {
            let of = if grouped.loaded { random.pick(&loaded) } else { x };
            let of = if grouped.magnitude { c.unary(UnaryOp::Abs, of.v) } else { of.v };
            let all = c.group(grouped.op, of, grouped.size);
            first = pool.add(c, all, false);
            let with = c.binary(random.pick(&[BinaryOp::Add, BinaryOp::Mul]), x.v, all);
            x = pool.add(c, with, false);
        }
        let steps = 3 + random.below_u64(6);
        x = pool.chain(c, x, steps, random);
        let y = stored(c, &pool, x, self.output_type);
        let index = self.output.index(c, start, number);
        c.store(self.output.param, index, y);
        if let Some((param, size)) = self.firsts {
            let (by, zero) = (c.i64(i64::from(size)), c.i64(0));
            let (group, rest) = (c.binary(BinaryOp::Div, number, by), c.binary(BinaryOp::Rem, number, by));
            let (leads, start) = (c.compare(CompareOp::Eq, rest, zero), block_start(c, self.parts(size)));
            let ty = c.b.kernel().base_type(at(param, zero).base).expect("a buffer");
            let (index, y) = (c.add(start, group), stored(c, &pool, first, ty));
            c.store_if(param, index, y, leads);
        }
    }
}

/// The most elements of all blocks together for a long body. They give several turns of a warp, and fit the time of CI.
const MOST: u64 = 4096;

/// The types that long bodies load. Most are small floats.
const LOADED: [Type; 11] = [
    Type::BF16,
    Type::BF16,
    Type::BF16,
    Type::F16,
    Type::F16,
    Type::F16,
    Type::F32,
    Type::F32,
    Type::F8E4M3,
    Type::F8E5M2,
    Type::I32,
];

/// A section that one role runs with a number of warps. Other roles skip it.
trait OfOneRole {
    /// The role and its warps.
    fn who(&self) -> (u32, u32);

    fn run(&self, c: &mut Writer, random: &mut Random);
}

impl<S: OfOneRole> Section for S {
    fn warps(&self, role: u32) -> u32 {
        let (mine, warps) = self.who();
        if role == mine { warps } else { 1 }
    }

    fn emit(&self, maker: &mut Maker, role: u32, _: RoleId, random: &mut Random) {
        if role == self.who().0 {
            self.run(&mut maker.c, random);
        }
    }
}

impl OfOneRole for Long {
    fn who(&self) -> (u32, u32) {
        (self.role, self.warps)
    }

    fn run(&self, c: &mut Writer, random: &mut Random) {
        let each = |c: &mut Writer, random: &mut Random| {
            self.extent.each(c, |c, _, _, number| self.body(c, number, random));
        };
        if self.rounds == 1 {
            return each(c, random);
        }
        // The second run starts with the data that the first one left in shared memory, and in an output that is also
        // an input.
        let [zero, one, end] = [0, 1, self.rounds as i64].map(|x| c.i64(x));
        c.for_step(zero, end, one, |c, _| each(c, random));
    }
}

/// A transpose of 16-bit elements, by as many warps as share a square.
pub struct Transpose {
    role: u32,
    warps: u32,
    rows: u64,
    cols: u64,
    inputs: Vec<ParamId>,
    output: ParamId,
    output_type: Type,
    /// The number of ops in the body. With none, elements are only moved.
    steps: u64,
}

impl Transpose {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let (rows, cols) = random.pick(&[(64, 64), (64, 64), (72, 64), (64, 80), (128, 64), (65, 66), (24, 136)]);
        let (len, wish) = (rows * cols * maker.blocks, Wish { align: 16, ..Wish::new(Access::In) });
        let ty = random.pick(&SMALL);
        let steps = random.pick(&[0, 0, 2, 8]);
        let inputs = if steps > 0 { 1 + random.below_u64(2) } else { 1 };
        let output_type = if random.once_in(3) { random.pick(&SMALL) } else { ty };
        Transpose {
            role: random.below_u64(u64::from(maker.roles)) as u32,
            warps: random.pick(&[2, 4, 4, 5]),
            rows,
            cols,
            inputs: (0..inputs).map(|_| maker.random_buffer(ty, len, wish, random)).collect(),
            output: maker.random_buffer(output_type, len, Wish { access: Access::Out, ..wish }, random),
            output_type,
            steps,
        }
    }
}

/// Types of 16 bits.
const SMALL: [Type; 4] = [Type::BF16, Type::F16, Type::I16, Type::U16];

impl OfOneRole for Transpose {
    fn who(&self) -> (u32, u32) {
        (self.role, self.warps)
    }

    fn run(&self, c: &mut Writer, random: &mut Random) {
        let (start, rows, cols) =
            (block_start(c, self.rows * self.cols), c.i64(self.rows as i64), c.i64(self.cols as i64));
        c.each2(rows, cols, |c, row, col| {
            let (from, to) = (c.scale(col, self.rows as i64, row), c.scale(row, self.cols as i64, col));
            let (from, to) = (c.add(start, from), c.add(start, to));
            let mut pool = Pool::default();
            let y = match self.steps {
                0 => {
                    let x = c.load(self.inputs[0], from);
                    if c.b.kernel().ty(x) == self.output_type { x } else { c.cast(x, self.output_type) }
                }
                steps => {
                    let loaded: Vec<Known> = self.inputs.iter().map(|&input| wide(c, &mut pool, input, from)).collect();
                    let x = pool.chain(c, loaded[0], steps, random);
                    c.cast(x.v, self.output_type)
                }
            };
            c.store(self.output, to, y);
        });
    }
}

/// A loaded value as an f32 for computation.
fn wide(c: &mut Writer, pool: &mut Pool, param: ParamId, index: Value) -> Known {
    let x = c.load(param, index);
    let x = if c.b.kernel().ty(x) == Type::F32 { x } else { c.cast(x, Type::F32) };
    pool.add(c, x, false)
}

/// The value that is stored for an f32: itself, or as many of its bits and those of the value before it as an integer
/// holds.
fn stored(c: &mut Writer, pool: &Pool, x: Known, ty: Type) -> Value {
    match ty {
        Type::F32 => x.v,
        ty if ty.is_float() || ty == Type::Bool => c.cast(x.v, ty),
        ty => {
            let last = Pool { all: vec![x, pool.all[pool.all.len() - 1]] };
            let digest = last.digest(c, 0);
            let (half, odd) = (c.u64(32), c.u64(0x9e37_79b9_7f4a_7c15));
            let mixed = c.mul(digest, odd);
            let mixed = c.binary(BinaryOp::Shr, mixed, half);
            c.cast(mixed, ty)
        }
    }
}
