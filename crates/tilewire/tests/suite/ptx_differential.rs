//! The PTX of random programs gives the bytes of the reference evaluator, on a machine that runs PTX as its manual
//! defines it. This needs no GPU and no assembler. It cannot see missing fences (the machine's memory is sequentially
//! consistent), nor hardware that differs from the manual.

use proptest::prelude::*;
use tilewire::check::{self, Options as Schedule};
use tilewire::ir::{Access, Inst, Kernel, Op, Param, Type, simplify};
use tilewire::ptx::{Options, PtxError, Target, abi, emit};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::tensor::bytes_of;
use tilewire::transport::layout::Geometry;
use tilewire::{Algorithm, Arg, Bf16, Memory as HostMemory, Primitive, Tensor, Traced, all_reduce, kernel};
use tilewire_testkit::code::{Code, at, slot};
use tilewire_testkit::fields::{self, Collective, Form};
use tilewire_testkit::programs::Program;
use tilewire_testkit::ptx_machine::{self, Memory};
use tilewire_testkit::random::Random;
use tilewire_testkit::simulated::{Launch, simulate, simulate_world};

fn agree(program: &Program, target: Target, unroll: u32, [simplified, bounds]: [bool; 2]) {
    let (binding, memories) = program.bind();
    let after = check::run(&program.kernel, &binding, memories, Schedule::default());
    let expected =
        program.results(&binding, &after.unwrap_or_else(|e| panic!("the evaluator refused: {e}\n{program:?}")));
    let kernel = if simplified { simplify(&program.kernel) } else { program.kernel.clone() };
    let module = match emit(&kernel, Options { unroll, bounds, ..Options::new(target) }) {
        Ok(module) => module,
        Err(PtxError::SharedMemory { .. }) => return,
        Err(error) => panic!("no PTX: {error}\n{program:?}"),
    };
    let got = simulate(program, &module).unwrap_or_else(|fault| panic!("{target}: {}\n{program:?}", fault.0));
    for (p, (got, expected)) in got.iter().zip(&expected).enumerate() {
        for (bank, (got, expected)) in got.iter().zip(expected).enumerate() {
            if let Some(k) = (0..got.len()).find(|&k| got[k] != expected[k]) {
                let end = (k + 8).min(got.len());
                let (got, expected) = (&got[k..end], &expected[k..end]);
                panic!(
                    "{target}: parameter {p} bank {bank} byte {k}: {got:02x?} instead of {expected:02x?}\n{program:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ptx_and_evaluator_agree(
        program in crate::strategy::programs(),
        target in prop::sample::select(Target::ALL.to_vec()),
        unroll in prop::sample::select(vec![0, 0, 1, 2]),
        simplified in any::<bool>(),
        // With bounds checks, some special forms of code do not occur.
        bounds in prop::sample::select(vec![false, false, false, true]),
    ) {
        agree(&program, target, unroll, [simplified, bounds]);
    }
}

/// Random programs reach all special forms of PTX bodies. Each form leaves a mark in the text that nothing else leaves.
#[test]
fn random_programs_go_all_ways() {
    const PROGRAMS: u32 = 600;
    let mut found = [0; WAYS.len()];
    let mut random = Random::new(1);
    for _ in 0..PROGRAMS {
        let program = Program::new(random.next(), 1 + random.below_u64(5));
        let Ok(module) = emit(&simplify(&program.kernel), Options::new(Target::Sm90a)) else { continue };
        let has = |mark: &str| module.text.contains(mark);
        let copies = has("cp.async.cg.shared.global");
        let ahead = copies && has("bar.warp.sync -1;");
        let pairs = |kind: &str| ["max", "min"].iter().any(|op| has(&format!("{op}.{kind} ")));
        // A register that grows in place holds the number of a vector, or an address.
        let is_place = |x: &str| has(&format!("[{x}]")) || has(&format!("[{x}+"));
        let added: Vec<&str> = module.text.lines().filter_map(added_to).collect();
        let [places, words, wide] = [
            added.iter().any(|x| is_place(x)),
            added.iter().any(|x| x.starts_with("%r")),
            added.iter().any(|x| x.starts_with("%d") && !is_place(x)),
        ];
        let ways =
            [ahead, copies && !ahead, pairs("bf16x2"), pairs("f16x2"), ahead && pairs("bf16x2"), places, words, wide];
        found.iter_mut().zip(ways).for_each(|(found, way)| *found += u32::from(way));
    }
    let few: Vec<_> = WAYS.iter().zip(found).filter(|((_, least), found)| found < least).collect();
    assert!(few.is_empty(), "of {PROGRAMS} programs too few go these ways (wanted, found): {few:?}");
}

/// The register that a line adds a constant to.
fn added_to(line: &str) -> Option<&str> {
    let args = line.trim().strip_prefix("add.s64 ").or(line.trim().strip_prefix("add.s32 "))?;
    let [to, from, by] = args.trim_end_matches(';').split(", ").collect::<Vec<_>>()[..] else { return None };
    (to == from && !by.starts_with('%')).then_some(to)
}

/// The special forms of PTX bodies, and the least number of programs that must have each: about half of the number when
/// this was written.
const WAYS: [(&str, u32); 8] = [
    ("loads that come ahead", 35),
    ("squares", 10),
    ("pairs of bf16", 10),
    ("pairs of f16", 10),
    ("pairs of bf16 that come ahead", 8),
    ("places that move on", 120),
    ("vectors numbered in 32 bits", 250),
    ("vectors numbered in 64 bits", 220),
];

/// The number of random programs: `TILEWIRE_CASES`, or as many as CI has time for.
fn cases() -> u32 {
    std::env::var("TILEWIRE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

/// Ranks in a ring. Each sends its input tile by tile to the next one, through staging slots that take turns. The
/// copies of a role take the steps alternately.
#[test]
fn ranks_in_a_ring_pass_their_tiles_on() {
    const TILE: i64 = 37;
    const STEPS: i64 = 7;
    const DEPTH: i64 = 4;
    for ranks in [1usize, 2, 3] {
        let shared = |bytes: i64| (0..ranks).map(|_| HostMemory::zeroed(bytes as usize)).collect::<Vec<_>>();
        let (staging, tails, heads) = (shared(DEPTH * TILE * 4), shared(DEPTH * 64), shared(DEPTH * 64));
        let count = (STEPS * TILE) as usize;
        let inputs: Vec<Tensor<f32>> =
            (0..ranks).map(|rank| Tensor::from_fn(count, |k| (rank * count + k) as f32)).collect();
        let member = |input: &Tensor<f32>| {
            let output = Tensor::<f32>::zeros(count);
            kernel("ring", |k| {
                let (x, y) = (k.input(input), k.output(&output));
                let staging = k.region("staging", &staging);
                let (tails, heads) = (k.slots("tails", &tails, 64), k.slots("heads", &heads, 64));
                k.role("send", 1).copies(2, |r| {
                    let (me, next) = (r.rank(), (r.rank() + 1) % r.world_size());
                    r.for_turns(STEPS, |step| {
                        let slot = step % DEPTH;
                        r.wait(heads.slot(me, slot), (step + 1 - DEPTH).max(0));
                        r.each(TILE, |i| staging.put(next, (slot * TILE + i) * 4, x.load(step * TILE + i)));
                        r.signal(tails.slot(next, slot), step + 1);
                    });
                });
                k.role("receive", 2).copies(2, |r| {
                    let (me, before) = (r.rank(), (r.rank() + r.world_size() - 1) % r.world_size());
                    r.for_turns(STEPS, |step| {
                        let slot = step % DEPTH;
                        r.wait(tails.slot(me, slot), step + 1);
                        r.each(TILE, |i| y.store(step * TILE + i, staging.get::<f32>(me, (slot * TILE + i) * 4) * 2.0));
                        r.signal_credit(heads.slot(before, slot), step + 1);
                    });
                });
            })
            .unwrap()
        };
        let traced: Vec<_> = inputs.iter().map(member).collect();
        let results = simulate_world(&traced, Target::Sm90a).unwrap_or_else(|fault| panic!("{}", fault.0));
        for rank in 0..ranks {
            let sent = inputs[(rank + ranks - 1) % ranks].to_vec();
            let wanted: Vec<u8> = sent.iter().flat_map(|x| (x * 2.0).to_le_bytes()).collect();
            assert!(results[rank][1][0] == wanted, "rank {rank} of {ranks}");
        }
    }
}

/// Ranks that put packets to all others poll those of several peers before they wait for any. A block lies in one
/// shard, or in two.
#[test]
fn ranks_add_what_all_of_them_sent() {
    // Blocks begin at the beginning of a shard, and within one. Shards have different lengths, and some are empty.
    let cases = [
        (2, 64, 1),
        (2, 64, 4),
        (3, 100, 1),
        (4, 256, 2),
        (4, 256, 4),
        (4, 999, 3),
        (5, 8, 1),
        (5, 40, 1),
        (5, 404, 3),
    ];
    for ((ranks, len, blocks), copies) in cases.into_iter().flat_map(|case| [1, 2].map(|copies| (case, copies))) {
        let rehearsal = Rehearsal::new(Geometry {
            world_size: ranks,
            per_peer_bytes: 8 << 10,
            max_blocks_per_peer: 4,
            max_slots: 2,
            max_copies: copies,
            packet_bytes: 256 << 10,
            window_sets: 2,
        });
        // With copies of roles, as between GPUs. If elements fill their packets, everything is one pass.
        let (links, what) =
            (rehearsal.with_copies(copies).ranks(), format!("{len} elements of {ranks} ranks, {copies} copies"));
        let in_one_pass = copies > 1 && len % 2 == 0;
        // Sums whose result depends on the order.
        let number =
            |rank: usize, k: usize| ((rank * 7919 + k * 104_729) % 1000) as f32 * 10f32.powi(rank as i32 * 3 - 4);
        let floats = |rank: usize| Tensor::from_fn(len, |k| number(rank, k));
        let halves = |rank: usize| Tensor::from_fn(len, |k| Bf16::from_f32(number(rank, k)));
        let of_floats = |link: &RehearsalRank, rank| {
            let x = floats(rank);
            // In place, and with two tensors.
            let y = if blocks == 1 { x.clone() } else { Tensor::zeros(len) };
            all_reduce(link, &y, &x).algorithm(Algorithm::OneShot).blocks(blocks).granule(2 - len % 2).trace().unwrap()
        };
        let of_halves = |link: &RehearsalRank, rank| {
            let (x, y) = (halves(rank), Tensor::<Bf16>::zeros(len));
            let reduce = all_reduce(link, &y, &x).algorithm(Algorithm::OneShot).blocks(blocks).granule(4);
            reduce.produce(|c| c.input.load(c.pos()) * Bf16::from_f32(3.0)).trace().unwrap()
        };
        let all = |trace: &dyn Fn(&RehearsalRank, usize) -> Traced| -> Vec<Traced> {
            links.iter().enumerate().map(|(rank, link)| trace(link, rank)).collect()
        };
        // Shard s is summed in the order of ranks s + 1, …, s.
        let share = len.div_ceil(ranks);
        let sum = |k: usize, of: &dyn Fn(usize) -> f32| {
            (1..=ranks).map(|i| of((k / share + i) % ranks)).reduce(|a, b| a + b).expect("ranks")
        };
        let sums = (0..len).flat_map(|k| sum(k, &|rank| number(rank, k)).to_le_bytes()).collect::<Vec<u8>>();
        let tripled = |rank: usize, k: usize| {
            Bf16::from_f32(Bf16::from_f32(number(rank, k)).to_f32() * Bf16::from_f32(3.0).to_f32()).to_f32()
        };
        let rounded =
            (0..len).flat_map(|k| Bf16::from_f32(sum(k, &|rank| tripled(rank, k))).to_bits().to_le_bytes()).collect();
        for (traced, right, is_f32) in [(all(&of_floats), sums, true), (all(&of_halves), rounded, false)] {
            let text = emit(&simplify(&traced[0].kernel), Options::new(Target::Sm90a)).unwrap().text;
            let pieces: Vec<&str> = text.split("ld.relaxed.sys.global.v2.b64").collect();
            let together = pieces.split(|piece| piece.contains("bra ")).map(|looks| looks.len() + 1).max();
            assert!(together >= Some(ranks - 1), "{what}: {together:?} looks without a branch between them\n{text}");
            if is_f32 {
                let swaps = |body: &[Inst]| {
                    let has = |wanted: fn(&Op) -> bool| body.iter().any(|&i| wanted(&traced[0].kernel.insts[i].op));
                    has(|op| matches!(op, Op::PacketPut { .. })) && has(|op| matches!(op, Op::PacketGet { .. }))
                };
                let swapped = traced[0].kernel.regions.values().any(|body| swaps(body));
                assert_eq!(swapped, in_one_pass, "{what}\n{}", traced[0].kernel);
            }
            let results = simulate_world(&traced, Target::Sm90a).unwrap_or_else(|fault| panic!("{what}: {}", fault.0));
            for (rank, (result, traced)) in results.iter().zip(&traced).enumerate() {
                let is_output = |param: &Param| matches!(param, Param::Buffer { name, .. } if name == "output");
                let output = traced.kernel.params.values().position(is_output).expect("an output");
                assert!(result[output][0] == right, "rank {rank}: {what}");
            }
        }
    }
}

/// The fields that say which value a hook handles, in the PTX of every collective, algorithm and protocol that needs no
/// windows.
#[test]
fn hooks_know_as_ptx_what_their_definition_says() {
    const RANKS: usize = 3;
    for copies in [1, 2] {
        let geometry = Geometry {
            world_size: RANKS,
            per_peer_bytes: 32 << 10,
            max_blocks_per_peer: 4,
            max_slots: 4,
            max_copies: copies,
            packet_bytes: 256 << 10,
            window_sets: 2,
        };
        let links = Rehearsal::new(geometry).with_copies(copies).ranks();
        // The PTX machine is slow. So there are only forms with both hooks and a shape, and reductions without, which
        // are one pass between GPUs.
        let here = |form: &Form| {
            let is_whole = form.consumes && form.shaped && form.collective != Collective::Send;
            let is_one_pass = !form.consumes && !form.shaped && form.collective.reduces();
            let is_carried = !matches!(form.primitive, Some(Primitive::Direct | Primitive::Bulk));
            form.len == 60 && is_carried && if copies == 1 { is_whole } else { is_one_pass }
        };
        let mut compared = 0;
        for form in fields::all(&[Some(1)], &[None]).into_iter().filter(here) {
            // Two elements share a packet.
            let outputs: Vec<Tensor<i32>> =
                (0..RANKS).map(|me| Tensor::zeros(form.collective.chunks(me, RANKS).1 * form.len)).collect();
            let trace = |link: &RehearsalRank| {
                let me = link.number() as usize;
                let inp = Tensor::<i32>::zeros(form.collective.chunks(me, RANKS).0 * form.len);
                form.part(link, (&outputs[me], &inp), None, false).unwrap().expect("all ranks take part")
            };
            let traced: Vec<Traced> = links.iter().map(trace).collect();
            let results = simulate_world(&traced, Target::Sm90a).unwrap_or_else(|fault| panic!("{form}: {}", fault.0));
            for (me, (output, result)) in outputs.iter().zip(&results).enumerate() {
                let (start, mut bytes) =
                    (output.memory().start().as_ptr() as usize, bytes_of(output.memory()).unwrap());
                for (arg, banks) in traced[me].args.iter().zip(result) {
                    // Chunks of the output are parameters of their own.
                    let Arg::Buffer(memories) = arg else { continue };
                    let at = (memories[0].start().as_ptr() as usize).wrapping_sub(start);
                    if let Some(chunk) = bytes.get_mut(at..at.saturating_add(banks[0].len())) {
                        chunk.copy_from_slice(&banks[0]);
                    }
                }
                let out: Vec<i32> =
                    bytes.chunks(4).map(|word| i32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
                assert_eq!(form.fault(me, RANKS, &out), None, "{copies} copies");
            }
            compared += 1;
        }
        assert!(compared >= if copies == 1 { 20 } else { 8 }, "{compared} forms");
    }
}

/// A role divides by the number of its copies as if by a constant.
#[test]
fn roles_divide_by_the_number_of_their_copies() {
    let starts = [0u64, 1, 2, 7, 100, u64::from(u32::MAX), 1 << 40, u64::MAX];
    for copies in 2..=5u32 {
        let (x, n) = (Tensor::from_fn(starts.len(), |k| starts[k]), starts.len());
        let y = Tensor::<u64>::zeros(2 * n * copies as usize);
        let traced = kernel("turns", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.role("main", 1).copies(copies, |r| {
                let all = r.copies().cast::<u64>();
                for i in 0..n as i64 {
                    let (start, at) = (x.load(i), (r.copy() * n as i64 + i) * 2);
                    y.store(at, start % all);
                    y.store(at + 1, start / all);
                }
            });
        })
        .unwrap();
        let text = emit(&simplify(&traced.kernel), Options::new(Target::Sm90a)).unwrap().text;
        assert!(!text.contains("setp.eq.u64"), "it looks for a divisor of 0\n{text}");
        let results = simulate_world(&[traced], Target::Sm90a).unwrap_or_else(|fault| panic!("{}", fault.0));
        let by = u64::from(copies);
        let of_copy: Vec<u8> =
            starts.iter().flat_map(|start| [start % by, start / by]).flat_map(u64::to_le_bytes).collect();
        assert!(results[0][1][0] == of_copy.repeat(copies as usize), "{copies} copies");
    }
}

/// One role waits for slot 2 or packet 5. The other role only computes.
fn waiter(packet: bool) -> Kernel {
    let mut code = Code::new("waiter");
    let area = code.buffer("area", Access::InOut, Type::U8, 1024);
    let slots = code.slots("slots", 4, 1);
    code.role("other", 1, 1, |c, _| {
        let zero = c.int(0);
        c.value(Op::Binary { op: tilewire::ir::BinaryOp::Add, a: zero, b: zero });
    });
    code.role("waiter", 2, 1, |c, _| {
        if packet {
            let (n, five, flag) = (c.int(1), c.int(5), c.constant(Type::U32, 9));
            c.each(&[n], |c, _| {
                c.value(Op::PacketGet { at: at(area, five), flag });
            });
        } else {
            let (two, x) = (c.int(2), c.constant(Type::U64, 7));
            c.run(Op::Wait { slot: slot(slots, two), x });
        }
    });
    code.finish()
}

#[test]
fn a_wait_in_vain_is_reported_and_ends_the_launch() {
    for (packet, param, index, expected) in [(false, 1, 2, 7), (true, 0, 5, 9)] {
        let kernel = waiter(packet);
        let module = emit(&kernel, Options::new(Target::Sm90a)).unwrap();
        let mut memory = Memory::default();
        let mut launch = Launch::new(&mut memory, 0, 1, 1_000_000);
        launch.words.extend([memory.add(vec![0; 1024]), memory.add(vec![0; 4096])]);
        ptx_machine::run(&module, &launch.args(), &mut memory).unwrap_or_else(|fault| panic!("{}", fault.0));
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let report: Vec<u64> = memory.pieces[launch.report].chunks(8).map(word).take(abi::REPORT_WORDS).collect();
        let [state, role, block, copy, inst, ..] = report[..] else { panic!("{report:?}") };
        assert_eq!([state, role, block, copy], [2, 1, 0, 0]);
        assert_eq!(report[5..], [param, 0, index, expected, 0]);
        let waits: Vec<u64> = (0..kernel.insts.len() as u64)
            .filter(|&i| {
                let op = &kernel.insts[tilewire::ir::Entity::new(i as usize)].op;
                matches!(op, Op::Wait { .. } | Op::PacketGet { .. })
            })
            .collect();
        assert_eq!(waits, [inst]);
        assert_eq!(word(&memory.pieces[launch.abort]), abi::ABORTED_BY_TIMEOUT);
    }
}

/// Packets of two peers are waited for together. A wait that gives up reports the one that is missing.
#[test]
fn of_packets_of_several_peers_the_missing_one_is_reported() {
    const FLAG: u32 = 9;
    let mut code = Code::new("two peers");
    let areas = ["first", "second"].map(|name| code.buffer(name, Access::InOut, Type::U8, 64));
    let sums = code.buffer("sums", Access::Out, Type::U64, 4);
    code.role("waiter", 2, 1, |c, _| {
        let (n, flag) = (c.int(4), c.constant(Type::U32, FLAG.into()));
        c.each(&[n], |c, i| {
            let [a, b] = areas.map(|area| c.value(Op::PacketGet { at: at(area, i[0]), flag }));
            let sum = c.value(Op::Binary { op: tilewire::ir::BinaryOp::Add, a, b });
            c.store(at(sums, i[0]), sum);
        });
    });
    let kernel = code.finish();
    let gets: Vec<u64> = (0..kernel.insts.len())
        .filter(|&i| matches!(kernel.insts[tilewire::ir::Entity::new(i)].op, Op::PacketGet { .. }))
        .map(|i| i as u64)
        .collect();
    let module = emit(&kernel, Options::new(Target::Sm90a)).unwrap();
    // A packet is two words of four bytes and their flags.
    let packets = |words: [u32; 4]| -> Vec<u8> {
        words.iter().flat_map(|word| [*word, FLAG, 0, FLAG]).flat_map(u32::to_le_bytes).collect()
    };
    for missing in [None, Some((0, 3)), Some((1, 2)), Some((1, 0))] {
        let mut memory = Memory::default();
        let mut launch = Launch::new(&mut memory, 0, 1, 1_000_000);
        let mut received = [packets([1, 2, 3, 4]), packets([10, 20, 30, 40])];
        if let Some((area, packet)) = missing {
            // Half of the packet has arrived.
            received[area][16 * packet + 12..][..4].copy_from_slice(&5u32.to_le_bytes());
        }
        launch.words.extend(received.map(|bytes| memory.add(bytes)));
        launch.words.push(memory.add(vec![0; 32]));
        ptx_machine::run(&module, &launch.args(), &mut memory).unwrap_or_else(|fault| panic!("{}", fault.0));
        let words = |piece: usize| -> Vec<u64> {
            memory.pieces[piece].chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
        };
        let report = words(launch.report);
        match missing {
            None => assert_eq!((report[0], words(memory.pieces.len() - 1)), (0, vec![11, 22, 33, 44])),
            Some((area, packet)) => {
                assert_eq!((report[0], report[4]), (2, gets[area]), "{missing:?}");
                assert_eq!(
                    report[5..abi::REPORT_WORDS],
                    [area as u64, 0, packet as u64, FLAG.into(), 5],
                    "{missing:?}"
                );
                assert_eq!(words(launch.abort), [abi::ABORTED_BY_TIMEOUT]);
            }
        }
    }
}

/// `y[i + shift] = x[i]` for 100 elements of 100.
fn shifted(shift: i64) -> Kernel {
    let mut code = Code::new("shifted");
    let (x, y) = (code.buffer("x", Access::In, Type::F32, 100), code.buffer("y", Access::Out, Type::F32, 100));
    code.role("main", 2, 1, |c, _| {
        let (n, shift) = (c.int(100), c.int(shift));
        c.each(&[n], |c, i| {
            let loaded = c.load(at(x, i[0]));
            let to = c.value(Op::Binary { op: tilewire::ir::BinaryOp::Add, a: i[0], b: shift });
            c.store(at(y, to), loaded);
        });
    });
    code.finish()
}

#[test]
fn bounds_are_checked_where_asked() {
    for (shift, outside) in [(0, false), (1, true), (-1, true), (4, true), (-4, true), (1 << 40, true)] {
        let module = emit(&shifted(shift), Options { bounds: true, ..Options::new(Target::Sm90a) }).unwrap();
        let mut memory = Memory::default();
        let mut launch = Launch::new(&mut memory, 0, 1, u64::MAX);
        launch.words.extend([memory.add(vec![1; 400]), memory.add(vec![0; 400])]);
        ptx_machine::run(&module, &launch.args(), &mut memory).unwrap_or_else(|fault| panic!("{shift}: {}", fault.0));
        let word = |at: usize| u64::from_le_bytes(memory.pieces[launch.report][8 * at..8 * at + 8].try_into().unwrap());
        match outside {
            false => assert_eq!((word(0), &memory.pieces[3]), (0, &vec![1; 400])),
            true => {
                assert_eq!((word(0), word(5)), (abi::OUTSIDE, 1));
                assert!((word(7) as i64) < 0 || word(7) > word(8), "{shift}: index {} of {}", word(7), word(8));
            }
        }
    }
}

#[test]
fn an_aborted_rank_ends_its_waits_and_reports_nothing() {
    for packet in [false, true] {
        let module = emit(&waiter(packet), Options::new(Target::Sm90a)).unwrap();
        let mut memory = Memory::default();
        let mut launch = Launch::new(&mut memory, 0, 1, u64::MAX);
        launch.words.extend([memory.add(vec![0; 1024]), memory.add(vec![0; 4096])]);
        memory.pieces[launch.abort] = 3u64.to_le_bytes().to_vec();
        ptx_machine::run(&module, &launch.args(), &mut memory).unwrap_or_else(|fault| panic!("{}", fault.0));
        assert!(memory.pieces[launch.report].iter().all(|&byte| byte == 0));
        assert_eq!(memory.pieces[launch.abort], 3u64.to_le_bytes());
    }
}
