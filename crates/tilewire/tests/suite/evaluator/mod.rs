//! The reference evaluator: tiny kernels with known answers, then random programs whose results must not depend on any
//! freedom that the language leaves.

mod control;
mod errors;
mod exchange;
mod properties;
mod ranks;
mod strength;
mod values;

use tilewire::check::{self, Bank, Binding, Bound, Memories, MemoryId, Options};
use tilewire::ir::scalar::Element;
use tilewire::ir::{Kernel, Param};
use tilewire_testkit::programs::Writer;

/// Binds buffers and slots with these bytes, one bank each, in the order of the parameters.
fn bind(all: &[Vec<u8>], kernel: &Kernel) -> (Binding, Memories) {
    let mut memories = Memories::new();
    let params = kernel.params.values().zip(all).map(|(param, bytes)| {
        let bank = Bank { memory: memories.add(bytes.clone()), offset: 0, len: bytes.len() as u64 };
        match param {
            Param::Slots { .. } => Bound::Slots(vec![bank]),
            Param::Scalar { ty, .. } => Bound::Scalar(memories.read_element(bank.memory, 0, *ty)),
            _ => Bound::Buffer(vec![bank]),
        }
    });
    (Binding::alone(params.collect()), memories)
}

/// Runs a kernel on these bytes and gives the bytes afterwards.
#[track_caller]
fn run_with(code: Writer, all: &[Vec<u8>], options: Options) -> Vec<Vec<u8>> {
    let kernel = code.finish();
    let (binding, memories) = bind(all, &kernel);
    let after = check::run(&kernel, &binding, memories, options).unwrap_or_else(|e| panic!("{e}\n{kernel:#?}"));
    (0..all.len()).map(|i| after.bytes(MemoryId(i as u32)).to_vec()).collect()
}

#[track_caller]
fn run(code: Writer, all: &[Vec<u8>]) -> Vec<Vec<u8>> {
    run_with(code, all, Options::default())
}

fn bytes<T: Element>(all: &[T]) -> Vec<u8> {
    all.iter().flat_map(|x| Element::to_bits(*x).to_le_bytes()[..size_of::<T>()].to_vec()).collect()
}

fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    let one = |chunk: &[u8]| {
        let mut bits = [0; 8];
        bits[..chunk.len()].copy_from_slice(chunk);
        T::from_bits(u64::from_le_bytes(bits))
    };
    bytes.chunks(size_of::<T>()).map(one).collect()
}
