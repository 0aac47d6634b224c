//! The definitions against independent, slower ones.

mod arith;
mod cast;
mod dynamic;
mod math;
mod narrow;

use tilewire_testkit::random::Random;
