//! Collectives among ranks that are threads, and a named part of it among processes: bit for bit what a plain, sequential computation
//! on the host gives, or an error that says why not. `TILEWIRE_SENDRECV=full` runs more of the random cases; `TILEWIRE_SEED` chooses
//! others.

#[path = "../sendrecv/case.rs"]
#[allow(dead_code)] // what it has for transfers of pairs
mod case;
#[path = "../support/job.rs"]
mod job;
#[path = "../support/ranks.rs"]
mod ranks;
#[path = "../support/untouched.rs"]
mod untouched;

mod exchange;
mod exchanges;
mod failures;
mod hooks;
mod in_place;
mod many;
mod processes;
mod reductions;
mod refusals;
mod rings;
