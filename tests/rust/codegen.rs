//! The machine code of the kernels. At every level, the hot loop of each must use the level's registers, make no call, do no
//! scalar arithmetic, and have no more instructions than it had.
//!
//! Instructions are counted in the machine code, so the number is the same on every machine and under any load. The code is the
//! shipped code only if this file is built as the extension is, and the symbols of generic functions have types only in Rust's
//! v0 mangling: `.ci/codegen` (`make codegen`) ensures both.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::expect_used, clippy::panic, missing_docs, reason = "a test")]

mod common;

use std::any::type_name;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::hint::black_box;
use std::iter::{Copied, Repeat};
use std::ops::Bound::{Excluded, Included};
use std::process::Command;
use std::slice::Iter;
use std::vec;

use _core::element::{Bf16, Element, F16};
use _core::isa::{Baseline, Identity, Isa, Lines, Op, Stream};
use _core::kernel::clip::{AnyOutside, Between, Clip, ClipEach};
use _core::kernel::examples::Share;
use _core::kernel::halves::{FromSingles, HalfTimes, ScaleHalves};
use _core::kernel::map::{AnyChange, Apply, ApplyEach};
use _core::kernel::max::{MaxAbs, MaxRow};
use _core::kernel::power::{HalfPower, PowerTerms};
use _core::kernel::rows::ScaleRows;
use _core::kernel::scale::Times;
use _core::kernel::scale_each::ScaleEach;
use _core::kernel::sum::{Abs, AddDenseRows, AddRows, Square, Sum, SumEach};
use _core::kernel::widen::Widen;

/// The levels, in the order of the table in `isa.rs`, and the names of their registers.
const LEVELS: [(&str, Register); 3] = [
    ("baseline", Register { name: "%xmm", bytes: 16 }),
    ("x86-64-v3", Register { name: "%ymm", bytes: 32 }),
    ("x86-64-v4", Register { name: "%zmm", bytes: 64 }),
];

/// A level that runs functions of two other levels, and has no functions itself.
const COMPOSED: &str = "x86-64-v4-zen4";

#[derive(Clone, Copy)]
struct Register {
    name: &'static str,
    bytes: usize,
}

/// The unit in which the elements of a loop are counted.
#[derive(Clone, Copy)]
enum Unit {
    /// Each element is a number of so many bytes in an instruction of this name, or of one of these: "a|b". (A leading "v" is
    /// left out.)
    Done(&'static str, usize),
    /// Each element is stored once, as so many bytes.
    Stored(usize),
}
use Unit::{Done, Stored};

/// Elements for which instructions are counted.
const COUNTED: usize = 64;

/// The requirements of an operation.
struct Probe {
    operation: String,
    unit: Unit,
    /// The number of loops that have to be so.
    loops: usize,
    /// The most instructions that [`COUNTED`] elements may take, by level. 0: no wide registers are required.
    most: [usize; LEVELS.len()],
}

/// The operation, compiled out of line for the baseline.
#[inline(never)]
fn baseline<O: Op>(op: O) -> O::Output {
    op.eval(Baseline)
}

/// Makes the compiler compile the operation.
fn probe<O: Op>(unit: Unit, most: [usize; LEVELS.len()]) -> Probe {
    black_box(baseline::<O> as fn(O) -> O::Output);
    black_box(Isa::run::<O> as fn(Isa, O) -> O::Output);
    Probe { operation: short(type_name::<O>()), unit, loops: 1, most }
}

/// [`probe`] for an operation with a loop for slices in place and one from other slices.
fn probe_both<O: Op>(unit: Unit, most: [usize; LEVELS.len()]) -> Probe {
    Probe { loops: 2, ..probe::<O>(unit, most) }
}

/// The slices of an operation on several, and their functions.
type Slices<'a, T> = vec::IntoIter<(Option<&'a [T]>, &'a mut [T], Times<false>)>;
/// The sequences of a sum of several, and the places of their sums.
type Sequences<'a, T> = vec::IntoIter<(usize, &'a [T], &'a mut f64)>;

/// [`probe`] for an operation that streams.
fn streamed<T: Element, F: Lines<T>>(unit: Unit, most: [usize; LEVELS.len()]) -> Probe {
    probe::<Stream<'_, T, F>>(unit, most)
}

/// A type without its modules and lifetimes.
fn short(name: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in name.replace("'_, ", "").replace("<'_>", "").chars() {
        match c {
            ':' => word.clear(),
            c if c.is_alphanumeric() || c == '_' => word.push(c),
            c => {
                out += &word;
                word.clear();
                out.push(c);
            }
        }
    }
    out + &word
}

struct Instruction {
    at: u64,
    name: String,
    operands: String,
}

/// A line of objdump's listing.
fn instruction(line: &str) -> Option<Instruction> {
    let (at, code) = line.split_once(":\t")?;
    let at = u64::from_str_radix(at.trim(), 16).ok()?;
    // Prefixes are words of their own.
    let code = code.trim_start_matches("data16 ").trim_start_matches("cs ");
    let (name, operands) = code.split_once(' ').unwrap_or((code, ""));
    Some(Instruction { at, name: name.trim().to_owned(), operands: operands.trim().to_owned() })
}

impl Instruction {
    /// The target of a jump.
    fn target(&self) -> Option<u64> {
        let target = self.name.starts_with('j').then(|| self.operands.split(' ').next()).flatten()?;
        u64::from_str_radix(target, 16).ok()
    }

    fn plain_name(&self) -> &str {
        self.name.strip_prefix('v').unwrap_or(&self.name)
    }

    fn is_call(&self) -> bool {
        self.name.starts_with("call")
    }

    /// Whether it is scalar floating-point arithmetic.
    fn is_scalar(&self) -> bool {
        let name = self.plain_name();
        ["add", "sub", "mul", "fmadd", "div", "min", "max", "sqrt", "cmp", "ucomi", "comi", "cvt"]
            .iter()
            .any(|start| name.starts_with(start))
            && ["ss", "sd"].iter().any(|end| name.ends_with(end))
    }

    /// Whether it writes a register to memory other than the stack.
    fn is_packed_store(&self) -> bool {
        ["movu", "mova", "movdqu", "movdqa", "movnt"].iter().any(|start| self.plain_name().starts_with(start))
            && self.operands.ends_with(')')
            && !self.operands.contains("%rsp")
    }

    /// The number of elements it handles, if it is one of the counted instructions.
    fn elements(&self, unit: Unit, register: Register) -> usize {
        if !self.operands.contains(register.name) {
            return 0;
        }
        match unit {
            Done(names, bytes) if names.split('|').any(|name| name == self.plain_name()) => {
                register.bytes / bytes
            }
            Stored(bytes) if self.is_packed_store() => register.bytes / bytes,
            _ => 0,
        }
    }
}

/// The loops that hold no other loop.
fn innermost(function: &[Instruction]) -> Vec<&[Instruction]> {
    let place: HashMap<u64, usize> = function.iter().enumerate().map(|(i, one)| (one.at, i)).collect();
    let mut ends = BTreeMap::new();
    for (i, one) in function.iter().enumerate() {
        if let Some(&head) = one.target().and_then(|target| place.get(&target))
            && head <= i
        {
            ends.entry(head).and_modify(|end: &mut usize| *end = i.max(*end)).or_insert(i);
        }
    }
    // A loop may be a single jump to itself.
    let holds_none = |head, end| ends.range((Excluded(head), Included(end))).next().is_none();
    ends.iter()
        .filter(|(head, end)| holds_none(**head, **end))
        .map(|(head, end)| &function[*head..=*end])
        .collect()
}

/// The number of instructions for [`COUNTED`] elements in the worst of the function's `least` best loops, or the error.
fn count(function: &[Instruction], unit: Unit, register: Register, least: usize) -> Result<usize, String> {
    let loops = innermost(function);
    let counted = |body: &&[Instruction]| {
        let elements: usize = body.iter().map(|one| one.elements(unit, register)).sum();
        (elements > 0).then(|| (body.len() * COUNTED).div_ceil(elements))
    };
    let mut best: Vec<_> = loops.iter().filter_map(|body| Some((body, counted(body)?))).collect();
    best.sort_by_key(|(_, count)| *count);
    let Some((_, count)) = best.get(least - 1) else {
        let used = |(_, register): &&(&str, Register)| {
            loops.iter().any(|body| body.iter().any(|one| one.operands.contains(register.name)))
        };
        let widest = LEVELS.iter().rfind(used).map_or("none", |(_, register)| register.name);
        let wanted = match unit {
            Done(names, _) => names,
            Stored(_) => "store",
        };
        return Err(format!(
            "no {wanted} of {} in its loops; the widest register in its {} innermost loops: {widest}",
            register.name,
            loops.len()
        ));
    };
    for (body, _) in &best[..least] {
        if let Some(call) = body.iter().find(|one| one.is_call()) {
            return Err(format!("its loop calls {}", call.operands));
        }
        if let Some(scalar) = body.iter().find(|one| one.is_scalar()) {
            return Err(format!("its loop has {} {}", scalar.name, scalar.operands));
        }
    }
    Ok(*count)
}

/// The functions of a listing, by symbol.
fn functions(listing: &str) -> HashMap<&str, Vec<Instruction>> {
    let mut found = HashMap::new();
    for part in listing.split("\n\n") {
        let mut lines = part.lines();
        let head = lines.next().and_then(|line| line.split_once('<')?.1.strip_suffix(">:"));
        if let Some(symbol) = head {
            found.insert(symbol, lines.filter_map(instruction).collect());
        }
    }
    found
}

/// The number of the level and the operation, if the symbol is a function that [`probe`] compiled.
fn level_and_operation(symbol: &str, demangled: &str) -> Option<(usize, String)> {
    let operation = |after: &str| Some(short(demangled.split_once(after)?.1.strip_suffix('>')?));
    if let Some(operation) = operation("::baseline::<") {
        return Some((0, operation));
    }
    // Functions of one name in one place are numbered.
    let path = symbol.split_once("10trampoline")?.0;
    let level = match path.rsplit_once("3run")?.1 {
        "" => 1,
        "s_" => 2,
        _ => return None,
    };
    Some((level, operation("::trampoline::<")?))
}

fn tool(name: &str, arguments: &[&str]) -> String {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(name).args(arguments).arg(program).output().expect("binutils");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The hot loops, and the most instructions for [`COUNTED`] elements: the present number and a seventh more. Lower a number
/// when a loop gets shorter; raise one only for a reason. Zeros are loops that are known not to be wide: float16 at the
/// baseline, which branches; 64-bit integers at the baseline, which lacks the comparison; bounds for each element, tested in
/// narrow registers; and streams at the baseline, which are inlined. Of the three loops of a power only the first, which
/// divides, and the last, which shifts, are tested. 16-bit elements are scaled by two products each, so [`COUNTED`] products
/// are half as many elements.
fn probes() -> Vec<Probe> {
    const SUM: Unit = Done("addpd", 8);
    /// For levels that fuse the addition with the square.
    const SQUARE: Unit = Done("addpd|fmadd213pd|fmadd231pd", 8);
    const PRODUCT: Unit = Done("mulpd", 8);
    vec![
        probe::<Sum<'_, f32, Square>>(SQUARE, [187, 46, 29]),
        probe::<Sum<'_, f64, Square>>(SUM, [191, 68, 42]),
        probe::<Sum<'_, Bf16, Square>>(SQUARE, [247, 81, 44]),
        probe::<Sum<'_, f32, Abs>>(SUM, [235, 63, 35]),
        probe::<Sum<'_, f64, Abs>>(SUM, [194, 51, 33]),
        probe::<Sum<'_, Bf16, Abs>>(SUM, [251, 99, 53]),
        probe::<Sum<'_, f64, HalfPower<3>>>(SUM, [205, 86, 51]),
        probe::<Sum<'_, f64, HalfPower<6>>>(SUM, [302, 103, 59]),
        probe::<PowerTerms<'_, f32>>(Done("divpd", 8), [1243, 457, 182]),
        probe::<PowerTerms<'_, f32>>(Done("psllq", 8), [1462, 640, 292]),
        probe::<PowerTerms<'_, f64>>(Done("divpd", 8), [1206, 438, 173]),
        probe::<PowerTerms<'_, f64>>(Done("psllq", 8), [1462, 658, 292]),
        probe::<Sum<'_, F16, Square>>(SQUARE, [0, 44, 27]),
        probe::<Sum<'_, F16, Abs>>(SUM, [0, 64, 35]),
        probe::<Sum<'_, F16, Abs>>(Done("cvtph2ps", 4), [0, 28, 23]),
        probe::<FromSingles<'_, F16>>(Done("cvtps2ph", 4), [0, 28, 19]),
        probe::<SumEach<Sequences<'_, f32>, Square>>(SQUARE, [191, 46, 29]),
        probe::<SumEach<Sequences<'_, f64>, Square>>(SUM, [191, 68, 42]),
        probe::<SumEach<Sequences<'_, f32>, Abs>>(SUM, [235, 63, 35]),
        probe::<AddRows<'_, f32, Square, 1>>(SQUARE, [240, 69, 35]),
        probe::<AddRows<'_, f32, Square, 4>>(SQUARE, [157, 56, 28]),
        probe::<AddRows<'_, f64, Square, 4>>(SUM, [157, 74, 37]),
        probe::<AddRows<'_, f32, Abs, 4>>(SUM, [194, 74, 37]),
        probe::<AddDenseRows<'_, f32, Repeat<Square>>>(SQUARE, [240, 56, 35]),
        probe::<AddDenseRows<'_, f64, Repeat<Square>>>(SUM, [240, 74, 44]),
        probe::<AddDenseRows<'_, f32, Copied<Iter<'_, Share<false>>>>>(SUM, [136, 70, 38]),
        probe::<AddRows<'_, Bf16, Square, 4>>(SQUARE, [267, 92, 46]),
        probe::<AddRows<'_, f32, Share<false>, 8>>(SUM, [132, 64, 32]),
        probe::<MaxAbs<'_, f32>>(Done("pcmpgtd|pmaxsd|pmaxud", 4), [175, 26, 13]),
        probe::<MaxAbs<'_, f64>>(Done("pcmpgtd|pcmpgtq|pmaxuq", 8), [718, 106, 26]),
        probe::<MaxAbs<'_, Bf16>>(Done("psubusw|pmaxuw", 2), [51, 13, 7]),
        probe::<MaxRow<'_, f32>>(Stored(4), [194, 35, 18]),
        probe_both::<Apply<'_, f32, Times<false>>>(PRODUCT, [175, 81, 41]),
        probe_both::<Apply<'_, f64, Times<false>>>(PRODUCT, [166, 51, 26]),
        probe_both::<Apply<'_, F16, Times<false>>>(PRODUCT, [0, 994, 281]),
        probe_both::<Apply<'_, Bf16, Times<false>>>(PRODUCT, [1160, 378, 133]),
        probe_both::<ApplyEach<Slices<'_, f32>>>(PRODUCT, [175, 81, 41]),
        probe_both::<ApplyEach<Slices<'_, f64>>>(PRODUCT, [166, 51, 26]),
        probe::<ScaleHalves<'_, Bf16, false>>(Done("mulps", 4), [134, 53, 28]),
        probe::<ScaleHalves<'_, F16, false>>(Done("mulps", 4), [0, 58, 29]),
        probe_both::<ScaleRows<'_, f32, false>>(PRODUCT, [160, 83, 46]),
        probe_both::<ScaleRows<'_, f64, false>>(PRODUCT, [160, 46, 28]),
        probe_both::<ScaleRows<'_, Bf16, false>>(PRODUCT, [341, 156, 74]),
        probe::<ScaleEach<'_, f32>>(PRODUCT, [1120, 416, 136]),
        probe_both::<Apply<'_, f32, Clip<f32>>>(Stored(4), [138, 35, 18]),
        probe_both::<Apply<'_, f64, Clip<f64>>>(Stored(8), [276, 69, 35]),
        probe_both::<Apply<'_, F16, Clip<F16>>>(Stored(2), [267, 115, 42]),
        probe_both::<Apply<'_, Bf16, Clip<Bf16>>>(Stored(2), [267, 115, 42]),
        probe_both::<Apply<'_, i8, Clip<i8>>>(Stored(1), [63, 10, 5]),
        probe_both::<Apply<'_, i32, Clip<i32>>>(Stored(4), [249, 35, 18]),
        probe_both::<Apply<'_, i64, Clip<i64>>>(Stored(8), [0, 125, 35]),
        probe_both::<Apply<'_, u16, Clip<u16>>>(Stored(2), [88, 18, 10]),
        probe::<AnyChange<'_, f32, Clip<f32>>>(Done("cmpordps", 4), [212, 136, 44]),
        probe::<AnyChange<'_, f64, Clip<f64>>>(Done("cmpordpd", 8), [424, 263, 88]),
        probe::<AnyChange<'_, Bf16, Clip<Bf16>>>(Done("psubw", 2), [175, 102, 29]),
        probe::<ClipEach<'_, f32>>(Stored(4), [534, 161, 72]),
        probe::<AnyOutside<'_, f32>>(Done("cmpordps", 4), [249, 0, 0]),
        probe::<Widen<'_, i32>>(Stored(8), [424, 125, 44]),
        streamed::<f32, Identity>(Stored(4), [0, 64, 51]),
        streamed::<f32, Times<false>>(PRODUCT, [0, 119, 78]),
        streamed::<f64, Times<false>>(PRODUCT, [0, 128, 101]),
        streamed::<f32, Between<f32>>(Stored(4), [0, 74, 55]),
        streamed::<f64, Between<f64>>(Stored(8), [0, 147, 110]),
        streamed::<F16, Between<F16>>(Stored(2), [0, 145, 42]),
        streamed::<Bf16, Between<Bf16>>(Stored(2), [0, 145, 42]),
        streamed::<Bf16, HalfTimes<false>>(Done("mulps", 4), [0, 200, 96]),
        streamed::<F16, HalfTimes<false>>(Done("mulps", 4), [0, 141, 76]),
        streamed::<u8, Between<u8>>(Stored(1), [0, 19, 14]),
        streamed::<i64, Between<i64>>(Stored(8), [0, 202, 110]),
    ]
}

/// Run by `.ci/codegen`, which builds this file so that it can be.
#[test]
#[ignore = "wants a build as the extension's: make codegen"]
fn the_hot_loops_are_as_wide_as_the_level_and_as_short_as_they_were() {
    for isa in Isa::available() {
        let is_known = isa.name() == COMPOSED || LEVELS.iter().any(|(name, _)| *name == isa.name());
        assert!(is_known, "{} is not in the list", isa.name());
    }
    let probes = probes();
    let (symbols, demangled) = (tool("nm", &["-p"]), tool("nm", &["-p", "--demangle=rust"]));
    let listing = tool("objdump", &["--disassemble", "--no-show-raw-insn"]);
    let functions = functions(&listing);
    let mut compiled = HashMap::new();
    for (symbol, demangled) in symbols.lines().zip(demangled.lines()) {
        let symbol = symbol.rsplit(' ').next().unwrap_or_default();
        if let (Some(key), Some(function)) = (level_and_operation(symbol, demangled), functions.get(symbol)) {
            compiled.insert(key, function);
        }
    }
    let halves = [(short(type_name::<Bf16>()), "Bf16"), (short(type_name::<F16>()), "F16")];
    let (mut faults, mut table) = (String::new(), String::new());
    for Probe { operation, unit, loops, most } in probes {
        let shown = halves.iter().fold(operation.clone(), |shown, (long, name)| shown.replace(long, name));
        let mut counts = String::new();
        for (level, ((name, register), most)) in LEVELS.into_iter().zip(most).enumerate() {
            if most == 0 {
                counts += " -";
                continue;
            }
            let found = match compiled.get(&(level, operation.clone())) {
                Some(function) => count(function, unit, register, loops),
                None => Err("no function of its own".to_owned()),
            };
            counts += &found.as_ref().map_or(" ?".to_owned(), |count| format!(" {count}"));
            let fault = match found {
                Ok(count) if count <= most => continue,
                Ok(count) => {
                    format!("{count} instructions for {COUNTED} elements in its loop, more than {most}")
                }
                Err(fault) => fault,
            };
            writeln!(faults, "codegen: {shown} at {name}: {fault}").expect("room");
        }
        writeln!(table, "{shown}:{counts}").expect("room");
    }
    println!("instructions for {COUNTED} elements, by level:\n{table}");
    assert!(faults.is_empty(), "\n{faults}");
}

/// A function that begins at 0x10, an instruction at each address.
fn function(instructions: &[&str]) -> Vec<Instruction> {
    let lines = instructions.iter().enumerate().map(|(i, text)| format!("  {:x}:\t{text}", i + 0x10));
    lines.map(|line| instruction(&line).expect("an instruction")).collect()
}

const ZMM: Register = LEVELS[2].1;
const YMM: Register = LEVELS[1].1;
const ADDED: Unit = Done("addpd", 8);

#[test]
fn the_best_of_the_innermost_loops_counts() {
    let sum = function(&[
        "call   5 <before>",
        "vcvtps2pd (%rdi),%zmm1", // 11, the wide loop
        "vaddpd %zmm1,%zmm0,%zmm0",
        "add    $0x20,%rdi",
        "jne    11 <sum+0x1>",
        "vcvtss2sd (%rdi),%xmm1,%xmm1", // 15, the rest
        "vaddsd %xmm1,%xmm0,%xmm0",
        "jne    15 <sum+0x5>",
        "call   5 <fold>",
        "jne    11 <sum+0x1>", // around both: the loop at 11 has two ends, and holds the one at 15
        "ret",
    ]);
    assert_eq!(innermost(&sum).iter().map(|body| body[0].at).collect::<Vec<_>>(), [0x15]);
    let (head, rest) = (&sum[..5], &sum[5..8]);
    assert_eq!(count(head, ADDED, ZMM, 1), Ok(4 * COUNTED / 8));
    assert!(count(head, ADDED, ZMM, 2).is_err());
    assert!(count(rest, ADDED, ZMM, 1).is_err_and(|fault| fault.contains("no addpd of %zmm")));

    let stores =
        function(&["vmovups (%rsi),%zmm0", "vmovups %zmm0,(%rdi)", "vmovups %zmm0,0x8(%rsp)", "jne 10 <f>"]);
    assert_eq!(count(&stores, Stored(4), ZMM, 1), Ok(4 * COUNTED / 16));
}

#[test]
fn a_loop_can_be_bad() {
    let fault = |instructions: &[&str], register| {
        count(&function(instructions), ADDED, register, 1).expect_err("a fault")
    };
    assert_eq!(
        fault(&["vaddpd %ymm1,%ymm0,%ymm0", "jne 10 <f>"], ZMM),
        "no addpd of %zmm in its loops; the widest register in its 1 innermost loops: %ymm"
    );
    assert_eq!(
        fault(&["vaddpd %ymm1,%ymm0,%ymm0"], YMM),
        "no addpd of %ymm in its loops; the widest register in its 0 innermost loops: none"
    );
    assert_eq!(
        fault(&["vaddpd %ymm1,%ymm0,%ymm0", "call 99 <fold>", "jne 10 <f>"], YMM),
        "its loop calls 99 <fold>"
    );
    assert_eq!(
        fault(&["vaddpd %ymm1,%ymm0,%ymm0", "vmulsd %xmm1,%xmm1,%xmm2", "jne 10 <f>"], YMM),
        "its loop has vmulsd %xmm1,%xmm1,%xmm2"
    );
}
