//! Mutations: named edits that make a right schedule wrong, to show that the checker detects it.
//!
//! - **In**: a [`Plan`] that is clean. **Out**: [`Mutant`]s, each the plan with one mistake at one place of the source,
//!   made in every rank and launch that has the place.
//! - **Invariants**: a mutation itself decides where it applies, and never applies where it would change nothing that
//!   matters. A mutant that the checker passes is a hole in the checker (or in that claim).
//! - **Must not know**: schedules.
//!
//! | file | holds |
//! |---|---|
//! | `sites.rs` | where a mutation applies |
//! | `apply.rs` | what it does there |
//! | `swap.rs` | slots of two peers that a rank could mistake for each other |
//! | `posts.rs` | what mutations ask about posts |
//! | `edit.rs` | small edits of a kernel |

mod apply;
mod edit;
mod posts;
mod sites;
mod swap;

use super::model::Watch;
use super::report::Report;
use super::verify::Settings;
use super::world::Plan;
use crate::ir::SourceLine;
use std::fmt;

macro_rules! mutations {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// A mistake that the checker must detect.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Mutation {$(
            $(#[doc = $doc])*
            $variant,
        )*}

        impl Mutation {
            const ALL: &'static [Mutation] = &[$(Mutation::$variant,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {$(Mutation::$variant => $name,)*}
            }

            /// A description in one sentence.
            pub fn describe(self) -> &'static str {
                match self {$(Mutation::$variant => concat!($($doc,)*).trim_ascii(),)*}
            }
        }
    };
}

mutations! {
    /// A wait is left out.
    DropWait = "drop-wait",
    /// The wait for a credit is left out.
    DropCreditWait = "drop-credit-wait",
    /// The signal comes before the data.
    SignalBeforePut = "signal-before-put",
    /// A signal shows no data.
    ReleaseToRelaxed = "release-to-relaxed",
    /// A wait does not acquire.
    AcquireToRelaxed = "acquire-to-relaxed",
    /// A signal goes to the next slot.
    WrongSlot = "wrong-slot",
    /// The credit of one step earlier is enough.
    OffByOneCredit = "off-by-one-credit",
    /// The first rank takes the slots of two peers for each other.
    SwappedPeers = "swapped-peers",
    /// A slot is filled before its credit is waited for.
    ReusedSlot = "reused-slot",
    /// A counter is not stored at the end.
    StaleStart = "stale-start",
    /// An `each` ends without a barrier.
    MissingBarrier = "missing-barrier",
    /// Data is put one element too far.
    PutTooFar = "put-too-far",
    /// The host sets all counters to 0 between launches.
    CounterReset = "counter-reset",
    /// Only block 0 waits before it writes.
    ReadyOfBlock0 = "ready-of-block-0",
    /// Another geometry does not wait for the slots of the last one.
    NoDrain = "no-drain",
    /// The copies of a role share one counter.
    SharedTail = "shared-tail",
    /// A bulk copy is signalled when its source has been read.
    BulkBeforeCompletion = "bulk-before-completion",
    /// A proxy fence is left out.
    MissingProxyFence = "missing-proxy-fence",
    /// Every packet has the same flag.
    ReusedFlag = "reused-flag",
    /// Packets are not cleared before their flags wrap around.
    FlagsNotCleared = "flags-not-cleared",
    /// The notice of a delivery is a signal that is posted before the bytes.
    NoticeBeforeData = "notice-before-data",
    /// Bytes are posted before the outbox is filled.
    PostBeforePut = "post-before-put",
    /// A posted notice goes to the next slot.
    WrongLine = "wrong-line",
    /// The parts of a delivery are counted wrongly.
    PartsOffByOne = "parts-off-by-one",
    /// An outbox is filled again before what was posted from it has arrived.
    OutboxReused = "outbox-reused",
    /// A posted signal overtakes the posts before it.
    OvertakingSignal = "overtaking-signal",
    /// A flush does not wait until the sources have been read.
    EarlyFlush = "early-flush",
    /// The second notice for a slot does not wait for the first.
    UnheldNotice = "unheld-notice",
}

impl Mutation {
    /// All mutations.
    pub fn all() -> &'static [Mutation] {
        Mutation::ALL
    }

    /// The mutation with this name.
    pub fn named(name: &str) -> Option<Mutation> {
        Mutation::ALL.iter().copied().find(|mutation| mutation.name() == name)
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A plan with one mistake.
pub struct Mutant {
    /// The mistake.
    pub mutation: Mutation,
    /// The place; `None` if it is not in a kernel.
    pub at: Option<SourceLine>,
    /// The mutated object, if the place is not in a kernel.
    of: Option<String>,
    plan: Plan,
    watch: Watch,
}

impl Mutant {
    /// Checks it, up to the first fault.
    pub fn verify(&self, settings: &Settings) -> Report {
        let settings = Settings { first_fault: true, ..settings.clone() };
        self.plan.verify_watching(&settings, &settings.watch(self.watch.clone()))
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mutation)?;
        self.at.iter().try_for_each(|at| write!(f, " at {at}"))?;
        self.of.iter().try_for_each(|of| write!(f, " of {of}"))
    }
}

impl Plan {
    /// This plan with a mistake, once for every place where the mutation applies.
    pub fn mutants(&self, mutation: Mutation) -> Vec<Mutant> {
        let places = sites::places(self, mutation);
        places.into_iter().map(|place| apply::mutant(self, mutation, place)).collect()
    }
}
