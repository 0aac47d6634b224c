//! Columns of a matrix as PTX: aligned rows keep their vectors, and nothing beside the columns is touched.

use crate::snapshots::assert_snapshot;
use tilewire::ir::scalar::Element;
use tilewire::ir::simplify;
use tilewire::ptx::{Options, Target, emit};
use tilewire::{Bf16, Tensor, Traced, kernel, map};
use tilewire_testkit::simulated::same_as_defined;

/// A copy of `cols` columns from column `from` of a matrix to column `to` of another, with rows `stride` apart in both.
fn copy<T: Element>((rows, cols, stride): (usize, usize, usize), from: usize, to: usize) -> Traced {
    let matrix = |first: usize| {
        Tensor::<T>::from_fn(rows * stride, |i| T::from_bits((first + i) as u64)).reshape(rows, stride).unwrap()
    };
    let (x, y) = (matrix(1).columns(from..from + cols), matrix(2).columns(to..to + cols));
    kernel("columns", |k| {
        let (x, y) = (k.input(&x).matrix(), k.output(&y).matrix());
        k.main(|r| r.each2(y.rows(), y.cols(), |row, col| y.store(row, col, x.at(row, col))));
    })
    .unwrap()
}

#[test]
fn aligned_rows_of_columns_move_in_vectors_of_16_bytes() {
    for target in Target::ALL {
        let text = same_as_defined("f32", &copy::<f32>((33, 64, 192), 16, 64), target);
        assert!(text.contains("ld.global.v4.b32") && text.contains("st.global.v4.b32"), "{text}");
        let text = same_as_defined("bf16", &copy::<Bf16>((9, 128, 512), 8, 384), target);
        assert!(text.contains("ld.global.v4.b32") && text.contains("st.global.v4.b32"), "{text}");
        // The second of two rows begins at an odd multiple of eight bytes.
        let text = same_as_defined("eight", &copy::<f32>((33, 64, 70), 2, 4), target);
        assert!(text.contains("ld.global.v2.b32") && !text.contains("global.v4"), "{text}");
        // One column, and rows that begin at any place.
        let text = same_as_defined("one", &copy::<f32>((300, 1, 7), 3, 0), target);
        assert!(!text.contains("global.v"), "{text}");
    }
}

/// For reading: 64 columns of a matrix of 192, from column 16 to column 64.
#[test]
fn a_copy_of_columns_looks_as_it_did() {
    let kernel = simplify(&copy::<f32>((33, 64, 192), 16, 64).kernel);
    assert_snapshot("columns.ptx", &emit(&kernel, Options::new(Target::Sm90a)).unwrap().text);
}

#[test]
fn a_map_of_columns_keeps_its_vectors_without_a_division() {
    let matrix = Tensor::<f32>::from_fn(64 * 256, |i| i as f32).reshape(64, 256).unwrap();
    let out = Tensor::<f32>::zeros(64 * 128).reshape(64, 128).unwrap();
    let traced = map(&out, &matrix.columns(128..256)).produce(|c| c.input.load(c.pos()) * 2.0).trace().unwrap();
    let text = same_as_defined("map", &traced, Target::ALL[0]);
    assert!(text.contains("ld.global.v4.b32") && text.contains("st.global.v4.b32"), "{text}");
    let kernel = simplify(&traced.kernel).to_string();
    assert!(!kernel.contains(" div ") && !kernel.contains(" rem "), "{kernel}");
}
