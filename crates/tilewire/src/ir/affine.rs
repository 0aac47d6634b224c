//! Index arithmetic: uniform expressions and affine forms over the index values of an `each`.
//!
//! Indices are `i64` and their arithmetic wraps, so sums and products form the ring of integers mod 2^64. Every rewrite
//! here that uses only ring laws is exact, overflow or not. Division is no ring operation: code that makes a
//! [`Uniform::Div`] has proved that it is exact.

use super::entity::Value;

/// A uniform `i64` expression over constants and uniform values. Code generators materialise it before the `each`.
///
/// The constructors keep a normal form (a sum of products, equal terms collected, constant last), so expressions
/// that are equal by ring laws without multiplying sums out are `==`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Uniform {
    /// A number.
    Const(i64),
    /// A uniform `i64` or `u64` value of the kernel (the same bits), defined before the `each` or in its body by ops on
    /// uniform values.
    Value(Value),
    /// Wrapping sum.
    Add(Box<Uniform>, Box<Uniform>),
    /// Wrapping product.
    Mul(Box<Uniform>, Box<Uniform>),
    /// Quotient by a positive constant that is known to divide the value. Truncating division, flooring division and,
    /// for a power of two, an arithmetic shift all agree.
    Div(Box<Uniform>, u32),
}

/// `base + Σ stride[axis] * index[axis] + group.1 * floor(innermost index / group.0)`, exact mod 2^64.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Affine {
    /// Value at index 0 of every axis.
    pub base: Uniform,
    /// Step along each axis of the `each`, outermost first.
    pub stride: Vec<Uniform>,
    /// Size (≥ 2) of a group of neighbours on the innermost axis, and the step (not 0) from group to group.
    pub group: Option<(u32, Uniform)>,
}

impl Uniform {
    /// True for the constant `n`.
    pub fn is_const(&self, n: i64) -> bool {
        self.as_const() == Some(n)
    }

    /// The constant, if it is one.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            Uniform::Const(n) => Some(*n),
            _ => None,
        }
    }

    /// `self + other`.
    pub fn add(&self, other: &Uniform) -> Uniform {
        match (self, other) {
            (Uniform::Const(a), Uniform::Const(b)) => Uniform::Const(a.wrapping_add(*b)),
            (x, Uniform::Const(0)) | (Uniform::Const(0), x) => x.clone(),
            _ => {
                let mut sum = Sum::default();
                sum.add(self, 1);
                sum.add(other, 1);
                sum.finish()
            }
        }
    }

    /// `self - other`.
    pub fn sub(&self, other: &Uniform) -> Uniform {
        self.add(&other.neg())
    }

    /// `-self`.
    pub fn neg(&self) -> Uniform {
        self.mul(&Uniform::Const(-1))
    }

    /// `self * other`.
    pub fn mul(&self, other: &Uniform) -> Uniform {
        match (self, other) {
            (Uniform::Const(a), Uniform::Const(b)) => Uniform::Const(a.wrapping_mul(*b)),
            (_, Uniform::Const(0)) | (Uniform::Const(0), _) => Uniform::Const(0),
            (x, Uniform::Const(1)) | (Uniform::Const(1), x) => x.clone(),
            (x, Uniform::Const(c)) | (Uniform::Const(c), x) => {
                let mut sum = Sum::default();
                sum.add(x, *c);
                sum.finish()
            }
            _ => {
                // Constants move outwards, so that sums can combine them.
                let ((a, x), (b, y)) = (self.factor(), other.factor());
                let (x, y) = if x <= y { (x, y) } else { (y, x) };
                let product = Uniform::Mul(Box::new(x.clone()), Box::new(y.clone()));
                product.mul(&Uniform::Const(a.wrapping_mul(b)))
            }
        }
    }

    /// `self / divisor`, which the caller has proved to be exact.
    pub(super) fn div_exact(&self, divisor: u32) -> Uniform {
        match self {
            _ if divisor == 1 => self.clone(),
            Uniform::Const(n) => Uniform::Const(n / i64::from(divisor)),
            _ => Uniform::Div(Box::new(self.clone()), divisor),
        }
    }

    /// Number of nodes.
    pub(super) fn size(&self) -> usize {
        match self {
            Uniform::Const(_) | Uniform::Value(_) => 1,
            Uniform::Add(a, b) | Uniform::Mul(a, b) => 1 + a.size() + b.size(),
            Uniform::Div(x, _) => 1 + x.size(),
        }
    }

    /// Calls `f` for every value of the expression.
    pub fn values(&self, f: &mut dyn FnMut(Value)) {
        match self {
            Uniform::Const(_) => {}
            Uniform::Value(v) => f(*v),
            Uniform::Add(a, b) | Uniform::Mul(a, b) => {
                a.values(f);
                b.values(f);
            }
            Uniform::Div(x, _) => x.values(f),
        }
    }

    /// Splits `c * x` into `(c, x)`.
    fn factor(&self) -> (i64, &Uniform) {
        match self {
            Uniform::Mul(x, c) => match **c {
                Uniform::Const(c) => (c, x),
                _ => (1, self),
            },
            _ => (1, self),
        }
    }
}

/// A linear combination under construction.
#[derive(Default)]
struct Sum {
    terms: Vec<(i64, Uniform)>,
    constant: i64,
}

impl Sum {
    fn add(&mut self, x: &Uniform, times: i64) {
        match x {
            Uniform::Const(n) => self.constant = self.constant.wrapping_add(n.wrapping_mul(times)),
            Uniform::Add(a, b) => {
                self.add(a, times);
                self.add(b, times);
            }
            _ => {
                let (c, atom) = x.factor();
                let c = c.wrapping_mul(times);
                match self.terms.iter_mut().find(|(_, a)| a == atom) {
                    Some((sum, _)) => *sum = sum.wrapping_add(c),
                    None => self.terms.push((c, atom.clone())),
                }
            }
        }
    }

    fn finish(mut self) -> Uniform {
        self.terms.retain(|&(c, _)| c != 0);
        self.terms.sort_by(|a, b| a.1.cmp(&b.1));
        let product = |(c, atom): (i64, Uniform)| match c {
            1 => atom,
            _ => Uniform::Mul(Box::new(atom), Box::new(Uniform::Const(c))),
        };
        let sum = self.terms.into_iter().map(product).reduce(|a, b| Uniform::Add(Box::new(a), Box::new(b)));
        match (sum, self.constant) {
            (None, c) => Uniform::Const(c),
            (Some(sum), 0) => sum,
            (Some(sum), c) => Uniform::Add(Box::new(sum), Box::new(Uniform::Const(c))),
        }
    }
}

/// Largest expression worth keeping; beyond it an index counts as unknown.
const LARGEST: usize = 64;

impl Affine {
    /// A uniform value in an `each` of `axes` axes.
    pub fn uniform(base: Uniform, axes: usize) -> Affine {
        Affine { base, stride: vec![Uniform::Const(0); axes], group: None }
    }

    /// The index of one axis.
    pub fn index(axis: usize, axes: usize) -> Affine {
        let mut index = Affine::uniform(Uniform::Const(0), axes);
        index.stride[axis] = Uniform::Const(1);
        index
    }

    /// The value, if it is the same for all elements.
    pub fn as_uniform(&self) -> Option<&Uniform> {
        (self.group.is_none() && self.stride.iter().all(|s| s.is_const(0))).then_some(&self.base)
    }

    /// Step along the innermost axis, without the group part.
    pub fn innermost(&self) -> &Uniform {
        self.stride.last().expect("an each has an axis")
    }

    /// `self + other`; `None` if both have groups of different sizes, or the sum has grown too large.
    pub fn add(&self, other: &Affine) -> Option<Affine> {
        let group = match (&self.group, &other.group) {
            (Some((g, a)), Some((h, b))) if g == h => Some((*g, a.add(b))),
            (Some(_), Some(_)) => return None,
            (group, None) | (None, group) => group.clone(),
        };
        Affine {
            base: self.base.add(&other.base),
            stride: self.stride.iter().zip(&other.stride).map(|(a, b)| a.add(b)).collect(),
            group,
        }
        .normal()
    }

    /// `self - other`.
    pub fn sub(&self, other: &Affine) -> Option<Affine> {
        self.add(&other.scale(&Uniform::Const(-1))?)
    }

    /// `self * factor`.
    pub fn scale(&self, factor: &Uniform) -> Option<Affine> {
        Affine {
            base: self.base.mul(factor),
            stride: self.stride.iter().map(|s| s.mul(factor)).collect(),
            group: self.group.as_ref().map(|(g, s)| (*g, s.mul(factor))),
        }
        .normal()
    }

    fn normal(mut self) -> Option<Affine> {
        if self.group.as_ref().is_some_and(|(_, stride)| stride.is_const(0)) {
            self.group = None;
        }
        let group = self.group.as_ref().map_or(0, |(_, s)| s.size());
        let size = self.base.size() + self.stride.iter().map(Uniform::size).sum::<usize>() + group;
        (size <= LARGEST).then_some(self)
    }
}
