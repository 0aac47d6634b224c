//! Large messages: ranges stay ranges.

use crate::links::{Link, Shape};
use crate::{check, clean};
use std::time::Instant;

#[test]
fn a_million_elements_are_checked_in_seconds() {
    // One block, 256 tiles of 4096 elements, twice through a pipeline of two slots each way.
    let links: Vec<_> = (0..2).map(|_| Link::new(8 * 16384)).collect();
    let shape = Shape { blocks: 1, copies: 1, depth: 2, steps: 256, tile: 4096 };
    let began = Instant::now();
    let report = check(&[crate::links::ring_with(&links, shape, 16384)]);
    clean(&report);
    println!("{} elements each way in {:?}", shape.elements(), began.elapsed());
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}
