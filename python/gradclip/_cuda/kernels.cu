// The kernels. Their sums have the order of the CPU's (DESIGN.md, "The numeric contract"), so that the bits are the same.
//
// A team of neighbouring threads takes a block of 2,048 elements. It has 32 sums, the lanes: lane j is the sum of elements j,
// j + 32, ... A thread has one lane or several. The lanes are folded by halves. A second kernel adds up the results of blocks:
// 64 blocks make a chunk, and 64 chunks a span. A block of threads adds up a span, and the last one adds up the list, where 64
// arrays make a span too. The order is fixed, so neither the GPU nor chance changes a bit. There are no floating-point atomics,
// and no waiting.
//
// Every kernel has one argument, words passed by value. `_words.py` has the same names for them as stand here.

typedef long long word;

struct Params { word w[480]; };

#define KERNEL __global__ void __launch_bounds__(256)
// Bounds the registers of a kernel, so that a multiprocessor has room for this number of blocks. NVRTC's own choice of registers
// made these kernels up to twice as slow on an H200: they loaded too few elements at once, or left room for too few blocks.
#define KERNEL_FOR(blocks) __global__ void __launch_bounds__(256, blocks)
// Every kernel is a template, so that only those that are asked for get compiled.
#define DEV_METHOD __device__ __forceinline__
#define COLD_METHOD __device__ __noinline__

enum : int {
    THREADS = 256, WARPS = THREADS / 32, BLOCK = 2048, ROWS_OF_BLOCK = 64, CHUNK_BLOCKS = 64, SPAN_TOTALS = 64,
    SPAN_BLOCKS = SPAN_TOTALS * CHUNK_BLOCKS, TILE = 64,
};

// Words of the argument.
enum : int {
    TABLE_AT = 0,    // address of the table, or 0: it stands in the argument, from TABLE on
    COUNT,           // rows of the table; slices; elements
    BLOCKS,          // blocks of all rows
    ORDER,           // of the norm: ORDER_ONE ...
    EXPONENT,        // p, of ORDER_POWER and ORDER_SIMPLE (a float64's bits)
    FLAGS,           // HAS_LIMBS ...
    MODE,            // what becomes of a norm: MODE_NORM ...
    LIMIT,           // clip_norm, a float64's bits
    LIMIT_AT,        // or its address
    LIMIT_DTYPE,     // and the dtype there
    USED,            // use_norm, in the same three words
    USED_AT,
    USED_DTYPE,
    USED_EXPONENT,   // of a use_norm beyond float64, which stands in the argument
    ELEMENTS,        // of the tensor, for an average norm
    PARTS_AT,        // address of the results of blocks: an array of SLOTS numbers for each part; of runs of columns
    SLOTS,           // blocks of the whole list
    SPANS_AT,        // address of the results of spans: an array of SPANS totals or keys, of two words, for each part
    SPANS,           // of the whole list
    TENSORS,
    STATE_AT,        // address of what came of each group of tensors
    TICKET_AT,       // address of the count of spans that are done
    NORM_AT,         // address of the norms, or 0
    ROWS,            // where in the table the rows begin
    SOURCE,          // address of an array
    TARGET,
    DTYPE,
    LENGTH,          // elements of a slice
    KEPT,            // where in the table the layout of the kept axes stands
    REDUCED,
    TARGET_KEPT,
    TARGET_REDUCED,
    VALUES_AT,       // address of the norms of slices: COUNT values, then COUNT exponents
    FACTORS_AT,      // address of the factors of slices: COUNT first steps, then COUNT second ones
    RUN,             // rows of columns that are added up at a time
    LO, HI,          // bounds: their bits
    LO_AT, HI_AT,    // or addresses
    SOURCE_LAYOUT, TARGET_LAYOUT, LO_LAYOUT, HI_LAYOUT,
    TARGET_DTYPE,
    OUTER, MIDDLE, INNER,
    TABLE,           // the table, if it is short
};

// A row of the table: an array, or a slice of one, that is read, written, or both. ROW_BLOCK counts the blocks of the rows before
// it that have its dtype, ROW_SLOT the blocks of all rows before it.
enum : int { ROW_SOURCE, ROW_TARGET, ROW_LEN, ROW_BLOCK, ROW_SLOT, ROW_GROUP, ROW_LAYOUTS, ROW_WORDS };

enum : int { ORDER_ONE = 1, ORDER_TWO, ORDER_MAX, ORDER_SIMPLE, ORDER_POWER };
// MODE_PART: other processes have parts of the data too. The host reads value and exponent, of order 2 before the root is taken.
enum : int { MODE_NORM, MODE_CLIP, MODE_GLOBAL, MODE_AVERAGE, MODE_NORMALIZE, MODE_PART };
enum : int { HAS_LIMBS = 1, WIDE = 2, WIDE_MODULUS = 4, IN_PLACE = 8, NARROW_NORM = 16, EACH = 64, NUMBER = 128 };
// Results of blocks and spans: sums, and keys of the largest modulus. PART_LIMB is of blocks alone.
enum : int { PART_SUM, PART_DOWN, PART_UP, PART_MAX, PART_MAX_DOWN, PART_MAX_UP, PARTS, PART_LIMB = PARTS };
enum : int {
    STATE_VALUE, STATE_EXPONENT, STATE_BY, STATE_THEN, STATE_SCALES, STATE_GOES_ON, STATE_PEAK, STATE_PEAK_EXPONENT,
    STATE_POWER, STATE_WORDS = 16,
};
enum : int { RESCALE = 600 };

DEV double as_double(word bits) { return __longlong_as_double(bits); }
DEV word as_word(double x) { return __double_as_longlong(x); }
template <class T> DEV T* at(word address) { return reinterpret_cast<T*>(address); }

// The same for elements: the compiler's loads and stores are faster where it knows that they are in global memory.
template <class T> DEV T* data_at(word address) {
    T* data = at<T>(address);
    __builtin_assume(__isGlobal(data));
    return data;
}

// ---- the table

DEV const word* table_of(const Params& p) { return p.w[TABLE_AT] ? at<const word>(p.w[TABLE_AT]) : p.w + TABLE; }

// A layout: the number of axes, then the length and the stride of each, from outer to inner. 0 in place of one: dense.
DEV word offset_of(const word* layout, word i) {
    const int axes = static_cast<int>(layout[0]);
    if (axes == 1) return i * layout[2];
    word offset = 0;
    for (int axis = axes - 1; axis >= 0; axis--) {
        const word len = layout[1 + 2 * axis], stride = layout[2 + 2 * axis];
        word rest;
        if (((i | len) >> 32) == 0) { // a division of 64 bits takes several times as long
            const u32 q = static_cast<u32>(i) / static_cast<u32>(len);
            rest = static_cast<u32>(i) - q * static_cast<u32>(len);
            i = q;
        } else {
            const word q = i / len;
            rest = i - q * len;
            i = q;
        }
        offset += rest * stride;
    }
    return offset;
}

// The same as a call: inlined into an unrolled loop, it takes NVRTC seconds.
DEV_COLD word far_offset(const word* layout, word i) { return offset_of(layout, i); }

// The distance of an element from the next one, of an array whose layout stands at `layout` of the table. 0: it varies, or is 0.
DEV word stride_of(const word* table, word layout) {
    if (!layout) return 1;
    return table[layout] == 1 ? table[layout + 2] : 0;
}

// Where element i lies, of an array whose layout stands at `layout` of the table.
DEV word place(const word* table, word layout, word i) { return layout ? offset_of(table + layout, i) : i; }

DEV word source_layout(const word* row) { return row[ROW_LAYOUTS] & 0xffffffff; }
DEV word target_layout(const word* row) { return row[ROW_LAYOUTS] >> 32; }

// A number as a type.
template <int N> struct Count { static constexpr int value = N; };

// Neighbours in memory that are loaded and stored at once.
template <class T, int COUNT = 16 / sizeof(T)> struct alignas(COUNT * sizeof(T)) Pack { T element[COUNT]; };

// ---- what a team does together: TEAM neighbouring threads. All of them get the result.

// The threads of a team that are in one warp.
template <int TEAM> constexpr int IN_WARP = TEAM < 32 ? TEAM : 32;

// The bits of the team's threads among those of its warp.
template <int TEAM> DEV u32 team_mask() {
    if (TEAM == 32) return ~0u;
    return ((1u << TEAM % 32) - 1) << threadIdx.x % 32 / TEAM * TEAM;
}

// The row that a block belongs to: the last one that starts at or before it. Each step compares TEAM rows, which takes fewer
// loads that wait for each other than a binary search.
template <int TEAM> DEV const word* row_of(const Params& p, const word* table, word block, int thread) {
    const word* rows = table + p.w[ROWS];
    word low = 0, high = p.w[COUNT];
    while (high - low > 1) {
        const word step = (high - low + TEAM - 1) / TEAM, own = low + thread * step;
        const bool is_before = own < high && rows[own * ROW_WORDS + ROW_BLOCK] <= block;
        low += (__popc(__ballot_sync(team_mask<TEAM>(), is_before)) - 1) * step;
        if (low + step < high) high = low + step;
    }
    return rows + low * ROW_WORDS;
}

// Exchanges a number with another thread of the team. The numbers of the two threads differ in the bit `distance`.
template <int TEAM, class X> DEV X from_other(X own, int distance) {
    return __shfl_xor_sync(team_mask<TEAM>(), own, distance);
}

// The sum of 32 lanes, folded by halves. A thread has NEIGHBOURS lanes, from lane NEIGHBOURS * thread on, and again every
// NEIGHBOURS * TEAM lanes. Changes `lanes`.
template <int TEAM, int NEIGHBOURS> DEV double fold(double* lanes) {
    enum : int { LANES = 32 / TEAM };
#pragma unroll
    for (int width = LANES / 2; width >= NEIGHBOURS; width /= 2) {
#pragma unroll
        for (int k = 0; k < width; k++) lanes[k] += lanes[k + width];
    }
#pragma unroll
    for (int distance = TEAM / 2; distance; distance /= 2) {
#pragma unroll
        for (int j = 0; j < NEIGHBOURS; j++) lanes[j] += from_other<TEAM>(lanes[j], distance);
    }
#pragma unroll
    for (int width = NEIGHBOURS / 2; width; width /= 2) {
#pragma unroll
        for (int j = 0; j < width; j++) lanes[j] += lanes[j + width];
    }
    return lanes[0];
}

template <int TEAM> DEV u64 fold_max(u64 key) {
#pragma unroll
    for (int distance = TEAM / 2; distance; distance /= 2) {
        const u64 other = from_other<TEAM>(key, distance);
        if (other > key) key = other;
    }
    return key;
}

// ---- terms: what an element adds to a sum

enum : int { TERM_ABS, TERM_SQUARE, TERM_SIMPLE, TERM_POWER };

struct Term {
    int kind, simple, limb;
    bool in_columns;
    double by;
    Power power;
};

DEV Term term_of(int kind, double by) {
    Term term;
    term.kind = kind;
    term.simple = 0;
    term.limb = -1;
    term.in_columns = false;
    term.by = by;
    return term;
}

DEV_COLD double term_at(const Term& term, const void* data, word i, int dtype) {
    switch (term.kind) {
    case TERM_ABS:
        return term.limb < 0 ? modulus_at(data, i, dtype, term.by) : limb_at(data, i, dtype, term.limb);
    case TERM_SQUARE: return square_at(data, i, dtype, term.by);
    case TERM_SIMPLE: {
        const double modulus = modulus_at(data, i, dtype, 1.0);
        // Fourth powers are made of the square that the CPU has at hand, which for complex numbers differs by a rounding.
        const bool is_straight = dtype == COMPLEX128 && !term.in_columns;
        return simple_term(term.simple, modulus, is_straight ? square_at(data, i, dtype, 1.0) : modulus * modulus);
    }
    default: {
        double value, exponent;
        lifted_at(data, i, dtype, &value, &exponent);
        return power_term(term.power, value, exponent);
    }
    }
}

// Elements that a thread of a team loads at once: as many as it has lanes, in up to 16 bytes.
template <class T, int TEAM> constexpr int NEIGHBOURS = 32 / TEAM < 16 / sizeof(T) ? 32 / TEAM : 16 / sizeof(T);

// Loads packs of NEIGHBOURS elements, those that begin at first, first + step, ... below `len`, AT_ONCE of them at a time. Calls
// `add(lane, element)` for each element, with lanes 0 to LANES - 1 in turn. `load(i)` returns a pack, with 0 beyond the end.
template <int LANES, int NEIGHBOURS, int AT_ONCE, class Load, class Add>
DEV void each_element(int first, int len, int step, const Load& load, const Add& add) {
    static_assert(AT_ONCE * NEIGHBOURS % LANES == 0, "each batch begins with lane 0");
    for (int i = first; i < len; i += AT_ONCE * step) {
        decltype(load(0)) loaded[AT_ONCE]; // so that all are under way at once
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) loaded[k] = load(i + k * step);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
            for (int j = 0; j < NEIGHBOURS; j++) add((k * NEIGHBOURS + j) % LANES, loaded[k].element[j]);
        }
    }
}

// Elements of any dtype, in a layout; a view of what a kernel reads.
struct Reader {
    const void* data;
    const word* table;
    word base, layout;
    int dtype;

    DEV_METHOD word place_of(word i) const { return base + place(table, layout, i); }
    DEV_METHOD Reader moved(word by) const { return Reader{data, table, base + by, layout, dtype}; }
    enum : int { COLUMNS = 1 };
    DEV_METHOD void add_rows(double* sums, const Term& of, word from, int rows) const {
        for (word i = from; i < from + rows; i++) sums[0] += term_at(of, data, place_of(i), dtype);
    }
    template <int TEAM> static constexpr int NEIGHBOURS = 1;
    template <int TEAM> DEV_METHOD void add(double* lanes, const Term& of, word from, int thread, int len) const {
        static_assert(TEAM == 32, "a thread has one lane");
        for (int i = thread; i < len; i += TEAM) lanes[0] += term_at(of, data, place_of(from + i), dtype);
    }
    DEV_METHOD u64 key(word i, double by) const { return key_of(modulus_at(data, place_of(i), dtype, by)); }
};

// The same of one real dtype, for Euclidean norms alone. Nearly all layouts have one stride.
template <class T> struct TypedReader {
    const T* data;
    const word* table;
    word layout, stride;
    static constexpr int dtype = code_of<T>::value;

    DEV_METHOD TypedReader moved(word by) const { return TypedReader{data + by, table, layout, stride}; }
    template <int TEAM> static constexpr int NEIGHBOURS = ::NEIGHBOURS<T, TEAM>;
    template <int TEAM> DEV_METHOD void add(double* lanes, const Term& of, word from, int thread, int len) const {
        enum : int { LANES = 32 / TEAM, N = NEIGHBOURS<TEAM> };
        typedef Pack<T, N> Neighbours;
        auto each = [&](auto at_once, auto load) {
            each_element<LANES, N, decltype(at_once)::value>(N * thread, len, N * TEAM, load, [&](int lane, T element) {
                const double x = widen(element) * of.by;
                lanes[lane] += x * x;
            });
        };
        auto each_of = [&](auto at_once, auto element) {
            each(at_once, [&](int i) {
                Neighbours found = {};
#pragma unroll
                for (int j = 0; j < N; j++) {
                    if (i + j < len) found.element[j] = element(i + j);
                }
                return found;
            });
        };
        const T* own = data + from * stride;
        if (N > 1 && stride == 1 && len % N == 0 && reinterpret_cast<word>(own) % sizeof(Neighbours) == 0) {
            each(Count<16 / N>(), [&](int i) {
                return i < len ? *reinterpret_cast<const Neighbours*>(own + i) : Neighbours();
            });
        } else if (stride) {
            each_of(Count<16 / N>(), [&](int i) { return own[i * stride]; });
        } else {
            each_of(Count<LANES / N>(), [&](int i) { return data[far_offset(table + layout, from + i)]; });
        }
    }
    DEV_METHOD u64 key(word, double) const { return 0; }
};

// Columns of one real dtype side by side, a pack of them by each thread, for Euclidean norms alone.
template <class T, int PER_THREAD> struct ColumnReader {
    enum : int { COLUMNS = PER_THREAD };
    TypedReader<T> of;
    static constexpr int dtype = code_of<T>::value;

    DEV_METHOD ColumnReader moved(word by) const { return ColumnReader{of.moved(by)}; }
    // Adds the squares of neighbouring elements of each row to the sums.
    DEV_METHOD void add_rows(double* sums, const Term& term, word from, int rows) const {
        typedef Pack<T, PER_THREAD> Row;
        enum : int { AT_ONCE = sizeof(Row) < 8 ? 16 : 128 / sizeof(Row) };
        auto each = [&](auto at_once, auto load) {
            each_element<PER_THREAD, PER_THREAD, decltype(at_once)::value>(0, rows, 1, load, [&](int column, T element) {
                const double x = widen(element);
                sums[column] += x * x;
            });
        };
        const T* own = of.data + from * of.stride;
        if (PER_THREAD == 1 && !of.stride) {
            each(Count<1>(), [&](int i) { return Row{of.data[far_offset(of.table + of.layout, from + i)]}; });
        } else {
            each(Count<AT_ONCE>(), [&](int i) { return i < rows ? *reinterpret_cast<const Row*>(own + i * of.stride) : Row(); });
        }
    }
};

template <class T> DEV TypedReader<T> typed_reader(const Params& p, const word* table) {
    return TypedReader<T>{data_at<const T>(p.w[SOURCE]), table, p.w[REDUCED], stride_of(table, p.w[REDUCED])};
}

// ---- the norm from its passes: `Order::norm` of the CPU

struct Order {
    int kind;
    double p;
    bool wide, wide_modulus, is_squared; // the square of a Euclidean norm is wanted, not its root
};

DEV Order order_of(const Params& p) {
    Order order;
    order.kind = static_cast<int>(p.w[ORDER]);
    order.p = as_double(p.w[EXPONENT]);
    order.wide = p.w[FLAGS] & WIDE;
    order.wide_modulus = p.w[FLAGS] & WIDE_MODULUS;
    order.is_squared = p.w[MODE] == MODE_PART;
    return order;
}

DEV double smallest_sum() { return power_of_two(-960); }

// The Euclidean norm of elements times 2^-exponent, with this sum of squares.
DEV Scaled euclidean(const Order& order, double sum, word exponent) {
    return order.is_squared ? scaled_new(sum, 2 * exponent) : scaled_new(sqrt(sum), exponent);
}

// `passes.sum(term)` is a sum over all elements, `passes.max(by)` the largest modulus.
template <class Passes> static __device__ Scaled largest_of(const Order& order, Passes& passes) {
    const double m = passes.max(1.0);
    if (order.wide_modulus && m == infinity()) return scaled_new(passes.max(power_of_two(-RESCALE)), RESCALE);
    if (order.wide_modulus && m < smallest_sum()) return scaled_new(passes.max(power_of_two(RESCALE)), -RESCALE);
    return scaled_new(m, 0);
}

template <class Passes> static __device__ Scaled norm_of(const Order& order, Passes& passes) {
    const double down = power_of_two(-RESCALE), up = power_of_two(RESCALE);
    if (order.kind == ORDER_ONE) {
        const double s = passes.sum(term_of(TERM_ABS, 1.0));
        if (order.wide && s == infinity()) return scaled_new(passes.sum(term_of(TERM_ABS, down)), RESCALE);
        if (order.wide_modulus && s < smallest_sum()) return scaled_new(passes.sum(term_of(TERM_ABS, up)), -RESCALE);
        return scaled_new(s, 0);
    }
    if (order.kind == ORDER_TWO) {
        const double s = passes.sum(term_of(TERM_SQUARE, 1.0));
        if (order.wide && s == infinity()) return euclidean(order, passes.sum(term_of(TERM_SQUARE, down)), RESCALE);
        if (order.wide && s < smallest_sum()) return euclidean(order, passes.sum(term_of(TERM_SQUARE, up)), -RESCALE);
        return euclidean(order, s, 0);
    }
    if (order.kind == ORDER_MAX) return largest_of(order, passes);
    if (order.kind == ORDER_SIMPLE) {
        Term term = term_of(TERM_SIMPLE, 1.0);
        term.simple = simple_of(order.p);
        const double s = passes.sum(term);
        const double smallest = order.p < 1.0 ? power_of_two(-400) : smallest_sum();
        if (!order.wide || s != s || (s >= smallest && s < infinity())) return simple_root(term.simple, s);
    }
    const Scaled peak = largest_of(order, passes);
    if (!is_finite(peak) || is_zero(peak)) return peak;
    Term term = term_of(TERM_POWER, 1.0);
    term.power = power_new(order.p, peak);
    return passes.power_root(term, peak);
}

// ---- what becomes of a norm

DEV_COLD double scalar_at(word bits, word address, word dtype) {
    if (!address) return as_double(bits);
    const void* data = at<const void>(address);
    double x;
    convert(data, 0, static_cast<int>(dtype), &x, 0, FLOAT64);
    return x;
}

// The factor of a norm, or none: false.
DEV_COLD bool factor_of(const Params& p, Scaled norm, Factor* factor) {
    if (p.w[MODE] == MODE_NORMALIZE) {
        *factor = factor_to(norm, 1.0);
        return factor->by != 1.0 || factor->then != 1.0;
    }
    double limit = scalar_at(p.w[LIMIT], p.w[LIMIT_AT], p.w[LIMIT_DTYPE]);
    if (limit < 0.0 || limit != limit || (p.w[MODE] == MODE_GLOBAL && !is_finite(norm) && !is_infinite(limit))) {
        // A limit in device memory is not known to the host, which would have raised an error.
        factor->by = canonical_nan<double>();
        factor->then = 1.0;
        return true;
    }
    if (limit == 0.0) limit = 0.0; // -0.0
    if (p.w[MODE] == MODE_AVERAGE) norm = over(norm, p.w[ELEMENTS]);
    return clip_to(norm, limit, factor);
}

static __device__ void write_norm(const Params& p, word i, Scaled norm) {
    if (!p.w[NORM_AT]) return;
    if (p.w[MODE] == MODE_PART) {
        at<double>(p.w[NORM_AT])[0] = norm.value;
        at<double>(p.w[NORM_AT])[1] = static_cast<double>(norm.exponent);
        return;
    }
    const double x = to_f64(norm);
    if (p.w[FLAGS] & NARROW_NORM) at<float>(p.w[NORM_AT])[i] = narrow<float>(x);
    else at<double>(p.w[NORM_AT])[i] = x;
}

// The norm of group i of tensors is known.
DEV_COLD void settle_group(const Params& p, word i, Scaled norm) {
    word* state = at<word>(p.w[STATE_AT]) + i * STATE_WORDS;
    write_norm(p, i, norm);
    state[STATE_VALUE] = as_word(norm.value);
    state[STATE_EXPONENT] = norm.exponent;
    state[STATE_GOES_ON] = 0;
    state[STATE_SCALES] = 0;
    Factor factor;
    if (p.w[MODE] != MODE_NORM && p.w[MODE] != MODE_PART && factor_of(p, norm, &factor)) {
        state[STATE_SCALES] = 1;
        state[STATE_BY] = as_word(factor.by);
        state[STATE_THEN] = as_word(factor.then);
    }
}

// The norm of slice i is known.
DEV_COLD void settle_slice(const Params& p, word i, Scaled norm) {
    if (p.w[VALUES_AT]) {
        at<double>(p.w[VALUES_AT])[i] = norm.value;
        at<word>(p.w[VALUES_AT])[p.w[COUNT] + i] = norm.exponent;
    }
    write_norm(p, i, norm);
    if (p.w[FACTORS_AT]) {
        Factor factor;
        if (!factor_of(p, norm, &factor)) factor = factor_one();
        at<double>(p.w[FACTORS_AT])[i] = factor.by;
        at<double>(p.w[FACTORS_AT])[p.w[COUNT] + i] = factor.then;
    }
}

// ---- the end of a pass over a list: what all blocks of threads left is put together

DEV Total total_of(double sum, double error) {
    Total total;
    total.sum = sum;
    total.error = error;
    return total;
}

// The totals of chunks, merged in order: 64 of them make a span, and spans are merged.
struct SpanSum {
    Total all, span;
    int chunks; // of the span
};

DEV SpanSum span_sum_zero() { return SpanSum{total_zero(), total_zero(), 0}; }
DEV void add_chunk(SpanSum* sum, Total chunk) {
    merge(&sum->span, chunk);
    if (++sum->chunks < SPAN_TOTALS) return;
    merge(&sum->all, sum->span);
    sum->span = total_zero();
    sum->chunks = 0;
}
DEV Total sum_of_spans(SpanSum sum) {
    merge(&sum.all, sum.span);
    return sum.all;
}

// The first span of a tensor. Of the tensor after the last one: the end. The table begins with the first slot of each span and the
// end; these numbers follow.
DEV word first_span(const Params& p, const word* table, word tensor) { return table[p.w[SPANS] + 1 + tensor]; }

// The results of one part, of blocks and of spans.
DEV double* of_blocks(const Params& p, int part) { return at<double>(p.w[PARTS_AT]) + part * p.w[SLOTS]; }
DEV double* of_spans(const Params& p, int part) { return at<double>(p.w[SPANS_AT]) + 2 * part * p.w[SPANS]; }

// Merges `count` totals, `step` apart, into another one, in order. Some are loaded before the first is used, so that the loads
// are under way at once. Totals beyond the end are 0, which changes nothing.
DEV Total merge_all(Total all, const double* totals, int count, word step) {
    enum : int { AT_ONCE = 16 };
    for (int i = 0; i < count; i += AT_ONCE) {
        Total loaded[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const double* own = totals + 2 * (i + k) * step;
            loaded[k] = i + k < count ? total_of(own[0], own[1]) : total_zero();
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) merge(&all, loaded[k]);
    }
    return all;
}

// The sum of a tensor: of its spans, in order.
DEV Total sum_of_tensor(const Params& p, const word* table, int part, word tensor) {
    const word first = first_span(p, table, tensor), count = first_span(p, table, tensor + 1) - first;
    return merge_all(total_zero(), of_spans(p, part) + 2 * first, static_cast<int>(count), 1);
}

// The sum of all tensors: 64 of them make a span. A warp merges a span from shared memory, and one thread merges the spans.
DEV_COLD double sum_of_list(const Params& p, const word* table, int part, double* near) {
    const int thread = threadIdx.x % 32, warp = threadIdx.x / 32;
    double* own = near + 2 * SPAN_TOTALS * warp;
    Total all = total_zero();
    for (word from = 0; from < p.w[TENSORS]; from += WARPS * SPAN_TOTALS) {
        const word first = from + warp * SPAN_TOTALS, left = p.w[TENSORS] - first;
        const int count = static_cast<int>(left < 0 ? 0 : left < SPAN_TOTALS ? left : SPAN_TOTALS);
        for (int i = thread; i < count; i += 32) {
            const Total tensor = sum_of_tensor(p, table, part, first + i);
            own[2 * i] = tensor.sum;
            own[2 * i + 1] = tensor.error;
        }
        __syncwarp();
        if (thread == 0) {
            const Total span = merge_all(total_zero(), own, count, 1);
            own[0] = span.sum;
            own[1] = span.error;
        }
        __syncthreads();
        if (threadIdx.x == 0) all = merge_all(all, near, WARPS, SPAN_TOTALS);
        __syncthreads();
    }
    if (threadIdx.x == 0) near[0] = value_of(all);
    __syncthreads();
    const double sum = near[0];
    __syncthreads();
    return sum;
}

// The largest of the keys [from, end), every `step`th. Keys stand where sums would.
DEV u64 largest_key(const double* keys, word from, word end, word step) {
    u64 key = 0;
    for (word i = from; i < end; i += step) {
        const u64 own = reinterpret_cast<const u64*>(keys)[i];
        if (own > key) key = own;
    }
    return key;
}

// The largest key of spans [from, end), every `step`th.
DEV u64 max_of_spans(const Params& p, int part, word from, word end, word step) {
    return largest_key(of_spans(p, part), 2 * from, 2 * end, 2 * step);
}

// The largest key of the list, by all threads.
DEV u64 max_of_list(const Params& p, int part, double* near) {
    u64* own = reinterpret_cast<u64*>(near);
    u64 key = max_of_spans(p, part, threadIdx.x, p.w[SPANS], THREADS);
    own[threadIdx.x] = key;
    __syncthreads();
    for (int width = THREADS / 2; width; width /= 2) {
        if (threadIdx.x < width && own[threadIdx.x + width] > own[threadIdx.x]) {
            own[threadIdx.x] = own[threadIdx.x + width];
        }
        __syncthreads();
    }
    key = own[0];
    __syncthreads();
    return key;
}

DEV int part_of(const Term& term) { return term.by == 1.0 ? PART_SUM : term.by < 1.0 ? PART_DOWN : PART_UP; }
DEV int part_of_max(double by) { return by == 1.0 ? PART_MAX : by < 1.0 ? PART_MAX_DOWN : PART_MAX_UP; }

// Passes over one list that were made already, but for that of a power, which waits for the largest modulus.
struct ListPasses {
    const Params& p;
    const word* table;
    double* near;
    word tensor; // or -1: all of them as one
    bool goes_on;
    Term then;
    Scaled peak;

    DEV_METHOD double sum(const Term& term) {
        if (tensor < 0) return sum_of_list(p, table, part_of(term), near);
        return value_of(sum_of_tensor(p, table, part_of(term), tensor));
    }
    COLD_METHOD double max(double by) {
        if (tensor < 0) return of_key(max_of_list(p, part_of_max(by), near));
        const word from = first_span(p, table, tensor), end = first_span(p, table, tensor + 1);
        return of_key(max_of_spans(p, part_of_max(by), from, end, 1));
    }
    DEV_METHOD Scaled power_root(const Term& term, Scaled of) {
        goes_on = true;
        then = term;
        peak = of;
        return of;
    }
};

DEV ListPasses passes_of(const Params& p, const word* table, double* near, word tensor) {
    return ListPasses{p, table, near, tensor, false, term_of(TERM_ABS, 1.0), scaled_zero()};
}

DEV void keep_going(const Params& p, word group, const ListPasses& passes) {
    word* state = at<word>(p.w[STATE_AT]) + group * STATE_WORDS;
    state[STATE_GOES_ON] = 1;
    state[STATE_PEAK] = as_word(passes.peak.value);
    state[STATE_PEAK_EXPONENT] = passes.peak.exponent;
    *reinterpret_cast<Power*>(state + STATE_POWER) = passes.then.power;
}

// Whether this block of threads is the last one of the kernel. Then it sees all that the others wrote.
DEV bool is_last(const Params& p) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        u32* ticket = at<u32>(p.w[TICKET_AT]);
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        if (last) *ticket = 0; // for the next pass
    }
    __syncthreads();
    __threadfence();
    return last;
}

// All tensors have one norm, or each has its own.
DEV bool is_one_group(const Params& p) { return !(p.w[FLAGS] & EACH); }

DEV void end_of_first(const Params& p, const Order& order, double* near) {
    if (!is_last(p)) return;
    const word* table = table_of(p);
    if (is_one_group(p)) {
        ListPasses passes = passes_of(p, table, near, -1);
        const Scaled norm = norm_of(order, passes);
        if (threadIdx.x != 0) return;
        if (passes.goes_on) keep_going(p, 0, passes); else settle_group(p, 0, norm);
        return;
    }
    for (word tensor = threadIdx.x; tensor < p.w[TENSORS]; tensor += THREADS) {
        ListPasses passes = passes_of(p, table, near, tensor);
        const Scaled norm = norm_of(order, passes);
        if (passes.goes_on) keep_going(p, tensor, passes); else settle_group(p, tensor, norm);
    }
}

DEV_COLD void settle_power(const Params& p, word group, double sum) {
    const word* state = at<const word>(p.w[STATE_AT]) + group * STATE_WORDS;
    const Power power = *reinterpret_cast<const Power*>(state + STATE_POWER);
    const Scaled peak = {as_double(state[STATE_PEAK]), state[STATE_PEAK_EXPONENT]};
    settle_group(p, group, power_root(power, peak, sum));
}

DEV_COLD void end_of_power(const Params& p, double* near) {
    if (!is_last(p)) return;
    const word* table = table_of(p);
    const word* state = at<const word>(p.w[STATE_AT]);
    const Term term = term_of(TERM_POWER, 1.0);
    if (is_one_group(p)) {
        if (!state[STATE_GOES_ON]) return;
        ListPasses passes = passes_of(p, table, near, -1);
        const double sum = passes.sum(term);
        if (threadIdx.x == 0) settle_power(p, 0, sum);
        return;
    }
    for (word tensor = threadIdx.x; tensor < p.w[TENSORS]; tensor += THREADS) {
        if (!state[tensor * STATE_WORDS + STATE_GOES_ON]) continue;
        ListPasses passes = passes_of(p, table, near, tensor);
        settle_power(p, tensor, passes.sum(term));
    }
}

// ---- passes over a list

// A block of a row: its elements, and where its results go.
struct Block {
    word from, slot;
    int len;

    DEV_METHOD Block(const word* row, word block) {
        const word own = block - row[ROW_BLOCK], left = row[ROW_LEN] - own * BLOCK;
        from = own * BLOCK;
        slot = row[ROW_SLOT] + own;
        len = static_cast<int>(left < BLOCK ? left : BLOCK);
    }
};

// Calls `work(row, block, thread)` for each block of a launch, by a team.
template <int TEAM, class Work> DEV void each_block(const Params& p, const word* table, const Work& work) {
    const int thread = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    const word step = gridDim.x * static_cast<word>(THREADS / TEAM);
    for (word block = blockIdx.x * static_cast<word>(THREADS / TEAM) + team; block < p.w[BLOCKS]; block += step) {
        const word* row = row_of<TEAM>(p, table, block, thread);
        work(row, Block(row, block), thread);
    }
}

// The squares of a list of arrays of one dtype. DEEP: for lists with float64, whose squares can leave its range.
template <class T, bool DEEP> KERNEL_FOR(3) sums(const __grid_constant__ Params p) {
    // Half a warp takes a block of 16-bit elements, in pairs. So it loads 64 bytes at once, and a warp 128, as of float32.
    enum : int { TEAM = sizeof(T) == 2 ? 16 : 32, LANES = NEIGHBOURS<T, TEAM> };
    typedef Pack<T, LANES> Neighbours;
    const word* table = table_of(p);
    each_block<TEAM>(p, table, [&](const word* row, const Block& block, int thread) {
        const word layout = source_layout(row);
        const T* data = data_at<const T>(row[ROW_SOURCE]) + (layout ? 0 : block.from);
        double sum[LANES] = {}, down[LANES] = {}, up[LANES] = {};
        auto add_all = [&](auto at_once, int len, auto load) {
            enum : int { AT_ONCE = decltype(at_once)::value };
#pragma unroll 4
            for (int i = LANES * thread; i - LANES * thread < len; i += 32 * AT_ONCE) { // from 0 on, it took more registers
                Neighbours loaded[AT_ONCE]; // so that all are under way at once
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) loaded[k] = load(i + 32 * k);
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
                    for (int j = 0; j < LANES; j++) {
                        const double x = widen(loaded[k].element[j]);
                        sum[j] += x * x;
                        if (DEEP) {
                            const double small = x * power_of_two(-RESCALE), large = x * power_of_two(RESCALE);
                            down[j] += small * small;
                            up[j] += large * large;
                        }
                    }
                }
            }
        };
        auto add_some = [&](auto at_once, auto index) { // beyond the end stands 0, which adds 0
            add_all(at_once, block.len, [&](int i) {
                Neighbours found = {};
#pragma unroll
                for (int j = 0; j < LANES; j++) {
                    if (i + j < block.len) found.element[j] = data[index(i + j)];
                }
                return found;
            });
        };
        const bool is_aligned = reinterpret_cast<word>(data) % sizeof(Neighbours) == 0;
        if (layout) add_some(Count<1>(), [&](int i) { return far_offset(table + layout, block.from + i); });
        else if (block.len < BLOCK || !is_aligned) add_some(Count<16>(), [&](int i) { return i; });
        else add_all(Count<16>(), BLOCK, [&](int i) { return *reinterpret_cast<const Neighbours*>(data + i); });
        auto write = [&](int part, double* lanes) {
            const double folded = fold<TEAM, LANES>(lanes);
            if (thread == 0) of_blocks(p, part)[block.slot] = folded;
        };
        write(PART_SUM, sum);
        if (DEEP) {
            write(PART_DOWN, down);
            write(PART_UP, up);
        }
    });
}

// The sum of a term over a block, by a team.
template <int TEAM, class R> DEV double sum_of_block(int thread, const R& reader, const Term& term, word from, int len) {
    double lanes[32 / TEAM] = {};
    reader.template add<TEAM>(lanes, term, from, thread, len);
    return fold<TEAM, R::template NEIGHBOURS<TEAM>>(lanes);
}

template <int TEAM, class R> DEV u64 max_of_block(int thread, const R& reader, double by, word from, word len) {
    u64 key = 0;
    for (word i = thread; i < len; i += TEAM) {
        const u64 own = reader.key(from + i, by);
        if (own > key) key = own;
    }
    return fold_max<TEAM>(key);
}

// The parts that a norm needs of each block, except sums of powers. `limbs`: of integers that float64 does not hold.
DEV u32 parts_of(const Order& order, bool limbs) {
    if (order.kind == ORDER_ONE || order.kind == ORDER_TWO) {
        const u32 sums = 1 << PART_SUM | (limbs ? 1 << PART_LIMB : 0);
        return order.wide ? sums | 1 << PART_DOWN | 1 << PART_UP : sums;
    }
    const u32 sums = order.kind == ORDER_SIMPLE ? 1 << PART_SUM : 0;
    if (order.kind == ORDER_SIMPLE && !order.wide) return sums;
    return sums | 1 << PART_MAX | (order.wide_modulus ? 1 << PART_MAX_DOWN | 1 << PART_MAX_UP : 0);
}

// What the norm of any order needs of a list of arrays of one dtype, whatever that is, but for powers.
template <class> KERNEL first(const __grid_constant__ Params p) {
    const int dtype = static_cast<int>(p.w[DTYPE]);
    const word* table = table_of(p);
    const Order order = order_of(p);
    const u32 parts = parts_of(order, p.w[FLAGS] & HAS_LIMBS);
    each_block<32>(p, table, [&](const word* row, const Block& block, int thread) {
        const Reader reader = {at<const void>(row[ROW_SOURCE]), table, 0, source_layout(row), dtype};
        for (int part = 0; part <= PART_LIMB; part++) {
            if (!(parts >> part & 1)) continue;
            const bool is_down = part == PART_DOWN || part == PART_MAX_DOWN, is_up = part == PART_UP || part == PART_MAX_UP;
            const double by = power_of_two(is_down ? -RESCALE : is_up ? RESCALE : 0);
            double* to = of_blocks(p, part) + block.slot;
            if (part >= PART_MAX && part != PART_LIMB) {
                const u64 key = max_of_block<32>(thread, reader, by, block.from, block.len);
                if (thread == 0) *reinterpret_cast<u64*>(to) = key;
                continue;
            }
            Term term = term_of(order.kind == ORDER_ONE ? TERM_ABS : order.kind == ORDER_TWO ? TERM_SQUARE : TERM_SIMPLE, by);
            if (order.kind == ORDER_SIMPLE) term.simple = simple_of(order.p);
            const bool has_limbs = limbs_of(dtype) > 1 && order.kind == ORDER_ONE;
            if (has_limbs) term.limb = part == PART_LIMB ? 1 : 0;
            const bool is_none = part == PART_LIMB && !has_limbs;
            const double sum = is_none ? 0.0 : sum_of_block<32>(thread, reader, term, block.from, block.len);
            if (thread == 0) *to = sum;
        }
    });
}

// The powers of a list, once the largest modulus is known.
template <class> KERNEL powers(const __grid_constant__ Params p) {
    const int dtype = static_cast<int>(p.w[DTYPE]);
    const word* table = table_of(p);
    each_block<32>(p, table, [&](const word* row, const Block& block, int thread) {
        const word* state = at<const word>(p.w[STATE_AT]) + (is_one_group(p) ? 0 : row[ROW_GROUP]) * STATE_WORDS;
        if (!state[STATE_GOES_ON]) return;
        Term term = term_of(TERM_POWER, 1.0);
        term.power = *reinterpret_cast<const Power*>(state + STATE_POWER);
        const Reader reader = {at<const void>(row[ROW_SOURCE]), table, 0, source_layout(row), dtype};
        const double sum = sum_of_block<32>(thread, reader, term, block.from, block.len);
        if (thread == 0) of_blocks(p, PART_SUM)[block.slot] = sum;
    });
}

// The results of a span's blocks, of one part, in shared memory, with a row for each chunk. Each thread reads a row of its own. A
// row is one place longer than a chunk, so that the threads use different banks.
struct Stage {
    enum : int { ROW = CHUNK_BLOCKS + 1, EACH_THREAD = SPAN_BLOCKS / THREADS };
    double results[SPAN_TOTALS * ROW];

    DEV_METHOD const double* row(int chunk) const { return results + chunk * ROW; }
    DEV_METHOD static void load(double* loaded, const double* source, int blocks) {
#pragma unroll
        for (int k = 0; k < EACH_THREAD; k++) {
            const int i = threadIdx.x + k * THREADS;
            if (i < blocks) loaded[k] = source[i];
        }
    }
    DEV_METHOD void fill(const double* loaded, int blocks) {
#pragma unroll
        for (int k = 0; k < EACH_THREAD; k++) {
            const int i = threadIdx.x + k * THREADS;
            if (i < blocks) results[i / CHUNK_BLOCKS * ROW + i % CHUNK_BLOCKS] = loaded[k];
        }
    }
};

// The total of the results of a chunk's blocks, in order. `limbs`: those of the second limbs, or null.
DEV Total total_of_chunk(const double* results, const double* limbs, int blocks) {
    Total total = total_zero();
    if (limbs) {
        for (int i = 0; i < blocks; i++) {
            add(&total, results[i]);
            add(&total, limbs[i]);
        }
        return total;
    }
#pragma unroll 8
    for (int i = 0; i < blocks; i++) add(&total, results[i]);
    return total;
}

// Reduces the results of a span's blocks, by a block of threads: part by part, a thread for each chunk; then a thread for each
// part adds up the chunks. While a part is added up, the next one is loaded.
DEV void end_of_span(const Params& p, const word* table, u32 parts, double (*near)[2 * SPAN_TOTALS], Stage& stage) {
    const word span = blockIdx.x, *slots = table + span, first = slots[0];
    const int blocks = static_cast<int>(slots[1] - first);
    const int chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS, chunk = threadIdx.x, before = chunk * CHUNK_BLOCKS;
    double loaded[Stage::EACH_THREAD]; // so that all are under way at once
    const u32 reduced = parts & ((1 << PARTS) - 1);
    Stage::load(loaded, of_blocks(p, __ffs(reduced) - 1) + first, blocks);
    for (u32 left = reduced; left; left &= left - 1) {
        const int part = __ffs(left) - 1, next = __ffs(left & (left - 1)) - 1;
        stage.fill(loaded, blocks);
        __syncthreads();
        if (next >= 0) Stage::load(loaded, of_blocks(p, next) + first, blocks);
        if (chunk < chunks) {
            const int own = blocks - before < CHUNK_BLOCKS ? blocks - before : CHUNK_BLOCKS;
            double* to = near[part] + 2 * chunk;
            if (part >= PART_MAX) {
                *reinterpret_cast<u64*>(to) = largest_key(stage.row(chunk), 0, own, 1);
            } else {
                const bool limbs = part == PART_SUM && parts >> PART_LIMB & 1;
                const double* others = limbs ? of_blocks(p, PART_LIMB) + first + before : nullptr;
                const Total total = total_of_chunk(stage.row(chunk), others, own);
                to[0] = total.sum;
                to[1] = total.error;
            }
        }
        __syncthreads();
    }
    const int part = threadIdx.x;
    if (part >= PARTS || !(parts >> part & 1)) return;
    double* to = of_spans(p, part) + 2 * span;
    if (part >= PART_MAX) {
        *reinterpret_cast<u64*>(to) = largest_key(near[part], 0, 2 * chunks, 2);
        return;
    }
    const Total total = merge_all(total_zero(), near[part], chunks, 1);
    to[0] = total.sum;
    to[1] = total.error;
}

// The norm of a list from the results of its blocks. EUCLIDEAN: of order 2, whose code is short.
template <bool EUCLIDEAN> KERNEL_FOR(2) ends(const __grid_constant__ Params p) {
    __shared__ double near[WARPS][2 * SPAN_TOTALS];
    __shared__ Stage stage;
    Order order = order_of(p);
    if (EUCLIDEAN) order = Order{ORDER_TWO, 2.0, order.wide, false, order.is_squared};
    if (p.w[SPANS]) end_of_span(p, table_of(p), parts_of(order, p.w[FLAGS] & HAS_LIMBS), near, stage);
    end_of_first(p, order, near[0]);
}

// The same for its powers.
template <class> KERNEL power_ends(const __grid_constant__ Params p) {
    __shared__ double near[WARPS][2 * SPAN_TOTALS];
    __shared__ Stage stage;
    if (p.w[SPANS]) end_of_span(p, table_of(p), 1 << PART_SUM, near, stage);
    end_of_power(p, near[0]);
}

// The factor of a list where the norm is given.
template <class> KERNEL given(const __grid_constant__ Params p) {
    if (threadIdx.x != 0 || blockIdx.x != 0) return;
    double norm = scalar_at(p.w[USED], p.w[USED_AT], p.w[USED_DTYPE]);
    if (norm < 0.0) norm = canonical_nan<double>(); // in device memory: see `factor_of`
    settle_group(p, 0, scaled_new(norm == 0.0 ? 0.0 : norm, p.w[USED_EXPONENT]));
}

// ---- writing


template <class T> DEV bool are_same(T a, T b) {
    if constexpr (code_of<T>::value <= FLOAT64) {
        return bits_of(a) == bits_of(b);
    } else {
        return a == b;
    }
}

// Writes `map(element)` of `len` elements of a dense array to another one, by a team. KEEPS: in place, and 16 bytes that do not
// change are not written, which saves memory bandwidth.
template <int TEAM, bool KEEPS, class T, class Map>
DEV void map_dense(const T* source, T* target, int len, int thread, const Map& map) {
    enum : int { SIZE = 16 / sizeof(T), AT_ONCE = 4 };
    int done = 0;
    if (((reinterpret_cast<word>(source) | reinterpret_cast<word>(target)) & 15) == 0) {
        const Pack<T>* from = reinterpret_cast<const Pack<T>*>(source);
        Pack<T>* to = reinterpret_cast<Pack<T>*>(target);
        auto write = [&](Pack<T> loaded, int i) {
            Pack<T> made;
            bool changes = !KEEPS;
#pragma unroll
            for (int j = 0; j < SIZE; j++) {
                made.element[j] = map(loaded.element[j]);
                if (KEEPS) changes |= !are_same(made.element[j], loaded.element[j]);
            }
            if (changes) to[i] = made;
        };
        const int packs = len / SIZE, at_once = packs / (TEAM * AT_ONCE) * (TEAM * AT_ONCE);
        for (int i = thread; i < at_once; i += TEAM * AT_ONCE) {
            Pack<T> loaded[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) loaded[k] = from[i + TEAM * k];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) write(loaded[k], i + TEAM * k);
        }
        for (int i = at_once + thread; i < packs; i += TEAM) write(from[i], i);
        done = packs * SIZE;
    }
    for (int i = done + thread; i < len; i += TEAM) {
        const T x = source[i], made = map(x);
        if (!KEEPS || !are_same(made, x)) target[i] = made;
    }
}

// Writes the elements of a dense array to another one, scaled or as they are, by a team.
template <int TEAM, class T>
DEV void copy_scaled(const T* source, T* target, int len, int thread, bool scales, Factor factor) {
    if (scales) map_dense<TEAM, false>(source, target, len, thread, [&](T x) { return scaled(x, factor); });
    else map_dense<TEAM, false>(source, target, len, thread, [](T x) { return x; });
}

// Scales the arrays of a list, the last ones first: the L2 cache still holds what was read last.
template <class T> KERNEL scale(const __grid_constant__ Params p) {
    const word* states = at<const word>(p.w[STATE_AT]);
    const bool one = is_one_group(p);
    if (one && (p.w[FLAGS] & IN_PLACE) && !states[STATE_SCALES]) return;
    const int thread = threadIdx.x % 32, warp = threadIdx.x / 32;
    const word* table = table_of(p);
    for (word i = blockIdx.x * static_cast<word>(WARPS) + warp; i < p.w[BLOCKS]; i += gridDim.x * static_cast<word>(WARPS)) {
        const word block = p.w[BLOCKS] - 1 - i;
        const word* row = row_of<32>(p, table, block, thread);
        const word* state = states + (one ? 0 : row[ROW_GROUP]) * STATE_WORDS;
        const bool scales = state[STATE_SCALES];
        if (!scales && row[ROW_SOURCE] == row[ROW_TARGET]) continue;
        const Factor factor = {as_double(state[STATE_BY]), as_double(state[STATE_THEN])};
        const Block own = Block(row, block);
        const word from = own.from;
        const T* source = data_at<const T>(row[ROW_SOURCE]);
        T* target = data_at<T>(row[ROW_TARGET]);
        if (row[ROW_LAYOUTS] == 0) {
            copy_scaled<32>(source + from, target + from, own.len, thread, scales, factor);
            continue;
        }
        for (word k = from + thread; k < from + own.len; k += 32) {
            const T x = source[place(table, source_layout(row), k)];
            target[place(table, target_layout(row), k)] = scales ? scaled(x, factor) : x;
        }
    }
}

// Limits elements to bounds. In place, what does not change is not written.
template <class T> KERNEL clip(const __grid_constant__ Params p) {
    const word* table = table_of(p);
    const T* source = at<const T>(p.w[SOURCE]);
    T* target = data_at<T>(p.w[TARGET]);
    const bool in_place = p.w[FLAGS] & IN_PLACE;
    T lo, hi;
    lo = *reinterpret_cast<const T*>(&p.w[LO]);
    hi = *reinterpret_cast<const T*>(&p.w[HI]);
    if (!p.w[LO_AT] && !p.w[HI_AT] && !p.w[SOURCE_LAYOUT] && !p.w[TARGET_LAYOUT]) {
        const int thread = threadIdx.x % 32;
        const word warps = gridDim.x * static_cast<word>(WARPS);
        for (word block = blockIdx.x * static_cast<word>(WARPS) + threadIdx.x / 32; block * BLOCK < p.w[COUNT]; block += warps) {
            const word left = p.w[COUNT] - block * BLOCK;
            const word from = block * BLOCK;
            const int len = static_cast<int>(left < BLOCK ? left : BLOCK);
            auto map = [&](T x) { return clipped(x, lo, hi); };
            if (in_place) map_dense<32, true>(source + from, target + from, len, thread, map);
            else map_dense<32, false>(source + from, target + from, len, thread, map);
        }
        return;
    }
    const word step = gridDim.x * static_cast<word>(THREADS);
    for (word i = blockIdx.x * static_cast<word>(THREADS) + threadIdx.x; i < p.w[COUNT]; i += step) {
        const T x = source[place(table, p.w[SOURCE_LAYOUT], i)];
        if (p.w[LO_AT]) lo = at<const T>(p.w[LO_AT])[place(table, p.w[LO_LAYOUT], i)];
        if (p.w[HI_AT]) hi = at<const T>(p.w[HI_AT])[place(table, p.w[HI_LAYOUT], i)];
        if (!in_place || clip_changes(x, lo, hi)) {
            target[place(table, p.w[TARGET_LAYOUT], i)] = clipped(x, lo, hi);
        }
    }
}

// Limits the magnitude of each element.
template <class T> KERNEL magnitudes(const __grid_constant__ Params p) {
    const word* table = table_of(p);
    const T* source = at<const T>(p.w[SOURCE]);
    T* target = data_at<T>(p.w[TARGET]);
    const bool in_place = p.w[FLAGS] & IN_PLACE;
    double limit = scalar_at(p.w[LIMIT], p.w[LIMIT_AT], p.w[LIMIT_DTYPE]);
    const bool wrong = limit < 0.0 || limit != limit; // see `factor_of`
    if (limit == 0.0) limit = 0.0;
    const word step = gridDim.x * static_cast<word>(THREADS);
    for (word i = blockIdx.x * static_cast<word>(THREADS) + threadIdx.x; i < p.w[COUNT]; i += step) {
        const T x = source[place(table, p.w[SOURCE_LAYOUT], i)];
        if (!in_place || wrong || magnitude_changes(x, limit)) {
            target[place(table, p.w[TARGET_LAYOUT], i)] = wrong ? canonical_nan<T>() : clipped_magnitude(x, limit);
        }
    }
}

// Moves elements of so many bytes.
template <class T> KERNEL copy(const __grid_constant__ Params p) {
    const word* table = table_of(p);
    const word step = gridDim.x * static_cast<word>(THREADS);
    for (word i = blockIdx.x * static_cast<word>(THREADS) + threadIdx.x; i < p.w[COUNT]; i += step) {
        at<T>(p.w[TARGET])[place(table, p.w[TARGET_LAYOUT], i)] = at<const T>(p.w[SOURCE])[place(table, p.w[SOURCE_LAYOUT], i)];
    }
}

// Brings bounds to the dtype of what they bound.
template <class> KERNEL conversion(const __grid_constant__ Params p) {
    const word* table = table_of(p);
    const word step = gridDim.x * static_cast<word>(THREADS);
    for (word i = blockIdx.x * static_cast<word>(THREADS) + threadIdx.x; i < p.w[COUNT]; i += step) {
        const void* from = at<const void>(p.w[SOURCE]);
        const word source = place(table, p.w[SOURCE_LAYOUT], i);
        const int dtype = static_cast<int>(p.w[DTYPE]), target_dtype = static_cast<int>(p.w[TARGET_DTYPE]);
        if (p.w[FLAGS] & NUMBER) convert_number(from, source, dtype, at<void>(p.w[TARGET]), i, target_dtype);
        else convert(from, source, dtype, at<void>(p.w[TARGET]), i, target_dtype);
    }
}

// ---- slices along axes

// Passes over one slice by a team: a warp or a part of one for a slice of one block, all threads for a longer one. Every
// thread gets the result.
template <class R, int TEAM> struct TeamPasses {
    const R& reader;
    double* sums; // of the blocks of a chunk, for all threads
    word len;

    DEV_METHOD double pass(const Term& term) {
        const bool limbs = term.kind == TERM_ABS && term.by == 1.0 && limbs_of(reader.dtype) > 1;
        Term own = term;
        if (TEAM < THREADS) {
            const int thread = threadIdx.x % IN_WARP<TEAM>, all = static_cast<int>(len);
            if (!limbs) return sum_of_block<IN_WARP<TEAM>>(thread, reader, own, 0, all);
            Total total = total_zero();
            for (own.limb = 0; own.limb < 2; own.limb++) {
                add(&total, sum_of_block<IN_WARP<TEAM>>(thread, reader, own, 0, all));
            }
            return value_of(total);
        }
        const int thread = threadIdx.x % 32, warp = threadIdx.x / 32;
        SpanSum all = span_sum_zero();
        for (word chunk = 0; chunk < len; chunk += CHUNK_BLOCKS * static_cast<word>(BLOCK)) {
            for (int i = warp; i < CHUNK_BLOCKS * (limbs ? 2 : 1); i += WARPS) {
                if (limbs) own.limb = i % 2;
                const word from = chunk + (limbs ? i / 2 : i) * static_cast<word>(BLOCK);
                const word left = len - from;
                if (left <= 0) break;
                const int of = static_cast<int>(left < BLOCK ? left : BLOCK);
                const double sum = sum_of_block<IN_WARP<TEAM>>(thread, reader, own, from, of);
                if (thread == 0) sums[i] = sum;
            }
            __syncthreads();
            word count = (len - chunk + BLOCK - 1) / BLOCK;
            if (count > CHUNK_BLOCKS) count = CHUNK_BLOCKS;
            Total of_chunk = total_zero();
            for (int i = 0; i < count * (limbs ? 2 : 1); i++) add(&of_chunk, sums[i]); // by all threads: the same
            add_chunk(&all, of_chunk);
            __syncthreads();
        }
        return value_of(sum_of_spans(all));
    }
    DEV_METHOD double sum(const Term& term) { return pass(term); }
    DEV_METHOD double max(double by) {
        if (TEAM < THREADS) return of_key(max_of_block<IN_WARP<TEAM>>(threadIdx.x % IN_WARP<TEAM>, reader, by, 0, len));
        const int thread = threadIdx.x % 32, warp = threadIdx.x / 32;
        u64 key = 0;
        for (word i = threadIdx.x; i < len; i += THREADS) {
            const u64 own = reader.key(i, by);
            if (own > key) key = own;
        }
        key = fold_max<IN_WARP<TEAM>>(key);
        u64* keys = reinterpret_cast<u64*>(sums);
        if (thread == 0) keys[warp] = key;
        __syncthreads();
        for (int i = 0; i < WARPS; i++) {
            if (keys[i] > key) key = keys[i];
        }
        __syncthreads();
        return of_key(key);
    }
    DEV_METHOD Scaled power_root(const Term& term, Scaled peak) { return ::power_root(term.power, peak, pass(term)); }
};

// The same, each pass once in the code: there are many where the order is not known.
template <class Passes> struct ColdPasses {
    Passes passes;

    COLD_METHOD double sum(const Term& term) { return passes.sum(term); }
    COLD_METHOD double max(double by) { return passes.max(by); }
    DEV_METHOD Scaled power_root(const Term& term, Scaled peak) { return ::power_root(term.power, peak, sum(term)); }
};

// Calls `work(slice, thread)` for each slice of a launch, by a team.
template <int TEAM, class Work> DEV void each_slice(const Params& p, const Work& work) {
    const int thread = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    const word step = gridDim.x * static_cast<word>(THREADS / TEAM);
    for (word i = blockIdx.x * static_cast<word>(THREADS / TEAM) + team; i < p.w[COUNT]; i += step) {
        work(i, thread);
    }
}

// The norms of slices of any dtype and order.
template <int TEAM> KERNEL slices(const __grid_constant__ Params p) {
    __shared__ double sums[2 * CHUNK_BLOCKS];
    const word* table = table_of(p);
    const Order order = order_of(p);
    each_slice<TEAM>(p, [&](word i, int thread) {
        const Reader reader = {at<const void>(p.w[SOURCE]), table, place(table, p.w[KEPT], i), p.w[REDUCED],
                               static_cast<int>(p.w[DTYPE])};
        ColdPasses<TeamPasses<Reader, TEAM>> passes = {{reader, sums, p.w[LENGTH]}};
        const Scaled norm = norm_of(order, passes);
        if (thread == 0) settle_slice(p, i, norm);
    });
}

// Writes the block of a slice that begins at element `from`, scaled or as it is, by a team.
template <int TEAM, class T>
DEV void write_block(const Params& p, const word* table, word slice, word from, int thread, bool scales, Factor factor) {
    const word left = p.w[LENGTH] - from;
    const int len = static_cast<int>(left < BLOCK ? left : BLOCK);
    const T* source = data_at<const T>(p.w[SOURCE]) + place(table, p.w[KEPT], slice);
    T* target = data_at<T>(p.w[TARGET]) + place(table, p.w[TARGET_KEPT], slice);
    if (!p.w[REDUCED] && !p.w[TARGET_REDUCED]) {
        copy_scaled<TEAM>(source + from, target + from, len, thread, scales, factor);
        return;
    }
    for (word k = from + thread; k < from + len; k += TEAM) {
        const T x = source[place(table, p.w[REDUCED], k)];
        target[place(table, p.w[TARGET_REDUCED], k)] = scales ? scaled(x, factor) : x;
    }
}

// The Euclidean norms of slices. If there is a target, each slice is scaled by its own norm, in one pass over the device's
// memory: the team that has read a slice writes it, while the caches hold it. Of short slices a warp has several, so that what
// follows from their norms is computed for all of them at once.
template <class T, int TEAM> KERNEL_FOR(TEAM < THREADS ? 4 : 3) rows(const __grid_constant__ Params p) {
    __shared__ double sums[2 * CHUNK_BLOCKS];
    const word* table = table_of(p);
    const Order order = {ORDER_TWO, 2.0, is_wide(code_of<T>::value), false, false};
    const word len = p.w[LENGTH];
    const bool in_place = p.w[FLAGS] & IN_PLACE;
    const TypedReader<T> all = typed_reader<T>(p, table);
    each_slice<TEAM>(p, [&](word i, int thread) {
        const TypedReader<T> reader = all.moved(place(table, p.w[KEPT], i));
        TeamPasses<TypedReader<T>, TEAM> passes = {reader, sums, len};
        const Scaled norm = norm_of(order, passes);
        if (thread == 0) settle_slice(p, i, norm);
        if (!p.w[TARGET]) return;
        Factor factor;
        const bool scales = factor_of(p, norm, &factor);
        if (!scales && in_place) return;
        for (word from = thread / IN_WARP<TEAM> * BLOCK; from < len; from += TEAM / IN_WARP<TEAM> * BLOCK) {
            write_block<IN_WARP<TEAM>, T>(p, table, i, from, thread % IN_WARP<TEAM>, scales, factor);
        }
    });
}

// ---- columns: slices side by side

// How a block of threads covers columns: `width` threads stand side by side, and `groups` of them one below the other. A thread
// has 64 rows of COLUMNS neighbouring columns at a time.
template <int COLUMNS> struct Tiles {
    int width, groups;
    word count; // of tiles side by side

    DEV_METHOD explicit Tiles(word columns) {
        width = 8;
        while (width < TILE && width * COLUMNS < columns) width *= 2;
        groups = THREADS / width;
        count = (columns + width * COLUMNS - 1) / (width * COLUMNS);
    }
    DEV_METHOD word column(word item) const { return (item % count * width + threadIdx.x % width) * COLUMNS; }
    DEV_METHOD int group() const { return threadIdx.x / width; }
};

// Sums of columns. 64 rows are added up, one accumulator a column, then come the next; these sums are put together in order,
// RUN rows of them here, and the runs in `column_norms`.
template <class R> DEV void sum_columns(const Params& p, const Order& order, const R& like) {
    enum : int { COLUMNS = R::COLUMNS };
    __shared__ double near[COLUMNS][THREADS];
    const word* table = table_of(p);
    const word count = p.w[COUNT], len = p.w[LENGTH], run = p.w[RUN], runs = (len + run - 1) / run;
    const Tiles<COLUMNS> tiles(count);
    const int groups = tiles.groups, group = tiles.group();
    double* totals = at<double>(p.w[PARTS_AT]);
    Term term = term_of(order.kind == ORDER_ONE ? TERM_ABS : order.kind == ORDER_TWO ? TERM_SQUARE : TERM_SIMPLE, 1.0);
    term.simple = order.kind == ORDER_SIMPLE ? simple_of(order.p) : 0;
    term.in_columns = true;
    const int limbs = term.kind == TERM_ABS ? limbs_of(like.dtype) : 1;
    for (word item = blockIdx.x; item < tiles.count * runs; item += gridDim.x) {
        const word column = tiles.column(item), of = item / tiles.count;
        const bool has_any = column < count;
        const word from = of * run, to = from + run < len ? from + run : len;
        const R reader = like.moved(has_any ? place(table, p.w[KEPT], column) : 0);
        Total of_run[COLUMNS] = {};
        for (int limb = 0; limb < limbs; limb++) {
            if (limbs > 1) term.limb = limb;
            for (word first = from; first < to; first += groups * ROWS_OF_BLOCK) {
                const word begin = first + group * ROWS_OF_BLOCK, left = to - begin;
                double sums[COLUMNS] = {};
                if (has_any && left > 0) {
                    reader.add_rows(sums, term, begin, static_cast<int>(left < ROWS_OF_BLOCK ? left : ROWS_OF_BLOCK));
                }
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) near[j][threadIdx.x] = sums[j];
                __syncthreads();
                if (group == 0) {
                    for (int k = 0; k < groups && first + k * ROWS_OF_BLOCK < to; k++) {
#pragma unroll
                        for (int j = 0; j < COLUMNS; j++) add(&of_run[j], near[j][k * tiles.width + threadIdx.x]);
                    }
                }
                __syncthreads();
            }
        }
        if (group != 0 || !has_any) continue;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            totals[2 * (of * count + column + j)] = of_run[j].sum;
            totals[2 * (of * count + column + j) + 1] = of_run[j].error;
        }
    }
}

template <class> KERNEL columns(const __grid_constant__ Params p) {
    const Reader reader = {at<const void>(p.w[SOURCE]), table_of(p), 0, p.w[REDUCED], static_cast<int>(p.w[DTYPE])};
    sum_columns(p, order_of(p), reader);
}

template <class T, int PER_THREAD> KERNEL_FOR(3) columns_of(const __grid_constant__ Params p) {
    const Order order = {ORDER_TWO, 2.0, is_wide(code_of<T>::value), false, false};
    sum_columns(p, order, ColumnReader<T, PER_THREAD>{typed_reader<T>(p, table_of(p))});
}

// Passes over one column by one thread, where the first sum has left the range: in the order of a slice alone.
struct ColumnPasses {
    const Reader& reader;
    word len;
    double first;

    COLD_METHOD double pass(const Term& term) {
        SpanSum all = span_sum_zero();
        for (word chunk = 0; chunk < len; chunk += CHUNK_BLOCKS * static_cast<word>(BLOCK)) {
            Total of_chunk = total_zero();
            for (word from = chunk; from < len && from < chunk + CHUNK_BLOCKS * static_cast<word>(BLOCK); from += BLOCK) {
                const int of = static_cast<int>(len - from < BLOCK ? len - from : BLOCK);
                double lanes[32];
                for (int lane = 0; lane < 32; lane++) {
                    lanes[lane] = 0.0;
                    reader.template add<32>(&lanes[lane], term, from, lane, of);
                }
                for (int width = 16; width; width /= 2) {
                    for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
                }
                add(&of_chunk, lanes[0]);
            }
            add_chunk(&all, of_chunk);
        }
        return value_of(sum_of_spans(all));
    }
    DEV_METHOD double sum(const Term& term) { return term.by == 1.0 ? first : pass(term); }
    COLD_METHOD double max(double by) {
        u64 key = 0;
        for (word i = 0; i < len; i++) {
            const u64 own = reader.key(i, by);
            if (own > key) key = own;
        }
        return of_key(key);
    }
    DEV_METHOD Scaled power_root(const Term& term, Scaled peak) { return ::power_root(term.power, peak, pass(term)); }
};

template <class> KERNEL_FOR(1) column_norms(const __grid_constant__ Params p) {
    const word* table = table_of(p);
    const Order order = order_of(p);
    const double* totals = at<const double>(p.w[PARTS_AT]);
    const word count = p.w[COUNT], runs = (p.w[LENGTH] + p.w[RUN] - 1) / p.w[RUN];
    const word step = gridDim.x * static_cast<word>(THREADS);
    for (word i = blockIdx.x * static_cast<word>(THREADS) + threadIdx.x; i < count; i += step) {
        const Total total = merge_all(total_zero(), totals + 2 * i, static_cast<int>(runs), count);
        const Reader reader = {at<const void>(p.w[SOURCE]), table, place(table, p.w[KEPT], i), p.w[REDUCED],
                               static_cast<int>(p.w[DTYPE])};
        ColumnPasses passes = {reader, p.w[LENGTH], value_of(total)};
        settle_slice(p, i, norm_of(order, passes));
    }
}

// The factor of a slice, as `settle_slice` left it.
DEV Factor factor_at(const Params& p, word i) {
    const double* factors = at<const double>(p.w[FACTORS_AT]);
    return Factor{factors[i], factors[p.w[COUNT] + i]};
}
DEV bool is_one(Factor factor) { return factor.by == 1.0 && factor.then == 1.0; }

// Scales each column by its own factor, the last rows first: the L2 cache still holds what was read last.
template <class T, int PER_THREAD> KERNEL_FOR(3) scale_columns(const __grid_constant__ Params p) {
    typedef Pack<T, PER_THREAD> Row;
    const word* table = table_of(p);
    const word count = p.w[COUNT], len = p.w[LENGTH];
    const bool in_place = p.w[FLAGS] & IN_PLACE;
    const word reduced = p.w[REDUCED], target_reduced = p.w[TARGET_REDUCED];
    const word source_step = stride_of(table, reduced), target_step = stride_of(table, target_reduced);
    const Tiles<PER_THREAD> tiles(count);
    const word rows_each = tiles.groups * static_cast<word>(ROWS_OF_BLOCK);
    for (word item = (len + rows_each - 1) / rows_each * tiles.count - 1 - blockIdx.x; item >= 0; item -= gridDim.x) {
        const word column = tiles.column(item), from = item / tiles.count * rows_each + tiles.group() * ROWS_OF_BLOCK;
        if (column >= count || from >= len) continue;
        Factor factors[PER_THREAD];
        bool are_one = true;
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            factors[j] = factor_at(p, column + j);
            are_one &= is_one(factors[j]);
        }
        if (in_place && are_one) continue;
        const int rows = static_cast<int>(len - from < ROWS_OF_BLOCK ? len - from : ROWS_OF_BLOCK);
        const T* source = data_at<const T>(p.w[SOURCE]) + place(table, p.w[KEPT], column);
        T* target = data_at<T>(p.w[TARGET]) + place(table, p.w[TARGET_KEPT], column);
        if (PER_THREAD == 1 && !(source_step && target_step)) {
            for (word k = from; k < from + rows; k++) {
                target[place(table, target_reduced, k)] = scaled(source[place(table, reduced, k)], factors[0]);
            }
            continue;
        }
        source += from * source_step;
        target += from * target_step;
        enum : int { AT_ONCE = PER_THREAD == 1 ? 16 : 4 };
        for (int first = 0; first < rows; first += AT_ONCE) {
            Row loaded[AT_ONCE]; // so that all are under way at once
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const T* own = source + (first + k) * source_step;
                loaded[k] = first + k < rows ? *reinterpret_cast<const Row*>(own) : Row();
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                if (first + k >= rows) break;
                Row made;
#pragma unroll
                for (int j = 0; j < PER_THREAD; j++) made.element[j] = scaled(loaded[k].element[j], factors[j]);
                *reinterpret_cast<Row*>(target + (first + k) * target_step) = made;
            }
        }
    }
}

// The largest norm along the middle one of three axes of norms.
template <class> KERNEL largest(const __grid_constant__ Params p) {
    const double* values = at<const double>(p.w[SOURCE]);
    const word all = p.w[OUTER] * p.w[MIDDLE] * p.w[INNER];
    const word* exponents = at<const word>(p.w[SOURCE]) + all;
    const word step = gridDim.x * static_cast<word>(THREADS);
    for (word i = blockIdx.x * static_cast<word>(THREADS) + threadIdx.x; i < p.w[COUNT]; i += step) {
        const word outer = i / p.w[INNER], inner = i % p.w[INNER];
        Scaled norm = scaled_zero();
        for (word k = 0; k < p.w[MIDDLE]; k++) {
            const word from = (outer * p.w[MIDDLE] + k) * p.w[INNER] + inner;
            norm = scaled_max(norm, Scaled{values[from], exponents[from]});
        }
        settle_slice(p, i, norm);
    }
}

// Norms that were made elsewhere: COUNT values, and as many exponents, which are float64 too.
template <class> KERNEL singular(const __grid_constant__ Params p) {
    const double* values = at<const double>(p.w[SOURCE]);
    const word step = gridDim.x * static_cast<word>(THREADS);
    for (word i = blockIdx.x * static_cast<word>(THREADS) + threadIdx.x; i < p.w[COUNT]; i += step) {
        settle_slice(p, i, scaled_new(values[i], static_cast<word>(values[p.w[COUNT] + i])));
    }
}

// Scales each slice by its own factor, a block of it by a team.
template <class T, int TEAM> KERNEL scale_slices(const __grid_constant__ Params p) {
    const word* table = table_of(p);
    const word len = p.w[LENGTH], blocks = (len + BLOCK - 1) / BLOCK;
    const bool in_place = p.w[FLAGS] & IN_PLACE;
    const word step = gridDim.x * static_cast<word>(THREADS / TEAM);
    for (word item = blockIdx.x * static_cast<word>(THREADS / TEAM) + threadIdx.x / TEAM; item < p.w[COUNT] * blocks; item += step) {
        const word slice = item / blocks, from = (item - slice * blocks) * BLOCK;
        const Factor factor = factor_at(p, slice);
        if (in_place && is_one(factor)) continue;
        write_block<TEAM, T>(p, table, slice, from, threadIdx.x % TEAM, true, factor);
    }
}
