//! The verifier's rules for declarations: blocks, parameters, roles, variables, scratch.

use super::super::kernel::{Param, Scratch};
use super::{Fault, Verifier};
use std::collections::HashSet;

/// Warps of one block: 1024 threads, the limit of every NVIDIA GPU.
const MAX_WARPS: u64 = 32;

/// Role copies of one block: a GPU has 16 named barriers and the language leaves barrier 0 alone.
const MAX_COPIES: u64 = 15;

impl Verifier<'_> {
    pub(super) fn declarations(&mut self) {
        if self.kernel.blocks == 0 {
            self.fault(Fault::BlocksZero);
        }
        for param in self.kernel.params.values() {
            for reason in param_faults(param) {
                self.fault(Fault::BadParam { param: param.name().to_string(), reason });
            }
        }
        for (id, scratch) in self.kernel.scratches.iter() {
            for reason in scratch_faults(scratch) {
                self.fault(Fault::BadScratch { scratch: id.to_string(), reason });
            }
            if self.kernel.roles.get(scratch.role).is_none() {
                self.fault(Fault::Dangling { id: scratch.role.to_string() });
            }
        }
        for var in self.kernel.vars.values() {
            if self.kernel.roles.get(var.role).is_none() {
                self.fault(Fault::Dangling { id: var.role.to_string() });
            }
        }
        self.roles();
    }

    fn roles(&mut self) {
        let kernel = self.kernel;
        if kernel.roles.is_empty() {
            self.bad_role("the kernel has no role".into());
        }
        let mut names = HashSet::new();
        let (mut warps, mut copies) = (0, 0);
        for (id, role) in kernel.roles.iter() {
            self.role = Some(id);
            if role.warps == 0 {
                self.bad_role("a role of 0 warps; it needs at least 1".into());
            }
            if role.copies == 0 {
                self.bad_role("a role of 0 copies; it needs at least 1".into());
            }
            if !names.insert(&role.name) {
                self.bad_role("two roles of this name; give every role its own".into());
            }
            if kernel.sites.get(role.site).is_none() {
                self.fault(Fault::Dangling { id: role.site.to_string() });
            }
            // Neither overflows: a product of two u32 fits, and the sum saturates.
            warps = u64::saturating_add(warps, u64::from(role.warps) * u64::from(role.copies));
            copies = u64::saturating_add(copies, role.copies.into());
        }
        self.role = None;
        if warps > MAX_WARPS {
            self.bad_role(format!("the roles of a block have {warps} warps, copies counted; {MAX_WARPS} is the most"));
        }
        if copies > MAX_COPIES {
            self.bad_role(format!(
                "a block has {copies} role copies; {MAX_COPIES} is the most (each has a named barrier)"
            ));
        }
    }

    fn bad_role(&mut self, reason: String) {
        self.fault(Fault::BadRole { reason });
    }
}

fn param_faults(param: &Param) -> Vec<String> {
    let mut reasons = Vec::new();
    match param {
        Param::Buffer { ty, len, banks, align, .. } => {
            if *banks == 0 {
                reasons.push("it has 0 banks; 1 is the least".into());
            }
            if !align.is_power_of_two() || (*align as usize) < ty.size() {
                reasons.push(format!("alignment {align} is not a power of two of at least {} ({ty})", ty.size()));
            }
            reasons.extend(too_large(*len, ty.size() as u64));
        }
        Param::Slots { len, stride, banks, .. } => {
            if *banks == 0 {
                reasons.push("it has 0 banks; 1 is the least".into());
            }
            if *stride == 0 || stride % 8 != 0 {
                reasons.push(format!("stride {stride} is not a multiple of 8; a slot is 8 bytes"));
            }
            reasons.extend(too_large(*len, (*stride).into()));
        }
        Param::Scalar { .. } | Param::Queue { .. } => {}
    }
    reasons
}

fn scratch_faults(scratch: &Scratch) -> Vec<String> {
    too_large(scratch.len, scratch.ty.size() as u64).into_iter().collect()
}

/// Byte offsets are computed in `i64`.
fn too_large(len: u64, size: u64) -> Option<String> {
    let fits = len.checked_mul(size).is_some_and(|bytes| i64::try_from(bytes).is_ok());
    (!fits).then(|| format!("{len} elements of {size} bytes do not fit an address space"))
}
