//! Ranks that are processes, joined by a network: what arrives is what shared memory brings, and every end of a rank is
//! told to all others. A program of its own: it links libfabric at run time, and its processes are this program, run
//! again with the full name of the test. Without libfabric the tests say SKIP.
#![cfg(all(target_os = "linux", feature = "fabric"))]

mod domains;
mod fabric;
mod faults;
mod namespaces;
mod suite;
mod threads;
