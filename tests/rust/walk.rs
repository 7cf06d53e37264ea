//! Views, targets and slices against a naive odometer.

#![allow(clippy::cast_possible_wrap, clippy::expect_used, missing_docs, reason = "a test")]

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::common::{IS_SLOW, Random, sized, thinned};
use _core::element::{Bf16, Bool, Complex, Element, F16, Ordered, Real};
use _core::isa::{Identity, Isa, StreamGuard};
use _core::kernel::clip::Clip;
use _core::kernel::scale::Scale;
use _core::kernel::scale_each::FactorKind;
use _core::kernel::sum::BLOCK;
use _core::scaled::{Factor, Rounding};
use _core::walk::{
    Axis, Bounds, Broadcast, Cells, Factors, GATHERED_AT_ONCE, Layout, MAX_AXES, Memory, Slices, Target,
    Uniform, View, Work, apply_elementwise, memory_order,
};

fn widest() -> Isa {
    Isa::current()
}

fn axes(list: &[(usize, isize)]) -> Vec<Axis> {
    list.iter().map(|&(len, stride)| Axis { len, stride }).collect()
}

fn layout(axes: &[Axis]) -> Layout {
    Layout::new(axes.iter().copied())
}

/// The offsets of all positions, the last axis fastest.
fn odometer(axes: &[Axis]) -> Vec<isize> {
    axes.iter().fold(vec![0], |offsets, axis| {
        let steps = |from: isize| (0..axis.len as isize).map(move |i| from + i * axis.stride);
        offsets.into_iter().flat_map(steps).collect()
    })
}

/// An array somewhere in memory: its axes, where it begins, and how much memory that takes.
#[derive(Clone, Debug)]
struct Array {
    axes: Vec<Axis>,
    start: isize,
    room: usize,
}

impl Array {
    fn new(axes: Vec<Axis>, before: usize) -> Self {
        let extent = |axis: &Axis| axis.stride * (axis.len as isize - 1).max(0);
        let below: isize = axes.iter().map(extent).filter(|extent| *extent < 0).sum();
        let above: isize = axes.iter().map(extent).filter(|extent| *extent > 0).sum();
        let start = before as isize - below;
        Self { axes, start, room: (start + above) as usize + 3 }
    }

    fn layout(&self) -> Layout {
        layout(&self.axes)
    }

    /// The place of each position in memory.
    fn places(&self) -> Vec<usize> {
        odometer(&self.axes).into_iter().map(|offset| (self.start + offset) as usize).collect()
    }

    fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(|axis| axis.len).collect()
    }
}

/// Axes of the given lengths in any order in memory, some reversed, some with gaps, without overlaps; with `repeat`, some of
/// stride 0.
fn lay_out(random: &mut Random, shape: &[usize], repeat: bool) -> Array {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if random.below(3) > 0 {
        (1..order.len()).for_each(|i| order.swap(i, random.below(i + 1)));
    }
    let mut axes: Vec<Axis> = shape.iter().map(|&len| Axis { len, stride: 0 }).collect();
    let mut step = 1;
    for axis in order.into_iter().rev() {
        if repeat && random.below(6) == 0 {
            continue;
        }
        if random.below(4) == 0 {
            step *= 1 + random.below(3) as isize;
        }
        axes[axis].stride = if random.below(4) == 0 { -step } else { step };
        step *= shape[axis].max(1) as isize;
    }
    Array::new(axes, random.below(4))
}

fn shape(random: &mut Random) -> Vec<usize> {
    const LENGTHS: [usize; 8] = [1, 1, 2, 3, 4, 5, 7, 0];
    let choices = if random.below(12) == 0 { 8 } else { 7 };
    let axes = random.below(sized(6, 3));
    (0..axes).map(|_| LENGTHS[random.below(choices)]).collect()
}

/// Shapes of several blocks, whose rows end within them.
const LARGE: &[&[usize]] = if IS_SLOW { &[&[2, 35], &[71]] } else { &ALL_LARGE };
const ALL_LARGE: [&[usize]; 9] = [
    &[5000],
    &[3, 700, 5],
    &[2049, 3],
    &[3, 2049],
    &[2, 2048],
    &[2, 3, 1, 1000],
    &[17, 19, 23],
    &[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
    &[1, 4097, 1],
];

/// Small shapes of all kinds, then large ones.
fn arrays(seed: u64, repeat: bool) -> impl Iterator<Item = Array> {
    let mut random = Random::new(seed);
    let mut large = LARGE.iter().cycle();
    thinned(0..400, 57).map(move |i| {
        let shape = if i < 350 { shape(&mut random) } else { large.next().copied().unwrap_or(&[]).to_vec() };
        lay_out(&mut random, &shape, repeat)
    })
}

/// Several ranges of at most a block.
fn ranges(random: &mut Random, len: usize) -> Vec<Range<usize>> {
    let mut ranges = vec![0..len.min(BLOCK), len.saturating_sub(BLOCK)..len, 0..0, len..len];
    for _ in 0..sized(6, 1) {
        let from = random.below(len + 1);
        ranges.push(from..from + random.below((len - from).min(BLOCK) + 1));
    }
    ranges
}

#[test]
fn layouts_merge_what_one_stride_covers() {
    for (list, merged) in [
        (&[(2, 12), (3, 4), (4, 1)][..], &[(24, 1)][..]),
        (&[(2, 24), (3, 4), (4, 1)], &[(2, 24), (12, 1)]),
        (&[(2, 13), (3, 4), (4, 2)], &[(2, 13), (3, 4), (4, 2)]),
        (&[(2, -12), (3, -4), (4, -1)], &[(24, -1)]),
        (&[(2, -12), (3, 4), (4, 1)], &[(2, -12), (12, 1)]),
        (&[(3, 1), (4, 3)], &[(3, 1), (4, 3)]),
        (&[(1, 99), (3, 4), (1, -7), (4, 1), (1, 0)], &[(12, 1)]),
        (&[(3, 0), (5, 0)], &[(15, 0)]),
        (&[(3, 0), (5, 1)], &[(3, 0), (5, 1)]),
        (&[(3, 8), (5, 0)], &[(3, 8), (5, 0)]),
        (&[(1, 5), (1, 7)], &[]),
    ] {
        let (found, expected) = (layout(&axes(list)), layout(&axes(merged)));
        assert_eq!(found, expected, "{list:?}");
        // Nothing merges in what is merged already, so these compare axis by axis.
        let text = format!("{found:?}");
        assert_eq!(text.matches("stride").count(), merged.len(), "{text}");
        assert_eq!(found.is_dense(), matches!(merged, [] | [(_, 1)]), "{list:?}");
    }
    assert_ne!(layout(&axes(&[(3, 0), (5, 1)])), layout(&axes(&[(15, 1)])));
    // A stride beyond all memory merges with nothing, and does not overflow.
    assert_eq!(layout(&axes(&[(2, 1), (3, isize::MAX)])).len(), 6);
    let many = vec![Axis { len: 1, stride: 5 }; MAX_AXES - 1];
    let most = layout(&[many, axes(&[(4, 1)])].concat());
    assert_eq!(most, layout(&axes(&[(4, 1)])));
}

#[test]
fn empty_layouts_have_no_positions() {
    for list in
        [&[(0, 1)][..], &[(3, 0), (0, 5), (2, 1)], &[(0, 7), (3, 1)], &[(3, 1), (0, 7)], &[(0, 0), (0, 0)]]
    {
        let layout = layout(&axes(list));
        assert_eq!((layout.len(), layout.is_empty()), (0, true), "{list:?}");
        let data = [1f32; 4];
        let view = View::new(Memory::Elements(&data), 0, Cow::Borrowed(&layout));
        assert_eq!(view.len(), 0);
        assert!(view.block(0..0, &mut [0.0; BLOCK]).is_empty());
        view.for_blocks(0..0, |block| assert!(block.is_empty()));
    }
    let scalar = layout(&[]);
    assert_eq!((scalar.len(), scalar.is_empty(), scalar.is_dense(), scalar.offset(0)), (1, false, true, 0));
}

#[test]
fn offsets_are_the_odometers() {
    let mut strided = 0;
    for array in arrays(1, true) {
        let (layout, offsets) = (array.layout(), odometer(&array.axes));
        assert_eq!(layout.len(), offsets.len());
        for (at, offset) in offsets.iter().enumerate() {
            assert_eq!(layout.offset(at), *offset, "{array:?} at {at}");
        }
        let in_a_row = offsets.iter().zip(0..).all(|(offset, i)| *offset == i);
        assert_eq!(layout.is_dense() || layout.is_empty(), in_a_row, "{array:?}");
        strided += usize::from(!in_a_row);
    }
    assert!(strided > sized(200, 1));
}

/// Checks that a view has these elements, by blocks and by ranges.
fn check_view<T: Element>(random: &mut Random, view: &View<'_, T>, expected: &[T]) {
    assert_eq!(view.len(), expected.len());
    let mut scratch = [T::ZERO; BLOCK];
    for range in ranges(random, expected.len()) {
        assert_eq!(view.block(range.clone(), &mut scratch), &expected[range.clone()], "{view:?} {range:?}");
    }
    for _ in 0..sized(3, 1) {
        let from = random.below(expected.len() + 1);
        for range in [0..expected.len(), from..from + random.below(expected.len() - from + 1)] {
            let mut found = Vec::new();
            let mut ended = false;
            view.for_blocks(range.clone(), |block| {
                // All blocks but the last are full, unless there is only one.
                assert!(!ended);
                ended = block.len() != BLOCK;
                found.extend_from_slice(block);
            });
            assert_eq!(found, expected[range.clone()], "{view:?} {range:?}");
        }
    }
}

#[test]
fn views_read_what_the_odometer_does() {
    let mut random = Random::new(2);
    for array in arrays(2, true) {
        let data: Vec<i32> = (0..array.room as i32).collect();
        let expected: Vec<i32> = array.places().into_iter().map(|place| data[place]).collect();
        let view = View::new(Memory::Elements(&data), array.start, Cow::Owned(array.layout()));
        assert_eq!(matches!(view, View::Dense(_)), array.layout().is_dense());
        check_view(&mut random, &view, &expected);
    }
}

/// Bytes with element number i at `shift + i * unit`. If `swapped`, the bytes of its parts (of `part` bytes each) are reversed.
fn to_bytes<T: Copy, const N: usize>(
    data: &[T],
    to_ne: fn(T) -> [u8; N],
    part: usize,
    unit: usize,
    shift: usize,
    swapped: bool,
) -> Vec<u8> {
    let mut bytes = vec![0xee; shift + data.len() * unit];
    for (i, x) in data.iter().enumerate() {
        let mut own = to_ne(*x);
        if swapped {
            own.chunks_mut(part).for_each(<[u8]>::reverse);
        }
        bytes[shift + i * unit..][..N].copy_from_slice(&own);
    }
    bytes
}

/// The layout of `array` over bytes.
fn in_bytes(array: &Array, unit: usize, shift: usize) -> (isize, Layout) {
    let unit = unit as isize;
    let axes: Vec<Axis> =
        array.axes.iter().map(|axis| Axis { len: axis.len, stride: axis.stride * unit }).collect();
    (array.start * unit + shift as isize, layout(&axes))
}

/// Views of bytes. Elements come from arbitrary bits, but for NaN, which does not equal itself.
fn byte_views<T: Element, const N: usize>(of: fn(u64, u64) -> T, to_ne: fn(T) -> [u8; N], part: usize) {
    let mut random = Random::new(3);
    for (i, array) in arrays(3 + N as u64, true).enumerate() {
        let mut one = || loop {
            let x = of(random.bits(), random.bits());
            if !x.modulus(1.0).is_nan() {
                return x;
            }
        };
        let data: Vec<T> = (0..array.room).map(|_| one()).collect();
        let expected: Vec<T> = array.places().into_iter().map(|place| data[place]).collect();
        let (unit, shift, swapped) = (N + random.below(3), random.below(4), i % 2 == 0);
        let bytes = to_bytes(&data, to_ne, part, unit, shift, swapped);
        let (start, layout) = in_bytes(&array, unit, shift);
        let view = View::new(Memory::Bytes { bytes: &bytes, swapped }, start, Cow::Borrowed(&layout));
        assert!(matches!(view, View::Strided { .. }));
        check_view(&mut random, &view, &expected);

        // The same elements where they are aligned.
        let view = View::new(Memory::Elements(&data), array.start, Cow::Owned(array.layout()));
        check_view(&mut random, &view, &expected);
    }
}

/// The bytes of a complex number: its real part, then its imaginary part.
fn both<const N: usize, const M: usize>(re: [u8; N], im: [u8; N]) -> [u8; M] {
    std::array::from_fn(|i| if i < N { re[i] } else { im[i - N] })
}

#[test]
fn unaligned_and_swapped_bytes_are_elements() {
    byte_views(|x, _| f64::from_bits(x), f64::to_ne_bytes, 8);
    byte_views(|x, _| f32::from_bits(x as u32), f32::to_ne_bytes, 4);
    byte_views(|x, _| F16::from_bits(x as u16), |x: F16| x.to_bits().to_ne_bytes(), 2);
    byte_views(|x, _| Bf16::from_bits(x as u16), |x: Bf16| x.to_bits().to_ne_bytes(), 2);
    byte_views(|x, _| x as i16, i16::to_ne_bytes, 2);
    byte_views(|x, _| x, u64::to_ne_bytes, 8);
    byte_views(|x, _| x as u8, u8::to_ne_bytes, 1);
    byte_views(
        |x, y| [f32::from_bits(x as u32), f32::from_bits(y as u32)],
        |z: Complex<f32>| both::<4, 8>(z[0].to_ne_bytes(), z[1].to_ne_bytes()),
        4,
    );
    byte_views(
        |x, y| [f64::from_bits(x), f64::from_bits(y)],
        |z: Complex<f64>| both::<8, 16>(z[0].to_ne_bytes(), z[1].to_ne_bytes()),
        8,
    );
    // Bool elements keep only whether they are true; the bytes of this test are 0 and 1.
    byte_views(|x, _| truth(x % 2 == 1), |x: Bool| [u8::from(x == truth(true))], 1);
    // Any other byte is true as well, where bytes are read as where elements are.
    let (bytes, layout) = ([7, 0, 1, 2, 0, 0x80, 0xff], layout(&axes(&[(6, 1)])));
    for swapped in [false, true] {
        let view: View<'_, Bool> =
            View::new(Memory::Bytes { bytes: &bytes, swapped }, 1, Cow::Borrowed(&layout));
        let mut scratch = [Bool::ZERO; BLOCK];
        let found = view.block(0..6, &mut scratch).iter().map(|x| x.modulus(1.0));
        assert!(found.eq([0.0, 1.0, 1.0, 0.0, 1.0, 1.0]));
    }
}

fn truth(is: bool) -> Bool {
    Bool::from_bytes(&[is.into()], false)
}

#[test]
fn foreign_bytes_keep_their_bits() {
    // Big-endian as it comes, NaN payload and all.
    let bytes = [9, 0x7f, 0xa1, 0x23, 0x45, 0x40, 0x49, 0x0f, 0xdb];
    let layout = layout(&axes(&[(2, 4)]));
    let memory: Memory<'_, f32> = Memory::Bytes { bytes: &bytes, swapped: cfg!(target_endian = "little") };
    let view = View::new(memory, 1, Cow::Borrowed(&layout));
    let mut scratch = [0.0; BLOCK];
    let found = view.block(0..2, &mut scratch);
    assert_eq!(found[0].to_bits(), 0x7fa1_2345);
    assert_eq!(found[1], std::f32::consts::PI);

    // In a complex number the bytes of each part are reversed; the parts stay in order.
    let memory: Memory<'_, Complex<f32>> =
        Memory::Bytes { bytes: &bytes, swapped: cfg!(target_endian = "little") };
    let view = View::new(memory, 1, Cow::Owned(Layout::new([])));
    let mut scratch = [Complex::<f32>::ZERO; BLOCK];
    let [re, im] = view.block(0..1, &mut scratch)[0];
    assert_eq!((re.to_bits(), im), (0x7fa1_2345, std::f32::consts::PI));

    // A float16 and a bfloat16, both signaling NaN.
    let bytes = [9, 0xfc, 0x12, 0xff, 0x95];
    let swapped = cfg!(target_endian = "little");
    let (memory, other) =
        (Memory::Bytes { bytes: &bytes, swapped }, Memory::Bytes { bytes: &bytes, swapped });
    let (half, brain) =
        (View::new(memory, 1, Cow::Owned(Layout::new([]))), View::new(other, 3, Cow::Owned(Layout::new([]))));
    let (mut scratch, mut other) = ([F16::ZERO; BLOCK], [Bf16::ZERO; BLOCK]);
    assert_eq!(half.block(0..1, &mut scratch)[0].to_bits(), 0xfc12);
    assert_eq!(brain.block(0..1, &mut other)[0].to_bits(), 0xff95);
}

#[test]
fn slices_are_rows_and_columns_of_one_matrix() {
    let mut random = Random::new(4);
    let mut columns = 0;
    for i in thinned(0..300, 25) {
        // Each axis of the array is kept or reduced; the other axes follow each other as they were.
        let shape = if i % 30 == 0 { LARGE[i / 30 % LARGE.len()].to_vec() } else { shape(&mut random) };
        let array = lay_out(&mut random, &shape, true);
        let data: Vec<i64> = (0..array.room as i64).collect();
        let (mut kept, mut reduced) = (Vec::new(), Vec::new());
        for axis in &array.axes {
            if random.below(2) == 0 { &mut kept } else { &mut reduced }.push(*axis);
        }
        let slices = Slices::new(Memory::Elements(&data), array.start, layout(&kept), layout(&reduced));
        let value = |a: isize, b: isize| data[(array.start + a + b) as usize];
        let (kept, reduced) = (odometer(&kept), odometer(&reduced));
        let step = |list: usize| 1 + list / 40;
        for (at, from) in kept.iter().enumerate().step_by(step(kept.len())) {
            if reduced.is_empty() {
                continue;
            }
            let expected: Vec<i64> = reduced.iter().map(|offset| value(*from, *offset)).collect();
            check_view(&mut random, &slices.slice(at), &expected);
        }
        for range in ranges(&mut random, reduced.len()) {
            let range = range.start..range.end.min(range.start + GATHERED_AT_ONCE);
            if !kept.is_empty() && !range.is_empty() {
                let at = [0; 3].map(|_| random.below(kept.len()));
                let expected =
                    at.map(|at| range.clone().map(|i| value(kept[at], reduced[i])).collect::<Vec<_>>());
                slices.with_pieces(at, range, |pieces| assert_eq!(pieces.map(<[i64]>::to_vec), expected));
            }
        }
        for (element, offset) in reduced.iter().enumerate().step_by(step(reduced.len())) {
            let expected: Vec<i64> = kept.iter().map(|from| value(*from, *offset)).collect();
            for range in ranges(&mut random, kept.len()) {
                let mut scratch = [0; BLOCK];
                assert_eq!(slices.row(element, range.clone(), &mut scratch), &expected[range]);
            }
        }
        columns += usize::from(slices.are_columns());
    }
    assert!((sized(20, 0)..sized(280, 11)).contains(&columns), "{columns}");
}

#[test]
fn columns_are_told_from_rows() {
    let data = [0f32; 64];
    let are_columns = |kept: &[(usize, isize)], reduced: &[(usize, isize)]| {
        let (kept, reduced) = (layout(&axes(kept)), layout(&axes(reduced)));
        Slices::new(Memory::Elements(&data), 0, kept, reduced).are_columns()
    };
    assert!(are_columns(&[(8, 1)], &[(8, 8)]));
    assert!(are_columns(&[(8, -1)], &[(8, 8)]));
    assert!(are_columns(&[(8, 1)], &[(8, -8)]));
    assert!(!are_columns(&[(8, 8)], &[(8, 1)]));
    assert!(!are_columns(&[(8, -8)], &[(8, 1)]));
    assert!(!are_columns(&[(8, 8)], &[(8, -1)]));
    assert!(are_columns(&[(4, 1)], &[(8, 4)]));
    assert!(!are_columns(&[(3, 1)], &[(8, 3)])); // too few
    assert!(!are_columns(&[], &[(8, 1)]));
}

/// Shape and strides (in elements) of an array, and the strides of the result of NumPy 2.4's `negative`.
type Recorded = (&'static [usize], &'static [isize], &'static [isize]);
#[rustfmt::skip]
const NEGATIVE: &[Recorded] = &[
    (&[4, 3], &[1, 4], &[1, 4]),
    (&[3, 4, 2], &[4, 1, 12], &[4, 1, 12]),
    (&[4, 2, 3], &[1, 12, 4], &[1, 12, 4]),
    (&[3, 2, 4], &[4, 12, 1], &[4, 12, 1]),
    (&[3, 4], &[1, 0], &[4, 1]),
    (&[3, 4], &[0, 1], &[4, 1]),
    (&[4, 3, 2], &[1, 0, 4], &[1, 8, 4]),
    (&[4, 2, 3], &[1, 0, 0], &[6, 3, 1]),
    (&[4, 1, 2], &[1, 4, 4], &[1, 4, 4]),
    (&[1, 3, 1], &[1, 1, 3], &[3, 1, 1]),
    (&[4, 2, 2], &[2, 96, -24], &[1, 8, 4]),
    (&[5, 4], &[-1, -5], &[1, 5]),
    (&[5, 3, 2, 4], &[1, 20, 60, 5], &[1, 20, 60, 5]),
    (&[2, 3, 5], &[1, 0, 2], &[1, 10, 2]),
    (&[2, 3, 5, 4], &[1, 0, 2, 0], &[4, 40, 8, 1]),
    (&[3], &[-2], &[1]),
    (&[], &[], &[]),
    (&[4, 1, 3, 1, 2], &[1, 4, 4, 12, 12], &[1, 4, 4, 12, 12]),
    (&[2, 3], &[0, 0], &[3, 1]),
    (&[2, 2, 2, 3, 1], &[-1, 2, 0, 4, 0], &[1, 2, 12, 4, 1]),
    (&[1, 1, 2, 4], &[0, 0, 0, -1], &[8, 8, 4, 1]),
    (&[2, 1, 2, 4], &[8, 8, 32, 1], &[4, 16, 8, 1]),
    (&[1, 1, 2, 2], &[4, 2, -8, 4], &[4, 4, 2, 1]),
    (&[2, 2, 4], &[1, 2, 0], &[4, 8, 1]),
    (&[3, 1], &[1, 0], &[1, 1]),
    (&[1, 3, 1, 4], &[0, 1, 0, 0], &[12, 4, 4, 1]),
    (&[2, 3], &[-3, -1], &[3, 1]),
    (&[2, 4, 1], &[-1, 2, 0], &[1, 2, 1]),
    (&[3, 2, 2], &[1, 3, 6], &[1, 3, 6]),
    (&[1, 3], &[0, 1], &[3, 1]),
    (&[4, 4, 4, 1, 1], &[1, -4, -16, 0, 0], &[1, 4, 16, 1, 1]),
    (&[1, 4, 3], &[0, 1, 0], &[12, 3, 1]),
    (&[2, 3], &[2, 0], &[3, 1]),
    (&[1, 2, 4, 2], &[0, 4, 1, 0], &[16, 8, 2, 1]),
    (&[4, 2, 4, 2, 3], &[4, 384, 1, 96, 16], &[4, 96, 1, 48, 16]),
    (&[1, 4, 2, 1, 2], &[0, 0, 1, 0, 4], &[16, 4, 1, 4, 2]),
    (&[2, 1, 4, 2, 1], &[-1, 0, 2, 16, 0], &[1, 16, 2, 8, 1]),
    (&[3, 3], &[1, 3], &[1, 3]),
    (&[1, 4, 4], &[8, 8, 1], &[16, 4, 1]),
    (&[1, 2], &[0, 2], &[2, 1]),
    (&[2, 3, 4], &[0, -1, 3], &[12, 1, 3]),
    (&[3, 2, 1, 1], &[-2, 12, 2, 0], &[1, 3, 1, 1]),
    (&[3, 4, 2, 2], &[1, 0, 0, 6], &[1, 12, 6, 3]),
    (&[2, 2, 1], &[2, 1, 0], &[2, 1, 1]),
    (&[1, 3], &[0, 0], &[3, 1]),
    (&[1, 1, 1], &[0, 2, 0], &[1, 1, 1]),
    (&[1, 1], &[0, 0], &[1, 1]),
    // Windows that overlap: equal strides.
    (&[3, 4], &[1, 1], &[4, 1]),
    (&[3, 4, 2], &[2, 8, 2], &[2, 6, 1]),
    (&[2, 3, 4], &[8, 1, 8], &[12, 1, 3]),
    (&[2, 3, 4], &[1, -1, 1], &[12, 4, 1]),
    (&[2, 3, 4], &[4, 0, 4], &[12, 4, 1]),
    (&[4, 3, 2], &[1, 1, 5], &[3, 1, 12]),
];

#[test]
fn memory_order_is_numpys() {
    for (shape, strides, result) in NEGATIVE {
        let mut own = vec![0; shape.len()];
        let mut step = 1;
        for axis in memory_order(shape, strides).into_iter().rev() {
            own[axis] = step;
            step *= shape[axis].cast_signed();
        }
        for axis in 0..shape.len() {
            // An axis of one step has no stride that matters.
            assert!(
                shape[axis] == 1 || own[axis] == result[axis],
                "{shape:?} {strides:?}: {own:?}, not {result:?}"
            );
        }
    }
}

/// An element as its bits.
trait Bits: Ordered {
    /// The lowest bits of `bits`.
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn cell(self) -> Self::Cell;
}

macro_rules! bits {
    ($($t:ty, $cell:ty, |$bits:ident| $of:expr, |$x:ident| $to:expr;)*) => {
        $(impl Bits for $t {
            fn of($bits: u64) -> Self { $of }
            fn bits(self) -> u64 {
                let $x = self;
                $to.into()
            }
            fn cell(self) -> $cell {
                let $x = self;
                <$cell>::new($to)
            }
        })*
    };
}
bits! {
    i64, AtomicU64, |bits| bits.cast_signed(), |x| x.cast_unsigned();
    f64, AtomicU64, |bits| Self::from_bits(bits), |x| x.to_bits();
    f32, AtomicU32, |bits| Self::from_bits(bits as u32), |x| x.to_bits();
    F16, AtomicU16, |bits| Self::from_bits(bits as u16), |x| x.to_bits();
    Bf16, AtomicU16, |bits| Self::from_bits(bits as u16), |x| x.to_bits();
    u8, AtomicU8, |bits| bits as Self, |x| x;
}

/// Adds a multiple of its position to the bits of each element, so that no two elements are interchangeable.
struct Numbered;

/// An odd number, so that all its multiples below 2^16 differ in their lowest 16 bits.
const STEP: u64 = 10_007;

impl<T: Bits> Work<T> for Numbered {
    fn changes(&self, _: Isa, _: Range<usize>, _: &[T]) -> bool {
        true
    }
    fn apply(&self, _: Isa, at: Range<usize>, from: Option<&[T]>, data: &mut [T]) {
        if let Some(from) = from {
            data.copy_from_slice(from);
        }
        assert_eq!(at.len(), data.len());
        assert!(data.len() <= BLOCK);
        for (x, at) in data.iter_mut().zip(at) {
            *x = T::of(x.bits().wrapping_add(at as u64 * STEP));
        }
    }
}

/// All kinds of calls of `perform`: a source of any layout or none, a target of any layout, whole or in parts. The elements
/// have bits of all kinds, including NaN.
fn writes<T: Bits, const N: usize>(to_ne: fn(T) -> [u8; N]) {
    let all = |data: &[T]| -> Vec<u64> { data.iter().map(|x| x.bits()).collect() };
    let mut random = Random::new(5);
    for (i, array) in arrays(5, false).enumerate() {
        let before: Vec<T> = (0..array.room as u64).map(|x| T::of(x % 5000)).collect();
        let from = lay_out(&mut random, &array.shape(), true);
        let input: Vec<T> = (0..from.room as u64).map(|x| T::of(31_000 + x % 5000)).collect();
        let in_place = i % 3 == 0;
        let source = View::new(Memory::Elements(&input), from.start, Cow::Owned(from.layout()));
        let source = (!in_place).then_some(&source);

        let mut expected = before.clone();
        for ((at, place), other) in array.places().into_iter().enumerate().zip(from.places()) {
            let from = if in_place { before[place] } else { input[other] };
            expected[place] = T::of(from.bits() + at as u64 * STEP);
        }

        let cut = [1 + random.below(50), BLOCK, 2 * BLOCK + 5, usize::MAX][random.below(4)];
        let guard = StreamGuard::begin();
        let store = if random.below(2) == 0 { None } else { Some(&guard) };
        let work = |target: &mut Target<'_, T>| {
            let len = target.len();
            if i % 2 == 0 {
                return apply_elementwise(widest(), &Numbered, source, target, 0, store);
            }
            let mut at = 0;
            for (first, mut part) in target.parts(cut) {
                assert_eq!(first, at);
                assert_eq!(part.len(), cut.min(len - at));
                apply_elementwise(widest(), &Numbered, source, &mut part, at, store);
                at += part.len();
            }
            assert_eq!(at, len);
        };

        let range = 0..array.layout().len();
        for swapped in [false, true] {
            let ordered = |x: T| if swapped { x.swapped() } else { x };
            let held: Vec<T::Cell> = before.iter().map(|x| ordered(*x).cell()).collect();
            let (start, layout) = (array.start, Cow::Owned(array.layout()));
            let cells = Cells::Elements(&held);
            work(&mut Target::Strided { cells, swapped, start, layout, range: range.clone() });
            let found: Vec<T> = held.iter().map(|cell| ordered(T::load(cell))).collect();
            assert_eq!(all(&found), all(&expected), "{array:?} from {from:?}, swapped: {swapped}");
        }

        let (unit, shift, swapped) = (N + random.below(3), random.below(4), random.below(2) == 0);
        let bytes = |data: &[T]| to_bytes(data, to_ne, N, unit, shift, swapped);
        let held: Vec<AtomicU8> = bytes(&before).into_iter().map(AtomicU8::new).collect();
        let (start, layout) = in_bytes(&array, unit, shift);
        let (cells, layout) = (Cells::Bytes(&held), Cow::Owned(layout));
        work(&mut Target::Strided { cells, swapped, start, layout, range });
        let found: Vec<u8> = held.into_iter().map(AtomicU8::into_inner).collect();
        assert_eq!(found, bytes(&expected), "{array:?} from {from:?}");

        if array.layout().is_dense() {
            let mut held = before.clone();
            let from = array.start as usize;
            let dense = from..from + array.layout().len();
            work(&mut Target::Dense(&mut held[dense.clone()]));
            assert_eq!(all(&held), all(&expected), "{array:?}");

            let bytes = |data: &[T]| to_bytes(data, to_ne, N, N, shift, swapped);
            let mut held = bytes(&before);
            let own = &mut held[shift + dense.start * N..shift + dense.end * N];
            work(&mut Target::Bytes { bytes: own, swapped });
            assert_eq!(held, bytes(&expected), "{array:?}, swapped: {swapped}");
        }
    }
}

#[test]
fn swapped_elements_have_their_bytes_in_reverse_order() {
    assert_eq!(0x1234_5678_i32.swapped(), 0x7856_3412);
    assert_eq!(f32::from_bits(0x1234_5678).swapped().to_bits(), 0x7856_3412);
    assert_eq!(Bf16::from_bits(0x1234).swapped().to_bits(), 0x3412);
    assert_eq!(f64::from_bits(0x0102_0304_0506_0708).swapped().to_bits(), 0x0807_0605_0403_0201);
}

#[test]
fn perform_writes_each_position_once() {
    writes(i64::to_ne_bytes);
    writes(f32::to_ne_bytes);
    writes(|x: F16| x.to_bits().to_ne_bytes());
    writes(|x: Bf16| x.to_bits().to_ne_bytes());
    writes(u8::to_ne_bytes);
}

#[test]
fn a_stream_is_a_copy() {
    fn of<T: Bits>() {
        const ROOM: usize = sized(400, 200);
        let from: Vec<T> = (0..ROOM as u64).map(|x| T::of(x * STEP + 1)).collect();
        for isa in Isa::available() {
            // From and to any place in a line, none and many lines.
            for (begin, at) in thinned(0..20, 9).flat_map(|i| thinned(0..20, 9).map(move |j| (i, j))) {
                for len in thinned([0, 1, 3, 17, 64, 170, sized(370, 0)], 5) {
                    let mut to = [T::of(0); ROOM];
                    let part = &mut to[at..at + len];
                    isa.stream(&StreamGuard::begin(), &from[begin..begin + len], part, Identity);
                    let expected = (0..ROOM).map(|i| {
                        if (at..at + len).contains(&i) {
                            from[begin + i - at].bits()
                        } else {
                            T::of(0).bits()
                        }
                    });
                    assert!(to.iter().map(|x| x.bits()).eq(expected), "{isa:?} {begin} {at} {len}");
                }
            }
        }
    }
    of::<u8>();
    of::<F16>();
    of::<f32>();
    of::<i64>();
}

/// The result for a view, from some position on, with either store, must be that of a dense copy, and nothing else is written.
fn check_stores<T: Bits>(
    isa: Isa,
    work: &impl Work<T>,
    view: &View<'_, T>,
    dense: &[T],
    ahead: usize,
    skipped: usize,
) {
    let mut expected = dense[skipped..].to_vec();
    work.apply(isa, skipped..dense.len(), None, &mut expected);
    for store in [None, Some(&StreamGuard::begin())] {
        let mut held = vec![T::of(1); ahead + expected.len() + 1];
        let to = &mut held[ahead..ahead + expected.len()];
        apply_elementwise(isa, work, Some(view), &mut Target::Dense(to), skipped, store);
        let (before, rest) = held.split_at(ahead);
        let (to, after) = rest.split_at(expected.len());
        assert!(to.iter().map(|x| x.bits()).eq(expected.iter().map(|x| x.bits())), "{isa:?} {store:?}");
        assert!(before.iter().chain(after).all(|x| x.bits() == T::of(1).bits()), "{isa:?} {store:?}");
    }
}

/// Rows of steps through memory that ends with the last element, scaled and copied to any place in a cache line, whole and from
/// the middle on. The result must be that of a dense copy. The elements are random bits, so NaN and infinities are among them.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn steps_have_the_bits_of_a_dense_copy() {
    fn of<T: Bits + Real>(specials: &[u64]) {
        let mut random = Random::new(11);
        let lens = thinned([0, 1, 2, 7, 65, 130, 513, BLOCK - 1, BLOCK + 1, sized(3 * BLOCK + 77, 200)], 4);
        for (len, step) in lens.flat_map(|len| [-3, -2, -1, 1, 2, 3, 4, 5].map(|step: isize| (len, step))) {
            let rows = 1 + random.below(2);
            let room = if len == 0 { 0 } else { (len - 1) * step.unsigned_abs() + 1 };
            let mut bits = || u64::from_le_bytes(std::array::from_fn(|_| random.below(256) as u8));
            let mut memory: Vec<T> = (0..rows * (room + 1) - 1).map(|_| T::of(bits())).collect();
            for (x, special) in memory.iter_mut().step_by(step.unsigned_abs()).zip(specials) {
                *x = T::of(*special);
            }
            let mut dense: Vec<T> = Vec::new();
            for row in memory.chunks(room + 1) {
                let row = row[..room].iter().copied();
                let row: Vec<T> = if step > 0 { row.collect() } else { row.rev().collect() };
                dense.extend(row.iter().step_by(step.unsigned_abs()));
            }
            let start = if step > 0 { 0 } else { room.saturating_sub(1) as isize };
            let layout = layout(&axes(&[(rows, room as isize + 1), (len, step)]));
            let len = dense.len();
            assert_eq!(layout.len(), len);
            let view = View::new(Memory::Elements(&memory), start, Cow::Owned(layout));
            let mut gathered = Vec::new();
            view.for_blocks(0..len, |block| gathered.extend(block.iter().map(|x| x.bits())));
            assert!(gathered.into_iter().eq(dense.iter().map(|x| x.bits())), "{len} by {step}");

            for isa in Isa::available() {
                for by in [0.3, f64::INFINITY] {
                    for (ahead, skipped) in [(0, 0), (1, len / 2), (5, len.min(1))] {
                        check_stores(
                            isa,
                            &Uniform(Scale(Factor::new(by, 1.0))),
                            &view,
                            &dense,
                            ahead,
                            skipped,
                        );
                        check_stores(isa, &None::<Uniform<Clip<T>>>, &view, &dense, ahead, skipped);
                    }
                }
            }
        }
    }
    // A NaN with a payload, both infinities, -0 and a subnormal number.
    of::<f32>(&[0x7fc0_1234, 0x7f80_0000, 0xff80_0000, 0x8000_0000, 3]);
    of::<f64>(&[0x7ff8_0000_0000_1234, 0x7ff0 << 48, 0xfff0 << 48, 1 << 63, 3]);
    of::<F16>(&[0x7e12, 0x7c00, 0xfc00, 0x8000, 3]);
    of::<Bf16>(&[0x7fd2, 0x7f80, 0xff80, 0x8000, 3]);
}

/// Stores for complex numbers in steps, and for bytes of either order.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn pairs_and_bytes_have_the_bits_of_a_dense_copy() {
    fn bytes_of(bytes: &[u8], swapped: bool) -> Vec<f32> {
        let read = if swapped { f32::from_be_bytes } else { f32::from_le_bytes };
        bytes.as_chunks().0.iter().map(|own| read(*own)).collect()
    }
    let mut random = Random::new(13);
    for pairs in [1, 33, BLOCK - 1, BLOCK, BLOCK + 9, 3 * BLOCK + 5] {
        let memory: Vec<f32> = (0..6 * pairs).map(|_| f32::of(random.below(1 << 32) as u64)).collect();
        let elements = Memory::Elements(&memory[..]);
        let dense: Vec<f32> = memory.chunks(6).flat_map(|group| [group[0], group[1]]).collect();
        let of_pairs = View::new(elements, 0, Cow::Owned(layout(&axes(&[(pairs, 6), (2, 1)]))));
        for isa in Isa::available() {
            for (ahead, skipped) in [(0, 0), (1, 1), (5, pairs), (3, 2 * pairs - 1)] {
                let work = Uniform(Scale(Factor::new(0.3, 1.0)));
                check_stores(isa, &work, &of_pairs, &dense, ahead, skipped);
                check_stores(isa, &None::<Uniform<Clip<f32>>>, &of_pairs, &dense, ahead, skipped);
                for swapped in [false, true] {
                    let order = |x: &f32| if swapped { x.to_be_bytes() } else { x.to_le_bytes() };
                    let bytes: Vec<u8> = [0].into_iter().chain(memory.iter().flat_map(order)).collect();
                    let memory = Memory::Bytes { bytes: &bytes, swapped };
                    let view = View::new(memory, 1, Cow::Owned(layout(&axes(&[(pairs, 24), (2, 4)]))));
                    check_stores(isa, &work, &view, &dense, ahead, skipped);
                    let view = View::new(memory, 1, Cow::Owned(layout(&axes(&[(2 * pairs, 4)]))));
                    check_stores(
                        isa,
                        &work,
                        &view,
                        &bytes_of(&bytes[1..], swapped)[..2 * pairs],
                        ahead,
                        skipped,
                    );
                }
            }
        }
    }
}

/// Rows repeated so often that no cache would hold separate copies. Prefetching must not change a bit, and nothing outside the
/// memory may be read. Elements, pairs of elements, and bytes of both orders.
#[test]
fn layouts_that_go_far_are_gathered_as_near_ones() {
    const REPEATED: usize = 1 << 24;
    fn check<T: Bits>(view: &View<'_, T>, row: &[u64]) {
        let len = row.len();
        let mut scratch = vec![T::of(0); BLOCK];
        for from in thinned([0, 1, 2, len - 1, len, 3 * len + 2, (REPEATED - 1) * len - 2], 3) {
            for count in thinned([2 * len, 1, 2, 31, 33, 64, len], 4).map(|count| count.min(BLOCK)) {
                let block = view.block(from..from + count, &mut scratch).iter().map(|x| x.bits());
                let expected = row.iter().cycle().skip(from % len).take(count).copied();
                assert!(block.eq(expected), "{count} of {len} from {from}");
            }
        }
    }
    let mut random = Random::new(12);
    let lens = thinned([34, 6, 32, 66, 300], 5);
    for (len, step) in lens.flat_map(|len| {
        thinned([-1, -9, 0, 2, 5, 8, 3, 4, 40, -8, -2], 2).map(move |step: isize| (len, step))
    }) {
        let repeated = |inner: &[(usize, isize)]| {
            let layout = layout(&axes(&[&[(REPEATED, 0)], inner].concat()));
            assert_eq!(layout.len(), REPEATED * len);
            Cow::Owned(layout)
        };
        let by = step.unsigned_abs();
        let room = (len - 1) * by + 1;
        let memory: Vec<f32> = (0..room).map(|_| f32::of(random.below(1 << 30) as u64)).collect();
        let start = if step < 0 { room - 1 } else { 0 };
        let at = |i: usize| start.wrapping_add_signed(i.cast_signed() * step);
        let row: Vec<u64> = (0..len).map(|i| memory[at(i)].bits()).collect();
        let elements = Memory::Elements(&memory[..]);
        check(&View::new(elements, start.cast_signed(), repeated(&[(len, step)])), &row);

        // Complex numbers in such steps, also where they do not begin at an even place.
        for shift in [0, 1] {
            let memory: Vec<f32> =
                (0..shift + 2 * room).map(|_| f32::of(random.below(1 << 30) as u64)).collect();
            let place = |i: usize| shift + 2 * at(i / 2) + i % 2;
            let pairs = len / 2;
            let row: Vec<u64> = (0..len).map(|i| memory[place(i)].bits()).collect();
            let view = View::new(
                Memory::Elements(&memory[..]),
                (shift + 2 * start).cast_signed(),
                repeated(&[(pairs, 2 * step), (2, 1)]),
            );
            check(&view, &row);
        }

        for swapped in [false, true] {
            let bytes = to_bytes(&memory, f32::to_ne_bytes, 4, 4, 0, swapped);
            // What lies behind each other, too.
            let (from, to) = (start.cast_signed() * 4, 4 * step);
            check::<f32>(
                &View::new(Memory::Bytes { bytes: &bytes, swapped }, from, repeated(&[(len, to)])),
                &row,
            );
            if by > 0 {
                let row: Vec<u64> = memory[..len].iter().map(|x| x.bits()).collect();
                check::<f32>(
                    &View::new(Memory::Bytes { bytes: &bytes, swapped }, 0, repeated(&[(len, 4)])),
                    &row,
                );
            }
        }
    }
}

/// Reports some blocks as unchanged, and writes to the target during `perform`: a store afterwards would undo that.
struct Spy<'a> {
    cells: &'a [AtomicU32],
    mark: f32,
}

impl Work<f32> for Spy<'_> {
    fn changes(&self, _: Isa, at: Range<usize>, data: &[f32]) -> bool {
        assert!(data.iter().zip(at.clone()).all(|(x, i)| *x == i as f32), "{at:?}");
        for i in at.clone() {
            self.cells[i * 2].store(self.mark.to_bits(), Relaxed);
        }
        at.start / BLOCK % 2 == 1
    }
    fn apply(&self, _: Isa, at: Range<usize>, from: Option<&[f32]>, data: &mut [f32]) {
        assert!(from.is_none(), "in place");
        assert_eq!(at.start / BLOCK % 2, 1);
        data.fill(-7.0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn blocks_that_do_not_change_are_not_written() {
    let len = 3 * BLOCK + 100;
    let cells: Vec<AtomicU32> = (0..2 * len).map(|i| AtomicU32::new((i as f32 / 2.0).to_bits())).collect();
    let strided = axes(&[(len, 2)]);
    let mut target = Target::Strided {
        cells: Cells::Elements(&cells),
        swapped: false,
        start: 0,
        layout: Cow::Owned(layout(&strided)),
        range: 0..len,
    };
    apply_elementwise(widest(), &Spy { cells: &cells, mark: 99.0 }, None, &mut target, 0, None);
    for (i, cell) in cells.iter().enumerate() {
        let expected = match (i % 2, i / 2 / BLOCK % 2) {
            (1, _) => i as f32 / 2.0, // between the positions
            (_, 1) => -7.0,
            _ => 99.0,
        };
        assert_eq!(f32::from_bits(cell.load(Relaxed)), expected, "{i}");
    }
}

/// Never changes anything, and fails if it is asked to.
struct Nothing;

impl Work<f32> for Nothing {
    fn changes(&self, _: Isa, _: Range<usize>, _: &[f32]) -> bool {
        false
    }
    fn apply(&self, _: Isa, _: Range<usize>, _: Option<&[f32]>, data: &mut [f32]) {
        assert!(data.is_empty(), "nothing was to be done");
    }
}

#[test]
fn long_runs_are_moved_word_by_word() {
    let layout = layout(&axes(&[(3, 311), (300, 1)]));
    for start in 0..9 {
        let cells: Vec<AtomicU8> = (0..1000).map(|i| AtomicU8::new(i as u8)).collect();
        let mut target = Target::Strided {
            cells: Cells::Elements(&cells),
            swapped: false,
            start,
            layout: Cow::Borrowed(&layout),
            range: 0..900,
        };
        apply_elementwise(widest(), &Uniform(Clip { lo: 50u8, hi: 100 }), None, &mut target, 0, None);
        for (i, cell) in cells.iter().enumerate() {
            let (x, at) = (i as u8, i as isize - start);
            let is_inside = (0..933).contains(&at) && at % 311 < 300;
            let expected = if is_inside { x.clamp(50, 100) } else { x };
            assert_eq!(cell.load(Relaxed), expected, "{i}, from {start}");
        }
    }
}

#[test]
fn a_contiguous_target_is_not_touched_either() {
    let mut data = vec![1.5; 2 * BLOCK + 1];
    apply_elementwise(widest(), &Nothing, None, &mut Target::Dense(&mut data), 0, None);
    assert!(data.iter().all(|x| *x == 1.5));

    let held: Vec<u8> = (0..4 * data.len()).map(|i| (i % 251) as u8).collect();
    for swapped in [false, true] {
        let mut bytes = held.clone();
        apply_elementwise(
            widest(),
            &Nothing,
            None,
            &mut Target::Bytes { bytes: &mut bytes, swapped },
            0,
            None,
        );
        assert_eq!(bytes, held);
    }
}

/// Runs `work` in place, on a strided and on a dense target, and returns what they hold.
fn run_in_place<T: Ordered<Cell = AtomicU64> + Real>(
    work: &impl Work<T>,
    data: &[T],
    bits: fn(T) -> u64,
) -> Vec<u64> {
    let cells: Vec<AtomicU64> = data.iter().flat_map(|x| [bits(*x), 7]).map(AtomicU64::new).collect();
    let mut target = Target::Strided {
        cells: Cells::Elements(&cells),
        swapped: false,
        start: 0,
        layout: Cow::Owned(layout(&axes(&[(data.len(), 2)]))),
        range: 0..data.len(),
    };
    apply_elementwise(widest(), work, None, &mut target, 0, None);
    let mut dense = data.to_vec();
    apply_elementwise(widest(), work, None, &mut Target::Dense(&mut dense), 0, None);
    let mut copied = vec![T::ZERO; data.len()];
    apply_elementwise(widest(), work, Some(&View::Dense(data)), &mut Target::Dense(&mut copied), 0, None);
    let dense: Vec<u64> = dense.into_iter().map(bits).collect();
    let copied: Vec<u64> = copied.into_iter().map(bits).collect();
    assert!(cells.iter().skip(1).step_by(2).all(|cell| cell.load(Relaxed) == 7));
    let strided: Vec<u64> = cells.into_iter().step_by(2).map(AtomicU64::into_inner).collect();
    assert_eq!(dense, strided);
    assert_eq!(dense, copied);
    dense
}

fn strided<'a>(elements: &'a [f64], start: isize, layout: &'a Layout) -> View<'a, f64> {
    View::new(Memory::Elements(elements), start, Cow::Borrowed(layout))
}

#[test]
fn broadcast_operands_have_the_elements_of_their_layouts() {
    let many = if cfg!(miri) { 7 } else { 3 * BLOCK };
    for shape in [
        vec![(many, 0)],
        vec![(many, 1)],
        vec![(many, 0), (3, 1)],
        vec![(many, 0), (3, -1)],
        vec![(many, 0), (4, 1), (3, 0)],
        vec![(2, 0), (many, 1)],
        vec![(5, 0), (BLOCK, 1)],
        vec![(5, 0), (BLOCK + 1, 1)],
        vec![(3, 0), (7, 1), (BLOCK, 0)],
        vec![(many, 1), (31, 0)],
        vec![(many, 1), (32, 0)],
        vec![(0, 0), (3, 1)],
        vec![(3, 0), (0, 1)],
        vec![],
    ] {
        let layout = layout(&axes(&shape));
        let start = shape.iter().map(|(len, stride)| if *stride < 0 { *len - 1 } else { 0 }).sum::<usize>();
        let elements: Vec<f64> = (0..many + 3 * BLOCK).map(|i| i as f64).collect();
        let operand = Broadcast::new(strided(&elements, start.cast_signed(), &layout)).expect("memory");
        let places =
            odometer(&axes(&shape)).into_iter().map(|offset| (start.cast_signed() + offset) as usize);
        let expected: Vec<f64> = places.map(|at| elements[at]).collect();
        let len = expected.len();
        for from in [0, 1, 2, 30, BLOCK - 1, BLOCK, len.saturating_sub(1), len / 2] {
            for count in [0, 1, 5, 100, BLOCK] {
                let range = from.min(len)..len.min(from + count);
                let expected = &expected[range.clone()];
                operand.with_block(range.clone(), |found| assert_eq!(found, expected, "{shape:?}"));
                let mut seen = 0;
                operand.with_runs(range, |part, found| {
                    assert_eq!(part.start, seen);
                    seen = part.end;
                    match found {
                        [one] => assert!(expected[part].iter().all(|x| x == one), "{shape:?}"),
                        found => assert_eq!(found, &expected[part], "{shape:?}"),
                    }
                });
                assert_eq!(seen, expected.len());
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn the_works_do_their_work() {
    let len = BLOCK + 77;
    let payload = 0x7ff0_0000_0000_1234; // a signaling NaN: whatever computes with it changes it
    let number = |i: usize| if i % 100 == 3 { f64::from_bits(payload) } else { i as f64 - 1000.0 };
    let data: Vec<f64> = (0..len).map(number).collect();
    let bits = |data: &[f64]| -> Vec<u64> { data.iter().map(|x| x.to_bits()).collect() };

    let clip = Clip { lo: f64::NEG_INFINITY, hi: f64::INFINITY };
    assert_eq!(run_in_place(&Uniform(clip), &data, f64::to_bits), bits(&data));
    assert_eq!(run_in_place(&None::<Uniform<Clip<f64>>>, &data, f64::to_bits), bits(&data));

    let half = Scale(Factor::new(0.5, 1.0));
    let halves = run_in_place(&Uniform(half), &data, f64::to_bits);
    assert!(halves.iter().zip(&data).all(|(found, x)| x.is_nan() || *found == (x / 2.0).to_bits()));

    // Bounds that repeat: lo along rows of 5, hi one number for all.
    let hi = [100.0];
    let rows = len / 5;
    let data = &data[..rows * 5];
    let (lo_layout, hi_layout) = (layout(&axes(&[(rows, 0), (5, 1)])), layout(&axes(&[(rows * 5, 0)])));
    for lo in [[-3.0, 0.0, 5.0, -1e9, f64::NAN], [-3.0, 0.0, 5.0, -1e9, f64::INFINITY]] {
        let bounds = Bounds::new(strided(&lo, 0, &lo_layout), strided(&hi, 0, &hi_layout)).expect("memory");
        let found = run_in_place(&bounds, data, f64::to_bits);
        for (i, (found, x)) in found.iter().zip(data).enumerate() {
            let expected = match (x.is_nan(), lo[i % 5].is_nan()) {
                (true, _) => payload,
                (_, true) => f64::NAN.to_bits(),
                _ => x.min(100.0).max(lo[i % 5]).to_bits(),
            };
            assert_eq!(*found, expected, "{i}");
        }
    }

    // One factor for each row of 5. A block whose factors are all 1 stays as it is.
    let mut factors = vec![1.0; rows];
    let view_of = layout(&axes(&[(rows, 1), (5, 0)]));
    let work = |factors: &[f64]| {
        let factors = Broadcast::new(strided(factors, 0, &view_of)).expect("memory");
        run_in_place_each(
            &Factors { factors, kind: FactorKind { is_plain: false, rounding: Rounding::Nearest } },
            data,
        )
    };
    assert_eq!(work(&factors), bits(data));
    factors[rows - 1] = 0.5;
    let found = work(&factors);
    assert_eq!(found[..BLOCK], bits(&data[..BLOCK]));
    for (found, x) in found[rows * 5 - 5..].iter().zip(&data[rows * 5 - 5..]) {
        assert!(x.is_nan() || *found == (x / 2.0).to_bits());
    }
}

/// The dense target alone: of a copy, elements times 1 are computed.
fn run_in_place_each(work: &impl Work<f64>, data: &[f64]) -> Vec<u64> {
    let mut dense = data.to_vec();
    apply_elementwise(widest(), work, None, &mut Target::Dense(&mut dense), 0, None);
    dense.into_iter().map(f64::to_bits).collect()
}
