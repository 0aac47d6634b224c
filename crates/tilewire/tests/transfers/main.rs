//! Tests of several ranks: how they meet, what they share and what they send, as threads and as processes. They are one
//! program, because each further program compiles the generic code of transfers again for every type. The processes of
//! a test are this program, run again with the full name of the test.

mod bootstrap;
mod case;
mod collectives;
mod doorbell;
#[cfg(feature = "check")]
mod every_domain;
mod every_link;
#[cfg(feature = "check")]
mod examples;
mod order;
mod own_schedules;
mod posted_fitness;
mod posted_windows;
mod posts;
mod registered_windows;
mod requirements;
mod segment;
mod segment_processes;
mod sendrecv;
mod sendrecv_processes;
mod shared_values;
mod shm_transport;
#[cfg(target_os = "linux")]
mod stranger;
mod two_level;
mod untouched;
mod window_lines;
mod window_operations;
