//! Checks that all blocks of all ranks are on a device simultaneously, with the numbers of an H200.

use crate::checker::{check_with, clean, kinds};
use tilewire::check::{
    BlockNeeds, DeviceLimits, Fault, NotResident, Residence, Scarce, Settings, blocks_per_multiprocessor, co_resident,
};
use tilewire::{Tensor, Traced, kernel};

const H200: DeviceLimits = DeviceLimits::H200;

fn needs(threads: u32, registers: u32, shared_bytes: u32) -> BlockNeeds {
    BlockNeeds { threads, registers, shared_bytes }
}

#[test]
fn each_limit_of_an_h200_is_met() {
    let each = |threads, registers, shared| blocks_per_multiprocessor(&H200, needs(threads, registers, shared));
    assert_eq!(each(32, 16, 0), Ok((32, Scarce::Blocks)));
    assert_eq!(each(1024, 32, 0), Ok((2, Scarce::Threads)));
    assert_eq!(each(33, 16, 0), Ok((32, Scarce::Blocks))); // two warps each
    assert_eq!(each(65, 16, 0), Ok((21, Scarce::Warps))); // three warps each: 64 / 3
    assert_eq!(each(256, 128, 0), Ok((2, Scarce::Registers)));
    assert_eq!(each(256, 129, 0), Ok((1, Scarce::Registers))); // 129 become 136: 3 warps in each of 4 partitions
    assert_eq!(each(128, 32, 100 << 10), Ok((2, Scarce::SharedMemory))); // with 1 KiB each of the system
    assert_eq!(each(128, 32, 113 << 10), Ok((2, Scarce::SharedMemory)));
    assert_eq!(each(128, 32, (113 << 10) + 1), Ok((1, Scarce::SharedMemory)));
    assert_eq!(each(128, 32, 227 << 10), Ok((1, Scarce::SharedMemory)));
}

#[test]
fn a_block_too_large_is_named_with_its_numbers() {
    let why =
        |threads, registers, shared| blocks_per_multiprocessor(&H200, needs(threads, registers, shared)).unwrap_err();
    assert_eq!(why(1025, 32, 0), NotResident::Block { scarce: Scarce::Threads, needs: 1025, has: 1024 });
    let (needs, has) = ((227 << 10) + 1, 227 << 10);
    assert_eq!(why(32, 32, needs as u32), NotResident::Block { scarce: Scarce::SharedMemory, needs, has });
    assert_eq!(why(1024, 65, 0), NotResident::Block { scarce: Scarce::Registers, needs: 73728, has: 65536 });
    assert!(why(1024, u32::MAX, u32::MAX).to_string().contains("4294967295 bytes of shared memory"));
}

#[test]
fn all_ranks_of_a_device_count() {
    let full = needs(1024, 64, 0); // one a multiprocessor
    assert_eq!(co_resident(&H200, 1, 132, full), Ok(()));
    assert_eq!(co_resident(&H200, 4, 33, full), Ok(()));
    let why = co_resident(&H200, 4, 34, full).unwrap_err();
    let scarce = Scarce::Registers;
    assert_eq!(why, NotResident::Device { blocks: 136, room: 132, each: 1, multiprocessors: 132, scarce });
    let text = "136 blocks wait for each other and the device holds 132 at once: 1 on each of 132 multiprocessors, \
                which then have no registers left";
    assert_eq!(why.to_string(), text);
    assert!(co_resident(&H200, u32::MAX, u32::MAX, full).is_err());
}

/// This many blocks of two roles. One role has two copies and scratch.
fn blocks(blocks: u32) -> Traced {
    let out = Tensor::<f32>::zeros(blocks as usize * 2);
    let traced = kernel("many blocks", |k| {
        k.blocks(blocks);
        let out = k.output(&out);
        k.role("light", 4).run(|r| r.barrier());
        k.role("heavy", 8).copies(2, |r| {
            let tile = r.scratch::<f32>(1000);
            r.each(1000, |i| tile.store(i, 1.0));
            out.store(r.block() * 2 + r.copy(), tile.load(0));
        });
    });
    traced.unwrap()
}

#[test]
fn what_a_kernel_needs_is_read_off_its_roles() {
    // 4 + 2 · 8 warps, and 4000 bytes of scratch, rounded to lines, for each of two copies.
    assert_eq!(BlockNeeds::of(&blocks(1).kernel, 40), needs(640, 40, 2 * 4096));
}

#[test]
fn a_launch_that_the_device_cannot_hold_is_a_fault_of_the_plan() {
    let settings = Settings { device: Some(Residence { limits: H200, registers: 32 }), ..Settings::default() };
    // Three blocks of 640 threads fit on each of 132 multiprocessors: 396 blocks of both ranks together.
    clean(&check_with(&[vec![blocks(198), blocks(198)]], &settings));
    let report = check_with(&[vec![blocks(1), blocks(1)], vec![blocks(198), blocks(199)]], &settings);
    assert_eq!(kinds(&report), ["not-resident"], "{report}");
    let fault = &report.faults[0].fault;
    assert!(matches!(
        fault,
        Fault::NotResident { launch: 1, why: NotResident::Device { blocks: 397, room: 396, .. }, .. }
    ));
    assert!(fault.lines().iter().all(|at| at.file.ends_with("residency.rs")) && fault.lines().len() == 1, "{fault}");
    assert!(
        fault.to_string().starts_with("launch 1 deadlocks on the device: 397 blocks wait for each other"),
        "{fault}"
    );
}
