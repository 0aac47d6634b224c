//! The GPU engine on a GPU; without one these tests say so and pass. `TILEWIRE_REQUIRE=cuda` makes a missing GPU a failure.

use crate::support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::programs::data::Random;
use support::programs::{Hosted, Program};
use tilewire::check::{self, Options};
use tilewire::cuda::{self, CudaError, Device};
use tilewire::{Memory, Tensor, kernel};

fn device() -> Option<Arc<Device>> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            skip(&error);
            None
        }
    }
}

fn skip(error: &CudaError) {
    let required = std::env::var("TILEWIRE_REQUIRE").is_ok_and(|list| list.split(',').any(|word| word == "cuda"));
    assert!(!required, "a GPU is required: {error}");
    println!("SKIP: {error}");
}

#[test]
fn a_gpu_and_the_evaluator_agree() {
    let Some(device) = device() else { return };
    let cases = std::env::var("TILEWIRE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let mut random = Random::new(7);
    for _ in 0..cases {
        let program = Program::new(random.next(), 1 + random.below(5));
        let (binding, memories) = program.bind();
        let after = check::run(&program.kernel, &binding, memories, Options::default()).unwrap();
        let expected = program.results(&binding, &after);
        let hosted = Hosted::new(&program);
        match cuda::evaluate(&device, &program.kernel, &hosted.args, Some(Duration::from_secs(10))) {
            Ok(mut got) => {
                // Scalars are arguments, not results.
                let scalars = expected.iter().enumerate().filter(|(_, banks)| banks.is_empty());
                scalars.for_each(|(p, _)| got[p].clear());
                assert!(program.comparable(got) == expected, "{program:?}");
            }
            Err(CudaError::Ptx(_)) => {}
            Err(error) => panic!("{error}\n{program:?}"),
        }
    }
}

#[test]
fn a_wait_in_vain_ends_with_who_waited_for_what() {
    let Some(device) = device() else { return };
    let (slots, y) = ([Memory::zeroed(4 * 64)], Tensor::<u32>::zeros(4));
    let traced = kernel("lonely", |k| {
        let (slots, y) = (k.slots("slots", &slots, 64), k.output(&y));
        k.role("waiter", 2).run(|r| {
            r.wait(slots.slot(0, 3), 5);
            r.each(4, |i| y.store(i, 1u32));
        });
    })
    .unwrap();
    let start = Instant::now();
    let error = cuda::evaluate(&device, &traced.kernel, &traced.args, Some(Duration::from_millis(100))).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20), "{error}");
    let CudaError::Timeout(stopped) = &error else { panic!("{error}") };
    assert_eq!((stopped.role.as_str(), stopped.param.as_str(), stopped.index), ("waiter", "slots", 3));
    assert_eq!((stopped.expected, stopped.seen), (5, 0));
    assert!(error.to_string().contains("cuda_engine.rs"), "{error}");
    // The device stays usable.
    let x = Tensor::from_fn(1000, |i| i as f32);
    let traced = kernel("double", |k| {
        let x = k.inout(&x);
        k.main(|r| r.each(x.len(), |i| x.store(i, x.load(i) * 2.0)));
    })
    .unwrap();
    let results = cuda::evaluate(&device, &traced.kernel, &traced.args, None).unwrap();
    let wanted: Vec<u8> = (0..1000).flat_map(|i| (i as f32 * 2.0).to_le_bytes()).collect();
    assert_eq!(results[0][0], wanted);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    match Device::open(1000) {
        Err(error @ CudaError::NoDevice { ordinal, .. }) => {
            assert_eq!(ordinal, 1000);
            assert!(error.to_string().starts_with("there is no GPU 1000; the driver knows "), "{error}");
        }
        // Without a usable driver there is nobody to ask.
        Err(error) if Device::count().is_err() => skip(&error),
        other => panic!("{other:?}"),
    }
}
