//! What ranks tell each other to share their segments: first a card from every rank through the bootstrap, then packets
//! through sockets. All input is checked, and no length in it decides how much is allocated.

use super::error::SegmentError;

/// Proves that the sender has the cards of this job.
pub(super) type Token = [u8; 16];

/// The version of everything here: cards and packets both begin with it.
const MAGIC: &[u8; 8] = b"TWSEGM02";
/// The longest error text that is sent.
const MAX_TEXT: usize = 400;
/// Room for the longest packet, plus one byte so that a longer one is noticed.
pub(super) const PACKET: usize = 8 + 1 + 4 + MAX_TEXT + 1;

/// What a rank tells all others through the bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// Size of its segment, including the header.
    pub(super) total: u64,
    /// The machine and network namespace it runs in.
    pub(super) host: [u8; 24],
    /// Where it listens, or why it cannot go on.
    pub(super) door: Result<Door, String>,
}

/// Where a rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Door {
    /// The name of its socket.
    pub(super) name: Vec<u8>,
    /// The token to show there.
    pub(super) token: Token,
    /// The ids of the control groups that limit its memory.
    pub(super) groups: Vec<u64>,
}

impl Door {
    /// The most groups that are sent. Nobody nests more limits than that.
    pub(super) const MAX_GROUPS: usize = 16;
}

impl Card {
    /// The machine of its rank, without the namespace: ranks of one machine share its memory.
    pub(super) fn machine(&self) -> &[u8] {
        &self.host[..16]
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.total.to_le_bytes());
        bytes.extend(self.host);
        match &self.door {
            Ok(Door { name, token, groups }) => {
                bytes.push(1);
                bytes.extend(token);
                assert!(groups.len() <= Door::MAX_GROUPS, "their number is a byte");
                bytes.push(groups.len() as u8);
                groups.iter().for_each(|group| bytes.extend(group.to_le_bytes()));
                bytes.extend(name);
            }
            Err(what) => {
                bytes.push(0);
                bytes.extend(cut(what).as_bytes());
            }
        }
        bytes
    }

    pub(super) fn decode(rank: usize, bytes: &[u8]) -> Result<Card, SegmentError> {
        let malformed = |what: String| SegmentError::Malformed { rank: Some(rank), what };
        let mut rest = bytes;
        let mut next = |len: usize| -> Result<&[u8], SegmentError> {
            let part = rest.split_off(..len);
            part.ok_or_else(|| malformed(format!("it has only {} bytes", bytes.len())))
        };
        if next(8)? != MAGIC {
            return Err(malformed("it does not begin as expected".to_string()));
        }
        let total = u64::from_le_bytes(next(8)?.try_into().expect("8 bytes"));
        let host = next(24)?.try_into().expect("24 bytes");
        let door = if next(1)? == [1] {
            let token = next(16)?.try_into().expect("16 bytes");
            let groups = usize::from(next(1)?[0]);
            let groups = (0..groups).map(|_| Ok(u64::from_le_bytes(next(8)?.try_into().expect("8 bytes"))));
            let groups = groups.collect::<Result<_, SegmentError>>()?;
            Ok(Door { name: rest.to_vec(), token, groups })
        } else {
            Err(String::from_utf8_lossy(rest).into_owned())
        };
        Ok(Card { total, host, door })
    }
}

/// A packet between two ranks.
///
/// ```text
///  opener ── Hello(who I am, your token) ──▶ listener       the opener has the listener's card
///         ◀── Welcome(your token) + segment ──              the listener has the opener's
///         ◀──────── Ready | Failed ────────▶                the sender has mapped everything, or not
/// ```
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet {
    Hello {
        from: u32,
        token: Token,
    },
    Welcome {
        token: Token,
    },
    Ready,
    /// The sender gives up, because rank `dead` died or because of what the text says.
    Failed {
        dead: Option<u32>,
        what: String,
    },
}

impl Packet {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            Packet::Hello { from, token } => {
                bytes.push(b'H');
                bytes.extend(from.to_le_bytes());
                bytes.extend(token);
            }
            Packet::Welcome { token } => {
                bytes.push(b'W');
                bytes.extend(token);
            }
            Packet::Ready => bytes.push(b'R'),
            Packet::Failed { dead, what } => {
                bytes.push(b'F');
                bytes.extend(dead.unwrap_or(u32::MAX).to_le_bytes());
                bytes.extend(cut(what).as_bytes());
            }
        }
        bytes
    }

    /// `None`: not one of our packets.
    pub(super) fn decode(bytes: &[u8]) -> Option<Packet> {
        let (kind, body) = bytes.strip_prefix(MAGIC)?.split_first()?;
        match (kind, body.len()) {
            (b'H', 20) => {
                let (from, token) = body.split_at(4);
                Some(Packet::Hello { from: u32::from_le_bytes(from.try_into().ok()?), token: token.try_into().ok()? })
            }
            (b'W', 16) => Some(Packet::Welcome { token: body.try_into().ok()? }),
            (b'R', 0) => Some(Packet::Ready),
            (b'F', 4..) if body.len() <= 4 + MAX_TEXT => {
                let (dead, what) = body.split_at(4);
                let dead = u32::from_le_bytes(dead.try_into().ok()?);
                let what = String::from_utf8_lossy(what).into_owned();
                Some(Packet::Failed { dead: (dead != u32::MAX).then_some(dead), what })
            }
            _ => None,
        }
    }
}

/// Whether two tokens are equal, in a time that does not reveal where they differ.
pub(super) fn same(a: &Token, b: &Token) -> bool {
    a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// The machine and network namespace of this process: abstract sockets reach no further.
pub(super) fn host() -> [u8; 24] {
    use std::os::unix::fs::MetadataExt;
    let mut host = [0; 24];
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    for (at, digit) in boot.chars().filter_map(|c| c.to_digit(16)).take(32).enumerate() {
        host[at / 2] |= (digit as u8) << (4 * (at % 2));
    }
    let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino());
    host[16..].copy_from_slice(&namespace.to_le_bytes());
    host
}

/// The text, cut to at most `MAX_TEXT` bytes.
fn cut(text: &str) -> &str {
    let end = (0..=MAX_TEXT.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_and_packets_survive_the_way() {
        let long = "ä".repeat(1000);
        let door = |groups: &[u64]| Door { name: b"tilewire-x".to_vec(), token: [7; 16], groups: groups.to_vec() };
        for door in [Ok(door(&[])), Ok(door(&[5, u64::MAX])), Err("no memory".to_string())] {
            let card = Card { total: 1 << 40, host: host(), door };
            assert_eq!(Card::decode(3, &card.encode()).unwrap(), card);
        }
        let failed = Packet::Failed { dead: Some(5), what: "rank 5 died".to_string() };
        let other = Packet::Failed { dead: None, what: String::new() };
        for packet in [
            Packet::Hello { from: 9, token: [1; 16] },
            Packet::Welcome { token: [2; 16] },
            Packet::Ready,
            failed,
            other,
        ] {
            assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }
        let bytes = Packet::Failed { dead: None, what: long }.encode();
        assert!(bytes.len() < PACKET && Packet::decode(&bytes).is_some());
    }

    #[test]
    fn other_bytes_are_refused() {
        let hello = Packet::Hello { from: 9, token: [1; 16] }.encode();
        let card = Card { total: 1, host: host(), door: Err(String::new()) }.encode();
        for len in 0..hello.len() {
            assert_eq!(Packet::decode(&hello[..len]), None);
        }
        let door = Door { name: Vec::new(), token: [1; 16], groups: vec![1, 2] };
        let open = Card { total: 1, host: host(), door: Ok(door) }.encode();
        for cut in (0..card.len()).map(|len| &card[..len]).chain((0..open.len()).map(|len| &open[..len])) {
            let error = Card::decode(3, cut).unwrap_err();
            assert!(matches!(error, SegmentError::Malformed { rank: Some(3), .. }));
        }
        assert_eq!(Packet::decode(&[hello.as_slice(), b"x"].concat()), None);
        assert_eq!(Packet::decode(&[0xff; PACKET]), None);
    }
}
