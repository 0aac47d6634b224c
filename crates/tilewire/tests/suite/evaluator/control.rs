//! Control flow and variables.

use super::{elements, run, run_with};
use tilewire::check::Options;
use tilewire::ir::{Access, BinaryOp, CompareOp, ParamId, Special, Type};
use tilewire_testkit::programs::Writer;

/// Appends the indices of a `for` to `out`. The last element is their number.
fn trace_for(start: i64, end: i64, step: i64) -> Vec<i64> {
    let mut c = Writer::new("for", 1);
    let out = c.buffer("out", Type::I64, 8, Access::Out);
    c.role("main", |c, role| {
        let count = c.b.var(role, Type::I64);
        let [start, end, step, last, one, zero] = [start, end, step, 7, 1, 0].map(|x| c.i64(x));
        c.write(count, zero);
        c.for_step(start, end, step, |c, i| {
            let n = c.read(count);
            c.store(out, n, i);
            let n = c.add(n, one);
            c.write(count, n);
        });
        let n = c.read(count);
        c.store(out, last, n);
    });
    let all = elements::<i64>(&run(c, &[vec![0; 64]])[0]);
    all[..all[7] as usize].to_vec()
}

#[test]
fn a_for_counts_up_to_its_end() {
    assert_eq!(trace_for(0, 3, 1), [0, 1, 2]);
    assert_eq!(trace_for(-2, 6, 3), [-2, 1, 4]);
    assert_eq!(trace_for(3, 3, 1), []);
    assert_eq!(trace_for(5, 3, 1), []);
}

#[test]
fn a_for_with_a_step_of_0_or_less_runs_nothing() {
    assert_eq!(trace_for(0, 3, 0), []);
    assert_eq!(trace_for(3, 0, -1), []);
    assert_eq!(trace_for(0, 3, -1), []);
}

#[test]
fn a_for_ends_where_its_index_would_overflow() {
    assert_eq!(trace_for(i64::MAX - 3, i64::MAX, 2), [i64::MAX - 3, i64::MAX - 1]);
}

#[test]
fn an_each_without_elements_runs_nothing() {
    for (rows, cols) in [(0, 3), (3, 0), (-1, -1), (i64::MIN, 2)] {
        let mut c = Writer::new("empty", 1);
        c.buffer("out", Type::I64, 1, Access::Out);
        c.role("main", |c, _| {
            let (rows, cols, far) = (c.i64(rows), c.i64(cols), c.i64(1 << 50));
            c.each2(rows, cols, |c, row, _| c.store(out(), far, row));
        });
        assert_eq!(run(c, &[vec![3; 8]])[0], [3; 8]);
    }
}

fn out() -> ParamId {
    tilewire::ir::Entity::new(0)
}

#[test]
fn a_two_dimensional_each_knows_row_and_column() {
    let mut c = Writer::new("grid", 1);
    c.buffer("out", Type::I64, 6, Access::Out);
    c.role("main", |c, _| {
        let (rows, cols) = (c.i64(2), c.i64(3));
        c.each2(rows, cols, |c, row, col| {
            let (place, ten) = (c.scale(col, 2, row), c.i64(10));
            let x = c.mul(row, ten);
            let x = c.add(x, col);
            c.store(out(), place, x);
        });
    });
    assert_eq!(elements::<i64>(&run(c, &[vec![0; 48]])[0]), [0, 10, 1, 11, 2, 12]);
}

#[test]
fn an_if_runs_one_side() {
    for (take, want) in [(1, 5), (0, 6)] {
        let mut c = Writer::new("if", 1);
        c.buffer("out", Type::I64, 1, Access::Out);
        c.role("main", |c, _| {
            let (cond, zero, five, six) = (c.bits(Type::Bool, take), c.i64(0), c.i64(5), c.i64(6));
            c.if_else(cond, |c| c.store(out(), zero, five), |c| c.store(out(), zero, six));
        });
        assert_eq!(elements::<i64>(&run(c, &[vec![0; 8]])[0]), [want]);
    }
}

#[test]
fn a_while_runs_its_head_once_more_than_its_body() {
    let mut c = Writer::new("while", 1);
    c.buffer("out", Type::I64, 2, Access::Out);
    c.role("main", |c, role| {
        let (heads, bodies) = (c.b.var(role, Type::I64), c.b.var(role, Type::I64));
        let [zero, one, three] = [0, 1, 3].map(|x| c.i64(x));
        c.write(heads, zero);
        c.write(bodies, zero);
        let count = |c: &mut Writer, var| {
            let n = c.read(var);
            let n = c.add(n, one);
            c.write(var, n);
        };
        c.while_loop(
            |c| {
                count(c, heads);
                let n = c.read(bodies);
                c.compare(CompareOp::Lt, n, three)
            },
            |c| count(c, bodies),
        );
        let (a, b) = (c.read(heads), c.read(bodies));
        c.store(out(), zero, a);
        c.store(out(), one, b);
    });
    assert_eq!(elements::<i64>(&run(c, &[vec![0; 16]])[0]), [4, 3]);
}

#[test]
fn an_each_sees_what_the_one_before_it_wrote() {
    let mut c = Writer::new("turn", 1);
    c.buffer("out", Type::I64, 4, Access::InOut);
    c.role("main", |c, role| {
        let scratch = c.b.scratch(role, Type::I64, 4);
        let (n, three) = (c.i64(4), c.i64(3));
        c.each(n, |c, i| c.store_scratch(scratch, i, i));
        c.each(n, |c, i| {
            let from = c.binary(BinaryOp::Sub, three, i);
            let x = c.load_scratch(scratch, from);
            c.store(out(), i, x);
        });
    });
    assert_eq!(elements::<i64>(&run(c, &[vec![0; 32]])[0]), [3, 2, 1, 0]);
}

#[test]
fn copies_take_turns() {
    for most_copies in [1, 2, 3] {
        let mut c = Writer::new("copies", 1);
        c.buffer("out", Type::I64, 5, Access::Out);
        c.role_copies("main", 3, |c, _| {
            let (copy, copies, end) = (c.special(Special::Copy), c.special(Special::Copies), c.i64(5));
            c.for_step(copy, end, copies, |c, turn| c.store(out(), turn, copy));
        });
        let after = run_with(c, &[vec![9; 40]], Options { most_copies, ..Options::default() });
        let want: Vec<i64> = (0..5).map(|turn| turn % i64::from(most_copies)).collect();
        assert_eq!(elements::<i64>(&after[0]), want);
    }
}
