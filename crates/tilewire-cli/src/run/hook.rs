//! The hooks of `tilewire run` and `tilewire verify`: those of the library by name, and their arguments.

use super::data::GROUP;
use tilewire::Primitive;
use tilewire::ir::Type;

/// The transformation of the elements on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// None: no hook is given.
    Copy,
    /// Multiplies by a factor that is read at launch.
    Scale,
    /// Transposes a chunk.
    Transpose,
    /// Sends f8e4m3, with one scale for 32 neighbours, which travels once for them.
    Quantise,
    /// Sends i8, each with the scale that 32 neighbours share.
    QuantiseI8,
    /// Converts to an output of another type.
    Cast,
    /// Sends bf16 and stores the original type.
    Narrow,
    /// Permutes a chunk of three axes, the last one first.
    Permute,
    /// Sends the elements that a tensor of the sender selects.
    Gather,
    /// Stores elements where a tensor of the receiver says.
    Scatter,
    /// Adds to the output.
    Accumulate,
    /// Adds a bias for each column, then applies the Gaussian error linear unit.
    BiasGelu,
    /// Combines the gates and the ups of every row: half as many elements arrive.
    Swiglu,
    /// Divides every row by its root mean square, and weights it.
    RmsNorm,
    /// Replaces every fifth element.
    Mask,
    /// Does not store every third element.
    Keep,
    /// Two composed hooks: reverses the order, and doubles.
    Compose,
}

/// The leg of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// None.
    Neither,
    /// The sent value differs from the input.
    Send,
    /// The received value is not just stored.
    Receive,
    /// The payload has another type than the stored value.
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

    /// The hooks of random transfers.
    pub const FEW: [Hook; 4] = [Hook::Copy, Hook::Scale, Hook::Transpose, Hook::Quantise];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        let names = "copy scale transpose quantise quantise-i8 cast narrow permute gather scatter accumulate bias-gelu swiglu \
                     rms-norm mask keep compose";
        names.split(' ').nth(self as usize).expect("every hook has a name")
    }

    /// True if it is defined for elements of this type.
    pub fn takes(self, ty: Type) -> bool {
        match self {
            Hook::Scale | Hook::Accumulate | Hook::Compose => ty != Type::Bool,
            _ => !self.is_of_floats() || ty.is_float(),
        }
    }

    /// Its leg.
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

    /// True if it computes: for a NaN made by arithmetic only its being a NaN is defined.
    pub(super) fn computes(self) -> bool {
        let places = [Hook::Copy, Hook::Transpose, Hook::Permute, Hook::Gather, Hook::Scatter, Hook::Mask, Hook::Keep];
        !places.contains(&self)
    }

    /// True if it is made for floats of ordinary size, which it gets.
    pub(super) fn is_of_floats(self) -> bool {
        let floats = [Hook::Quantise, Hook::QuantiseI8, Hook::Narrow, Hook::BiasGelu, Hook::Swiglu, Hook::RmsNorm];
        floats.contains(&self)
    }

    /// True if a plain computation of it takes much longer than the transfer.
    pub fn is_costly(self) -> bool {
        self.is_of_floats() || matches!(self, Hook::Cast | Hook::Accumulate | Hook::Permute)
    }

    /// Bytes that travel in packets per element of this type.
    pub fn travels(self, ty: Type) -> usize {
        match self {
            Hook::Quantise | Hook::QuantiseI8 => 1 + Type::F32.size(),
            Hook::Narrow => Type::BF16.size(),
            // One of the types is a float of four bytes.
            Hook::Cast => ty.size().max(Type::F32.size()),
            _ => ty.size(),
        }
    }

    /// Elements of the input per element of the output.
    pub(super) fn inputs(self) -> usize {
        if self == Hook::Swiglu { 2 } else { 1 }
    }

    /// Neighbours that tiles must not split, for a chunk of `len` elements.
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

/// The element gathered for a position: some elements twice, others not.
pub(super) fn gathered_from(len: usize, pos: usize) -> usize {
    (pos * 7 + pos / 3) % len
}

/// The place to which the element of a position is scattered: the other neighbour of a pair, from the other end.
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
