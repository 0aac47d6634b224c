//! `send`, `recv` and `sendrecv` among ranks that are threads. The result is bit for bit that of a copy on the host
//! with the hook applied, or an error that gives the reason. `TILEWIRE_SENDRECV=full` runs all tests; without it a
//! sample runs, which `TILEWIRE_SEED` chooses.

pub mod copies;
mod failures;
pub mod guards;
#[cfg(feature = "check")]
pub mod hooks;
mod puts;
mod refusals;
pub mod sequences;
mod wrap;
