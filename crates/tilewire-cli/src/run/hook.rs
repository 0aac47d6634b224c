//! The hooks of `tilewire run` and `tilewire verify`: those of the library by name, and what each is given.

use super::data::GROUP;
use tilewire::Primitive;
use tilewire::ir::Type;

/// What happens to the elements on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Nothing: no hook is given.
    Copy,
    /// They are multiplied by a factor that is read at launch.
    Scale,
    /// A chunk arrives transposed.
    Transpose,
    /// They travel as f8e4m3, with one scale for 32 neighbours, which travels once for them.
    Quantise,
    /// They travel as i8, each with the scale that 32 neighbours share.
    QuantiseI8,
    /// The output is of another type.
    Cast,
    /// They travel as bf16, and are stored as what they were.
    Narrow,
    /// A chunk of three axes arrives with the last one first.
    Permute,
    /// Those that a tensor of the sender says are sent.
    Gather,
    /// They are stored where a tensor of the receiver says.
    Scatter,
    /// They are added to what the output has.
    Accumulate,
    /// A bias for each column is added, then the Gaussian error linear unit.
    BiasGelu,
    /// Of every row the gates, then the ups: half as many arrive.
    Swiglu,
    /// Every row is divided by its root mean square, and weighted.
    RmsNorm,
    /// Every fifth is replaced.
    Mask,
    /// Every third is not stored.
    Keep,
    /// Two hooks composed: they come from the other end, and are doubled.
    Compose,
}

/// Which leg a hook is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// None.
    Neither,
    /// What is sent is not what the input has.
    Send,
    /// What arrives is not just stored.
    Receive,
    /// What travels is of another type than what is stored.
    Both,
}

impl Hook {
    /// All, in the order of the help text.
    pub const ALL: [Hook; 17] = [
        Hook::Copy,
        Hook::Scale,
        Hook::Transpose,
        Hook::Quantise,
        Hook::QuantiseI8,
        Hook::Cast,
        Hook::Narrow,
        Hook::Permute,
        Hook::Gather,
        Hook::Scatter,
        Hook::Accumulate,
        Hook::BiasGelu,
        Hook::Swiglu,
        Hook::RmsNorm,
        Hook::Mask,
        Hook::Keep,
        Hook::Compose,
    ];

    /// Those that random transfers take.
    pub const FEW: [Hook; 4] = [Hook::Copy, Hook::Scale, Hook::Transpose, Hook::Quantise];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        let names = "copy scale transpose quantise quantise-i8 cast narrow permute gather scatter accumulate bias-gelu swiglu \
                     rms-norm mask keep compose";
        names.split(' ').nth(self as usize).expect("every hook has a name")
    }

    /// Whether it is defined for elements of this type.
    pub fn takes(self, ty: Type) -> bool {
        match self {
            Hook::Scale | Hook::Accumulate | Hook::Compose => ty != Type::Bool,
            _ => !self.is_of_floats() || ty.is_float(),
        }
    }

    /// Which leg it is on.
    pub fn leg(self) -> Leg {
        match self {
            Hook::Copy => Leg::Neither,
            Hook::Scatter | Hook::Accumulate | Hook::Keep => Leg::Receive,
            Hook::Quantise | Hook::QuantiseI8 | Hook::Narrow => Leg::Both,
            _ => Leg::Send,
        }
    }

    /// Why an exchange cannot have it with this protocol, if so.
    pub fn refused_by_exchange(self, primitive: Option<Primitive>) -> Option<&'static str> {
        match (self.leg(), primitive) {
            (Leg::Both, Some(Primitive::Direct)) => Some("what travels is not what is stored; use staged or packet"),
            (Leg::Receive, Some(Primitive::Direct)) => {
                Some("nobody runs a consume hook when the sender writes the output; use staged or packet")
            }
            _ => None,
        }
    }

    /// Whether it computes: of a NaN that arithmetic made only that it is one is defined.
    pub(super) fn computes(self) -> bool {
        let places = [Hook::Copy, Hook::Transpose, Hook::Permute, Hook::Gather, Hook::Scatter, Hook::Mask, Hook::Keep];
        !places.contains(&self)
    }

    /// Whether it is made for floats of ordinary size, and is given those.
    pub(super) fn is_of_floats(self) -> bool {
        let floats = [Hook::Quantise, Hook::QuantiseI8, Hook::Narrow, Hook::BiasGelu, Hook::Swiglu, Hook::RmsNorm];
        floats.contains(&self)
    }

    /// Whether a plain computation of it takes much longer than the transfer.
    pub fn is_costly(self) -> bool {
        self.is_of_floats() || matches!(self, Hook::Cast | Hook::Accumulate | Hook::Permute)
    }

    /// Bytes that travel in packets for an element of this type.
    pub fn travels(self, ty: Type) -> usize {
        match self {
            Hook::Quantise | Hook::QuantiseI8 => 1 + Type::F32.size(),
            Hook::Narrow => Type::BF16.size(),
            // To floats of four bytes, or from them.
            Hook::Cast => ty.size().max(Type::F32.size()),
            _ => ty.size(),
        }
    }

    /// Elements of the input for one of the output.
    pub(super) fn inputs(self) -> usize {
        if self == Hook::Swiglu { 2 } else { 1 }
    }

    /// Neighbours that tiles of so many elements must not tear apart.
    pub(super) fn group(self, len: usize) -> Option<usize> {
        match self {
            Hook::Quantise | Hook::QuantiseI8 => Some(GROUP),
            Hook::RmsNorm => Some(norm_row(len)),
            _ => None,
        }
    }
}

/// Rows and columns of a chunk: as square as the number of elements allows.
pub(super) fn square(len: usize) -> (usize, usize) {
    let rows = (1..=len.isqrt()).rev().find(|rows| len.is_multiple_of(*rows)).unwrap_or(1);
    (rows, len / rows)
}

/// Three axes of a chunk.
pub(super) fn axes(len: usize) -> [usize; 3] {
    let (rows, cols) = square(len);
    let (a, b) = square(rows);
    [a, b, cols]
}

/// Elements of a row that is normed: at most 64.
pub(super) fn norm_row(len: usize) -> usize {
    (1..=64).rev().find(|row| len.is_multiple_of(*row)).unwrap_or(1)
}

/// What is gathered for a position: some elements twice, others not.
pub(super) fn gathered_from(len: usize, pos: usize) -> usize {
    (pos * 7 + pos / 3) % len
}

/// Where what arrives for a position is scattered to: the other neighbour of a pair, from the other end.
pub(super) fn scattered_to(len: usize, pos: usize) -> usize {
    let turned = len - 1 - pos;
    if turned ^ 1 < len { turned ^ 1 } else { turned }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_has_a_name_of_its_own_and_a_type() {
        let mut names = Hook::ALL.map(Hook::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Hook::ALL.len());
        assert!(Hook::ALL.iter().enumerate().all(|(k, hook)| *hook as usize == k && hook.takes(Type::F32)));
    }

    #[test]
    fn a_chunk_is_as_square_as_it_can_be() {
        assert_eq!([0, 1, 7, 12, 1 << 20].map(square), [(1, 0), (1, 1), (1, 7), (3, 4), (1024, 1024)]);
        assert!([0, 1, 7, 1001, 1 << 20].into_iter().all(|len| axes(len).iter().product::<usize>() == len));
    }

    #[test]
    fn nothing_is_scattered_to_one_place_twice() {
        for len in [0, 1, 2, 7, 1001, 1024] {
            let mut places: Vec<usize> = (0..len).map(|pos| scattered_to(len, pos)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..len), "{len}");
        }
    }
}
