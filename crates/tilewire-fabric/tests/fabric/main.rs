//! Two ends on loopback, in one process and in two, over every software provider that the library has. It is fetched
//! into the build folder where it is not installed.

mod ends;
#[path = "../../../tilewire-testkit/src/libfabric.rs"]
mod libfabric;
mod one_process;
#[path = "../../../tilewire-testkit/src/skip.rs"]
mod skip;
mod two_processes;
