//! The examples run, and check their results.

use tilewire_testkit::ranks;

#[path = "../../examples/07_checking_your_own_schedule.rs"]
mod checking;
#[path = "../../examples/09_column_slices.rs"]
mod column_slices;
#[path = "../../examples/01_first_send.rs"]
mod first_send;
#[path = "../../examples/02_hook_with_a_captured_tensor.rs"]
mod hook_with_a_captured_tensor;
#[path = "../../examples/06_own_kernel_from_raw_ops.rs"]
mod own_kernel_from_raw_ops;
#[path = "../../examples/08_processes.rs"]
mod processes;
#[path = "../../examples/04_quantised_all_to_all.rs"]
mod quantised_all_to_all;
#[path = "../../examples/03_transposing_all_to_all.rs"]
mod transposing_all_to_all;

/// Example 05, which 07 checks.
use checking::ring;

#[test]
fn the_first_send_arrives() {
    for len in [0, 1, 5, 100_001] {
        let expected: Vec<f32> = (0..len).map(|i| i as f32).collect();
        assert_eq!(first_send::run(len).unwrap(), expected);
    }
}

#[test]
fn rows_are_scaled_by_a_captured_tensor() {
    // The second launch has factors (rank + 1) * (row + 1) * 2. Rank 0 receives from the last rank.
    let received = hook_with_a_captured_tensor::run(3, 2, 4).unwrap();
    assert_eq!(received, [0.0, 6.0, 12.0, 18.0, 48.0, 60.0, 72.0, 84.0]);
    hook_with_a_captured_tensor::run(2, 33, 65).unwrap();
}

#[test]
fn every_matrix_of_an_all_to_all_arrives_transposed() {
    for (ranks, rows, cols) in [(1, 2, 3), (3, 2, 3), (4, 65, 130)] {
        let outputs = transposing_all_to_all::run(ranks, rows, cols).unwrap();
        for (me, out) in outputs.iter().enumerate() {
            for (i, &got) in out.iter().enumerate() {
                let (from, row, col) = (i / (rows * cols), i % (rows * cols) / rows, i % rows);
                assert_eq!(got, transposing_all_to_all::element(from, (me * rows + col) * cols + row));
            }
        }
    }
}

#[test]
fn column_slices_of_a_larger_matrix_arrive_as_rows() {
    for (ranks, rows, cols) in [(1, 2, 3), (2, 2, 3), (3, 40, 17)] {
        let outputs = column_slices::run(ranks, rows, cols).unwrap();
        for (me, out) in outputs.iter().enumerate() {
            for (i, &got) in out.iter().enumerate() {
                let (from, row, col) = (i / (rows * cols), i % (rows * cols) / cols, i % cols);
                let place = row * 3 * ranks * cols + ranks * cols + me * cols + col;
                assert_eq!(got, column_slices::element(from, place));
            }
        }
    }
}

#[test]
fn what_travels_as_fp8_is_restored_within_its_precision() {
    // The mantissa has three bits, so half a unit in the last place is 1/16 of a number. The restored number is also
    // rounded to bf16.
    for (ranks, len) in [(1, 100), (2, 128), (3, 5000)] {
        let error = quantised_all_to_all::run(ranks, len).unwrap();
        assert!(error > 0.0 && error < 1.0 / 16.0, "{error}");
    }
}

#[test]
fn a_ring_gathers_what_all_ranks_have() {
    for (ranks, len) in [(2, 1000), (3, 256), (4, 1), (5, 3001), (3, 0)] {
        assert_eq!(ring::run(ranks, len).unwrap().len(), ranks * len);
    }
}

#[test]
fn neighbours_exchange_their_edges_scaled() {
    for ranks in 2..=5 {
        own_kernel_from_raw_ops::run(ranks).unwrap();
    }
}

#[test]
fn the_ring_is_clean_and_a_mistake_in_it_is_found() {
    for ranks in [2, 3] {
        // Six tiles in four slots.
        let (as_it_is, too_early) = checking::run(ranks, 6 * 256 - 1).unwrap();
        assert!(as_it_is.is_clean() && as_it_is.is_decided(), "{as_it_is}");
        let kinds: Vec<&str> = too_early.faults.iter().map(|found| found.fault.kind()).collect();
        assert!(kinds.contains(&"race"), "{too_early}");
    }
}

#[test]
fn processes_get_what_the_rank_before_sent() {
    ranks::in_threads(2, processes::rank);
    #[cfg(target_os = "linux")]
    ranks::in_processes("examples::processes_get_what_the_rank_before_sent", 4, processes::rank);
}
