//! `tilewire run`: a collective among ranks, with a hook, every byte checked.
//!
//! - **In**: the request ([`Run`]), parsed from the command line. **Out**: a table, and whether every result was right.
//! - **Invariants**: every launch has new data, derived from the seed, the launch and the rank, so that every rank
//!   knows the data of every other. Outputs are poisoned before a launch, and the memory around them must not change.
//! - **Must not know**: how a transfer works. It calls collectives as a user would.
//!
//! | file | holds |
//! |---|---|
//! | `options.rs` | [`Run`]: the command-line options |
//! | `hook.rs` | [`Hook`]: the hooks by name, and their arguments |
//! | `library.rs` | hooks of the library, given to exchanges and reductions of any element type |
//! | `case.rs` | [`Case`]: one transfer, prepared for any element type |
//! | `collective.rs` | [`Collective`], [`Plan`]: a collective of all ranks, prepared for any element type |
//! | `data.rs` | the sent data, and a plain computation of the expected result |
//! | `agreement.rs` | [`Word`]: the options that must be the same on all ranks |
//! | `mesh.rs` | [`Mesh`]: the transports by name, and domains of ranks |
//! | `worlds.rs` | [`Ranks`]: threads, processes, or those of a launcher |
//! | `turns.rs` | fill, launch, check; the table |

mod agreement;
mod case;
mod collective;
mod data;
mod hook;
mod library;
mod mesh;
mod options;
mod turns;
mod worlds;

pub use agreement::Word;
pub use case::{Case, PROTOCOLS, Peers, Transfer, prepare};
pub use collective::{Collective, Plan, prepare_all};
pub use data::GROUP;
pub use hook::Hook;
#[cfg(test)]
pub use mesh::Wire;
pub use mesh::{Apart, CpuWire, Mesh, Network, Shuffle};
pub use options::{Options, ROUNDS, Run, Words};
pub use turns::{run, text_of};
pub use worlds::{Ranks, everywhere, in_processes};
