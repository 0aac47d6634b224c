//! Load buffering: each rank reads the other's word, then writes its own.

use super::Shared;
use crate::checker::{check, expect};

#[test]
fn load_buffering_is_a_race() {
    let s = Shared::new();
    let get = line!() + 3;
    let one = |mine: i64, theirs: i64| {
        s.rank(move |_, bytes, _, out| {
            out.store(0, bytes.get::<u64>(0, theirs * 8));
            bytes.put(0, mine * 8, 1u64);
        })
    };
    let report = check(&[vec![one(0, 1), one(1, 0)]]);
    assert!(report.is_decided(), "{report}");
    expect(&report, "race", &[get, get + 1]);
}
