//! The parts of a kernel that `cuda/gang.rs` reads; no model has one.

use std::collections::BTreeMap;

pub(crate) struct Kernel {
    pub purposes: BTreeMap<usize, Vec<Purpose>>,
}

pub(crate) enum Purpose {
    Transfer { from: u32, to: u32 },
    Own,
}
