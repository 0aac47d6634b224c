//! Collectives among ranks that are threads, and a named part of it among processes: bit for bit what a plain, sequential computation
//! on the host gives, or an error that says why not. `TILEWIRE_SENDRECV=full` runs more of the random cases; `TILEWIRE_SEED` chooses
//! others.

mod exchange;
mod exchanges;
mod failures;
#[cfg(feature = "check")]
mod fields;
mod foreign;
mod hooks;
mod in_place;
#[cfg(feature = "check")]
mod legs;
mod many;
mod processes;
mod rebind;
mod reductions;
mod refusals;
#[cfg(feature = "check")]
mod rings;
mod same_hooks;
mod strided;
