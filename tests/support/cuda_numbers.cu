// Kernels that call the functions of numbers.cuh for each element of an array, for tests alone. Addresses come in
// front, then the count, then what else there is; numbers that are float64 come as their bits.

struct Params {
    long long w[480];
};

// the elements that this thread has to do
#define EACH(i, p, count) \
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (p).w[count]; i += (i64)gridDim.x * blockDim.x)

template <class T> DEV T* at(const Params& p, int k) { return (T*)p.w[k]; }
DEV double number(const Params& p, int k) { return double_of((u64)p.w[k]); }

template <class T> __global__ void test_widen(const __grid_constant__ Params p) {
    EACH(i, p, 2) at<double>(p, 1)[i] = widen(at<const T>(p, 0)[i]);
}

template <class T> __global__ void test_narrow(const __grid_constant__ Params p) {
    EACH(i, p, 2) at<T>(p, 1)[i] = narrow<T>(at<const double>(p, 0)[i]);
}

template <class T> __global__ void test_scaled(const __grid_constant__ Params p) {
    EACH(i, p, 2) at<T>(p, 1)[i] = scaled(at<const T>(p, 0)[i], Factor{number(p, 3), number(p, 4)});
}

template <class T> __global__ void test_clipped_magnitude(const __grid_constant__ Params p) {
    EACH(i, p, 2) {
        T x = at<const T>(p, 0)[i];
        at<T>(p, 1)[i] = clipped_magnitude(x, number(p, 3));
        at<u8>(p, 4)[i] = magnitude_changes(x, number(p, 3));
    }
}

template <class T> __global__ void test_clipped(const __grid_constant__ Params p) {
    EACH(i, p, 2) {
        T x = at<const T>(p, 0)[i], lo = at<const T>(p, 3)[i], hi = at<const T>(p, 4)[i];
        at<T>(p, 1)[i] = clipped(x, lo, hi);
        at<u8>(p, 5)[i] = clip_changes(x, lo, hi);
    }
}

__global__ void test_convert(const __grid_constant__ Params p) {
    EACH(i, p, 2) {
        if (p.w[5]) {
            convert_number(at<const void>(p, 0), i, (int)p.w[3], at<void>(p, 1), i, (int)p.w[4]);
        } else {
            convert(at<const void>(p, 0), i, (int)p.w[3], at<void>(p, 1), i, (int)p.w[4]);
        }
    }
}

// Of each element: modulus, square, two limbs, the lifted modulus in two numbers, and the modulus by way of its key.
__global__ void test_element(const __grid_constant__ Params p) {
    EACH(i, p, 2) {
        const void* x = at<const void>(p, 0);
        double* out = at<double>(p, 1) + 7 * i;
        int dtype = (int)p.w[3];
        out[0] = modulus_at(x, i, dtype, number(p, 4));
        out[1] = square_at(x, i, dtype, number(p, 4));
        for (int limb = 0; limb < 2; limb++) out[2 + limb] = limb < limbs_of(dtype) ? limb_at(x, i, dtype, limb) : 0.0;
        lifted_at(x, i, dtype, out + 4, out + 5);
        out[6] = of_key(key_of(modulus_at(x, i, dtype, 1.0)));
    }
}

__global__ void test_dtypes(const __grid_constant__ Params p) {
    EACH(i, p, 2) {
        i64* out = at<i64>(p, 1) + 2 * i;
        out[0] = limbs_of((int)i);
        out[1] = is_wide((int)i);
    }
}

// Of a pair of numbers and exponents: the first as it was taken, as float64, split, halved by a count, the larger one,
// the factor to a limit, the factor of clipping and whether there is one.
__global__ void test_norm(const __grid_constant__ Params p) {
    EACH(i, p, 2) {
        const double* x = at<const double>(p, 0) + 6 * i;
        double* out = at<double>(p, 1) + 14 * i;
        Scaled a = scaled_new(x[0], (i64)x[1]), b = scaled_new(x[2], (i64)x[3]);
        Scaled split = scaled_split(a), mean = over(a, (i64)x[5]), most = scaled_max(a, b);
        Factor factor = factor_to(a, x[4]), clip;
        bool clips = clip_to(a, x[4], &clip);
        out[0] = a.value, out[1] = (double)a.exponent, out[2] = to_f64(a);
        out[3] = split.value, out[4] = (double)split.exponent;
        out[5] = mean.value, out[6] = (double)mean.exponent;
        out[7] = most.value, out[8] = (double)most.exponent;
        out[9] = factor.by, out[10] = factor.then;
        out[11] = clip.by, out[12] = clip.then, out[13] = clips;
    }
}

// One thread: the sum of an array, each half of it on its own and then merged.
__global__ void test_total(const __grid_constant__ Params p) {
    Total parts[2] = {total_zero(), total_zero()};
    for (i64 i = 0; i < p.w[2]; i++) add(&parts[i >= p.w[2] / 2], at<const double>(p, 0)[i]);
    merge(&parts[0], parts[1]);
    at<double>(p, 1)[0] = value_of(parts[0]);
}

// One thread: the p-norm of fewer elements than a block has lanes, whose order of sums is this.
DEV double folded(double* lanes) {
    for (int width = 16; width > 0; width /= 2) {
        for (int j = 0; j < width; j++) lanes[j] += lanes[j + width];
    }
    return lanes[0];
}

__global__ void test_power(const __grid_constant__ Params p) {
    const void* x = at<const void>(p, 0);
    int dtype = (int)p.w[3];
    double order = number(p, 4);
    double lanes[32] = {};
    int simple = simple_of(order);
    if (simple && p.w[5]) {
        for (i64 i = 0; i < p.w[2]; i++) {
            lanes[i] = simple_term(simple, modulus_at(x, i, dtype, 1.0), square_at(x, i, dtype, 1.0));
        }
        at<double>(p, 1)[0] = to_f64(simple_root(simple, folded(lanes)));
        return;
    }
    Scaled peak = scaled_zero();
    for (i64 i = 0; i < p.w[2]; i++) {
        double value, exponent;
        lifted_at(x, i, dtype, &value, &exponent);
        peak = scaled_max(peak, scaled_new(value, (i64)exponent));
    }
    Power power = power_new(order, peak);
    for (i64 i = 0; i < p.w[2]; i++) {
        double value, exponent;
        lifted_at(x, i, dtype, &value, &exponent);
        lanes[i] = power_term(power, value, exponent);
    }
    at<double>(p, 1)[0] = to_f64(power_root(power, peak, folded(lanes)));
}
