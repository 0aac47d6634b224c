//! `ir/ring.rs`, which `tensor/ring.rs` uses, and the parts of a kernel that `cuda/gang.rs` reads. No model has a
//! kernel.

#[path = "../../crates/tilewire/src/ir/ring.rs"]
pub(crate) mod ring;

use std::collections::BTreeMap;

pub(crate) struct Kernel {
    pub purposes: BTreeMap<usize, Vec<Purpose>>,
}

#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Transfer { from: u32, to: u32 },
    Own,
}
