//! The examples run, and check what they get.

#[path = "../examples/neighbour_exchange.rs"]
mod neighbour_exchange;
#[path = "../examples/ring_all_gather.rs"]
mod ring_all_gather;

#[test]
fn a_ring_gathers_what_all_ranks_have() {
    for (ranks, len) in [(2, 1000), (3, 256), (4, 1), (5, 3001), (3, 0)] {
        assert_eq!(ring_all_gather::run(ranks, len).unwrap().len(), ranks * len);
    }
}

#[test]
fn neighbours_exchange_their_edges_scaled() {
    for ranks in 2..=5 {
        neighbour_exchange::run(ranks).unwrap();
    }
}
