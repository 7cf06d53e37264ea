// Numbers as the CPU has them, to the bit: elements, their roundings, NaNs, norms beyond float64, powers.
//
// A port of src/element.rs, src/element, src/scaled.rs and of the arithmetic in src/kernel; what is said there is
// not said again. All arithmetic is float64, for the compiler may flush subnormal float32 to zero (-ftz=true), even
// in comparisons, negations and casts. A GPU does not hand NaN payloads on, so where bits of a NaN count they are
// written as integers. Nothing may be fused: the order of roundings is part of the result.

#define DEV static __device__ __forceinline__
#define DEV_COLD static __device__ __noinline__

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// IEEE 754 binary16
struct f16 {
    u16 bits;
};

// the upper half of a float32
struct bf16 {
    u16 bits;
};

// in the order of `Dtype::ALL`
enum Code {
    FLOAT16,
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    COMPLEX64,
    COMPLEX128,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    BOOL,
};

template <class T> struct code_of;
template <> struct code_of<f16> { static constexpr int value = FLOAT16; };
template <> struct code_of<bf16> { static constexpr int value = BFLOAT16; };
template <> struct code_of<float> { static constexpr int value = FLOAT32; };
template <> struct code_of<double> { static constexpr int value = FLOAT64; };
template <> struct code_of<i8> { static constexpr int value = INT8; };
template <> struct code_of<i16> { static constexpr int value = INT16; };
template <> struct code_of<i32> { static constexpr int value = INT32; };
template <> struct code_of<i64> { static constexpr int value = INT64; };
template <> struct code_of<u8> { static constexpr int value = UINT8; };
template <> struct code_of<u16> { static constexpr int value = UINT16; };
template <> struct code_of<u32> { static constexpr int value = UINT32; };
template <> struct code_of<u64> { static constexpr int value = UINT64; };

// --- bits ---

DEV u16 bits_of(f16 x) { return x.bits; }
DEV u16 bits_of(bf16 x) { return x.bits; }
DEV u32 bits_of(float x) { return __float_as_uint(x); }
DEV u64 bits_of(double x) { return (u64)__double_as_longlong(x); }
DEV double double_of(u64 bits) { return __longlong_as_double((i64)bits); }

// What there is to know about a floating-point dtype: its digits without the implied one, the bias of its exponent.
template <class T> struct Format;
template <> struct Format<f16> {
    typedef u16 Bits;
    static constexpr int digits = 10, bias = 15;
    DEV f16 of(u16 bits) { return f16{bits}; }
};
template <> struct Format<bf16> {
    typedef u16 Bits;
    static constexpr int digits = 7, bias = 127;
    DEV bf16 of(u16 bits) { return bf16{bits}; }
};
template <> struct Format<float> {
    typedef u32 Bits;
    static constexpr int digits = 23, bias = 127;
    DEV float of(u32 bits) { return __uint_as_float(bits); }
};
template <> struct Format<double> {
    typedef u64 Bits;
    static constexpr int digits = 52, bias = 1023;
    DEV double of(u64 bits) { return double_of(bits); }
};

// the bit of the sign
template <class T> DEV typename Format<T>::Bits sign_bit() {
    typedef typename Format<T>::Bits Bits;
    return (Bits)((Bits)1 << (8 * sizeof(Bits) - 1));
}

// infinity, as bits
template <class T> DEV typename Format<T>::Bits infinity_bits() {
    typedef typename Format<T>::Bits Bits;
    return (Bits)((Bits)(2 * Format<T>::bias + 1) << Format<T>::digits);
}

// what makes a NaN quiet
template <class T> DEV typename Format<T>::Bits quiet_bit() {
    typedef typename Format<T>::Bits Bits;
    return (Bits)((Bits)1 << (Format<T>::digits - 1));
}

// all bits but the sign
template <class T> DEV typename Format<T>::Bits size_bits(T x) {
    typedef typename Format<T>::Bits Bits;
    return (Bits)(bits_of(x) & (Bits)~sign_bit<T>());
}

template <class T> DEV bool is_nan(T x) {
    if constexpr (code_of<T>::value == FLOAT64) {
        return x != x;
    } else if constexpr (code_of<T>::value < FLOAT64) {
        return size_bits(x) > infinity_bits<T>();
    } else {
        return false;
    }
}

template <class T> DEV T quieted(T x) { return Format<T>::of(bits_of(x) | quiet_bit<T>()); }
template <class T> DEV T canonical_nan() { return Format<T>::of(infinity_bits<T>() | quiet_bit<T>()); }

DEV bool is_finite(double x) { return size_bits(x) < infinity_bits<double>(); }
DEV bool is_infinite(double x) { return size_bits(x) == infinity_bits<double>(); }
DEV bool is_normal(double x) { return is_finite(x) && size_bits(x) >> 52 != 0; }
DEV double magnitude_of(double x) { return double_of(size_bits(x)); }
DEV double infinity() { return double_of(infinity_bits<double>()); }

// 2^exponent; exponents outside the normal range are taken to its ends
DEV double power_of_two(i64 exponent) {
    exponent = exponent < -1022 ? -1022 : exponent > 1023 ? 1023 : exponent;
    return double_of((u64)(exponent + 1023) << 52);
}

// --- elements ---

// To 16 bits, by integers. See `Half::from_f32`, which this is with float64 in the place of float32.
template <class T> DEV T rounded_half(double x) {
    constexpr int drop = 52 - Format<T>::digits;
    // from there on all is infinite
    u64 most = bits_of(power_of_two(Format<T>::bias + 1));
    u64 size = size_bits(x) < most ? size_bits(x) : most;
    u64 own = (size >> 52 << 52) + ((u64)drop << 52);
    u64 least = bits_of(power_of_two(1 - Format<T>::bias + drop));
    // The last bit of `place` is worth as much as the last one of the result. Added, it leaves a count of them in the
    // last bits, rounded. The count has the digit that the exponent implies; so the exponent is one less.
    u64 place = own > least ? own : least;
    u32 rounded = (u32)bits_of(double_of(size) + double_of(place)) + (u32)((place - least) >> drop);
    return Format<T>::of((u16)((u16)rounded | (u16)(bits_of(x) >> 63 << 15)));
}

// Conversions: `widen` is exact, `rounded` rounds once to nearest, ties to even. A NaN becomes any NaN. A plain cast of
// float32 would flush subnormals.
DEV double widen(double x) { return x; }
DEV void rounded(double x, double* to) { *to = x; }
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
DEV double widen(float x) {
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
}
DEV double widen(f16 x) {
    double wide;
    asm("cvt.f64.f16 %0, %1;" : "=d"(wide) : "h"(x.bits));
    return wide;
}
DEV void rounded(double x, float* to) { asm("cvt.rn.f32.f64 %0, %1;" : "=f"(*to) : "d"(x)); }
DEV void rounded(double x, f16* to) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(to->bits) : "d"(x)); }
#else
DEV double widen(float x) { return (double)x; }
DEV double widen(f16 x) {
    // float16's exponent read as one of float64 is too small by the difference of their biases, also of subnormals.
    u64 size = (u64)size_bits(x) << 42;
    double finite = double_of(size) * power_of_two(1023 - 15);
    u64 bits = size_bits(x) < infinity_bits<f16>() ? bits_of(finite) : size | infinity_bits<double>();
    return double_of(bits | (u64)(x.bits >> 15) << 63);
}
DEV void rounded(double x, float* to) { *to = (float)x; }
DEV void rounded(double x, f16* to) { *to = rounded_half<f16>(x); }
#endif
DEV double widen(bf16 x) { return widen(__uint_as_float((u32)x.bits << 16)); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEV void rounded(double x, bf16* to) { asm("cvt.rn.bf16.f64 %0, %1;" : "=h"(to->bits) : "d"(x)); }
#else
DEV void rounded(double x, bf16* to) { *to = rounded_half<bf16>(x); }
#endif

// rounded; NaN becomes the canonical one
template <class T> DEV T narrow(double x) {
    T result;
    rounded(x, &result);
    return Format<T>::of(is_nan(x) ? bits_of(canonical_nan<T>()) : bits_of(result));
}

// a factor in two steps, `x * by * then`
struct Factor {
    double by, then;
};

DEV Factor factor_one() { return Factor{1.0, 1.0}; }

template <class T> DEV T scaled(T x, Factor f) {
    // Without branches, and with all that depends on the factor alone outside of the caller's loop.
    const typename Format<T>::Bits quiet = f.by == 1.0 && f.then == 1.0 ? 0 : quiet_bit<T>();
    const T product = narrow<T>(widen(x) * f.by * f.then);
    return Format<T>::of(is_nan(x) & !is_nan(f.by) ? bits_of(x) | quiet : bits_of(product));
}

// `ClipMagnitude`: the magnitude of each element limited, as that of a vector of one element
template <class T> DEV T clipped_magnitude(T x, double limit) {
    double wide = widen(x);
    double size = magnitude_of(wide);
    if (size <= limit || is_infinite(limit)) return x;
    if (!(size < infinity())) return canonical_nan<T>();
    return narrow<T>(double_of(size_bits(limit) | (bits_of(wide) & sign_bit<double>())));
}
template <class T> DEV bool magnitude_changes(T x, double limit) {
    return !(magnitude_of(widen(x)) <= limit || is_infinite(limit));
}

// --- order ---

// Of floating-point numbers by the bits, which no flag of the compiler changes; 0.0 and -0.0 are one.
template <class T> DEV bool less(T a, T b) {
    if constexpr (code_of<T>::value < FLOAT64) {
        i32 x = (i32)size_bits(a), y = (i32)size_bits(b);
        x = bits_of(a) & sign_bit<T>() ? -x : x;
        y = bits_of(b) & sign_bit<T>() ? -y : y;
        return !is_nan(a) & !is_nan(b) & (x < y);
    } else {
        return a < b;
    }
}

template <class T> DEV T clipped(T x, T lo, T hi) {
    T below = less(hi, x) || (is_nan(hi) && !is_nan(x)) ? hi : x;
    return less(below, lo) || (is_nan(lo) && !is_nan(below)) ? lo : below;
}
template <class T> DEV bool clip_changes(T x, T lo, T hi) {
    return less(hi, x) | less(x, lo) | ((is_nan(lo) | is_nan(hi)) & !is_nan(x));
}

// --- elements whose dtype is known when it runs ---

// The modulus of a complex number with parts of any size: value * 2^exponent.
DEV void complex_modulus(double re, double im, double* value, double* exponent) {
    double a = magnitude_of(re), b = magnitude_of(im);
    double size = a > b || is_nan(b) ? a : b;
    double by = 1.0;
    *exponent = 0.0;
    if (size > power_of_two(500)) {
        by = power_of_two(-600);
        *exponent = 600.0;
    } else if (size < power_of_two(-400)) {
        by = power_of_two(600);
        *exponent = -600.0;
    }
    re *= by;
    im *= by;
    *value = sqrt(re * re + im * im);
}
DEV double rounded_modulus(double re, double im) {
    double value, exponent;
    complex_modulus(re, im, &value, &exponent);
    return value * (exponent > 0.0 ? power_of_two(600) : exponent < 0.0 ? power_of_two(-600) : 1.0);
}

// the magnitude of a signed integer; the smallest one has no positive counterpart but this
DEV u64 unsigned_of(i64 x) { return x < 0 ? 0 - (u64)x : (u64)x; }

DEV bool is_integer(int dtype) { return dtype >= INT8 && dtype <= UINT64; }

// the magnitude of an integer or of a bool
DEV_COLD u64 magnitude_at(const void* base, i64 index, int dtype) {
    switch (dtype) {
        case INT8: return unsigned_of(((const i8*)base)[index]);
        case INT16: return unsigned_of(((const i16*)base)[index]);
        case INT32: return unsigned_of(((const i32*)base)[index]);
        case INT64: return unsigned_of(((const i64*)base)[index]);
        case UINT8: return ((const u8*)base)[index];
        case UINT16: return ((const u16*)base)[index];
        case UINT32: return ((const u32*)base)[index];
        case UINT64: return ((const u64*)base)[index];
        default: return ((const u8*)base)[index] != 0;
    }
}

// an element of a real floating-point dtype
DEV_COLD double float_at(const void* base, i64 index, int dtype) {
    switch (dtype) {
        case FLOAT16: return widen(((const f16*)base)[index]);
        case BFLOAT16: return widen(((const bf16*)base)[index]);
        case FLOAT32: return widen(((const float*)base)[index]);
        default: return ((const double*)base)[index];
    }
}

DEV bool is_complex(int dtype) { return dtype == COMPLEX64 || dtype == COMPLEX128; }

DEV_COLD void parts_at(const void* base, i64 index, int dtype, double* re, double* im) {
    int part = dtype == COMPLEX64 ? FLOAT32 : FLOAT64;
    *re = float_at(base, 2 * index, part);
    *im = float_at(base, 2 * index + 1, part);
}

// `Element::modulus`
DEV_COLD double modulus_at(const void* base, i64 index, int dtype, double by) {
    if (dtype <= FLOAT64) return magnitude_of(float_at(base, index, dtype) * by);
    if (!is_complex(dtype)) return (double)magnitude_at(base, index, dtype) * by;
    double re, im;
    parts_at(base, index, dtype, &re, &im);
    re *= by;
    im *= by;
    return dtype == COMPLEX128 ? rounded_modulus(re, im) : sqrt(re * re + im * im);
}

// `Element::square`
DEV_COLD double square_at(const void* base, i64 index, int dtype, double by) {
    if (is_complex(dtype)) {
        double re, im;
        parts_at(base, index, dtype, &re, &im);
        re *= by;
        im *= by;
        return re * re + im * im;
    }
    double size = modulus_at(base, index, dtype, by);
    return size * size;
}

// `Element::LIMBS`
DEV int limbs_of(int dtype) { return dtype == INT64 || dtype == UINT64 ? 2 : 1; }

// `Element::limb`
DEV_COLD double limb_at(const void* base, i64 index, int dtype, int limb) {
    if (limbs_of(dtype) == 1) return modulus_at(base, index, dtype, 1.0);
    u64 size = magnitude_at(base, index, dtype);
    u64 upper = size >> 32 << 32;
    return (double)(limb == 0 ? upper : size - upper);
}

// `Element::WIDE`: whether squares and sums of moduli can leave float64's range
DEV bool is_wide(int dtype) { return dtype == FLOAT64 || dtype == COMPLEX128; }

// `Element::lifted`
DEV_COLD void lifted_at(const void* base, i64 index, int dtype, double* value, double* exponent) {
    if (dtype == COMPLEX128) {
        double re, im;
        parts_at(base, index, dtype, &re, &im);
        complex_modulus(re, im, value, exponent);
    } else {
        *value = modulus_at(base, index, dtype, 1.0);
        *exponent = 0.0;
    }
}

// A number that orders like the modulus, NaN above infinity.
DEV u64 key_of(double modulus) { return size_bits(modulus); }
DEV double of_key(u64 key) { return narrow<double>(double_of(key)); }

// --- norms that may lie beyond float64 ---

// value * 2^exponent; the exponent is 0 wherever the number is a normal float64
struct Scaled {
    double value;
    i64 exponent;
};

// x = m * 2^e with m in [1, 2), for x positive and finite
DEV_COLD double split_of(double x, i64* exponent) {
    i64 lift = 0;
    if (x < power_of_two(-1022)) {
        x *= power_of_two(64);
        lift = 64;
    }
    *exponent = (i64)(bits_of(x) >> 52) - 1023 - lift;
    return double_of((bits_of(x) & (~0ULL >> 12)) | bits_of(1.0));
}

DEV_COLD Scaled scaled_settled(double value, i64 exponent) {
    if (is_nan(value)) return Scaled{canonical_nan<double>(), 0};
    if (value == 0.0 || is_infinite(value)) return Scaled{value, 0};
    i64 own;
    double digits = split_of(value, &own);
    exponent += own;
    if (exponent >= -1022 && exponent <= 1023) return Scaled{digits * power_of_two(exponent), 0};
    return Scaled{digits, exponent};
}

DEV Scaled scaled_new(double value, i64 exponent) {
    if (exponent == 0 && (is_normal(value) || value == 0.0)) return Scaled{value, exponent};
    return scaled_settled(value, exponent);
}

DEV Scaled scaled_zero() { return Scaled{0.0, 0}; }
DEV bool is_finite(Scaled x) { return is_finite(x.value); }
DEV bool is_zero(Scaled x) { return x.value == 0.0; }

// with a value in [1, 2), unless it is 0, infinite or NaN
DEV_COLD Scaled scaled_split(Scaled x) {
    if (x.value == 0.0 || !is_finite(x.value)) return Scaled{x.value, 0};
    i64 exponent;
    double digits = split_of(x.value, &exponent);
    return Scaled{digits, x.exponent + exponent};
}

// rounded to float64: inf above its range, subnormal or 0 below
DEV double to_f64(Scaled x) {
    if (x.exponent == 0) return x.value;
    i64 half = x.exponent / 2;
    half = half < -1000 ? -1000 : half > 1000 ? 1000 : half;
    return x.value * power_of_two(half) * power_of_two(x.exponent - half);
}

// the larger one; NaN wins over all
DEV_COLD Scaled scaled_max(Scaled a, Scaled b) {
    if (is_nan(a.value) || is_nan(b.value)) return Scaled{canonical_nan<double>(), 0};
    if (is_infinite(a.value) || b.value == 0.0) return a;
    if (is_infinite(b.value) || a.value == 0.0) return b;
    Scaled x = scaled_split(a), y = scaled_split(b);
    bool is_less = x.exponent < y.exponent || (x.exponent == y.exponent && x.value < y.value);
    return is_less ? b : a;
}

// divided by a count of elements
DEV_COLD Scaled over(Scaled x, i64 count) {
    if (!is_normal(x.value)) return x;
    i64 exponent;
    double digits = split_of(x.value, &exponent);
    return scaled_new(digits / (double)count, x.exponent + exponent);
}

// 2^exponent where it may be a subnormal or out of range altogether
DEV_COLD double step_of(i64 exponent) {
    if (exponent >= -1022) return power_of_two(exponent);
    return power_of_two((exponent < -1075 ? -1075 : exponent) + 53) * power_of_two(-53);
}

DEV_COLD Factor far_factor_to(Scaled x, double limit) {
    if (is_nan(x.value) || is_nan(limit)) return Factor{canonical_nan<double>(), 1.0};
    if (x.value == 0.0 || is_infinite(limit)) {
        return is_infinite(x.value) ? Factor{canonical_nan<double>(), 1.0} : factor_one();
    }
    if (limit == 0.0 || is_infinite(x.value)) return Factor{0.0, 1.0};
    i64 limit_exponent, own;
    double limit_digits = split_of(limit, &limit_exponent);
    double digits = split_of(x.value, &own);
    double by = limit_digits / digits;
    i64 exponent = limit_exponent - (own + x.exponent);
    if (exponent >= -1000 && exponent <= 1000) return Factor{by * power_of_two(exponent), 1.0};
    i64 first = exponent < -1021 ? -1021 : exponent > 1000 ? 1000 : exponent;
    i64 then = exponent - first;
    then = then < -1074 ? -1074 : then;
    return Factor{by * step_of(exponent - then), step_of(then)};
}

// `limit / x`, for a limit that is not negative
DEV Factor factor_to(Scaled x, double limit) {
    double by = limit / x.value;
    if (x.exponent == 0 && is_normal(by) && is_normal(x.value) && is_normal(limit)) return Factor{by, 1.0};
    return far_factor_to(x, limit);
}

// The one rule of clipping. False where nothing is to be done; the factor is 1 then.
DEV bool clip_to(Scaled norm, double limit, Factor* factor) {
    if (is_infinite(limit) || (to_f64(norm) <= limit && (limit > 0.0 || is_zero(norm)))) {
        *factor = factor_one();
        return false;
    }
    *factor = factor_to(norm, limit);
    return true;
}

// --- sums ---

// a sum of sums, with the rounding errors of its additions kept beside it
struct Total {
    double sum, error;
};

DEV Total total_zero() { return Total{0.0, 0.0}; }
DEV void add(Total* total, double x) {
    double sum = total->sum + x;
    double part = sum - total->sum;
    total->error += (total->sum - (sum - part)) + (x - part);
    total->sum = sum;
}
DEV void merge(Total* total, Total other) {
    add(total, other.sum);
    total->error += other.error;
}
DEV double value_of(Total total) { return is_finite(total.sum) ? total.sum + total.error : total.sum; }

// --- powers ---

// log2(x) = exponent + fraction, with a fraction in [-1/2, 1/2]
struct Log2 {
    double exponent, fraction;
};

// `polynomial` of src/kernel/power.rs: Estrin's scheme for four coefficients at a time, Horner's for these
DEV double four_of(double a, double b, double c, double d, double x, double square) {
    return (a + b * x) + (c + d * x) * square;
}

// log2((1 + s) / (1 - s))
DEV double log2_of_ratio(double s) {
    double x = s * s;
    double square = x * x;
    double fourth = square * square;
    double sum = (0.3206218969505643 + 0.26129425476302465 * x) + 0.2444862467616089 * square;
    sum = four_of(2.8853900817779303, 0.9617966939212971, 0.5770780180766096, 0.41219830499521204, x, square) +
          sum * fourth;
    return sum * s;
}

// x = 2^(exponent + start) * (1 + s) / (1 - s): the exponent, less the whole number `start`, and s
DEV void reduce_log2(double x, double start, double* exponent, double* s) {
    const u64 TWO_52 = 0x4330000000000000ULL;
    const u64 ONE = 0x3ff0000000000000ULL, ROOT_OF_HALF = 0x3fe6a09e667f3bcdULL;
    start = start + (double_of(TWO_52) + 1023.0);
    if (x < power_of_two(-1022)) {
        x = x * power_of_two(64);
        start = start + 64.0;
    }
    u64 bits = bits_of(x) + (ONE - ROOT_OF_HALF);
    *exponent = double_of((bits >> 52) | TWO_52) - start;
    double digits = double_of((bits & (~0ULL >> 12)) + ROOT_OF_HALF);
    *s = (digits - 1.0) / (digits + 1.0);
}

// of a positive, finite number
DEV Log2 log2_of(double x) {
    Log2 log;
    double s;
    reduce_log2(x, 0.0, &log.exponent, &s);
    log.fraction = log2_of_ratio(s);
    return log;
}

// 2^z for z in [-1000, 0.5], and 0 for z = -1023
DEV double exp2_of(double z) {
    const double ROUND = 6755399441055744.0;  // 1.5 * 2^52
    double shifted = z + ROUND;
    double x = z - (shifted - ROUND);
    double square = x * x;
    double fourth = square * square;
    double sum = (1.321523529648088e-6 + 1.0210520562977887e-7 * x) + 7.111805564965269e-9 * square;
    sum = four_of(0.009618129107380144, 0.0013333558246611578, 0.00015403530801564824, 1.5252647672714333e-5, x,
                  square) +
          sum * fourth;
    sum = four_of(1.0, 0.6931471805599516, 0.24022650695910472, 0.055504108664345755, x, square) + sum * fourth;
    return double_of(bits_of(sum) + (bits_of(shifted) << 52));
}

// to the nearest whole number, halves away from 0, of a number below 2^52
DEV double nearest_whole(double x) {
    double size = magnitude_of(x);
    double whole = (double)(i64)size;
    whole = size - whole >= 0.5 ? whole + 1.0 : whole;
    return double_of(bits_of(whole) | (bits_of(x) & sign_bit<double>()));
}

// (|x| / peak)^p, between 0 and 1
struct Power {
    double p, peak_exponent, peak_fraction, least;
};

// for elements whose largest modulus is `peak`, positive and finite
DEV_COLD Power power_new(double p, Scaled peak) {
    Scaled parts = scaled_split(peak);
    Log2 log = log2_of(parts.value);
    double exponent = log.exponent + (double)parts.exponent;
    double zero = -1023.0 - 64.0 + 6.0 - exponent;
    double least = -1000.0 / p;
    return Power{p, exponent, log.fraction, zero > least ? zero : least};
}

// of an element's modulus, value * 2^exponent (`lifted_at`)
DEV double power_term(Power power, double value, double exponent) {
    double own, s;
    reduce_log2(value, power.peak_exponent, &own, &s);
    own = own + (value == 0.0 ? 0.0 : exponent);
    double log = (own - power.peak_fraction) + log2_of_ratio(s);
    log = log < 0.0 ? log : 0.0;
    return exp2_of(log < power.least ? -1023.0 : power.p * log);
}

// peak * sum^(1/p), for a sum of terms that is at least about 1
DEV_COLD Scaled power_root(Power power, Scaled peak, double sum) {
    Log2 log = log2_of(sum);
    double exponent = (log.exponent + log.fraction) / power.p;
    if (is_nan(exponent)) return Scaled{canonical_nan<double>(), 0};
    exponent = exponent < -1e9 ? -1e9 : exponent > 1e9 ? 1e9 : exponent;
    double whole = nearest_whole(exponent);
    Scaled parts = scaled_split(peak);
    return scaled_new(parts.value * exp2_of(exponent - whole), parts.exponent + (i64)whole);
}

// the powers that a few multiplications or a square root make
enum Simple { NOT_SIMPLE, HALF, THREE_HALVES, THREE, FOUR };

DEV int simple_of(double p) {
    return p == 0.5 ? HALF : p == 1.5 ? THREE_HALVES : p == 3.0 ? THREE : p == 4.0 ? FOUR : NOT_SIMPLE;
}

// of an element's modulus and its square, each of which may be anything where the kind has no use for it
DEV double simple_term(int kind, double modulus, double square) {
    switch (kind) {
        case HALF: return sqrt(modulus);
        case THREE_HALVES: return modulus * sqrt(modulus);
        case THREE: return modulus * modulus * modulus;
        default: return square * square;
    }
}

// of a number that is not negative
DEV_COLD double cube_root(double x) {
    if (!(x > 0.0 && x < infinity())) return x;
    Log2 log = log2_of(x);
    double third = nearest_whole(log.exponent / 3.0);
    double left = log.exponent - 3.0 * third;
    double scale = power_of_two((i64)third);
    double digits = x / scale / scale / scale;
    double root = exp2_of((left + log.fraction) / 3.0 - 1.0) * 2.0;
    double square = root * root;
    return (root - (square * root - digits) / (3.0 * square)) * scale;
}

// sum^(1/p), for a finite sum
DEV_COLD Scaled simple_root(int kind, double sum) {
    switch (kind) {
        case HALF: {
            Scaled parts = scaled_split(scaled_new(sum, 0));
            return scaled_new(parts.value * parts.value, 2 * parts.exponent);
        }
        case THREE_HALVES: {
            double root = cube_root(sum);
            return scaled_new(root * root, 0);
        }
        case THREE: return scaled_new(cube_root(sum), 0);
        default: return scaled_new(sqrt(sqrt(sum)), 0);
    }
}

// --- bounds in another dtype ---

// The bits of a floating-point element as those of a float64. Every NaN keeps its payload, signaling or not.
DEV u64 wide_bits_at(const void* base, i64 index, int dtype) {
    u64 sign, payload;
    switch (dtype) {
        case FLOAT16: {
            f16 x = ((const f16*)base)[index];
            if (!is_nan(x)) return bits_of(widen(x));
            sign = x.bits >> 15;
            payload = (u64)x.bits << 42;
            break;
        }
        case BFLOAT16: {
            bf16 x = ((const bf16*)base)[index];
            if (!is_nan(x)) return bits_of(widen(x));
            sign = x.bits >> 15;
            payload = (u64)x.bits << 45;
            break;
        }
        case FLOAT32: {
            float x = ((const float*)base)[index];
            if (!is_nan(x)) return bits_of(widen(x));
            sign = bits_of(x) >> 31;
            payload = (u64)bits_of(x) << 29;
            break;
        }
        default: return ((const u64*)base)[index];
    }
    return sign << 63 | infinity_bits<double>() | (payload & (~0ULL >> 12));
}

// The bits of a NaN in a narrower dtype: sign, upper part of the payload. It is infinite if nothing of that is left.
template <class T> DEV typename Format<T>::Bits cut_nan(u64 bits) {
    typedef typename Format<T>::Bits Bits;
    u64 size = infinity_bits<T>() | (bits & (~0ULL >> 12)) >> (52 - Format<T>::digits);
    return (Bits)((Bits)size | (bits >> 63 ? sign_bit<T>() : (Bits)0));
}

// Cut off to float64; the last digit says whether there was more, so that rounding again makes and hides no tie.
DEV double sticky(u64 n) {
    const u64 REST = (1 << 11) - 1;  // an integer of 64 bits has up to 11 digits more than float64
    if (n >> 53 == 0) return (double)n;
    return (double)((n & ~REST) | (n & REST ? REST + 1 : 0));
}

// The number `magnitude`, negative or not, in an integer dtype, or the end of its range.
template <class T> DEV T saturated(bool negative, u64 magnitude) {
    constexpr bool is_signed = (T)-1 < (T)0;
    constexpr u64 most = ~0ULL >> (64 - 8 * sizeof(T) + is_signed);
    u64 end = !negative ? most : is_signed ? most + 1 : 0;
    u64 size = magnitude < end ? magnitude : end;
    return (T)(negative ? 0 - size : size);
}

// float64 in a floating-point dtype, rounded once; a NaN is cut and made quiet
template <class T> DEV T narrow_payload(u64 bits) {
    double x = double_of(bits);
    return is_nan(x) ? quieted(Format<T>::of(cut_nan<T>(bits))) : narrow<T>(x);
}

DEV_COLD void store_integer(bool negative, u64 magnitude, void* to, i64 j, int code) {
    double sign = negative ? -1.0 : 1.0;
    switch (code) {
        case FLOAT16: ((f16*)to)[j] = narrow<f16>(sign * sticky(magnitude)); break;
        case BFLOAT16: ((bf16*)to)[j] = narrow<bf16>(sign * sticky(magnitude)); break;
        case FLOAT32: ((float*)to)[j] = narrow<float>(sign * sticky(magnitude)); break;
        case FLOAT64: ((double*)to)[j] = sign * (double)magnitude; break;
        case INT8: ((i8*)to)[j] = saturated<i8>(negative, magnitude); break;
        case INT16: ((i16*)to)[j] = saturated<i16>(negative, magnitude); break;
        case INT32: ((i32*)to)[j] = saturated<i32>(negative, magnitude); break;
        case INT64: ((i64*)to)[j] = saturated<i64>(negative, magnitude); break;
        case UINT8: ((u8*)to)[j] = saturated<u8>(negative, magnitude); break;
        case UINT16: ((u16*)to)[j] = saturated<u16>(negative, magnitude); break;
        case UINT32: ((u32*)to)[j] = saturated<u32>(negative, magnitude); break;
        case UINT64: ((u64*)to)[j] = saturated<u64>(negative, magnitude); break;
        default: break;
    }
}

DEV bool is_negative_at(const void* base, i64 index, int dtype) {
    switch (dtype) {
        case INT8: return ((const i8*)base)[index] < 0;
        case INT16: return ((const i16*)base)[index] < 0;
        case INT32: return ((const i32*)base)[index] < 0;
        case INT64: return ((const i64*)base)[index] < 0;
        default: return false;
    }
}

// One element of an ordered dtype in another one, as `rounded` of python/gradclip/_rounding.py makes it on the CPU:
// NaNs come out of it as NumPy and ml_dtypes leave them. There are no integers from floating-point numbers.
DEV_COLD void convert(const void* from, i64 i, int from_code, void* to, i64 j, int to_code) {
    if (is_integer(from_code)) {
        store_integer(is_negative_at(from, i, from_code), magnitude_at(from, i, from_code), to, j, to_code);
        return;
    }
    u64 bits = wide_bits_at(from, i, from_code);
    double x = double_of(bits);
    // The conversions of the CPU make NaNs quiet, and those that are integer work do not.
    u64 loud = bits;
    if (is_nan(x) && (from_code == FLOAT32 || from_code == BFLOAT16)) bits |= quiet_bit<double>();
    switch (to_code) {
        case FLOAT16:
            if (from_code == FLOAT16) {
                ((u16*)to)[j] = ((const u16*)from)[i];
            } else if (is_nan(x)) {
                u16 cut = cut_nan<f16>(bits);
                ((u16*)to)[j] = is_nan(f16{cut}) ? cut : (u16)(cut + 1);
            } else {
                ((f16*)to)[j] = narrow<f16>(x);
            }
            break;
        case BFLOAT16:
            if (from_code == BFLOAT16) {
                ((u16*)to)[j] = ((const u16*)from)[i];
            } else if (is_nan(x)) {
                ((u16*)to)[j] = (u16)(bits_of(canonical_nan<bf16>()) | bits >> 63 << 15);
            } else {
                ((bf16*)to)[j] = narrow<bf16>(x);
            }
            break;
        case FLOAT32:
            if (from_code == FLOAT64) {
                ((float*)to)[j] = narrow_payload<float>(bits);
            } else {
                ((u32*)to)[j] = is_nan(x) ? cut_nan<float>(loud) : bits_of(narrow<float>(x));
            }
            break;
        case FLOAT64: ((u64*)to)[j] = bits; break;
        default: break;
    }
}

// The same for the one element of a 0-d bound, which the CPU reads as a Python number.
DEV_COLD void convert_number(const void* from, i64 i, int from_code, void* to, i64 j, int to_code) {
    if (is_integer(from_code)) {
        convert(from, i, from_code, to, j, to_code);
        return;
    }
    u64 bits = wide_bits_at(from, i, from_code);
    if (is_nan(double_of(bits)) && (from_code == FLOAT32 || from_code == BFLOAT16)) bits |= quiet_bit<double>();
    switch (to_code) {
        case FLOAT16: ((f16*)to)[j] = narrow_payload<f16>(bits); break;
        case BFLOAT16: ((bf16*)to)[j] = narrow_payload<bf16>(bits); break;
        case FLOAT32: ((float*)to)[j] = narrow_payload<float>(bits); break;
        case FLOAT64: ((u64*)to)[j] = bits; break;
        default: break;
    }
}
