//! The cards and places that ranks exchange before they are connected. They say how a rank is reached and where its
//! memory is. The caller carries them as bytes over the authenticated bootstrap, because keys and cookies are secrets.
//!
//! All numbers are little-endian. Texts and addresses follow their length.
#![forbid(unsafe_code)]

use super::choice::Confirmation;
use super::error::NetworkError;

/// The first bytes of a card, and of a place. The last of them is the version.
const RANK: &[u8; 4] = b"twf\x04";
const PLACE: &[u8; 4] = b"twm\x01";

/// How a rank is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Card {
    pub provider: String,
    pub confirmation: Confirmation,
    /// The size of a number in bytes.
    pub number_bytes: u8,
    /// True if this rank counts the numbers that it sends.
    pub counts: bool,
    pub address: Vec<u8>,
    /// The memory that the hellos of other ranks are written to.
    pub hall: Place,
    /// The value that this rank writes as its hello.
    pub greeting: u64,
    /// The cookie that the numbers of each rank to this one begin with.
    pub cookies: Vec<u32>,
}

/// A rank's memory, as its peers name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub base: u64,
    pub key: u64,
    pub bytes: u64,
}

impl Card {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = RANK.to_vec();
        text(&mut bytes, self.provider.as_bytes());
        bytes.push(match self.confirmation {
            Confirmation::Provider => 0,
            Confirmation::Echo => 1,
        });
        bytes.push(self.number_bytes);
        bytes.push(self.counts.into());
        text(&mut bytes, &self.address);
        self.hall.put(&mut bytes);
        bytes.extend(self.greeting.to_le_bytes());
        bytes.extend((self.cookies.len() as u32).to_le_bytes());
        bytes.extend(self.cookies.iter().flat_map(|cookie| cookie.to_le_bytes()));
        bytes
    }

    /// Parses the card of `rank`.
    pub fn parse(rank: usize, bytes: &[u8]) -> Result<Card, NetworkError> {
        let mut reader = Reader { rank, rest: bytes };
        reader.begins(RANK)?;
        let provider = String::from_utf8(reader.text()?.to_vec()).map_err(|_| reader.wrong("a text"))?;
        let confirmation = match reader.take::<1>()? {
            [0] => Confirmation::Provider,
            [1] => Confirmation::Echo,
            _ => return Err(reader.wrong("the kind of confirmation")),
        };
        let [number_bytes, counts] = reader.take()?;
        let address = reader.text()?.to_vec();
        let hall = reader.place()?;
        let greeting = u64::from_le_bytes(reader.take()?);
        let number = u32::from_le_bytes(reader.take()?) as usize;
        if number != reader.rest.len() / 4 || !reader.rest.len().is_multiple_of(4) {
            return Err(reader.wrong("the number of ranks"));
        }
        let cookies = reader.rest.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("four")));
        let (counts, cookies) = (counts != 0, cookies.collect());
        Ok(Card { provider, confirmation, number_bytes, counts, address, hall, greeting, cookies })
    }
}

impl Place {
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = PLACE.to_vec();
        self.put(&mut bytes);
        bytes
    }

    /// Parses a place of `rank`.
    pub fn parse(rank: usize, bytes: &[u8]) -> Result<Place, NetworkError> {
        let mut reader = Reader { rank, rest: bytes };
        reader.begins(PLACE)?;
        let place = reader.place()?;
        match reader.rest.is_empty() {
            true => Ok(place),
            false => Err(reader.wrong("bytes behind its end")),
        }
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        [self.base, self.key, self.bytes].iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    }
}

fn text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text);
}

struct Reader<'b> {
    rank: usize,
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    fn wrong(&self, what: &'static str) -> NetworkError {
        NetworkError::Card { rank: self.rank, what }
    }

    fn slice(&mut self, bytes: usize) -> Result<&'b [u8], NetworkError> {
        let (slice, rest) = self.rest.split_at_checked(bytes).ok_or_else(|| self.wrong("too short"))?;
        self.rest = rest;
        Ok(slice)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], NetworkError> {
        Ok(self.slice(N)?.try_into().expect("as long as asked for"))
    }

    fn begins(&mut self, magic: &[u8; 4]) -> Result<(), NetworkError> {
        match self.take::<4>()? == *magic {
            true => Ok(()),
            false => Err(self.wrong("another version")),
        }
    }

    fn text(&mut self) -> Result<&'b [u8], NetworkError> {
        let bytes = u16::from_le_bytes(self.take()?);
        self.slice(bytes.into())
    }

    fn place(&mut self) -> Result<Place, NetworkError> {
        let [base, key, bytes] =
            [u64::from_le_bytes(self.take()?), u64::from_le_bytes(self.take()?), u64::from_le_bytes(self.take()?)];
        match base.checked_add(bytes) {
            Some(_) => Ok(Place { base, key, bytes }),
            None => Err(self.wrong("memory beyond the address space")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            provider: "tcp;ofi_rxm".to_string(),
            confirmation: Confirmation::Echo,
            number_bytes: 8,
            counts: true,
            address: vec![1, 2, 3],
            hall: Place { base: 1 << 40, key: 7, bytes: 64 },
            greeting: u64::MAX,
            cookies: vec![0, 5 << 3, u32::MAX - 7],
        }
    }

    #[test]
    fn cards_survive_and_damaged_ones_are_refused() {
        let bytes = card().to_bytes();
        assert_eq!(Card::parse(1, &bytes).unwrap(), card());
        for cut in 0..bytes.len() {
            assert!(matches!(Card::parse(3, &bytes[..cut]), Err(NetworkError::Card { rank: 3, .. })), "{cut}");
        }
        assert!(Card::parse(0, &[&bytes[..], &[0; 4]].concat()).is_err());
        let place = card().hall;
        assert_eq!(Place::parse(0, &place.to_bytes()), Ok(place));
        assert!(Place::parse(0, &[&place.to_bytes()[..], &[0]].concat()).is_err());
        assert!(Place::parse(0, &Place { base: u64::MAX, ..place }.to_bytes()).is_err());
        assert!(Place::parse(0, &bytes).is_err(), "another kind");
    }
}
