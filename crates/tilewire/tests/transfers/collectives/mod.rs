//! Collectives among ranks that are threads, and a named part of them among processes. The result is bit for bit that
//! of a plain, sequential computation on the host, or an error that gives the reason. `TILEWIRE_SENDRECV=full` runs
//! more of the random cases; `TILEWIRE_SEED` chooses others.

mod exchange;
pub mod exchanges;
pub mod failures;
#[cfg(feature = "check")]
pub mod fields;
mod foreign;
pub mod hooks;
pub mod in_place;
#[cfg(feature = "check")]
mod legs;
mod many;
mod one_hop;
mod processes;
mod rebind;
pub mod reductions;
mod refusals;
#[cfg(feature = "check")]
pub mod rings;
mod same_hooks;
pub mod strided;
