//! Transposition of a strided matrix of 1-, 2-, 4- or 8-byte elements.
//!
//! One scheme serves every element size and level. A 16-byte piece holds `L` elements. A **tile** takes one piece from
//! each of `L · N` source rows, where a vector has `N` 16-byte lanes. Lane n gets rows n·L .. n·L + L, and log₂ L
//! rounds of unpack instructions transpose the L × L square of every lane. Lane n then holds columns n·L .. of the
//! result, so the L vectors are stored unchanged. No instruction crosses lanes: the loads do the inserts.
//!
//! ```text
//!   source rows c, c+1, ..           vectors, L = 4, N = 2                    result rows r ..
//!   c+0: r r r r                     v0 = [c+0 | c+4]                         r+0: c+0 .. c+7
//!   c+1: r r r r        load         v1 = [c+1 | c+5]         unpack          r+1: c+0 .. c+7
//!    ..               -------->      v2 = [c+2 | c+6]       -------->         r+2: c+0 .. c+7
//!   c+7: r r r r                     v3 = [c+3 | c+7]                         r+3: c+0 .. c+7
//! ```
//!
//! Tiles are grouped into **squares**, one cache line (64 bytes) on a side, and all vectors of a result line are stored
//! together. With power-of-two strides, all rows compete for the same few cache sets. A line that is read in one go and
//! written in one go cannot be evicted in between, and non-temporal stores need whole lines.
// Only the x86 kernels use lines and streaming.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use super::copy::Stores;
use super::level::Level;
use crate::processor::{is_intel, second_level};

#[cfg(target_arch = "x86_64")]
mod lines;

/// The size of a cache line in bytes, which is the side of a square.
const LINE: usize = 64;

/// The order in which the tile kernels visit the squares of a matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// Along result rows, `bytes` bytes of each source row at a time. With 256 bytes of f32, 64 result rows are being
    /// written, few enough to keep their pages in the TLB. A larger TLB allows more bytes.
    Across { bytes: usize },
    /// Down the result, `cols` columns at a time. Each result row is written in runs of several lines. Source rows are
    /// read from end to end, so it does not matter if they all compete for the same cache sets.
    Down { cols: usize },
}

impl Order {
    /// Chooses the order. Down is faster if rows compete for cache sets, and across otherwise. In the cache that holds
    /// up to twice the second-level cache. docs/decisions/0006 has the figures; on Intel's processors only across with
    /// 256 bytes was measured.
    fn of(streamed: bool, src_stride: usize, bytes: usize) -> Order {
        if is_intel() {
            return Order::Across { bytes: 256 };
        }
        // Rows this far apart map to only one or two cache sets.
        let shared = src_stride.is_multiple_of(2048);
        match streamed {
            _ if shared && (streamed || bytes <= 2 * second_level()) => Order::Down { cols: 256 },
            true => Order::Across { bytes: 1024 },
            false => Order::Across { bytes: 2048 },
        }
    }
}

/// Writes `dst[r][c] = src[c][r]` for r in 0..rows and c in 0..cols. Strides are in bytes: element (r, c) of the result
/// is at `dst + r * dst_row_stride + c * elem_size` and comes from `src + c * src_row_stride + r * elem_size`. If
/// stores are streamed, this function also fences them.
///
/// # Safety
/// `elem_size` is 1, 2, 4 or 8. Every address above is valid (for writes in `dst`, for reads in `src`), the two sets of
/// bytes do not overlap, and `level` is one of [`Level::available`]. Nothing needs to be aligned.
#[allow(clippy::too_many_arguments)]
pub(crate) unsafe fn transpose(
    dst: *mut u8,
    dst_row_stride: usize,
    src: *const u8,
    src_row_stride: usize,
    rows: usize,
    cols: usize,
    elem_size: usize,
    stores: Stores,
    level: Level,
) {
    let (dst_stride, src_stride) = (dst_row_stride, src_row_stride);
    // Lines are no faster for bytes or for rows that are close together. On Intel only tiles were measured.
    let lines = level == Level::Avx512 && elem_size > 1 && is_far_apart(src_stride) && !is_intel();
    let order = Order::of(streams(dst, dst_stride, stores), src_stride, rows * cols * elem_size);
    let matrix = Matrix { dst, dst_stride, src, src_stride, rows, cols, stores, order, lines };
    // SAFETY: `matrix` holds exactly what the caller promised.
    unsafe { run(matrix, elem_size, level) }
}

/// Like [`transpose`], in the order given by `matrix`.
///
/// # Safety
/// As for [`transpose`].
unsafe fn run(matrix: Matrix, elem_size: usize, level: Level) {
    // SAFETY: `matrix` holds what the caller promised, the element type has the caller's size, and the processor
    // supports `level`.
    unsafe {
        match (elem_size, level) {
            #[cfg(target_arch = "x86_64")]
            (1, Level::Baseline) => x86::bytes_sse2(matrix),
            #[cfg(target_arch = "x86_64")]
            (2, Level::Baseline) => x86::halves_sse2(matrix),
            #[cfg(target_arch = "x86_64")]
            (4, Level::Baseline) => x86::words_sse2(matrix),
            #[cfg(target_arch = "x86_64")]
            (8, Level::Baseline) => x86::doubles_sse2(matrix),
            #[cfg(target_arch = "x86_64")]
            (1, Level::Avx2 | Level::Avx512) => x86::bytes_avx2(matrix),
            #[cfg(target_arch = "x86_64")]
            (2, Level::Avx2 | Level::Avx512) => matrix.rest::<2>(level).for_each(|m| x86::halves_avx2(m)),
            #[cfg(target_arch = "x86_64")]
            (4, Level::Avx2 | Level::Avx512) => matrix.rest::<4>(level).for_each(|m| x86::words_avx2(m)),
            #[cfg(target_arch = "x86_64")]
            (8, Level::Avx2 | Level::Avx512) => matrix.rest::<8>(level).for_each(|m| x86::doubles_avx2(m)),
            #[cfg(not(target_arch = "x86_64"))]
            (1, _) => matrix.blocked::<u8>(),
            #[cfg(not(target_arch = "x86_64"))]
            (2, _) => matrix.blocked::<u16>(),
            #[cfg(not(target_arch = "x86_64"))]
            (4, _) => matrix.blocked::<u32>(),
            #[cfg(not(target_arch = "x86_64"))]
            (8, _) => matrix.blocked::<u64>(),
            _ => unreachable!("an element of {elem_size} bytes: the caller promised 1, 2, 4 or 8"),
        }
    }
}

/// True if stores bypass the cache: the caller asked for it, and the rows of the result consist of whole lines.
fn streams(dst: *mut u8, dst_stride: usize, stores: Stores) -> bool {
    stores == Stores::Streamed && (dst as usize).is_multiple_of(LINE) && dst_stride.is_multiple_of(LINE)
}

/// True if the lines of neighbouring source rows compete for cache sets. Then a line may be evicted before we return to
/// it for its next piece, and two pieces together are faster (docs/decisions/0006).
fn is_far_apart(src_stride: usize) -> bool {
    src_stride >= 1024
}

/// The arguments of [`transpose`]. Code that constructs one holds the promises of `transpose`'s caller.
#[derive(Clone, Copy)]
struct Matrix {
    dst: *mut u8,
    dst_stride: usize,
    src: *const u8,
    src_stride: usize,
    rows: usize,
    cols: usize,
    stores: Stores,
    order: Order,
    /// Go by whole lines, if the level has vectors of that size and elements are larger than a byte.
    lines: bool,
}

impl Matrix {
    /// Transposes the part that goes by whole lines and returns the remaining parts.
    ///
    /// # Safety
    /// The promises of [`transpose`] hold, for elements of `SIZE` bytes.
    #[cfg(target_arch = "x86_64")]
    unsafe fn rest<const SIZE: usize>(self, level: Level) -> impl Iterator<Item = Matrix> {
        let by_lines = self.lines && level == Level::Avx512;
        // SAFETY: the caller's promises; the processor supports the level.
        let (rows, cols) = if by_lines { unsafe { lines::squares::<SIZE>(self) } } else { (0, 0) };
        let part = |r: usize, c: usize, rows, cols| Matrix {
            dst: self.dst.wrapping_add(r * self.dst_stride + c * SIZE),
            src: self.src.wrapping_add(c * self.src_stride + r * SIZE),
            rows,
            cols,
            ..self
        };
        let parts = [part(0, cols, rows, self.cols - cols), part(rows, 0, self.rows - rows, self.cols)];
        parts.into_iter().filter(|part| part.rows > 0 && part.cols > 0)
    }

    fn streams(&self) -> bool {
        streams(self.dst, self.dst_stride, self.stores)
    }

    /// The destination of row r, column c of the result.
    ///
    /// # Safety
    /// (r, c) is an element of the matrix.
    #[inline(always)]
    unsafe fn to<T>(&self, r: usize, c: usize) -> *mut T {
        // SAFETY: this is the address of an element, so it lies inside the caller's allocation.
        unsafe { self.dst.add(r * self.dst_stride + c * size_of::<T>()).cast() }
    }

    /// The source of row r, column c of the result.
    ///
    /// # Safety
    /// (r, c) is an element of the matrix.
    #[inline(always)]
    unsafe fn from<T>(&self, r: usize, c: usize) -> *const T {
        // SAFETY: as for `to`.
        unsafe { self.src.add(c * self.src_stride + r * size_of::<T>()).cast() }
    }

    /// Copies one element at a time, for the edges that hold no whole tile.
    ///
    /// # Safety
    /// The ranges lie inside the matrix, whose elements are as large as `T`.
    #[inline(always)]
    unsafe fn elements<T: Copy>(&self, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>) {
        for r in rows {
            for c in cols.clone() {
                // SAFETY: (r, c) is in the caller's ranges; unaligned accesses require no alignment.
                unsafe { self.to::<T>(r, c).write_unaligned(self.from::<T>(r, c).read_unaligned()) };
            }
        }
    }

    /// Copies all elements in small blocks, for targets without vector instructions.
    ///
    /// # Safety
    /// The matrix's elements are as large as `T`.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    unsafe fn blocked<T: Copy>(&self) {
        const SIDE: usize = 16;
        for c in (0..self.cols).step_by(SIDE) {
            for r in (0..self.rows).step_by(SIDE) {
                // SAFETY: the ranges are clipped to the matrix.
                unsafe { self.elements::<T>(r..(r + SIDE).min(self.rows), c..(c + SIDE).min(self.cols)) };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINE, Matrix, Order, is_far_apart};
    use crate::vm::copy::fence;
    use std::arch::x86_64::*;
    use std::ops::Range;

    // Fill arrays with loops here, not with `array::from_fn`, which the compiler turns into slower code.

    /// One round for `L` vectors: `low` and `high` interleave vectors k and k + L/2 of the previous round's order.
    /// After log2 L rounds, vector r holds element r of every source row.
    macro_rules! unpack_round {
        ($v:ident, $count:literal, $low:ident, $high:ident) => {
            let last = $v;
            for k in 0..$count {
                let (a, b) = (last[k / 2], last[k / 2 + $count / 2]);
                $v[k] = if k % 2 == 0 { $low(a, b) } else { $high(a, b) };
            }
        };
    }

    /// The kernel for one element type and vector width.
    ///
    /// Each round interleaves row k with row k + L/2 at *element* width, which is the perfect shuffle. Repeated log2 L
    /// times it is the transposition, so every round is the same pair of instructions.
    macro_rules! transpose_kernel {
        ($name:ident, $features:literal, $elem:ty, $count:literal, $rounds:literal, $lanes:literal,
         $vector:ty, $zero:ident, $gather:ident, $low:ident, $high:ident, $store:ident, $stream:ident) => {
            /// # Safety
            /// The promises of [`super::transpose`] hold for `m` with this element size; the processor has the
            /// features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(m: Matrix) {
                /// Elements in a 16-byte lane, which is the number of rows a tile writes.
                const L: usize = $count;
                /// Source rows a tile reads, which is the number of columns it writes.
                const TILE_COLS: usize = L * $lanes;
                /// Elements in a line, which is the side of a square.
                const SIDE: usize = LINE / size_of::<$elem>();
                /// Tiles side by side in a line of the result.
                const TILES: usize = SIDE / TILE_COLS;
                /// How many pieces of a source row fit in registers together.
                const WIDE: usize = if L * TILES < 16 { 16 / (L * TILES) } else { 1 };
                const { assert!(SIDE.is_multiple_of(L * WIDE), "passes are parts of a square") };

                /// # Safety
                /// 16 bytes can be read at each of TILE_COLS rows `stride` bytes apart.
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn tile(from: *const u8, stride: usize) -> [$vector; L] {
                    let mut v = [$zero(); L];
                    for k in 0..L {
                        // SAFETY: piece n of vector k is in row n * L + k.
                        v[k] = unsafe { $gather(from.add(k * stride), L * stride) };
                    }
                    for _ in 0..$rounds {
                        unpack_round!(v, $count, $low, $high);
                    }
                    v
                }

                /// All whole squares of the matrix.
                ///
                /// # Safety
                /// As for the enclosing function. With STREAMED, rows of the result start at a multiple of a line.
                /// PASS, the number of pieces of a source row taken together, is 1 or WIDE.
                #[target_feature(enable = $features)]
                unsafe fn squares<const STREAMED: bool, const PASS: usize>(m: Matrix, rows: usize, cols: usize) {
                    let (across, long, short, band) = match m.order {
                        Order::Across { bytes } => (true, cols, rows, bytes / size_of::<$elem>()),
                        Order::Down { cols: band } => (false, rows, cols, band),
                    };
                    // Round up to whole squares: squares of the smallest elements have as many columns as a narrow
                    // band.
                    let band = band.next_multiple_of(SIDE);
                    let bands = (0..short).step_by(band).map(|first| (first..(first + band).min(short)).step_by(SIDE));
                    for (band, y) in bands.flat_map(|band| (0..long).step_by(SIDE).map(move |y| (band.clone(), y))) {
                        for x in band {
                            let (r0, c0) = if across { (x, y) } else { (y, x) };
                            // SAFETY: rows and cols are multiples of SIDE, which L and TILE_COLS divide, so every tile
                            // here lies in the matrix. A vector's size divides a line, so each stored vector is aligned
                            // if its row is.
                            unsafe {
                                let (from, stride) = (m.from::<$elem>(r0, c0).cast::<u8>(), m.src_stride);
                                if STREAMED && across {
                                    // Prefetch the next square while this one is written; a prefetch needs no valid
                                    // address.
                                    for k in SIDE..2 * SIDE {
                                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(k * stride).cast());
                                    }
                                }
                                // A fixed number of iterations: when unrolled, they share the addresses of the source
                                // rows.
                                for r in (0..SIDE).step_by(L * PASS) {
                                    let corner = from.add(r * size_of::<$elem>());
                                    let mut tiles = [[[$zero(); L]; TILES]; PASS];
                                    for p in 0..PASS {
                                        for n in 0..TILES {
                                            tiles[p][n] = tile(corner.add(p * 16 + n * TILE_COLS * stride), stride);
                                        }
                                    }
                                    for p in 0..PASS {
                                        for k in 0..L {
                                            for n in 0..TILES {
                                                let row = r0 + r + p * L + k;
                                                let to = m.to::<$elem>(row, c0 + n * TILE_COLS).cast();
                                                let v = tiles[p][n][k];
                                                if STREAMED { $stream(to, v) } else { $store(to, v) }
                                            }
                                        }
                                    }
                                }
                            }
                        }
                    }
                    if STREAMED {
                        fence();
                    }
                }

                /// Handles an edge that holds no whole square: tiles first, then single elements.
                ///
                /// # Safety
                /// As for the enclosing function; the ranges lie in the matrix.
                #[target_feature(enable = $features)]
                unsafe fn edge(m: Matrix, rows: Range<usize>, cols: Range<usize>) {
                    let row_end = rows.start + rows.len() / L * L;
                    let col_end = cols.start + cols.len() / TILE_COLS * TILE_COLS;
                    // SAFETY: tiles end at or before row_end and col_end, so within the ranges; the rest goes element
                    // by element.
                    unsafe {
                        for r in (rows.start..row_end).step_by(L) {
                            for c in (cols.start..col_end).step_by(TILE_COLS) {
                                let v = tile(m.from::<$elem>(r, c).cast(), m.src_stride);
                                for k in 0..L {
                                    $store(m.to::<$elem>(r + k, c).cast(), v[k]);
                                }
                            }
                        }
                        m.elements::<$elem>(rows.start..row_end, col_end..cols.end);
                        m.elements::<$elem>(row_end..rows.end, cols);
                    }
                }

                let (rows, cols) = (m.rows / SIDE * SIDE, m.cols / SIDE * SIDE);
                // SAFETY: the caller's promises; `streams` has checked the alignment; the edges end with the matrix.
                unsafe {
                    match (m.streams(), is_far_apart(m.src_stride)) {
                        (true, true) => squares::<true, WIDE>(m, rows, cols),
                        (true, false) => squares::<true, 1>(m, rows, cols),
                        (false, true) => squares::<false, WIDE>(m, rows, cols),
                        (false, false) => squares::<false, 1>(m, rows, cols),
                    }
                    edge(m, 0..rows, cols..m.cols);
                    edge(m, rows..m.rows, 0..m.cols);
                }
            }
        };
    }

    /// The kernels for the four element sizes at one vector width.
    macro_rules! transpose_kernels {
        ($features:literal, $lanes:literal, $vector:ty, $zero:ident, $gather:ident, $store:ident, $stream:ident;
         $($name:ident: $elem:ty, $count:literal, $rounds:literal, $low:ident, $high:ident;)*) => {
            $(transpose_kernel!($name, $features, $elem, $count, $rounds, $lanes, $vector, $zero, $gather, $low, $high, $store, $stream);)*
        };
    }

    /// Loads one 16-byte piece.
    ///
    /// # Safety
    /// 16 bytes can be read at `from`.
    #[inline]
    #[target_feature(enable = "sse2")]
    unsafe fn one_piece(from: *const u8, _: usize) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_si128(from.cast()) }
    }

    /// Loads two pieces, `step` bytes apart, into the two lanes.
    ///
    /// # Safety
    /// 16 bytes can be read at `from` and at `from + step`.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn two_pieces(from: *const u8, step: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(one_piece(from, 0)), one_piece(from.add(step), 0))
        }
    }

    transpose_kernels! {
        "sse2", 1, __m128i, _mm_setzero_si128, one_piece, _mm_storeu_si128, _mm_stream_si128;
        bytes_sse2: u8, 16, 4, _mm_unpacklo_epi8, _mm_unpackhi_epi8;
        halves_sse2: u16, 8, 3, _mm_unpacklo_epi16, _mm_unpackhi_epi16;
        words_sse2: u32, 4, 2, _mm_unpacklo_epi32, _mm_unpackhi_epi32;
        doubles_sse2: u64, 2, 1, _mm_unpacklo_epi64, _mm_unpackhi_epi64;
    }
    transpose_kernels! {
        "avx2", 2, __m256i, _mm256_setzero_si256, two_pieces, _mm256_storeu_si256, _mm256_stream_si256;
        bytes_avx2: u8, 16, 4, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8;
        halves_avx2: u16, 8, 3, _mm256_unpacklo_epi16, _mm256_unpackhi_epi16;
        words_avx2: u32, 4, 2, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32;
        doubles_avx2: u64, 2, 1, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [Order; 5] = [
        Order::Across { bytes: 256 },
        Order::Across { bytes: 1024 },
        Order::Across { bytes: 2048 },
        Order::Down { cols: 32 },
        Order::Down { cols: 256 },
    ];

    /// Transposes with padded strides and odd addresses, and checks every byte of the destination.
    fn check(rows: usize, cols: usize, elem: usize, pad: usize, at: usize, level: Level) {
        let (src_stride, dst_stride) = (rows * elem + pad, cols * elem + pad);
        let src: Vec<u8> = (0..at + cols * src_stride).map(|k| (k * 31 + k / 256 * 7 + 1) as u8).collect();
        let mut dst = vec![0xA5u8; at + rows * dst_stride + 2 * LINE];
        // Start at a line boundary, so that streaming is possible.
        let at_line = dst.as_ptr().align_offset(LINE);
        let mut expected = dst.clone();
        for r in 0..rows {
            for c in 0..cols {
                let (to, from) = (at_line + at + r * dst_stride + c * elem, at + c * src_stride + r * elem);
                expected[to..to + elem].copy_from_slice(&src[from..from + elem]);
            }
        }
        let ways = [Stores::Cached, Stores::Streamed].into_iter().flat_map(|stores| [(stores, false), (stores, true)]);
        for ((stores, lines), order) in ways.flat_map(|way| ORDERS.map(|order| (way, order))) {
            dst.fill(0xA5);
            let (dst_start, src) = (dst.as_mut_ptr().wrapping_add(at_line + at), src.as_ptr().wrapping_add(at));
            let m = Matrix { dst: dst_start, dst_stride, src, src_stride, rows, cols, stores, order, lines };
            // SAFETY: both vectors hold all rows of their side from that offset on, and are separate allocations.
            unsafe { run(m, elem, level) };
            assert!(
                dst == expected,
                "{rows} x {cols}, {elem} bytes, pad {pad}, at {at}, {level:?}, {order:?}, by lines {lines}"
            );
        }
    }

    #[test]
    fn odd_shapes_equal_the_naive_loop_at_every_size_and_level() {
        let sides = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 130];
        for level in Level::available() {
            for elem in [1, 2, 4, 8] {
                // More than one band.
                check(70, 601, elem, 1024, 64, level);
                for rows in sides {
                    for cols in sides {
                        check(rows, cols, elem, 0, 0, level);
                        check(rows, cols, elem, 5, 3, level);
                        // Rows that are far apart.
                        if rows >= 63 && cols >= 63 {
                            check(rows, cols, elem, 1024, 64, level);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_large_aligned_matrix_is_streamed_and_exact() {
        let (rows, cols) = (2048 + 64, 1024 + 32);
        let src: Vec<u32> = (0..(rows * cols) as u32).collect();
        let mut dst = vec![0u32; rows * cols + 16];
        let start = dst.as_ptr().align_offset(64);
        for (level, order) in Level::available().flat_map(|level| ORDERS.map(|order| (level, order))) {
            dst.fill(0);
            let m = Matrix {
                dst: dst.as_mut_ptr().wrapping_add(start).cast(),
                dst_stride: cols * 4,
                src: src.as_ptr().cast(),
                src_stride: rows * 4,
                rows,
                cols,
                stores: Stores::Streamed,
                order,
                lines: true,
            };
            assert!(m.streams());
            // SAFETY: separate vectors of rows x cols elements; the destination has room for alignment.
            unsafe { run(m, 4, level) };
            for r in 0..rows {
                assert!(
                    (0..cols).all(|c| dst[start + r * cols + c] == src[c * rows + r]),
                    "row {r}, {level:?}, {order:?}"
                );
            }
        }
    }

    #[test]
    fn the_portable_loop_equals_the_vector_kernels() {
        let src: Vec<u32> = (0..37 * 70).collect();
        let (mut plain, mut vector) = (vec![0u32; 37 * 70], vec![0u32; 37 * 70]);
        let src = src.as_ptr().cast();
        let dst = plain.as_mut_ptr().cast();
        // SAFETY: three separate vectors of 37 x 70 elements.
        unsafe {
            let (dst_stride, src_stride, stores, order) = (70 * 4, 37 * 4, Stores::Cached, Order::Down { cols: 32 });
            Matrix { dst, dst_stride, src, src_stride, rows: 37, cols: 70, stores, order, lines: true }
                .blocked::<u32>();
            transpose(vector.as_mut_ptr().cast(), 70 * 4, src, 37 * 4, 37, 70, 4, Stores::Cached, Level::detect());
        }
        assert_eq!(plain, vector);
    }
}
