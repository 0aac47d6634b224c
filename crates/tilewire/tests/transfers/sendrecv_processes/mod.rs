//! Transfers among real processes. Every bit is right, as among threads. Impossible requests are refused on both sides.
//! Every survivor of a rank that dies, panics, leaves or never comes gets a typed error. `TILEWIRE_SENDRECV=full` runs
//! more of them, larger ones and up to eight ranks; `TILEWIRE_SEED` chooses another sample.
#![cfg(target_os = "linux")]

mod case;
mod copies;
mod failures;
mod hooks;
mod refusals;
