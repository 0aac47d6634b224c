//! Memory that must not change. It is filled with poison or remembered before a call, and compared after it.
//!
//! A rank is a thread or a process, so the thread keeps what the rank watches.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tilewire::ir::scalar::Element;
use tilewire::link::{ShmTransport, Window};
use tilewire::tensor::{ReachableFrom, bytes_of};
use tilewire::transport::{RankError, World};
use tilewire::{Memory, Tensor};
use tilewire_testkit::ranks::words;

/// Elements before and after an output.
pub const GUARD: usize = 64;
const POISON: u8 = 0xa5;
/// Segments are whole pages.
const PAGE: usize = 4096;

/// A memory, and its bytes when the watch began.
type Watched = (String, Memory, Vec<u8>);

thread_local! {
    static WATCHED: RefCell<Vec<Watched>> = const { RefCell::new(Vec::new()) };
}

/// These bytes must not change from now on.
pub fn watch(what: impl Into<String>, memory: &Memory) {
    WATCHED.with_borrow_mut(|watched| watched.push((what.into(), memory.clone(), bytes_of(memory).unwrap())));
}

/// An output of poison within more poison. It is watched.
pub fn output<T: Element>(len: usize) -> Tensor<T> {
    let all = guarded(len);
    watch(format!("an output of {len} {}, {GUARD} elements before it and after it", T::TYPE), all.memory());
    inside(&all)
}

/// A window of poison, with the bytes behind it in its segment. It is watched. Collective.
pub fn window<T: Element>(world: &World, link: &ShmTransport, len: usize) -> Result<Window<T>, RankError> {
    let window = Window::<T>::allocate(link, len)?;
    window.tensor().fill(poisoned());
    poison(&behind(window.tensor().memory()));
    watch("a window", window.tensor().memory());
    watch("bytes behind a window", &behind(window.tensor().memory()));
    // No rank continues before all are watched.
    world.bootstrap().barrier("windows are watched", world.deadline())?;
    Ok(window)
}

/// Staging and packets full of poison, and all signals and counters as they are. They are watched. Collective, on an
/// unused transport.
pub fn transport(world: &World, link: &ShmTransport) -> Result<(), RankError> {
    let (table, me) = (link.table(), world.rank().index());
    for (what, memory) in [("staging", &table.staging[me]), ("packets", &table.packets[me])] {
        words(memory).iter().for_each(|word| word.store(0x5a5a_0000_0000_0000, Ordering::Release));
        watch(what, memory);
    }
    let slots = &table.slots[me];
    for (what, memory) in [
        ("TAIL", &slots.tail),
        ("HEAD", &slots.head),
        ("HEAD of packets", &slots.packet_head),
        ("READY", &slots.ready),
        ("DONE", &slots.done),
        ("the start counters", &table.starts),
    ] {
        watch(what, memory);
    }
    Ok(world.bootstrap().barrier("the transport is watched", world.deadline())?)
}

/// Asserts that nothing that this rank watches has changed, and ends the watch.
#[track_caller]
pub fn assert_untouched(context: impl std::fmt::Debug) {
    for (what, memory, before) in WATCHED.take() {
        let now = bytes_of(&memory).unwrap();
        if let Some(at) = (0..now.len()).find(|&at| now[at] != before[at]) {
            panic!("byte {at} of {what} is {:#x}, was {:#x}: {context:?}", now[at], before[at]);
        }
    }
}

/// Poison with room for `len` elements inside.
pub fn guarded<T: Element>(len: usize) -> Tensor<T> {
    let all = Tensor::zeros(len + 2 * GUARD);
    all.fill(poisoned());
    all
}

/// The part that is no guard.
pub fn inside<T: Element>(all: &Tensor<T>) -> Tensor<T> {
    all.slice(GUARD..all.len() - GUARD)
}

/// The first element of the guards that has changed.
pub fn spoilt_guard<T: Element>(all: &Tensor<T>) -> Option<usize> {
    let mut guards = (0..GUARD).chain(all.len() - GUARD..all.len());
    guards.find(|&at| all.get(at).to_bits() != poisoned::<T>().to_bits())
}

fn poisoned<T: Element>() -> T {
    T::from_bits(u64::from_ne_bytes([POISON; 8]))
}

/// The bytes behind a window, up to the end of the page.
pub fn behind(window: &Memory) -> Memory {
    let bytes = window.bytes().next_multiple_of(PAGE) - window.bytes();
    // SAFETY: a window begins on a page of a segment, which is whole pages (`Mapping::total`) and initialised, so these
    // bytes are valid as long as the handle that is passed along. They are given out as `Memory` only: nobody holds
    // references to them.
    unsafe { Memory::shared(window.start().add(window.bytes()), bytes, ReachableFrom::HOST, Arc::new(window.clone())) }
}

/// Fills shared memory with poison.
pub fn poison(memory: &Memory) {
    assert!(memory.is_shared());
    for at in 0..memory.bytes() {
        // SAFETY: inside, alive as long as the handle; shared memory is touched by atomics only.
        unsafe { AtomicU8::from_ptr(memory.start().as_ptr().add(at)) }.store(POISON, Ordering::Release);
    }
}

/// The first byte of shared memory that has changed.
pub fn spoilt(memory: &Memory) -> Option<usize> {
    bytes_of(memory).unwrap().iter().position(|&byte| byte != POISON)
}
