//! Bugs that users write and that no built-in mutation makes. Each must be found, at its lines.

use crate::checker::links::{BLOCK, Link, Shape, ring};
use crate::checker::litmus::Shared;
use crate::checker::{check, expect, kinds, plan};
use tilewire::check::{Fault, Settings};
use tilewire::hook::Value;
use tilewire::link::Transport;
use tilewire::rehearsal::Rehearsal;
use tilewire::transport::There;
use tilewire::{Memory, Rank, Tensor, all_to_all, hooks, kernel};

#[test]
fn everybody_receives_before_anybody_sends() {
    let s = Shared::new();
    let wait = line!() + 3;
    let one = |mine: i64, theirs: i64| {
        s.rank(move |r, bytes, slots, _| {
            r.wait(slots.slot(0, mine), 1);
            bytes.put(0, theirs * 8, 1u64);
            r.signal(slots.slot(0, theirs), 1);
        })
    };
    let report = check(&[vec![one(0, 1), one(1, 2), one(2, 0)]]);
    let fault = expect(&report, "deadlock", &[wait, wait, wait]);
    let Fault::Deadlock { cycle, .. } = fault else { panic!("{fault}") };
    assert_eq!(cycle.len(), 3, "{fault}");
    let text = fault.to_string();
    assert!(text.contains("a cycle of waits") && text.contains("slots[0][0] ≥ 1, seen 0"), "{text}");
    assert!(report.is_decided());
}

#[test]
fn two_roles_of_a_block_wait_for_each_other() {
    let slots = Memory::zeroed(256);
    let traced = kernel("roles", |k| {
        let slots = k.slots("turn", std::slice::from_ref(&slots), 128);
        for (name, mine, other) in [("a", 0, 1), ("b", 1, 0)] {
            k.role(name, 1).run(|r| {
                r.wait(slots.slot(0, mine), 1);
                r.signal(slots.slot(0, other), 1);
            });
        }
    });
    let report = check(&[vec![traced.unwrap()]]);
    let Fault::Deadlock { cycle, .. } = expect(&report, "deadlock", &[]) else { unreachable!() };
    assert_eq!(cycle.len(), 2);
}

#[test]
fn two_blocks_write_the_same_elements() {
    let out = Tensor::<f32>::zeros(64);
    let store = line!() + 6;
    let traced = kernel("overlap", |k| {
        k.blocks(2);
        let out = k.output(&out).named("out");
        k.main(|r| {
            // 33 instead of 32: the last element of one part is the first of the next.
            r.each(33, |i| out.store((r.block() * 32 + i).min(63), 1.0));
        });
    });
    let report = check(&[vec![traced.unwrap()]]);
    let fault = expect(&report, "race", &[store, store]);
    let Fault::Race { memory, bytes, first, second, .. } = fault else { panic!("{fault}") };
    assert_eq!((memory.as_str(), bytes.clone()), ("out", 128..132));
    assert_ne!(first.block, second.block);
}

#[test]
fn a_receiver_reads_more_than_was_sent() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        r.each(3, |i| bytes.put(0, i * 8, 1u64));
        r.signal(slots.slot(0, 0), 1);
    });
    let get = line!() + 3;
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        r.each(4, |i| out.store(i, bytes.get::<u64>(0, i * 8)));
    });
    let report = check(&[vec![send, receive]]);
    let fault = expect(&report, "unwritten", &[get]);
    assert!(matches!(fault, Fault::Unwritten { bytes, .. } if *bytes == (24..32)), "{fault}");
}

#[test]
fn a_window_is_read_by_the_host_before_it_is_done() {
    for waits in [true, false] {
        let (window, slots) = (Memory::zeroed(64), Memory::zeroed(128));
        let send = kernel("send", |k| {
            let (window, done) =
                (k.region("window", std::slice::from_ref(&window)), k.slots("done", std::slice::from_ref(&slots), 128));
            k.main(|r| {
                r.each(8, |i| window.put(0, i * 8, 1u64));
                r.signal(done.slot(0, 0), 1);
            });
        });
        let receive = kernel("receive", |k| {
            let done = k.slots("done", std::slice::from_ref(&slots), 128);
            k.main(|r| {
                if waits {
                    r.wait(done.slot(0, 0), 1);
                } else {
                    r.barrier();
                }
            });
        });
        let mut plan = plan(&[vec![send.unwrap(), receive.unwrap()]]);
        let report = plan.host_reads(1, &window).verify(&Settings::default());
        assert_eq!(report.is_clean(), waits, "{report}");
        if !waits {
            let fault = expect(&report, "race", &[]).to_string();
            assert!(fault.contains("(the host)"), "{fault}");
        }
    }
}

#[test]
fn a_transpose_in_place_races_with_itself() {
    let x = Tensor::<f32>::zeros(16);
    let at = line!() + 4;
    let traced = kernel("transpose in place", |k| {
        let x = k.inout(&x).named("x").shape(4, 4);
        k.main(|r| {
            r.each2(4, 4, |row, col| x.store(row, col, x.load(col, row)));
        });
    });
    let report = check(&[vec![traced.unwrap()]]);
    let fault = expect(&report, "race", &[at, at]);
    assert!(fault.to_string().contains("two elements of one each"), "{fault}");
}

#[test]
fn elements_that_write_one_place_race() {
    let (x, index) = (Tensor::<f32>::zeros(16), Tensor::from_fn(16, |i| (i / 2) as i32));
    let report = |place: fn(Value<'_, i64>) -> Value<'_, i64>| {
        let y = Tensor::<f32>::zeros(16);
        let traced = kernel("several to one", |k| {
            let (x, y) = (k.input(&x), k.output(&y).named("y"));
            k.main(|r| r.each(16, |i| y.store(place(i), x.load(i))));
        });
        check(&[vec![traced.unwrap()]])
    };
    // The first two elements meet, or the last two, or all of them, or some that are far apart.
    let places: [fn(Value<'_, i64>) -> Value<'_, i64>; 7] =
        [|i| i / 2, |i| (i + 1) / 2, |i| i / 16, |i| i * 15 / 16, |i| i.min(14), |i| i % 8, |i| i - i % 4];
    for (k, place) in places.into_iter().enumerate() {
        let report = report(place);
        let fault = expect(&report, "race", &[]);
        assert!(fault.to_string().contains("two elements of one each"), "place {k}: {fault}");
    }
    // Each element writes a separate place, wherever that is. Any number of elements may read one place.
    let apart: [fn(Value<'_, i64>) -> Value<'_, i64>; 3] = [|i| i, |i| 15 - i, |i| i * 5 % 16];
    apart.into_iter().for_each(|place| assert!(report(place).is_clean()));
    let y = Tensor::<f32>::zeros(16);
    let traced = kernel("one to several", |k| {
        let (x, y, index) = (k.input(&x), k.output(&y), k.input(&index));
        k.main(|r| r.each(16, |i| y.store(i, x.load(index.load(i).cast::<i64>()))));
    });
    assert!(check(&[vec![traced.unwrap()]]).is_clean());
    // The guide warns of this hook.
    let scattered = Rehearsal::small(2, 1).check(2, |link, _| {
        let (x, y) = (Tensor::<f32>::zeros(32), Tensor::<f32>::zeros(32));
        all_to_all(link, &y, &x).consume(hooks::scatter_by(&index)).trace()
    });
    expect(&scattered.unwrap(), "race", &[]);
}

/// A pair of ranks and one slot of staging. The counters begin at `start(launch)` on each side.
fn pair(start: impl Fn(usize) -> (i64, i64)) -> tilewire::check::Report {
    let s = Shared::new();
    let launches: Vec<_> = (0..2)
        .map(|launch| {
            let (sender, receiver) = start(launch);
            let send = s.rank(move |r, bytes, slots, _| {
                r.wait(slots.slot(0, 1), sender);
                bytes.put(0, 0, 1u64);
                r.signal(slots.slot(0, 0), sender + 1);
            });
            let receive = s.rank(move |r, bytes, slots, out| {
                r.wait(slots.slot(0, 0), receiver + 1);
                out.store(0, bytes.get::<u64>(0, 0));
                r.signal_credit(slots.slot(0, 1), receiver + 1);
            });
            vec![send, receive]
        })
        .collect();
    check(&launches)
}

#[test]
fn a_counter_that_is_a_constant_of_the_kernel_breaks_on_replay() {
    let right = pair(|launch| (launch as i64, launch as i64));
    assert!(right.is_clean(), "{right}");
    let both = pair(|_| (0, 0));
    assert!(kinds(&both).contains(&"not-growing") && kinds(&both).contains(&"race"), "{both}");
    let receiver = pair(|launch| (launch as i64, 0));
    assert!(kinds(&receiver).contains(&"race"), "{receiver}");
    let sender = pair(|launch| (0, launch as i64));
    assert!(kinds(&sender).contains(&"deadlock"), "{sender}");
}

#[test]
fn a_counter_that_jumps_satisfies_the_wait_of_another() {
    let s = Shared::new();
    let signal = line!() + 3;
    let send = s.rank(|r, bytes, slots, _| {
        r.each(2, |i| bytes.put(0, i * 8, 1u64));
        r.signal(slots.slot(0, 0), 2);
    });
    let wait = line!() + 2;
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
        r.wait(slots.slot(0, 0), 2);
        out.store(1, bytes.get::<u64>(0, 8));
    });
    let launches = [vec![send, receive]];
    expect(&check(&launches), "skipped", &[signal, wait]);
    let batched = crate::checker::check_with(&launches, &Settings { cumulative: true, ..Settings::default() });
    assert!(batched.is_clean(), "{batched}");
}

#[test]
fn one_counter_for_two_senders() {
    // The cumulative signal of a public ring example: the rank that arrives first satisfies the wait for the other.
    let s = Shared::new();
    let signal = line!() + 4;
    let sender = |at: i64| {
        s.rank(move |r, bytes, slots, _| {
            bytes.put(0, at * 8, 1u64);
            r.signal(slots.slot(0, 0), at + 1);
        })
    };
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 2);
        r.each(2, |i| out.store(i, bytes.get::<u64>(0, i * 8)));
    });
    let report = check(&[vec![sender(0), sender(1), receive]]);
    expect(&report, "two-writers", &[signal, signal]);
    expect(&report, "race", &[]);
}

#[test]
fn a_wait_that_nobody_ever_signals() {
    let s = Shared::new();
    let wait = line!() + 1;
    let one = s.rank(|r, _, slots, _| r.wait(slots.slot(0, 3), 1));
    let other = s.rank(|r, _, slots, _| r.signal(slots.slot(0, 2), 1));
    let report = check(&[vec![one, other]]);
    expect(&report, "no-producer", &[wait]);
    expect(&report, "deadlock", &[wait]);
    expect(&report, "no-producer", &[wait]);
}

/// A slot of staging and three steps. The receiver does not use the second one.
fn skips(waits_for_it: bool, s: &Shared) -> (Vec<tilewire::Traced>, [u32; 2]) {
    let wait = line!() + 3;
    let send = s.rank(|r, bytes, slots, _| {
        for step in 0..3 {
            r.wait(slots.slot(0, 1), step);
            bytes.put(0, 0, 1u64);
            r.signal(slots.slot(0, 0), step + 1);
        }
    });
    let credit = line!() + 8;
    let receive = s.rank(move |r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
        r.signal_credit(slots.slot(0, 1), 1);
        if waits_for_it {
            r.wait(slots.slot(0, 0), 2);
        }
        r.signal_credit(slots.slot(0, 1), 2);
        r.wait(slots.slot(0, 0), 3);
        out.store(1, bytes.get::<u64>(0, 0));
        r.signal_credit(slots.slot(0, 1), 3);
    });
    (vec![send, receive], [wait, credit])
}

#[test]
fn a_credit_for_a_step_that_was_never_sent() {
    // No byte is touched by both ranks, so nothing races. Only the counters show the bug.
    let right = check(&[skips(true, &Shared::new()).0]);
    assert!(right.is_clean() && right.is_decided(), "{right}");
    let (launch, lines) = skips(false, &Shared::new());
    let report = check(&[launch]);
    assert_eq!(kinds(&report), ["over-credit"], "{report}");
    let fault = expect(&report, "over-credit", &lines);
    assert!(matches!(fault, Fault::OverCredit { value: 2, known: 1, .. }), "{fault}");
    assert!(fault.to_string().contains("slots[0][1] is set to 2 where slots[0][0] is known to be 1"), "{fault}");
    assert!(report.is_decided() && report.to_json().contains("\"kind\":\"over-credit\""));
}

#[test]
fn a_tile_too_many_leaves_the_staging() {
    let links = Link::ring(2, BLOCK);
    let report = check(&[ring(&links, Shape { tile: 2000, ..Shape::SMALL })]);
    let fault = &report.faults.iter().find(|found| found.fault.kind() == "out-of-bounds").expect("found").fault;
    assert!(fault.lines()[0].file.ends_with("links.rs"), "{fault}");
}

/// Kernels name control lines by number. A proxy refuses those of other ranks and of other peers, and so does the
/// model.
#[test]
fn a_notice_for_a_line_of_another_rank_or_a_flush_for_another_peer_is_found() {
    let world = Rehearsal::small(3, 1).mesh(&[&[0], &[1], &[2]]);
    let kinds_of = |is_flush: bool, beyond: i64| {
        let report = world.check(1, |link, _| {
            let There::Posted(posted) = link.endpoint(Rank::new((link.number() + 1) % 3)).unwrap().there else {
                panic!("all ranks are far")
            };
            kernel("notices", |k| {
                let queue = k.queue("posts", posted.queue.clone());
                k.main(|r| match (link.number(), is_flush) {
                    (0, false) => r.post_credit(queue, 1, posted.lines.head as i64 + beyond, 1),
                    (0, true) => r.post_flush(queue, 1, posted.lines.sent as i64 + beyond, 1),
                    _ => {}
                });
            })
        });
        let report = report.unwrap();
        report.faults.iter().map(|found| found.fault.kind()).filter(|kind| *kind == "foreign-slot").count()
    };
    assert_eq!(kinds_of(false, 0) + kinds_of(false, 7) + kinds_of(true, 0), 0, "its own");
    // The heads of rank 1, beyond the eight of this rank, and the line for posts to rank 2.
    assert_eq!([kinds_of(false, 8), kinds_of(false, -1), kinds_of(true, 1), kinds_of(true, -1)], [1, 1, 1, 1]);
}

#[test]
fn a_plain_load_of_a_counter_is_a_race() {
    let slots = Memory::zeroed(128);
    let s = Shared { bytes: Memory::zeroed(256), slots: slots.clone() };
    let signal = line!() + 1;
    let send = s.rank(|r, _, slots, _| r.signal(slots.slot(0, 0), 1));
    let out = Tensor::<u64>::zeros(1);
    let load = line!() + 4;
    let peek = kernel("peek", |k| {
        let words = k.buffer::<u64>("words", std::slice::from_ref(&slots), tilewire::ir::Access::InOut);
        let out = k.output(&out);
        k.main(|_| out.store(0, words.bank(0).load(0)));
    });
    expect(&check(&[vec![send, peek.unwrap()]]), "race", &[signal, load]);
}

#[test]
fn an_input_is_rewritten_while_a_peer_reads_it() {
    // A one-sided get from a peer's input window. Nothing tells the peer when the get is over.
    let input = Tensor::<u64>::from_slice(&[1, 2]);
    let out = Tensor::<u64>::zeros(2);
    let owner = kernel("owner", |k| {
        let _input = k.input(&input).named("input");
        k.main(|r| r.barrier());
    });
    let get = line!() + 3;
    let reader = kernel("reader", |k| {
        let (theirs, out) = (k.region("theirs", &[input.memory().clone()]), k.output(&out));
        k.main(|r| r.each(2, |i| out.store(i, theirs.get::<u64>(0, i * 8))));
    });
    let (owner, reader) = (owner.unwrap(), reader.unwrap());
    let report = check(&[vec![owner.clone(), reader.clone()], vec![owner, reader]]);
    expect(&report, "race", &[get]);
}

#[test]
fn what_led_to_a_race_is_told_without_what_did_not() {
    // Ranks 2 and 3 exchange messages, and rank 1 does more before and after. Only the message from 0 to 1 matters.
    let s = Shared::new();
    let told = line!() + 4;
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 1u64);
        r.wait(slots.slot(0, 4), 1);
        r.signal(slots.slot(0, 0), 1);
        bytes.put(0, 0, 2u64);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        r.signal(slots.slot(0, 4), 1);
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
        r.signal(slots.slot(0, 5), 1);
    });
    let talk = |mine: i64, theirs: i64| {
        s.rank(move |r, _, slots, _| {
            for step in 1..=5 {
                r.signal(slots.slot(0, mine), step);
                r.wait(slots.slot(0, theirs), step);
            }
            if mine == 2 {
                r.wait(slots.slot(0, 5), 1);
            }
        })
    };
    let report = check(&[vec![send, receive, talk(2, 3), talk(3, 2)]]);
    expect(&report, "race", &[told + 1, told + 6]);
    let prefix = &report.faults[0].prefix;
    let deeds: Vec<(u32, u32)> = prefix.iter().map(|m| (m.event.rank, m.event.at.as_ref().unwrap().line)).collect();
    assert_eq!(deeds, [(1, told + 4), (0, told - 1), (0, told), (1, told + 5)], "{report}");
    assert_eq!(prefix.iter().map(|moment| moment.from).collect::<Vec<_>>(), [None, Some(0), None, Some(2)]);
}

#[test]
fn reports_have_a_json_and_a_picture() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        r.wait(slots.slot(0, 1), 0);
        bytes.put(0, 0, 1u64);
        r.signal(slots.slot(0, 0), 1);
        bytes.put(0, 0, 2u64);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
    });
    let report = check(&[vec![send, receive]]);
    let found = &report.faults[0];
    assert!(!found.prefix.is_empty(), "{report}");
    assert!(found.prefix.iter().any(|moment| moment.from.is_some()), "{report}");
    let json = report.to_json();
    assert!(
        json.starts_with("{\"schema\":\"tilewire-check-1\",\"verdict\":\"faults\",\"certainty\":\"decided\""),
        "{json}"
    );
    assert!(json.contains("\"kind\":\"race\"") && json.contains("bugs.rs"), "{json}");
    let svg = found.to_svg();
    assert!(svg.starts_with("<svg") && svg.contains("marker-end") && svg.trim_end().ends_with("</svg>"), "{svg}");
}
