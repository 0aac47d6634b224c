//! Store buffering: each rank writes its own word, then reads the other's. These are plain accesses that nothing
//! orders: two races, whatever a machine would show.

use super::Shared;
use crate::checker::{check, expect};

#[test]
fn store_buffering_is_two_races() {
    let s = Shared::new();
    let put = line!() + 3;
    let one = |mine: i64, theirs: i64| {
        s.rank(move |_, bytes, _, out| {
            bytes.put(0, mine * 8, 1u64);
            out.store(0, bytes.get::<u64>(0, theirs * 8));
        })
    };
    let report = check(&[vec![one(0, 1), one(1, 0)]]);
    assert!(report.is_decided(), "{report}");
    // One race for each word. The run has rank 0 first, so it also sees rank 1's word unwritten.
    expect(&report, "race", &[put, put + 1]);
    let races: u64 = report.faults.iter().filter(|f| f.fault.kind() == "race").map(|f| f.times).sum();
    assert_eq!(races, 2, "{report}");
}
