//! No launch allocates: machines, helpers and waits have what they need when the kernel is prepared.
//!
//! Alone in its program, because the allocator counts for the whole process, including worker threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use tilewire::vm::Prepared;
use tilewire::{Memory, Scalar, Tensor, kernel};

static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations of `launches` launches.
fn allocations(op: &mut Prepared, launches: u64, epoch: &Scalar<u64>) -> usize {
    let before = COUNT.load(Ordering::Relaxed);
    for _ in 0..launches {
        epoch.set(epoch.get() + 1);
        op.run().expect("runs");
    }
    COUNT.load(Ordering::Relaxed) - before
}

/// Scratch, strips, groups, streams, a loop, and a chain of waits from the last block to the first.
fn busy(blocks: usize) -> (Prepared, Scalar<u64>) {
    let n = 5000;
    let (x, y) = (Tensor::from_fn(n * blocks, |i| i as f32), Tensor::<f32>::zeros(n * blocks));
    let (flags, epoch) = ([Memory::zeroed(8 * (blocks + 1))], Scalar::new(0u64));
    let traced = kernel("busy", |k| {
        k.blocks(blocks as u32);
        let (x, y, flags) = (k.input(&x), k.output(&y), k.slots("flags", &flags, 8));
        k.role("work", 1).run(|r| {
            let (first, scratch) = (r.block() * n as i64, r.scratch::<f32>(n));
            r.for_(0..2, |turn| {
                r.each(n, |i| {
                    let x = x.load(first + i);
                    scratch.store(i, x.gt(turn.cast::<f32>()).select(x * x.group_max(32), x));
                });
                r.each(n, |i| y.store(first + i, scratch.load(i) + 1.0));
            });
        });
        k.role("chain", 1).run(|r| {
            let last = blocks as i64 - 1;
            r.if_(r.block().lt(last), || r.wait(flags.slot(0, r.block() + 1), &epoch));
            r.signal(flags.slot(0, r.block()), &epoch);
        });
    })
    .expect("traces");
    (Prepared::new(&traced.kernel, &traced.args).expect("prepares"), epoch)
}

#[test]
fn a_launch_allocates_nothing() {
    // The counter works.
    let before = COUNT.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(1u64)));
    assert!(COUNT.load(Ordering::Relaxed) > before);

    // The first launch of several blocks in a process starts the worker threads. A thread that starts allocates, and so
    // does the test harness beside this one. Some launches later, all threads are there.
    let (mut op, epoch) = busy(2);
    allocations(&mut op, 300, &epoch);

    let (x, epoch) = (Tensor::<f32>::zeros(100), Scalar::new(0u64));
    let traced = kernel("one", |k| {
        let x = k.inout(&x);
        k.main(|r| r.each(100, |i| x.store(i, x.load(i) + r.scalar(&epoch).cast::<f32>())));
    });
    let traced = traced.expect("traces");
    let mut op = Prepared::new(&traced.kernel, &traced.args).expect("prepares");
    assert_eq!(allocations(&mut op, 1000, &epoch), 0, "one instance");

    let (mut op, epoch) = busy(1);
    assert_eq!(allocations(&mut op, 200, &epoch), 0, "two roles");
    // Helpers take a different share of the blocks in each launch.
    for blocks in [2, 64] {
        let (mut op, epoch) = busy(blocks);
        assert_eq!(allocations(&mut op, 100, &epoch), 0, "{blocks} blocks");
    }
}
