//! Ranks that are processes, joined by a network. The same data arrive as over shared memory, and all ranks learn of
//! every rank that ends. This is a separate program because it opens libfabric at run time. Its processes are this
//! program, run again with the full name of the test. Without libfabric the tests print SKIP.
#![cfg(all(target_os = "linux", feature = "fabric"))]

mod domains;
mod fabric;
mod faults;
mod namespaces;
mod suite;
