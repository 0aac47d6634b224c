//! Large messages: ranges stay ranges.

use crate::checker::links::{Link, Shape};
use crate::checker::{check, clean};

#[test]
fn a_million_elements_are_a_matter_of_tiles() {
    // One block, 256 tiles of 4096 elements, twice through a pipeline of two slots each way.
    let links: Vec<_> = (0..2).map(|_| Link::new(8 * 16384)).collect();
    let shape = Shape { blocks: 1, copies: 1, depth: 2, steps: 256, tile: 4096 };
    assert_eq!(shape.elements(), 1 << 20);
    let report = check(&[crate::checker::links::ring_with(&links, shape, 16384)]);
    clean(&report);
    // An op of an `each` is one step for all its elements, and one range of shadow memory.
    assert!(report.steps < 100_000, "{} steps", report.steps);
}
