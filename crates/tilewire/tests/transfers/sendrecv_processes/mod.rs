//! Transfers among real processes: every bit right, the same as among threads, what cannot be refused on both sides,
//! and a typed error for every survivor of a rank that dies, panics, leaves or never comes. `TILEWIRE_SENDRECV=full`
//! runs more of them, larger ones and up to eight ranks; `TILEWIRE_SEED` chooses another sample.
#![cfg(target_os = "linux")]

mod case;
mod copies;
mod failures;
mod hooks;
mod refusals;
