//! Every way to misuse the hook language is reported with the user's line and a remedy.

use std::cell::{Cell, RefCell};
use tilewire::hook::{BuildError, Traced};
use tilewire::ir::{Access, BulkDone, Order, Scope};
use tilewire::prelude::*;
use tilewire::{Memory, RunError, Tensor, kernel, map};

/// Asserts that the build fails with exactly one misuse, on this line, and that its message has this text.
#[track_caller]
fn fails(result: Result<Traced, impl Into<RunError>>, line: u32, text: &str) {
    fails_all(result, &[(line, text)]);
}

/// Asserts that the build fails with exactly these misuses, in this order.
#[track_caller]
fn fails_all(result: Result<Traced, impl Into<RunError>>, expected: &[(u32, &str)]) {
    let error: RunError = result.map_err(Into::into).expect_err("the kernel is misused");
    let found = error.misuses();
    assert_eq!(found.len(), expected.len(), "{error}");
    for (misuse, (line, text)) in found.iter().zip(expected) {
        assert!(misuse.at.file.ends_with("hook_misuse.rs"), "{misuse}");
        assert_eq!(misuse.at.line, *line, "{misuse}");
        assert!(misuse.to_string().contains(text), "{misuse}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

fn vector() -> Tensor<f32> {
    Tensor::zeros(64)
}

// ---- lane and uniform -------------------------------------------------------------------------------------------

#[test]
fn a_lane_value_is_no_bank() {
    let peers = [Memory::zeroed(64), Memory::zeroed(64)];
    let line = line!() + 3;
    let result = kernel("k", |k| {
        let region = k.region("staging", &peers);
        k.main(|r| r.each(8, |i| region.put(i, 0, i)));
    });
    fails(result, line, "a bank is a lane value (one per element), but the whole group must agree on it");
}

#[test]
fn a_lane_value_is_no_slot_index() {
    let slots = [Memory::zeroed(64)];
    let line = line!() + 5;
    let result = kernel("k", |k| {
        let slots = k.slots("tail", &slots, 8);
        k.main(|r| {
            r.each(8, |i| {
                slots.slot(0, i);
            })
        });
    });
    fails(result, line, "the index of a slot is a lane value");
}

#[test]
fn a_lane_value_is_no_extent() {
    let line = line!() + 1;
    let result = kernel("k", |k| k.main(|r| r.each(8, |i| r.each(i, |_| {}))));
    fails_all(result, &[(line, "the extent of an each is a lane value"), (line, "each inside the each at")]);
}

#[test]
fn a_lane_value_is_no_start_and_no_flag() {
    let (x, packets) = (vector(), [Memory::zeroed(256)]);
    let line = line!() + 5;
    let result = kernel("k", |k| {
        let (x, region) = (k.input(&x), k.region("packets", &packets));
        k.main(|r| {
            r.each(8, |i| {
                x.part(i, 4);
                region.packet_put(0, i, 1, i.cast::<u32>());
            })
        });
    });
    fails_all(result, &[(line, "start of a part is a lane value"), (line + 1, "the flag of a packet is a lane value")]);
}

// ---- values used where they do not exist ------------------------------------------------------------------------

#[test]
fn a_lane_value_does_not_leave_its_each() {
    let (x, y) = (vector(), vector());
    let line = line!() + 7;
    let result = kernel("k", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| {
            let saved = Cell::new(None);
            r.each(x.len(), |i| saved.set(Some(x.load(i))));
            let saved = saved.get().expect("the body ran");
            y.store(0, saved);
            r.if_(saved.gt(0.0), || r.barrier());
            r.var(saved);
        });
    });
    let each = format!("each at {}:{}", file!(), line - 2);
    fails_all(result, &[(line, &each), (line + 1, "store it into a view or scratch"), (line + 2, "outside of it")]);
}

#[test]
fn a_lane_value_steers_no_control_flow() {
    let slots = [Memory::zeroed(64)];
    let line = line!() + 6;
    let result = kernel("k", |k| {
        let slots = k.slots("tail", &slots, 8);
        k.main(|r| {
            let lane = Cell::new(r.constant(0i64));
            r.each(8, |i| lane.set(i));
            r.for_(..lane.get(), |_| {});
            r.while_(|| lane.get().gt(0), || {});
            r.signal(slots.slot(0, 0), lane.get());
            r.wait(slots.slot(0, lane.get()), 1);
        });
    });
    let text = "exists once per element of the each";
    fails_all(result, &[(line, text), (line + 1, text), (line + 2, text), (line + 3, text)]);
}

#[test]
fn a_value_of_a_branch_does_not_leave_it() {
    let y = vector();
    let line = line!() + 6;
    let result = kernel("k", |k| {
        let y = k.output(&y);
        k.main(|r| {
            let last = Cell::new(r.constant(0i64));
            r.if_(r.rank().eq(0), || last.set(r.rank() + 1));
            r.if_(last.get().eq(1), || y.store(0, 1.0));
            r.for_(0..4, |i| last.set(i));
            y.store(last.get(), 2.0);
        });
    });
    fails_all(
        result,
        &[
            (line, "is computed in the if_ at"),
            (line + 2, "assign it to a variable (r.var) that is declared before the for_"),
        ],
    );
}

#[test]
fn roles_share_no_values_variables_or_scratch() {
    let y = vector();
    let line = line!() + 13;
    let result = kernel("k", |k| {
        let y = k.output(&y);
        let shared = RefCell::new(None);
        k.role("send", 1).run(|r| {
            let scratch = r.scratch::<f32>(4);
            scratch.store(0, 1.0);
            *shared.borrow_mut() = Some((r.rank(), r.var(1i64), scratch));
        });
        k.role("receive", 1).run(|r| {
            let (value, var, scratch) = shared.borrow_mut().take().expect("the first role ran");
            r.barrier();
            y.store(value, 0.0);
            y.store(var.get(), 0.0);
            var.set(1);
            y.store(0, scratch.load(0));
        });
    });
    fails_all(
        result,
        &[
            (line - 1, "a value of role send is used in role receive"),
            (line, "variable of role send is used in role receive"),
            (line + 1, "variable of role send"),
            (line + 2, "scratch of role send is used in role receive, but it is private to its role"),
        ],
    );
}

#[test]
fn ops_stand_in_a_role() {
    let line = line!() + 4;
    let result = kernel("k", |k| {
        let saved = Cell::new(None);
        k.main(|r| saved.set(Some((r.rank(), r.var(0i64)))));
        let _ = saved.get().unwrap().0 + 1;
        saved.get().unwrap().1.set(3);
    });
    let error = result.unwrap_err();
    assert!(error.misuses().iter().all(|m| m.to_string().contains("an operation outside every role")), "{error}");
    assert_eq!(error.misuses().first().map(|m| m.at.line), Some(line), "{error}");
    assert_eq!(error.misuses().last().map(|m| m.at.line), Some(line + 1), "{error}");
}

// ---- each -------------------------------------------------------------------------------------------------------

#[test]
fn each_does_not_nest() {
    let line = line!() + 1;
    let result = kernel("k", |k| k.main(|r| r.each(4, |_| r.each(4, |_| {}))));
    fails(result, line, "use each2 for two dimensions, or put a for_ around the each");
}

#[test]
fn each_holds_no_control_flow() {
    let line = line!() + 4;
    let result = kernel("k", |k| {
        k.main(|r| {
            r.each(4, |i| {
                r.if_(i.eq(0), || {});
                r.for_(0..4, |_| {});
                r.while_(|| i.eq(0), || {});
            })
        })
    });
    let text = "where elements run independently";
    fails_all(result, &[(line, text), (line + 1, text), (line + 2, text)]);
}

#[test]
fn each_holds_no_synchronisation() {
    let (slots, region, queue) = ([Memory::zeroed(64)], [Memory::zeroed(64)], Memory::zeroed(64));
    let line = line!() + 8;
    let result = kernel("k", |k| {
        let (slots, region, queue) = (k.slots("s", &slots, 8), k.region("r", &region), k.queue("q", &queue));
        k.main(|r| {
            let slot = slots.slot(0, 0);
            let var = r.var(0i64);
            let scratch = r.scratch::<u8>(64);
            r.each(4, |_| {
                r.signal(slot, 1);
                r.signal_credit(slot, 1);
                r.wait(slot, 1);
                r.test(slot, 1);
                r.barrier();
                r.proxy_fence();
                r.bulk_copy(scratch, region.bank(0), 64);
                r.bulk_wait(0, BulkDone::Complete);
                r.post(queue, 1, region.bank(0), 0, 64);
                r.post_signal(queue, 1, 0, 1);
                var.set(1);
            });
        });
    });
    let names = ["signal", "signal_credit", "wait", "test", "barrier", "proxy_fence", "bulk_copy", "bulk_wait"];
    let names = [&names[..], &["post", "post_signal", "the assignment of a variable"]].concat();
    let texts: Vec<String> = names.iter().map(|name| format!("{name} inside the each at")).collect();
    let expected: Vec<(u32, &str)> = texts.iter().enumerate().map(|(i, text)| (line + i as u32, &text[..])).collect();
    fails_all(result, &expected);
}

#[test]
fn groups_and_packets_need_an_each() {
    let packets = [Memory::zeroed(64)];
    let line = line!() + 4;
    let result = kernel("k", |k| {
        let region = k.region("packets", &packets);
        k.main(|r| {
            r.rank().group_max(4);
            region.packet_put(0, 0, 1, 1);
            region.packet_get(0, 0, 1);
        });
    });
    fails_all(
        result,
        &[
            (line, "group_max outside an each"),
            (line + 1, "packet_put outside an each"),
            (line + 2, "packet_get outside an each"),
        ],
    );
}

#[test]
fn a_group_has_elements() {
    let line = line!() + 4;
    let result = kernel("k", |k| {
        k.main(|r| {
            r.each(4, |i| {
                i.group_sum(0);
            })
        })
    });
    fails(result, line, "a group of 0 elements");
}

// ---- memory -----------------------------------------------------------------------------------------------------

#[test]
fn an_input_is_not_written() {
    let (x, n) = (vector(), Tensor::<u32>::zeros(4));
    let line = line!() + 4;
    let result = kernel("k", |k| {
        let (x, n) = (k.input(&x).named("x"), k.buffer::<u32>("n", &[n.memory().clone()], Access::In).bank(0));
        k.main(|r| {
            r.each(x.len(), |i| x.store(i, 0.0));
            x.store_if(true, 1, 0.0);
            n.atomic_add(0, 1, Order::Relaxed, Scope::Device);
        });
    });
    let text = "store into x, which is an input: declare it with k.output or k.inout";
    fails_all(result, &[(line, text), (line + 1, text), (line + 2, "store into n")]);
}

#[test]
fn a_shape_is_the_size_of_its_view() {
    let x = vector();
    let line = line!() + 3;
    let result = kernel("k", |k| {
        let x = k.input(&x);
        x.shape(8, 9);
        x.shape(7, 9);
        x.shape_strided(8, 8, 7);
        x.shape_strided(8, 8, 9);
        x.part(60, 8);
        k.main(|_| {});
    });
    fails_all(
        result,
        &[
            (line, "shape 8 x 9 is 72 elements, but the view has 64"),
            (line + 1, "shape 7 x 9 is 63 elements, but the view has 64"),
            (line + 2, "rows must not overlap"),
            (line + 3, "shape 8 x 8 with rows 9 apart does not fit a view of 64 elements"),
            (line + 4, "index 67 is outside a view of 64 elements"),
        ],
    );
}

#[test]
fn a_constant_index_lies_inside() {
    let (x, peers) = (vector(), [Memory::zeroed(64), Memory::zeroed(64)]);
    let line = line!() + 4;
    let result = kernel("k", |k| {
        let (x, region) = (k.input(&x), k.region("staging", &peers));
        k.main(|_| {
            x.load(64);
            x.load(-1);
            x.shape(8, 8).at(0, 8);
            region.get::<f32>(2, 0);
        });
    });
    fails_all(
        result,
        &[
            (line, "index 64 is outside a view of 64"),
            (line + 1, "index -1 is outside"),
            (line + 2, "index 8 is outside a view of 8"),
            (line + 3, "index 2 is outside a view of 2"),
        ],
    );
}

#[test]
fn a_number_fits_its_place() {
    let slots = [Memory::zeroed(64)];
    let line = line!() + 4;
    let result = kernel("k", |k| {
        let slots = k.slots("tail", &slots, 8);
        k.main(|r| {
            r.each(u64::MAX, |_| {});
            r.signal(slots.slot(0, 0), -1);
        });
    });
    fails_all(result, &[(line, "18446744073709551615 does not fit i64"), (line + 1, "-1 does not fit u64")]);
}

#[test]
fn banks_are_of_one_size() {
    let banks = [Memory::zeroed(64), Memory::zeroed(32)];
    let line = line!() + 2;
    let result = kernel("k", |k| {
        k.region("staging", &banks);
        k.region("nothing", &[]);
        k.slots("tail", &banks[..1], 12);
        k.main(|_| {});
    });
    fails_all(
        result,
        &[
            (line, "a bank of a region has length 32, but it must be 64"),
            (line + 1, "the number of banks is 0"),
            (line + 2, "slots 12 bytes apart: a slot is 8 bytes"),
        ],
    );
}

// ---- roles and blocks -------------------------------------------------------------------------------------------

#[test]
fn roles_have_names_of_their_own() {
    let line = line!() + 3;
    let result = kernel("k", |k| {
        k.role("send", 1).run(|_| {});
        k.role("send", 1).run(|_| {});
    });
    fails(result, line, "a second role named send (the first is at");
}

#[test]
fn roles_do_not_nest() {
    let line = line!() + 1;
    let result = kernel("k", |k| k.main(|_| k.role("inner", 1).run(|_| {})));
    fails(result, line, "role inside role main");
}

#[test]
fn a_kernel_has_a_role() {
    let line = line!() + 1;
    let result = kernel("k", |_| {});
    fails(result, line, "the kernel has no role");
}

#[test]
fn counts_are_not_zero() {
    let line = line!() + 2;
    let result = kernel("k", |k| {
        k.blocks(0);
        k.role("a", 0).run(|_| {});
        k.role("b", 1).copies(0, |r| {
            r.scratch::<f32>(0);
            r.for_step(0, 4, 0, |_| {});
        });
    });
    fails_all(
        result,
        &[
            (line, "the number of blocks is 0, but at least 1 is needed"),
            (line + 1, "the number of warps of a role is 0"),
            (line + 2, "the number of copies of a role is 0"),
            (line + 3, "the length of scratch is 0"),
            (line + 4, "the step of a for_ is 0, but at least 1 is needed"),
        ],
    );
}

#[test]
fn too_many_copies_are_the_verifiers_report() {
    let error = kernel("k", |k| k.role("turns", 1).copies(16, |_| {})).unwrap_err();
    assert!(matches!(error, BuildError::Verify { .. }), "{error}");
    assert!(error.to_string().contains("16 role copies; 15 is the most"), "{error}");
}

// ---- the closure ------------------------------------------------------------------------------------------------

#[test]
#[cfg(debug_assertions)]
fn a_closure_is_pure() {
    let (y, count) = (Tensor::<i64>::zeros(1), Cell::new(0));
    let line = line!() + 5;
    let result = kernel("k", |k| {
        let y = k.output(&y);
        count.set(count.get() + 1);
        k.main(|_| {
            y.store(0, count.get());
        });
    });
    let Err(BuildError::NotPure { at, difference, .. }) = &result else { panic!("{result:?}") };
    assert_eq!(at.line, line);
    assert_eq!(difference, "'v0: i64 = const 1' became 'v0: i64 = const 2'");
    assert!(result.unwrap_err().to_string().contains("a number that changes between launches is a Scalar"));
}

#[test]
#[cfg(debug_assertions)]
fn a_closure_is_pure_in_its_declarations() {
    let count = Cell::new(0);
    let result = kernel("k", |k| {
        count.set(count.get() + 1);
        k.blocks(count.get());
        k.main(|_| {});
    });
    assert!(matches!(result, Err(BuildError::NotPure { .. })), "{result:?}");
}

#[test]
fn a_panic_is_an_error_of_the_build() {
    let x = vector();
    let line = line!() + 1;
    let result = kernel("k", |k| {
        let x = k.input(&x);
        k.main(|_| x.store(0, 1.0));
        let rows = 0;
        assert!(rows > 0, "rows must be positive, not {rows}");
    });
    let Err(BuildError::Panicked { message, at, earlier, .. }) = &result else { panic!("{result:?}") };
    assert_eq!(message, "rows must be positive, not 0");
    assert_eq!((at.line, earlier.len()), (line, 1));
    assert!(result.unwrap_err().to_string().contains("before that:"));
}

#[test]
fn every_misuse_is_reported_once() {
    let x = vector();
    let line = line!() + 4;
    let result = kernel("k", |k| {
        let x = k.input(&x);
        for _ in 0..3 {
            x.shape(3, 3);
        }
        k.main(|_| {});
    });
    fails(result, line, "shape 3 x 3 is 9 elements");
}

// ---- hooks ------------------------------------------------------------------------------------------------------

#[test]
fn a_chunk_without_shape_has_no_rows() {
    let (out, inp) = (vector(), vector());
    let line = line!() + 1;
    let result = map(&out, &inp).produce(|c| c.input.at(c.col(), c.row())).trace();
    fails(result, line, "call chunk_shape(rows, cols)");
}

#[test]
fn a_chunk_shape_is_the_size_of_its_tensor() {
    let (out, inp) = (vector(), vector());
    let line = line!() + 1;
    let result = map(&out, &inp).chunk_shape(4, 4).output_shape(4, 4).trace();
    let text = |of| format!("a shape of 16 elements for a chunk of 64 of the {of}: give the shape of one chunk");
    fails_all(result, &[(line, &text("input")), (line, &text("output"))]);
}

#[test]
fn rows_and_columns_are_not_confused() {
    let (out, inp) = (vector(), vector());
    let line = line!() + 2;
    let result =
        map(&out, &inp).chunk_shape(4, 16).output_shape(16, 4).produce(|c| c.input.at(c.row(), c.col())).trace();
    fails(result, line, "row() runs to 16, but this axis of the chunk has 4");
    // The other axis would fit, so it is not reported. In a square chunk nothing can be found.
    assert!(map(&out, &inp).chunk_shape(8, 8).produce(|c| c.input.at(c.row(), c.col())).trace().is_ok());
}

#[test]
fn what_cannot_be_stored_needs_a_consume_hook() {
    let (out, inp) = (vector(), vector());
    let line = line!() + 1;
    let result = map(&out, &inp).produce(|c| c.input.load(c.pos()).cast::<Bf16>()).trace();
    fails(result, line, "produce returns bf16, which cannot be stored into an output of f32 as it is");
    let line = line!() + 1;
    let result = map(&out, &inp).produce2(|c| (c.pos(), c.rank())).trace();
    fails(result, line, "produce returns i64 and i64");
}

#[test]
fn produce_comes_before_consume() {
    let (out, inp) = (vector(), vector());
    let line = line!() + 1;
    let result = map(&out, &inp).consume(|c, v| c.output.store(c.pos(), v)).produce(|c| c.input.load(c.pos())).trace();
    fails(result, line, "give produce first");
}

#[test]
fn a_plain_map_has_equal_lengths() {
    let (out, inp) = (vector(), Tensor::<f32>::zeros(63));
    let line = line!() + 1;
    let result = map(&out, &inp).trace();
    fails(result, line, "the input of a map without produce hook has length 63, but it must be 64");
}
