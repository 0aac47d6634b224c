//! Model memory, and the bindings of a kernel's parameters.

use super::error::EvalError;
use super::network::{AtOnce, Network};
use crate::ir::{Entity, Kernel, Param, ParamId, Type};
use std::ops::Range;
use std::sync::Arc;

/// One piece of model memory. Its first byte counts as aligned to any power of two; a [`Bank`] chooses an offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MemoryId(pub u32);

/// All memory of a world, in pieces that never overlap.
#[derive(Clone, Default, Debug)]
pub struct Memories {
    pieces: Vec<Vec<u8>>,
}

impl Memories {
    /// No memory yet.
    pub fn new() -> Self {
        Memories::default()
    }

    /// Adds a piece with these bytes.
    pub fn add(&mut self, bytes: Vec<u8>) -> MemoryId {
        self.pieces.push(bytes);
        MemoryId(u32::try_from(self.pieces.len() - 1).expect("fewer than 2^32 pieces of memory"))
    }

    /// The bytes of a piece.
    pub fn bytes(&self, id: MemoryId) -> &[u8] {
        &self.pieces[id.0 as usize]
    }

    /// The bytes of a piece, to change them between launches.
    pub fn bytes_mut(&mut self, id: MemoryId) -> &mut [u8] {
        &mut self.pieces[id.0 as usize]
    }

    /// The bytes of a bank.
    pub fn bank(&self, bank: Bank) -> &[u8] {
        &self.bytes(bank.memory)[bank.offset as usize..(bank.offset + bank.len) as usize]
    }

    /// `size` (≤ 8) little-endian bytes, zero-extended.
    pub fn read(&self, id: MemoryId, offset: u64, size: usize) -> u64 {
        let mut out = [0; 8];
        out[..size].copy_from_slice(&self.bytes(id)[offset as usize..][..size]);
        u64::from_le_bytes(out)
    }

    /// Writes the low `size` (≤ 8) bytes of `bits`, little-endian.
    pub fn write(&mut self, id: MemoryId, offset: u64, size: usize, bits: u64) {
        self.bytes_mut(id)[offset as usize..][..size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }

    /// Reads one element: any byte but 0 is a true bool.
    pub fn read_element(&self, id: MemoryId, offset: u64, ty: Type) -> u64 {
        let bits = self.read(id, offset, ty.size());
        if ty == Type::Bool { u64::from(bits != 0) } else { bits }
    }

    /// Writes one element: a bool becomes 0 or 1.
    pub fn write_element(&mut self, id: MemoryId, offset: u64, ty: Type, bits: u64) {
        let bits = if ty == Type::Bool { u64::from(bits != 0) } else { bits };
        self.write(id, offset, ty.size(), bits);
    }
}

/// `len` bytes of a piece of memory from byte `offset`: one bank of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bank {
    /// The piece.
    pub memory: MemoryId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Where the proxy behind a queue delivers at one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerRoute {
    /// The peer's region: `Post` writes into it.
    pub region: Bank,
    /// The peer's slots: the notice of a `Post` sets one of them.
    pub slots: Bank,
    /// Bytes from one of those slots to the next.
    pub stride: u32,
    /// The slots that the proxy moves; `None`: all of them.
    pub moves: Option<Arc<RouteSlots>>,
}

/// The numbers of the slots that posts over a route may move. A proxy refuses all others.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RouteSlots {
    /// Slots of the peer.
    pub moved: Vec<Range<u64>>,
    /// Slots of the poster, which flushes of its posts to the peer move.
    pub flushed: Vec<Range<u64>>,
}

/// The binding of one parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bound {
    /// One place per bank.
    Buffer(Vec<Bank>),
    /// The bits of the number, zero-extended.
    Scalar(u64),
    /// One place per bank.
    Slots(Vec<Bank>),
    /// One route per rank; a rank without a route cannot be posted to. Flushes move the slots of a rank's route to
    /// itself.
    Queue(Vec<Option<PeerRoute>>),
}

/// The bindings of one rank's launch, in the order of the parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// One entry per parameter.
    pub params: Vec<Bound>,
    /// By parameter and bank: the operation of the launch, for matched ones ([`Kernel::is_matched`]). Missing entries
    /// are 0.
    pub operations: Vec<Vec<u16>>,
}

impl Binding {
    /// The binding of a single rank.
    pub fn alone(params: Vec<Bound>) -> Self {
        Binding { rank: 0, world_size: 1, params, operations: Vec::new() }
    }

    /// The operation of a bank of a parameter.
    pub fn operation(&self, param: ParamId, bank: usize) -> u16 {
        self.operations.get(param.index()).and_then(|banks| banks.get(bank)).copied().unwrap_or(0)
    }

    /// The binding of a parameter.
    pub fn get(&self, param: ParamId) -> &Bound {
        &self.params[param.index()]
    }

    /// Checks that this fits the kernel and the memory: kinds, bank counts, sizes and alignments.
    pub fn check(&self, kernel: &Kernel, memories: &Memories) -> Result<(), EvalError> {
        let refuse = |message: String| Err(EvalError::Binding { kernel: kernel.name.clone(), message });
        if self.params.len() != kernel.params.len() {
            let (given, wanted) = (self.params.len(), kernel.params.len());
            return refuse(format!("{given} parameters are bound; the kernel has {wanted}"));
        }
        for (param, bound) in kernel.params.values().zip(&self.params) {
            let name = param.name();
            let (banks, wanted, bytes, align) = match (param, bound) {
                (Param::Buffer { ty, len, banks, align, .. }, Bound::Buffer(bound)) => {
                    (bound, *banks, len * ty.size() as u64, u64::from(*align))
                }
                (Param::Slots { len, stride, banks, .. }, Bound::Slots(bound)) => {
                    let bytes = len.checked_sub(1).map_or(0, |last| last * u64::from(*stride) + 8);
                    (bound, *banks, bytes, 8)
                }
                (Param::Scalar { .. }, Bound::Scalar(_)) | (Param::Queue { .. }, Bound::Queue(_)) => continue,
                _ => return refuse(format!("{name} is bound to another kind of parameter")),
            };
            if banks.len() != wanted as usize {
                return refuse(format!("{name} has {wanted} banks; {} are bound", banks.len()));
            }
            for (i, bank) in banks.iter().enumerate() {
                let inside = bank.offset.checked_add(bank.len);
                if inside.is_none_or(|end| end > memories.bytes(bank.memory).len() as u64) {
                    return refuse(format!("bank {i} of {name} does not lie inside its memory"));
                }
                if bank.len < bytes {
                    return refuse(format!("bank {i} of {name} is {} bytes; {bytes} are needed", bank.len));
                }
                if bytes > 0 && !bank.offset.is_multiple_of(align) {
                    return refuse(format!("bank {i} of {name} is not aligned to {align} bytes"));
                }
            }
        }
        Ok(())
    }
}

/// State shared by all instances: memory, and the network between the ranks.
pub struct World {
    /// All memory.
    pub memories: Memories,
    /// Delivers posts.
    pub network: Box<dyn Network>,
}

impl World {
    /// A world whose network delivers immediately.
    pub fn new(memories: Memories) -> Self {
        World { memories, network: Box::new(AtOnce::default()) }
    }
}
