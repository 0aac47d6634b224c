//! Prepared kernels on other threads than the one that prepared them, and memory that devices reach, too.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use tilewire::hook::Traced;
use tilewire::ir::ring::{Posted, PostedNotice};
use tilewire::ir::{Access, NoticeKind};
use tilewire::tensor::{ReachableFrom, Ring, bytes_of};
use tilewire::vm::{LaunchError, PrepareError, Prepared};
use tilewire::{Memory, Tensor, kernel};

/// Adds one to four words.
fn add_one(words: &Memory) -> Traced {
    kernel("add one", |k| {
        let words = k.buffer::<u32>("words", std::slice::from_ref(words), Access::InOut).bank(0i64);
        k.main(|r| r.each(4, |i| words.store(i, words.load(i) + 1)));
    })
    .unwrap()
}

/// Four words that every thread, and a GPU, may touch.
fn shared(devices: Vec<u32>) -> Memory {
    let words = Arc::new([const { AtomicU32::new(6) }; 4]);
    let start = std::ptr::NonNull::from(&*words).cast();
    // SAFETY: these are the words, which the last handle drops; nobody has a reference to them. No kernel of a device
    // runs in this file.
    unsafe { Memory::shared(start, 16, ReachableFrom { host: true, devices }, words) }
}

fn elsewhere<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    std::thread::spawn(body).join().unwrap()
}

#[test]
fn a_kernel_over_tensors_runs_on_their_thread_only() {
    let x = Tensor::from_slice(&[1u32, 2, 3, 4]);
    let traced = add_one(x.memory());
    let mut prepared = Prepared::new(&traced.kernel, &traced.args).unwrap();
    prepared.run().unwrap();
    let (refused, mut prepared) = elsewhere(move || (prepared.run(), prepared));
    assert!(matches!(refused, Err(LaunchError::OtherThread { rank: 0 })), "{refused:?}");
    assert_eq!(x.to_vec(), [2, 3, 4, 5]);
    prepared.run().unwrap();
    assert_eq!(x.to_vec(), [3, 4, 5, 6]);
    let unprepared = elsewhere(move || Prepared::new(&traced.kernel, &traced.args).map(|_| ()));
    let Err(PrepareError::Argument { param, what }) = unprepared else { panic!("{unprepared:?}") };
    assert!(param == "words" && what.contains("another thread's own"), "{param}: {what}");
    assert_eq!(x.to_vec(), [3, 4, 5, 6]);
}

#[test]
fn a_kernel_over_shared_memory_runs_on_any_thread() {
    let memory = shared(Vec::new());
    let traced = add_one(&memory);
    let mut prepared = Prepared::new(&traced.kernel, &traced.args).unwrap();
    prepared.run().unwrap();
    elsewhere(move || prepared.run()).unwrap();
    assert_eq!(bytes_of(&memory).unwrap(), [8u32.to_le_bytes(); 4].concat());
}

#[test]
fn the_engine_asks_whether_the_host_reaches_memory_and_not_who_has_it() {
    let pinned = shared(vec![0]);
    let traced = add_one(&pinned);
    Prepared::new(&traced.kernel, &traced.args).unwrap().run().unwrap();
    assert_eq!(bytes_of(&pinned).unwrap(), [7u32.to_le_bytes(); 4].concat());
    assert_eq!(pinned.part(4, 4).reachable_from(), &ReachableFrom { host: true, devices: vec![0] });
}

#[test]
fn another_thread_empties_the_ring_that_kernels_fill() {
    let ring = Ring::new(4);
    let traced = kernel("tell", |k| {
        let queue = k.queue("ring", ring.queue(3));
        k.main(|r| r.post_signal(queue, 1, 5, 9));
    });
    let traced = traced.unwrap();
    Prepared::new(&traced.kernel, &traced.args).unwrap().run().unwrap();
    let (first, second) = elsewhere(move || (ring.pop(), ring.pop()));
    let notice = Some(PostedNotice { slot: 5, value: 9, parts: 1, kind: NoticeKind::Data });
    assert_eq!((first, second), (Some(Ok(Posted { peer: 1, target: 3, span: None, notice })), None));
}
