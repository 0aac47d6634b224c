//! The purpose of a parameter's memory, as its declaration states it.
//!
//! It does not change what engines compute, and is not part of a kernel's text. It decides which rank a wait is for,
//! which ranks a kernel talks to, which words carry the number of an operation, and a parameter's name in messages.

/// The purpose of one bank of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Purpose {
    /// Memory from the kernel's author, of unknown use.
    #[default]
    Own,
    /// A tensor of the caller, which its host reads and writes between launches.
    Tensor,
    /// A part of a transfer from one rank to another. Ranks are plain numbers, the same on both sides.
    Transfer {
        /// The part.
        part: Part,
        /// The rank that sends the data.
        from: u32,
        /// The rank that receives it.
        to: u32,
    },
    /// Signals or packets from all ranks, one after the other in equal parts.
    AllRanks {
        /// How many ranks; 0 where it is not known which of them signals where.
        ranks: u32,
        /// True for credits. All others carry the number of an operation.
        credits: bool,
    },
    /// This rank's own counters for its transfers with a peer, kept across launches.
    Starts {
        /// The peer.
        peer: u32,
    },
}

/// The parts of a transfer from a sender to a receiver.
///
/// | part | lies at | signalled by | carries an operation |
/// |---|---|---|---|
/// | `Staging`, `Window` | the receiver | nobody | |
/// | `Packets`, `Tail`, `Done` | the receiver | the sender | yes |
/// | `Ready` | the sender | the receiver | yes |
/// | `Head`, `PacketHead` | the sender | the receiver | no: credits may be older than the launch |
/// | `Sent` | the sender | its own proxy, when the receiver has the bytes | no: nobody else signals there |
/// | `Signal` | the receiver | the sender | no: each is for one id of one window |
/// | `Counter` | the sender | as `Sent` | no |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// Slots of bytes.
    Staging,
    /// The output itself, for `direct`.
    Window,
    /// Packets, each with its flag.
    Packets,
    /// A slot of staging is filled. Never ahead of the wait for it: see [`IN_STEP`](super::matching::IN_STEP).
    Tail,
    /// A slot of staging is free again.
    Head,
    /// Packets have been read.
    PacketHead,
    /// The window may be written.
    Ready,
    /// The window has been written.
    Done,
    /// Posted bytes have been read where they were.
    Sent,
    /// A signal of a window, for kernels of the user's own.
    Signal,
    /// As `Sent`, for kernels of the user's own.
    Counter,
}

impl Purpose {
    /// The rank that signals word `index` of `len`, or writes that packet. For a flush, which this rank's own proxy
    /// turns into a word, it is the receiver, on whom that depends.
    pub fn signaller(self, index: u64, len: u64) -> Option<u32> {
        use Part::*;
        match self {
            Purpose::Transfer { part: Packets | Tail | Done | Signal, from, .. } => Some(from),
            Purpose::Transfer { part: Head | PacketHead | Ready | Sent | Counter, to, .. } => Some(to),
            Purpose::AllRanks { ranks, .. } => {
                index.checked_div(len / u64::from(ranks).max(1)).map(|rank| rank as u32).filter(|rank| *rank < ranks)
            }
            _ => None,
        }
    }

    /// What a part of such memory is for. Which ranks signal in a part of a table of all ranks is not known.
    pub fn of_part(self) -> Purpose {
        match self {
            Purpose::AllRanks { credits, .. } => Purpose::AllRanks { ranks: 0, credits },
            other => other,
        }
    }

    /// The same transfer's other part.
    pub fn with_part(self, part: Part) -> Purpose {
        match self {
            Purpose::Transfer { from, to, .. } => Purpose::Transfer { part, from, to },
            other => other,
        }
    }

    /// The transfer in the other direction.
    pub fn turned(self) -> Purpose {
        match self {
            Purpose::Transfer { part, from, to } => Purpose::Transfer { part, from: to, to: from },
            other => other,
        }
    }

    /// True if its words or flags carry the number of the launch's operation: see [`matching`](super::matching).
    pub fn is_matched(self) -> bool {
        let matched = |part| matches!(part, Part::Packets | Part::Tail | Part::Ready | Part::Done);
        matches!(self, Purpose::AllRanks { credits: false, .. })
            || matches!(self, Purpose::Transfer { part, .. } if matched(part))
    }

    /// True if its words are the signals of a window.
    pub fn is_signal(self) -> bool {
        matches!(self, Purpose::Transfer { part: Part::Signal, .. })
    }

    /// True if its words are credits.
    pub fn is_credit(self) -> bool {
        let is_credit = |part| matches!(part, Part::Head | Part::PacketHead | Part::Sent | Part::Counter);
        matches!(self, Purpose::AllRanks { credits: true, .. })
            || matches!(self, Purpose::Transfer { part, .. } if is_credit(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_transfer_is_signalled_by_one_side_and_is_data_or_a_credit() {
        let of = |part| Purpose::Transfer { part, from: 3, to: 5 };
        for (part, signaller) in [
            (Part::Packets, 3),
            (Part::Tail, 3),
            (Part::Done, 3),
            (Part::Ready, 5),
            (Part::Head, 5),
            (Part::PacketHead, 5),
            (Part::Sent, 5),
            (Part::Counter, 5),
        ] {
            assert_eq!(of(part).signaller(7, 8), Some(signaller), "{part:?}");
            assert!(of(part).is_matched() != of(part).is_credit(), "{part:?}");
        }
        let signal = of(Part::Signal);
        assert_eq!((signal.signaller(7, 8), signal.is_matched(), signal.is_credit()), (Some(3), false, false));
        for silent in [of(Part::Staging), of(Part::Window), Purpose::Own, Purpose::Tensor, Purpose::Starts { peer: 5 }]
        {
            assert_eq!(
                (silent.signaller(7, 8), silent.is_matched(), silent.is_credit()),
                (None, false, false),
                "{silent:?}"
            );
        }
        let [all, credits] = [false, true].map(|credits| Purpose::AllRanks { ranks: 3, credits });
        assert_eq!([0, 3, 4, 11, 12].map(|index| all.signaller(index, 12)), [Some(0), Some(0), Some(1), Some(2), None]);
        assert_eq!(all.signaller(0, 2), None);
        assert_eq!([all, credits].map(|it| (it.is_matched(), it.is_credit())), [(true, false), (false, true)]);
    }
}
