//! Memory of other owners in collectives. It lives as long as a launch may use it, and lent memory goes back to its
//! owner.

use crate::case::{SMALL, assert_same, data, seed, threads};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tilewire::link::ShmTransport;
use tilewire::tensor::{Axis, Foreign};
use tilewire::transport::Rank;
use tilewire::{RunError, Tensor, all_gather, all_to_all, map, recv, send};

/// A buffer of another owner. It records when it is freed.
struct Owner {
    words: Box<[AtomicU32]>,
    freed: Arc<AtomicBool>,
}

impl Owner {
    fn new(words: usize) -> (Arc<Owner>, Arc<AtomicBool>) {
        let freed = Arc::new(AtomicBool::new(false));
        let words = (0..words).map(|_| AtomicU32::new(0)).collect();
        (Arc::new(Owner { words, freed: freed.clone() }), freed)
    }

    /// Columns of it as a tensor that keeps the buffer alive.
    fn columns(self: &Arc<Owner>, shape: &[usize], strides: &[isize], first: usize) -> Tensor<u32> {
        let start = NonNull::from(&*self.words).cast::<u32>();
        // SAFETY: the words are kept by the owner, which is the keep-alive, and this test does not use them meanwhile.
        unsafe { Tensor::foreign(Foreign::Host(start.add(first)), shape, strides, self.clone()) }
            .expect("rows and columns")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // A later use would be noticed.
        self.words.iter().for_each(|word| word.store(0xdead_beef, Ordering::Relaxed));
        self.freed.store(true, Ordering::SeqCst);
    }
}

#[test]
fn memory_that_its_owner_frees_lives_until_the_last_launch_is_over() {
    threads(2, "owner", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (me, other) = (world.rank(), world.rank().after(1, 2));
        let (owner, freed) = Owner::new(8 * 10);
        let x = owner.columns(&[8, 4], &[10, 1], 3);
        x.copy_from(&data(seed(), me, 32));
        let out = Tensor::<u32>::zeros(64).reshape(8, 8).unwrap();
        let mut op = all_gather(&link, &out, &x).along(Axis::Cols).build()?;
        drop((owner, x));
        assert!(!freed.load(Ordering::SeqCst));
        for _ in 0..3 {
            op.run()?;
        }
        assert_same(&out.columns(4..8).to_vec(), &data::<u32>(seed(), Rank::new(1), 32), me);
        drop(op);
        assert!(freed.load(Ordering::SeqCst));

        // The owner lets go of it while the launch waits for its peer.
        let (owner, freed) = Owner::new(100);
        let y = owner.columns(&[100], &[1], 0);
        if me == Rank::new(0) {
            let mut op = recv(&link, &y, other).build()?;
            drop(y);
            std::thread::scope(|threads| {
                let freed = freed.clone();
                threads.spawn(move || {
                    drop(owner);
                    assert!(!freed.load(Ordering::SeqCst), "a prepared kernel keeps it");
                });
                op.run()
            })?;
            assert!(!freed.load(Ordering::SeqCst));
            drop(op);
        } else {
            drop((owner, y));
            send(&link, &Tensor::from_slice(&data::<u32>(seed(), me, 100)), other).run()?;
        }
        assert!(freed.load(Ordering::SeqCst));
        Ok(link.close()?)
    });
}

#[test]
fn a_slice_is_lent_for_a_closure_and_void_afterwards() {
    threads(2, "lent", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (me, mut numbers) = (world.rank(), [0u32; 8]);
        let out = Tensor::<u32>::zeros(8);
        numbers.iter_mut().enumerate().for_each(|(i, x)| *x = 10 * me.number() + i as u32);
        let (mut op, kept) = Tensor::lend(&mut numbers, |x| {
            let mut op = all_to_all(&link, &out, x).build()?;
            op.run()?;
            op.run()?;
            map(x, x).produce(|c| c.input.load(c.pos()) + 100).run()?;
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| x.cells().len())).is_err());
            Ok::<_, RunError>((op, x.clone()))
        })?;
        assert_eq!(numbers[3], 103 + 10 * me.number());
        assert_eq!(out.get(4), 10 + 4 * me.number());
        for error in [kept.try_get(0).map(|_| ()), kept.try_set(0, 1), kept.try_to_vec().map(|_| ()), kept.try_fill(1)]
        {
            assert!(error.unwrap_err().to_string().contains("its owner has it back"));
        }
        let refused = map(&out, &kept).run().unwrap_err().to_string();
        assert!(refused.contains("its owner has it back"), "{refused}");
        // Other tensors take its place.
        op.rebind(&out, &Tensor::<u32>::zeros(8))?;
        op.run()?;
        assert_eq!(out.to_vec(), [0; 8]);
        drop(op);
        Ok(link.close()?)
    });
    // A launch over it is refused, and nothing runs. A panic also gives the memory back.
    let mut numbers = [1.0f32, 2.0];
    let mut op = Tensor::lend(&mut numbers, |x| map(x, x).produce(|c| c.input.load(c.pos()) * 2.0).build()).unwrap();
    let error = op.run().unwrap_err().to_string();
    assert!(error.contains("was lent") && numbers == [1.0, 2.0], "{error}");
    let leaked = std::cell::RefCell::new(None);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Tensor::lend(&mut numbers, |x| {
            leaked.replace(Some(x.clone()));
            panic!("in the closure");
        })
    }));
    assert!(panicked.is_err() && leaked.into_inner().unwrap().try_get(0).is_err());
}

/// As on a GPU: a hook captures columns of a matrix, and cannot reach the bytes between its rows.
#[test]
fn a_captured_tensor_may_be_strided() {
    threads(2, "captured", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        for (rows, stride, first, cols) in [(1, 8, 3, 5), (33, 64, 32, 16), (70, 77, 40, 31), (200, 3, 2, 1)] {
            let number = |first: usize, row: usize, col: usize| (first + row * stride + col) as f32;
            let matrix = |first: usize| {
                Tensor::from_fn(rows * stride, |i| (first + i) as f32).reshape(rows, stride).expect("as many elements")
            };
            let me = world.rank().index();
            let (inp, scale) = (matrix(1000 * me), matrix(7).columns(first..first + cols));
            let out = Tensor::<f32>::zeros(2 * rows * cols).reshape(2 * rows, cols).unwrap();
            let mut op = all_gather(&link, &out, &inp.columns(0..cols))
                .chunk_shape(rows, cols)
                .produce(|c| c.input.load(c.pos()) + c.captured(&scale).matrix().at(c.row(), c.col()))
                .build()?;
            for factor in [1.0, 3.0] {
                let scaled: Vec<f32> =
                    (0..rows * cols).map(|i| factor * number(7, i / cols, first + i % cols)).collect();
                // Captured memory is read at every launch.
                scale.copy_from(&scaled);
                op.run()?;
                for (i, got) in out.to_vec().into_iter().enumerate() {
                    let (rank, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
                    let must = number(1000 * rank, row, col) + scaled[row * cols + col];
                    assert_eq!(got, must, "row {row}, column {col} of rank {rank}, {rows} rows {stride} apart");
                }
            }
            drop(op);
        }
        Ok(link.close()?)
    });
}

#[test]
fn a_vector_becomes_a_tensor_and_bad_addresses_do_not() {
    let x = Tensor::from((0..1000u32).collect::<Vec<_>>()).reshape(10, 100).unwrap();
    let y = Tensor::<u32>::zeros(30).reshape(10, 3).unwrap();
    map(&y, &x.columns(97..100)).run().unwrap();
    assert_eq!((y.get(0), y.get(29)), (97, 999));
    assert_eq!(Tensor::from(Vec::<f32>::new()).len(), 0);
    let (owner, _) = Owner::new(16);
    let at = |offset: usize| {
        Foreign::Host(NonNull::from(&*owner.words).cast::<u8>().map_addr(|at| at.saturating_add(offset)).cast::<u32>())
    };
    // SAFETY: both are refused before anything is read.
    let errors = unsafe {
        [
            Tensor::foreign(at(2), &[2], &[1], owner.clone()).map(|_| ()),
            Tensor::foreign(at(0), &[2, 4], &[3, 1], owner.clone()).map(|_| ()),
            Tensor::foreign(at(0), &[4, 4], &[1, 4], owner.clone()).map(|_| ()),
        ]
    };
    for (error, part) in errors.into_iter().zip(["must be a multiple of 4", "rows overlap", "contiguous()"]) {
        let text = error.unwrap_err().to_string();
        assert!(text.contains(part) || part == "rows overlap" && text.contains("overlap"), "{text}");
    }
}
