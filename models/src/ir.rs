//! What `cuda/muster.rs` reads of a kernel; no model has one.

use std::collections::BTreeMap;

pub(crate) struct Kernel {
    pub purposes: BTreeMap<usize, Vec<Purpose>>,
}

pub(crate) enum Purpose {
    Transfer { from: u32, to: u32 },
    Own,
}
