//! The memory model as data structures: what orders accesses.
//!
//! - **In**: the events that an [`Observer`](super::Observer) sees in a run. **Out**: [`Seen`] faults, each with the
//!   part of the log that had to happen for it.
//! - **Invariants**: nothing here depends on the order in which unordered events happened to run. Knowledge flows only
//!   along program order, launches, and signals: a wait learns what every signal shows that it may find. (Words of copy
//!   engines go back to old values: there knowledge flows from the write that was seen, and every order of those is
//!   run.)
//! - **Must not know**: schedulers, how faults are printed.
//!
//! The model itself is stated at the head of [`crate::check`].
//!
//! | file | holds |
//! |---|---|
//! | `clock.rs` | vector clocks; knowledge of visible accesses and of those that are over |
//! | `party.rs` | role copies, hosts, and asynchronous parties |
//! | `shadow.rs` | the last accesses to bytes, as ranges |
//! | `credits.rs` | credits that are ahead of their data |
//! | `packets.rs` | which packets were taken |
//! | `ended.rs` | signals and packets that launches leave behind |
//! | `slots.rs` | the history of every counter |
//! | `finds.rs` | the signals that waits may find, and the least that those show |
//! | `slot_places.rs` | which bytes are counters |
//! | `atomics.rs` | atomics: on counters, and elsewhere |
//! | `outside.rs` | ops that one run does not decide, and what no exploration covers |
//! | `promises.rs` | inputs and outputs that another rank writes during the launch |
//! | `streams.rs` | copy engines |
//! | `posted.rs` | the bytes of posts and their notices |
//! | `log.rs` | signals and waits in order |
//! | `sighting.rs` | faults, before they get names |
//! | `detector.rs` | the observer that ties them together |

mod atomics;
mod clock;
mod credits;
mod detector;
mod ended;
mod finds;
mod log;
mod outside;
mod packets;
mod party;
mod posted;
mod promises;
mod shadow;
mod sighting;
mod slot_places;
mod slots;
mod streams;

pub use clock::PartyId;
pub use credits::Ahead;
pub use detector::{Detector, Watch};
pub use log::Deed;
pub use outside::Incomplete;
pub use packets::Untaken;
pub use party::PartyName;
pub use promises::Promise;
pub use shadow::{Conflict, Touch, writes};
pub use sighting::{Seen, Sighting};
pub use slot_places::SlotPlaces;
pub use slots::{Signalled, SlotKey};
