//! `require` gives the same answer on every engine, before anything is written.

use tilewire::check::{self, EvalError, Options as Schedule};
use tilewire::ir::{Entity, Op, RequiredBytes, simplify};
use tilewire::ptx::{Options, Target, abi, emit};
use tilewire::vm::Prepared;
use tilewire::{Arg, LaunchError, Scalar, Tensor, Traced, kernel};
use tilewire_testkit::ptx_machine::{self, Memory};
use tilewire_testkit::random::Random;
use tilewire_testkit::simulated::Launch;

/// The size of the written memory in bytes. Guards of the same size lie on both sides.
const SIZE: i64 = 96;
const GUARD: u8 = 0xa5;

/// Two blocks write ones into the middle of a tensor, in one role of several warps and copies; only block 1 has the
/// offset.
fn fill(all: &Tensor<u8>, offset: &Scalar<i64>, bytes: &Scalar<i64>) -> (Traced, u32) {
    let line = std::cell::Cell::new(0);
    let traced = kernel("fill", |k| {
        k.blocks(2);
        let all = k.output(all);
        k.role("fill", 2).copies(2, |r| {
            let (first, bytes) = (r.scalar(offset), r.scalar(bytes));
            r.if_(r.block().eq(1) & r.copy().eq(0), || {
                line.set(line!() + 1);
                r.require_inside(7, first, bytes, SIZE);
                r.each(bytes, |i| all.store(first + i + SIZE, 1u8));
            });
        });
    });
    (traced.unwrap(), line.get())
}

fn cases() -> Vec<[i64; 2]> {
    let mut random = Random::new(11);
    let mut cases = vec![
        [0, SIZE],
        [0, SIZE + 1],
        [1, SIZE],
        [SIZE, 0],
        [SIZE, 1],
        [SIZE + 1, 0],
        [-1, 1],
        [-1, 0],
        [0, -1],
        [i64::MAX, i64::MAX],
        [i64::MIN, i64::MIN],
        [i64::MAX, 2],
        [2, i64::MIN],
        [SIZE - 1, 1],
    ];
    cases.extend((0..40).map(|_| [0; 2].map(|_| random.below_u64(2 * SIZE as u64) as i64 - SIZE / 2)));
    cases
}

#[test]
fn bytes_outside_end_the_launch_before_any_is_written_on_every_engine() {
    let (all, offset, bytes) = (Tensor::<u8>::zeros(3 * SIZE as usize), Scalar::new(0), Scalar::new(0));
    let (traced, line) = fill(&all, &offset, &bytes);
    let mut prepared = Prepared::new(&traced.kernel, &traced.args).unwrap();
    let module = emit(&simplify(&traced.kernel), Options::new(Target::Sm90a)).unwrap();
    let mut refused = 0;
    for [first, count] in cases() {
        let fits = first >= 0 && count >= 0 && i128::from(first) + i128::from(count) <= i128::from(SIZE);
        offset.set(first);
        bytes.set(count);
        let expected: Vec<u8> = (0..3 * SIZE)
            .map(|i| if fits && (SIZE + first..SIZE + first + count).contains(&i) { 1 } else { GUARD })
            .collect();
        let span = RequiredBytes { rank: 7, offset: first, bytes: count, size: SIZE };

        all.fill(GUARD);
        match prepared.run() {
            Ok(()) => assert!(fits, "{span}"),
            Err(LaunchError::Required { span: Some(found), by, at }) => {
                assert!(!fits && found == span, "{found}, not {span}");
                assert_eq!((by.rank, by.block, by.role.as_str(), at.line), (0, 1, "fill", line));
                assert!(at.file.ends_with("requirements.rs"));
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(all.to_vec(), expected, "the CPU engine, {span}");

        all.fill(GUARD);
        match check::evaluate(&traced.kernel, &traced.args, (0, 1), Schedule::default()) {
            Ok(after) => assert!(fits && after.iter().any(|banks| banks.first() == Some(&expected)), "{span}"),
            Err(EvalError::Required { span: Some(found), by }) => {
                assert!(!fits && found == span && by.at.line == line && by.block == 1, "{by}: {found}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }

        let mut memory = Memory::default();
        let mut launch = Launch::new(&mut memory, 3, 4, u64::MAX);
        let piece = memory.pieces.len();
        for arg in &traced.args {
            launch.words.push(match arg {
                Arg::Scalar(memory) if memory.is(offset.memory()) => first as u64,
                Arg::Scalar(_) => count as u64,
                _ => memory.add(vec![GUARD; 3 * SIZE as usize]),
            });
        }
        ptx_machine::run(&module, &launch.args(), &mut memory).unwrap();
        assert_eq!(memory.pieces[piece], expected, "PTX, {span}");
        let report: Vec<u64> = (0..abi::REPORT_WORDS).map(|k| memory.word(launch.report, 8 * k)).collect();
        if fits {
            assert_eq!((report[0], memory.word(launch.abort, 0)), (0, 0));
            continue;
        }
        let found = [5, 7, 6, 8].map(|k: usize| report[k] as i64);
        assert_eq!((report[0], RequiredBytes::of(found), report[2], report[9]), (abi::REQUIRED, span, 1, 1));
        let inst = tilewire::ir::Inst::new(report[4] as usize);
        let kernel = simplify(&traced.kernel);
        assert!(matches!(kernel.insts[inst].op, Op::Require { .. }) && kernel.line(inst).line == line);
        assert_ne!(memory.word(launch.abort, 0), 0, "the other waits of the rank must end");
    }
    assert!(refused > 20, "only {refused} cases are outside");
}

#[test]
fn a_condition_ends_the_launch_where_it_does_not_hold() {
    let y = Tensor::<i64>::zeros(4);
    let traced = kernel("only the first blocks", |k| {
        k.blocks(4);
        let y = k.output(&y);
        k.main(|r| {
            r.require(r.block().lt(3));
            y.store(r.block(), 1);
        });
    })
    .unwrap();
    let error = Prepared::new(&traced.kernel, &traced.args).unwrap().run().unwrap_err();
    let LaunchError::Required { span: None, by, .. } = &error else { panic!("{error}") };
    assert_eq!((by.block, y.get(3)), (3, 0));
    assert!(error.to_string().starts_with("a requirement of the kernel does not hold: rank 0 block 3"), "{error}");
    let report = check::evaluate(&traced.kernel, &traced.args, (0, 1), Schedule::default()).unwrap_err();
    assert!(matches!(report, EvalError::Required { span: None, .. }), "{report}");
}

/// A put at a place that is known while tracing costs nothing.
#[test]
fn what_is_known_to_lie_inside_is_not_asked() {
    let y = Tensor::<u8>::zeros(64);
    let count = |offset: i64| {
        let traced = kernel("known", |k| {
            let y = k.output(&y);
            k.main(|r| {
                r.require_inside(0, offset, 16, 64);
                r.each(16, |i| y.store(i, 1u8));
            });
        });
        let kernel = simplify(&traced.unwrap().kernel);
        kernel.insts.values().filter(|inst| matches!(inst.op, Op::Require { .. })).count()
    };
    assert_eq!((count(48), count(49), count(-1)), (0, 1, 1));
}
