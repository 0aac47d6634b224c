//! The total size of transports with default options, for every number of ranks.

use super::{NvlOptions, ShmOptions};
use crate::transport::DEFAULT_TOTAL;
use crate::transport::layout::{Geometry, Layout};

fn all(geometry: Geometry) -> usize {
    // A segment has whole pages, plus one for its header.
    (Layout::new(geometry).unwrap().bytes().next_multiple_of(4096) + 4096) * geometry.world_size
}

#[test]
fn all_segments_of_a_machine_stay_within_the_bound() {
    // With more ranks, each has the useful minimum.
    for ranks in 1..=100 {
        let cpu = all(ShmOptions::default().geometry(ranks));
        assert!(cpu <= DEFAULT_TOTAL, "{ranks} ranks take {cpu} bytes");
    }
    for ranks in 1..=64 {
        let gpu = all(NvlOptions::default().geometry(ranks));
        assert!(gpu <= DEFAULT_TOTAL, "{ranks} ranks on GPUs take {gpu} bytes");
    }
}

#[test]
fn few_ranks_have_what_is_fast() {
    for ranks in 1..=7 {
        let Geometry { per_peer_bytes, max_blocks_per_peer, max_slots, packet_bytes, .. } =
            ShmOptions::default().geometry(ranks);
        assert_eq!((per_peer_bytes, max_blocks_per_peer, max_slots, packet_bytes), (16 << 20, 8, 64, 256 << 10));
    }
    for ranks in 1..=4 {
        let Geometry { per_peer_bytes, max_blocks_per_peer, max_slots, .. } = NvlOptions::default().geometry(ranks);
        assert_eq!((per_peer_bytes, max_blocks_per_peer, max_slots), (32 << 20, 32, 8), "{ranks} ranks");
    }
}

#[test]
fn more_ranks_never_have_more_and_every_world_has_what_is_of_use() {
    let shm = (1..=300).map(|ranks| ShmOptions::default().geometry(ranks));
    let nvl = (1..=300).map(|ranks| NvlOptions::default().geometry(ranks));
    for all in [shm.collect::<Vec<_>>(), nvl.collect()] {
        for pair in all.windows(2) {
            let of = |g: Geometry| [g.per_peer_bytes, g.max_blocks_per_peer, g.max_slots, g.packet_bytes];
            assert!(of(pair[0]).iter().zip(of(pair[1])).all(|(more, less)| *more >= less), "{pair:?}");
        }
        let last = all[299];
        assert!(last.per_peer_bytes >= 8 << 10 && last.packet_bytes >= 8 << 10 && last.max_slots >= 8, "{last:?}");
    }
}

#[test]
fn what_is_said_stays() {
    let said = ShmOptions { max_slots: Some(5), packet_bytes: Some(0), ..Default::default() }.geometry(64);
    let usual = ShmOptions::default().geometry(64);
    assert_eq!((said.max_slots, said.packet_bytes), (5, 0));
    assert_eq!((said.per_peer_bytes, said.max_blocks_per_peer), (usual.per_peer_bytes, usual.max_blocks_per_peer));
}
