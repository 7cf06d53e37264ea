//! Lower bounds by memory bandwidth: a plain read, a copy by non-temporal stores and an in-place scale of the same bytes, on
//! all CPUs. These loops only load and store, so a function that must move these bytes cannot be faster.

use std::slice;
use std::thread;

/// The arrays of a list, treated as one sequence of bytes.
struct Arrays<'a> {
    starts: &'a [*mut u8],
    lengths: &'a [usize],
}

// The threads get disjoint ranges.
unsafe impl Sync for Arrays<'_> {}

impl<'a> Arrays<'a> {
    unsafe fn new(starts: *const *mut u8, lengths: *const usize, count: usize) -> Self {
        Self { starts: slice::from_raw_parts(starts, count), lengths: slice::from_raw_parts(lengths, count) }
    }

    /// The parts of the arrays within a range of bytes: number of the array, offset, length.
    fn within(&self, from: usize, to: usize) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let mut end = 0;
        self.lengths.iter().enumerate().filter_map(move |(i, &length)| {
            let begin = end;
            end += length;
            let (a, b) = (begin.max(from), end.min(to));
            (a < b).then(|| (i, a - begin, b - a))
        })
    }
}

/// Calls `work(from, to)` for equal shares of `bytes`, each on a separate thread.
fn share<R: Send>(bytes: usize, threads: usize, work: impl Fn(usize, usize) -> R + Sync) -> Vec<R> {
    let cut = |i: usize| if i == threads { bytes } else { bytes / threads * i & !63 };
    thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (1..threads).map(|i| scope.spawn(move || work(cut(i), cut(i + 1)))).collect();
        let mut results = vec![work(cut(0), cut(1))];
        results.extend(handles.into_iter().map(|handle| handle.join().unwrap()));
        results
    })
}

/// Compiles a loop for AVX2 as well, which is used if the CPU has it.
macro_rules! widest {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? { avx2 $wide:block plain $plain:block }) => {
        $(#[$doc])*
        unsafe fn $name($($arg: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::*;
                #[target_feature(enable = "avx2")]
                unsafe fn wide($($arg: $type),*) $(-> $result)? $wide
                if is_x86_feature_detected!("avx2") {
                    return wide($($arg),*);
                }
            }
            $plain
        }
    };
}

widest! {
    /// Sums words, so that the compiler cannot remove a load.
    fn read(from: *const u8, bytes: usize) -> u64 {
        avx2 {
            let mut sums = [_mm256_setzero_si256(); 8];
            for block in 0..bytes / 256 {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_add_epi64(*sum, _mm256_loadu_si256(from.add(block * 256 + i * 32).cast()));
                }
            }
            let total = sums.into_iter().reduce(|a, b| _mm256_add_epi64(a, b)).unwrap();
            let tail = slice::from_raw_parts(from.add(bytes / 256 * 256), bytes % 256);
            let last: u64 = tail.iter().map(|&byte| u64::from(byte)).sum();
            last.wrapping_add(_mm256_extract_epi64::<0>(total) as u64)
                .wrapping_add(_mm256_extract_epi64::<1>(total) as u64)
                .wrapping_add(_mm256_extract_epi64::<2>(total) as u64)
                .wrapping_add(_mm256_extract_epi64::<3>(total) as u64)
        }
        plain {
            let (head, words, tail) = slice::from_raw_parts(from, bytes).align_to::<u64>();
            let ends: u64 = head.iter().chain(tail).map(|&byte| u64::from(byte)).sum();
            words.iter().fold(ends, |sum, &word| sum.wrapping_add(word))
        }
    }
}

widest! {
    /// Copies by non-temporal stores.
    fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        avx2 {
            let head = to.align_offset(32).min(bytes);
            std::ptr::copy_nonoverlapping(from, to, head);
            let blocks = (bytes - head) / 128;
            for block in 0..blocks {
                let at = head + block * 128;
                let four: [__m256i; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_si256(from.add(at + i * 32).cast()) });
                for (i, value) in four.into_iter().enumerate() {
                    _mm256_stream_si256(to.add(at + i * 32).cast(), value);
                }
            }
            let done = head + blocks * 128;
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
            _mm_sfence();
        }
        plain {
            std::ptr::copy_nonoverlapping(from, to, bytes);
        }
    }
}

widest! {
    /// Multiplies float32 numbers in place.
    fn scale(at: *mut u8, bytes: usize, factor: f32) {
        avx2 {
            let factors = _mm256_set1_ps(factor);
            let blocks = bytes / 128;
            for block in 0..blocks {
                for i in 0..4 {
                    let place = at.add(block * 128 + i * 32).cast::<f32>();
                    _mm256_storeu_ps(place, _mm256_mul_ps(_mm256_loadu_ps(place), factors));
                }
            }
            for i in blocks * 32..bytes / 4 {
                let place = at.cast::<f32>().add(i);
                place.write_unaligned(place.read_unaligned() * factor);
            }
        }
        plain {
            for i in 0..bytes / 4 {
                let place = at.cast::<f32>().add(i);
                place.write_unaligned(place.read_unaligned() * factor);
            }
        }
    }
}

/// # Safety
/// The arrays have these lengths, in bytes.
#[no_mangle]
pub unsafe extern "C" fn floor_read(starts: *const *mut u8, lengths: *const usize, count: usize, threads: usize) -> u64 {
    let arrays = Arrays::new(starts, lengths, count);
    let sums = share(arrays.lengths.iter().sum(), threads, |a, b| {
        let arrays = &arrays;
        arrays.within(a, b).fold(0u64, |sum, (i, at, bytes)| sum.wrapping_add(unsafe { read(arrays.starts[i].add(at), bytes) }))
    });
    sums.into_iter().fold(0, u64::wrapping_add)
}

/// # Safety
/// Both lists of arrays have these lengths, in bytes; nobody else uses the second.
#[no_mangle]
pub unsafe extern "C" fn floor_copy(
    starts: *const *mut u8,
    targets: *const *mut u8,
    lengths: *const usize,
    count: usize,
    threads: usize,
) {
    let (arrays, copies) = (Arrays::new(starts, lengths, count), Arrays::new(targets, lengths, count));
    share(arrays.lengths.iter().sum(), threads, |a, b| {
        let (arrays, copies) = (&arrays, &copies);
        for (i, at, bytes) in arrays.within(a, b) {
            unsafe { copy(arrays.starts[i].add(at), copies.starts[i].add(at), bytes) };
        }
    });
}

/// # Safety
/// The arrays have these lengths, in bytes; nobody else uses them.
#[no_mangle]
pub unsafe extern "C" fn floor_scale(starts: *const *mut u8, lengths: *const usize, count: usize, threads: usize, factor: f32) {
    let arrays = Arrays::new(starts, lengths, count);
    share(arrays.lengths.iter().sum(), threads, |a, b| {
        let arrays = &arrays;
        for (i, at, bytes) in arrays.within(a, b) {
            unsafe { scale(arrays.starts[i].add(at), bytes, factor) };
        }
    });
}
