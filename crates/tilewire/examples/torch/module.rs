//! A library that Python opens with `ctypes`: an all-reduce of two ranks of one GPU, in tensors and on streams that
//! PyTorch owns. `streams.py` beside it runs it, captures it and replays it.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use tilewire::collective::PreparedExchange;
use tilewire::cuda::{Device, Event, ForeignStream};
use tilewire::link::{NvlOptions, NvlTransport};
use tilewire::tensor::Foreign;
use tilewire::{RunError, Tensor, all_reduce};

/// A tensor of PyTorch: rows of `cols` numbers, `stride` apart.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Theirs {
    address: u64,
    rows: usize,
    cols: usize,
    stride: usize,
    /// What `free` gets when the tensor is not used any more.
    number: u64,
}

/// Tells Python that a tensor is not used any more.
struct Keep {
    number: u64,
    free: extern "C" fn(u64),
}

impl Drop for Keep {
    fn drop(&mut self) {
        (self.free)(self.number);
    }
}

/// Two ranks, played by one thread.
pub struct Ranks {
    sums: Vec<PreparedExchange<'static>>,
    /// What the sums borrow.
    links: *mut Vec<NvlTransport>,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.sums.clear();
        // SAFETY: boxed by `open`; nothing borrows it any more.
        drop(unsafe { Box::from_raw(self.links) });
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// 0, or 1 with an error to ask for.
fn told(result: Result<(), Box<dyn Error>>) -> i32 {
    let Err(error) = result else { return 0 };
    LAST_ERROR.set(CString::new(error.to_string()).unwrap_or_default());
    1
}

/// The message of this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|error| error.as_ptr())
}

/// Builds `y = x[0] + x[1]` for both ranks. Null if it fails.
///
/// # Safety
/// There are two tensors of f32 at `x` and at `y`, on GPU 0, which live until `free` was called for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ranks_open(x: *const Theirs, y: *const Theirs, free: extern "C" fn(u64)) -> *mut Ranks {
    // SAFETY: the caller's promise.
    let [x, y] = [x, y].map(|two| [0, 1].map(|k| unsafe { two.add(k).read() }));
    match open(x, y, free) {
        Ok(ranks) => Box::into_raw(Box::new(ranks)),
        Err(error) => {
            _ = told(Err(error));
            null_mut()
        }
    }
}

fn open(x: [Theirs; 2], y: [Theirs; 2], free: extern "C" fn(u64)) -> Result<Ranks, Box<dyn Error>> {
    let device = Device::open(0)?;
    let tensor = |theirs: Theirs| {
        let Theirs { address, rows, cols, stride, number } = theirs;
        let at = Foreign::Device { address, device: 0, copies: device.copies() };
        // SAFETY: Python keeps the tensor until it hears of its number, and uses it in the order of its streams.
        unsafe { Tensor::<f32>::foreign(at, &[rows, cols], &[stride as isize, 1], Arc::new(Keep { number, free })) }
    };
    let options = NvlOptions { foreign_captures: true, ..NvlOptions::default() };
    let links = Box::into_raw(Box::new(NvlTransport::virtual_ranks(&device, 2, options)?));
    let mut ranks = Ranks { sums: Vec::new(), links };
    // SAFETY: `Ranks` frees it after the sums.
    for (k, link) in unsafe { &*links }.iter().enumerate() {
        ranks.sums.push(all_reduce(link, &tensor(y[k])?, &tensor(x[k])?).build()?);
    }
    Ok(ranks)
}

/// Launches a rank's part on a stream of PyTorch, or lets it be captured.
///
/// # Safety
/// `ranks` is of `ranks_open`, and `stream` lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ranks_run(ranks: *mut Ranks, rank: usize, stream: *mut c_void) -> i32 {
    // SAFETY: the caller's promise; Python keeps the stream for the time of this call.
    let (ranks, stream) = unsafe { (&mut *ranks, ForeignStream::new(stream, Arc::new(()))) };
    told(ranks.sums[rank].run_on(&stream).map_err(Box::from))
}

/// Returns what went wrong in launches and replays so far, as far as it is known.
///
/// # Safety
/// `ranks` is of `ranks_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ranks_sync(ranks: *mut Ranks) -> i32 {
    // SAFETY: the caller's promise.
    let ranks = unsafe { &mut *ranks };
    told(ranks.sums.iter_mut().try_for_each(|sum| sum.sync()).map_err(Box::from))
}

/// The time of an all-reduce of 16 numbers in a graph of tilewire's own, in microseconds: with the busy word, or
/// without it. Negative if it fails.
#[unsafe(no_mangle)]
pub extern "C" fn all_reduce_microseconds(busy_word: bool) -> f64 {
    let time = || -> Result<f64, Box<dyn Error>> {
        let (device, inside, replays) = (Device::open(0)?, 20, 300);
        let options = NvlOptions { foreign_captures: busy_word, ..NvlOptions::default() };
        let links = NvlTransport::virtual_ranks(&device, 2, options)?;
        let tensor = || device.tensor(&[1.0f32; 16]);
        let (x, y) = ([tensor()?, tensor()?], [tensor()?, tensor()?]);
        let mut sums: Vec<PreparedExchange<'_>> =
            (0..2).map(|k| all_reduce(&links[k], &y[k], &x[k]).build()).collect::<Result<_, _>>()?;
        sums.iter_mut().try_for_each(|sum| sum.run())?;
        sums.iter_mut().try_for_each(|sum| sum.sync())?;
        let [main, side] = [&links[0].seat().stream, &links[1].seat().stream];
        let all = || (0..inside).try_for_each(|_| sums.iter_mut().try_for_each(|sum| sum.run()));
        let graph = main.capture::<RunError>(&[side], all)?;
        let events = [Event::new(&device)?, Event::new(&device)?];
        for round in 0..3 {
            events[0].record(main)?;
            (0..replays).try_for_each(|_| graph.replay(main))?;
            events[1].record(main)?;
            if round < 2 {
                graph.sync()?;
            }
        }
        Ok(1e6 * events[1].since(&events[0])?.as_secs_f64() / f64::from(inside * replays))
    };
    time().unwrap_or_else(|error| -f64::from(told(Err(error))))
}

/// Ends the ranks.
///
/// # Safety
/// `ranks` is of `ranks_open`, and neither it nor a graph of its launches is used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ranks_close(ranks: *mut Ranks) {
    // SAFETY: boxed by `ranks_open`.
    drop(unsafe { Box::from_raw(ranks) });
}
