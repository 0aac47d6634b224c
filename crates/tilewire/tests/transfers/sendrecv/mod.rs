//! `send`, `recv` and `sendrecv` among ranks that are threads: bit for bit what a copy on the host with the hook
//! applied gives, or an error that says why not. `TILEWIRE_SENDRECV=full` runs all of it, without it a sample;
//! `TILEWIRE_SEED` chooses another one.

pub mod copies;
mod failures;
pub mod guards;
#[cfg(feature = "check")]
pub mod hooks;
mod puts;
mod refusals;
pub mod sequences;
mod wrap;
