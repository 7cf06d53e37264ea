//! Rules of the source: the allowed imports, the places of `unsafe`, and functions that must not be called.

#![allow(clippy::expect_used, missing_docs, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Blanks comments and the contents of strings and character literals; line numbers are kept.
fn code(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let starts = |at: usize, word: &str| word.chars().enumerate().all(|(i, c)| text.get(at + i) == Some(&c));
    let mut out = String::new();
    let mut at = 0;
    while at < text.len() {
        let from = at;
        let in_word = at > 0 && (text[at - 1].is_alphanumeric() || text[at - 1] == '_');
        let hashes = text[at + 1..].iter().take_while(|c| **c == '#').count();
        if starts(at, "//") {
            while at < text.len() && text[at] != '\n' {
                at += 1;
            }
        } else if starts(at, "/*") {
            let mut depth = 0;
            while at < text.len() {
                if starts(at, "/*") {
                    (depth, at) = (depth + 1, at + 2);
                } else if starts(at, "*/") {
                    (depth, at) = (depth - 1, at + 2);
                    if depth == 0 {
                        break;
                    }
                } else {
                    at += 1;
                }
            }
        } else if text[at] == 'r' && !in_word && text.get(at + 1 + hashes) == Some(&'"') {
            let end = format!("\"{}", "#".repeat(hashes));
            at += 2 + hashes;
            while at < text.len() && !starts(at, &end) {
                at += 1;
            }
            at = text.len().min(at + end.len());
        } else if text[at] == '"' {
            at += 1;
            while at < text.len() && text[at] != '"' {
                at += if text[at] == '\\' { 2 } else { 1 };
            }
            at = text.len().min(at + 1);
        } else if text[at] == '\'' && (text.get(at + 1) == Some(&'\\') || text.get(at + 2) == Some(&'\'')) {
            at += if text[at + 1] == '\\' { 3 } else { 2 };
            while at < text.len() && text[at] != '\'' {
                at += 1;
            }
            at = text.len().min(at + 1);
        } else {
            out.push(text[at]);
            at += 1;
            continue;
        }
        out.extend(text[from..at].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
    }
    out
}

/// Blanks the modules under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut kept = code.to_owned();
    while let Some(from) = kept.find("#[cfg(test)]") {
        let mut depth = 0;
        let mut end = kept.len();
        for (i, c) in kept[from..].char_indices() {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            if (c == '}' || c == ';') && depth == 0 {
                end = from + i + 1;
                break;
            }
        }
        let blank: String = kept[from..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        kept.replace_range(from..end, &blank);
    }
    kept
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `word` occurs in `line`, not as a part of a longer one.
fn has(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        let ends =
            |side: Option<char>, own: Option<char>| !(side.is_some_and(is_word) && own.is_some_and(is_word));
        ends(before, word.chars().next()) && ends(after, word.chars().next_back())
    })
}

/// Functions of the C library, or rounded differently from CPU to CPU: not allowed in any form.
const NOT_REPRODUCIBLE: [&str; 5] = ["mul_add", "powf", "powi", "hypot", "cbrt"];
/// The only functions that may, in full, and their files. In the first one the product is exact, so the sum is rounded once, fused
/// or not. In the second one the result is exact.
const FUSED: [(&str, &str); 2] = [
    (
        "element.rs",
        "fn fused_square(x: f32, sum: f64) -> f64 {\n    let x = f64::from(x);\n    x.mul_add(x, sum)\n}\n",
    ),
    (
        "kernel/exact.rs",
        "fn fused_error(x: f64) -> f64 {\n    let square = x * x;\n    x.mul_add(x, -square)\n}\n",
    ),
];
/// Methods that are not allowed either, although functions of this crate may have the name.
const METHODS: [&str; 9] = ["exp", "exp2", "exp_m1", "ln", "ln_1p", "log", "log2", "log10", "sin_cos"];
/// Words that may end the process of a user.
const PANICS: [&str; 7] =
    [".unwrap()", ".expect(", "panic!", "todo!", "unimplemented!", "unreachable!", "unwrap_unchecked"];

/// The modules with unsafe code, besides the parts of `py/array`.
const UNSAFE: [&str; 4] = ["isa.rs", "parallel/crew.rs", "parallel/crew/team.rs", "py/array.rs"];

/// Lines of `src/py` that index, which panics out of range: file, text of the line, and why it is in range.
const INDEXED: [(&str, &str, &str); 23] = [
    ("py/array/fields.rs", "let number = Dtype::ALL[i].number();", "at compile time"),
    (
        "py/array/fields.rs",
        "table[number.cast_unsigned() as usize] = Some(Dtype::ALL[i]);",
        "at compile time",
    ),
    ("py/array/fields.rs", "table[NPY_TYPES::NPY_LONG as usize] =", "at compile time"),
    ("py/array/fields.rs", "table[NPY_TYPES::NPY_ULONG as usize] =", "at compile time"),
    (
        "py/array/order.rs",
        "strides[axis] = step;",
        "as many strides as lengths; the axes in order are of these",
    ),
    ("py/array/order.rs", "step = step.saturating_mul(shape[axis].max(1)", "the same order"),
    (
        "py/array/order.rs",
        "*backwards = input.strides[*axis] < 0 && output.strides[*axis] < 0;",
        "the arrays of a pair have one number of axes",
    ),
    ("py/array/order.rs", "array.strides[axis] < 0", "an order of this array's axes"),
    ("py/array/order.rs", "!is_reduced(**axis) || shape[**axis] == 1", "an order of this array's axes"),
    ("py/array/order.rs", ".map(|axis| shape[*axis]).product();", "an order of this array's axes"),
    (
        "py/array/order.rs",
        "let (len, apart) = (output.shape[to], input.strides[to].unsigned_abs());",
        "the arrays of a pair have one number of axes",
    ),
    (
        "py/array/order.rs",
        "array.shape[*axis] > 1 && array.strides[*axis] != 0)",
        "an order of this array's axes",
    ),
    (
        "py/array/order.rs",
        "= (shape[axis], strides[axis] / unit);",
        "a walk is made of the axes of the array or of its pair",
    ),
    (
        "py/array/plain.rs",
        "let array = &self.arrays[at];",
        "`Views` are asked for numbers below their length",
    ),
    (
        "py/array/pair.rs",
        "pairs[i].interleaved = true;",
        "the number of an output, of which each pair has one",
    ),
    ("py/array/pair.rs", "pairs[i].copy = Some(pairs[i].input.copy()?)", "less than their number"),
    (
        "py/array/pair.rs",
        "*readers[i] = readers[i].copy()?",
        "the number of an input, counted from the end of the pairs",
    ),
    ("py/norm.rs", "match norms.values[..] {", "the whole"),
    ("py/array/plain.rs", "&self.arrays[..]", "the whole"),
    (
        "py/run.rs",
        "(&self.kept[..at], &self.kept[at + 1..]);",
        "`at` was found in it; 0 where not, and a matrix has kept axes",
    ),
    ("py/run.rs", "if kept.contains(&axis) { shape[axis] } else { 1 }", "axes of this shape"),
    ("py/run.rs", "kept.iter().map(|axis| array.shape()[*axis])", "kept axes of the array"),
    (
        "py/run.rs",
        "(axes.iter().map(|axis| shape[*axis]).collect(),",
        "kept axes of the array with this shape",
    ),
];

/// Files below `py` whose loops index, and why the indices are in range.
const LOOPS: [(&str, &str); 22] = [
    ("element.rs", "the bytes of one element, from a slice that `walk` cut to at least as many"),
    ("isa.rs", "the elements of an array on the stack; callers ask for no more than there are"),
    (
        "kernel/exact.rs",
        "arrays of lanes, in loops up to their number; rows up to the smaller of two numbers of them",
    ),
    ("kernel/halves.rs", "pieces and blocks cut to the length of the output, which is that of the source"),
    ("kernel/power.rs", "coefficients, from the last ones down by four; terms of a block, cut to its length"),
    ("kernel/rows.rs", "rows of slices whose length is a multiple of theirs"),
    ("kernel/sum.rs", "arrays of lanes, in loops up to their number; rows of slices that hold them"),
    ("parallel/columns.rs", "rows and columns of slices whose length is the product of both"),
    ("parallel/rows.rs", "rows of slices whose length is a multiple of theirs"),
    ("parallel/examples.rs", "positions of a tile, which has at most as many as accumulators"),
    ("parallel/difference.rs", "scratch for a block, cut to a part that is no longer"),
    ("parallel/reduce/columns.rs", "columns of pieces that are at most as wide as the accumulators"),
    ("parallel/reduce/list.rs", "`Views` are asked for numbers below their length"),
    ("parallel/reduce/pass.rs", "blocks, which are at most as long as the scratch"),
    (
        "parallel/reduce/slices.rs",
        "slices of an array whose length is the product of theirs and their number",
    ),
    ("walk/broadcast.rs", "the positions of a view; a row and a block have room for any block"),
    ("walk/layout.rs", "a permutation of the axes"),
    ("walk/memory.rs", "a layout stays within the extent that its memory was made of"),
    (
        "walk/slices.rs",
        "the same of kept and reduced axes; the whole of the axes; scratch has room for a piece",
    ),
    ("walk/target.rs", "a layout stays within the extent of its cells; scratch has room for a block"),
    ("walk/view.rs", "the positions of a view; scratch has room for a block"),
    ("walk/work.rs", "positions of operands that have as many; scratch has room for a block"),
];

/// Whether a line indexes or slices.
fn has_index(line: &str) -> bool {
    let chars: Vec<char> = line.chars().collect();
    (1..chars.len())
        .any(|i| chars[i] == '[' && (is_word(chars[i - 1]) || [')', ']', '?'].contains(&chars[i - 1])))
}

/// The violations of the rules in a file; `path` is relative to `src`.
fn faults(path: &str, source: &str) -> Vec<String> {
    let code = without_tests(&code(source));
    let source: Vec<&str> = source.lines().collect();
    let mut faults = Vec::new();
    let top = path.split(['/', '.']).next().expect("a path");
    // The modules that a module may not name. `lib.rs` lists them all.
    let above: &[&str] = match top {
        "isa" | "element" | "scaled" | "error" | "setting" => &["kernel", "walk", "parallel", "py"],
        "kernel" => &["walk", "parallel", "py"],
        "walk" => &["parallel", "py"],
        "parallel" => &["py"],
        _ => &[],
    };
    for (number, line) in code.lines().enumerate() {
        let mut fault = |what: &str| faults.push(format!("{path}:{}: {what}", number + 1));
        for module in above {
            if has(line, module) {
                fault(module);
            }
        }
        if path != "parallel/pool.rs" && has(line, "rayon") {
            fault("rayon");
        }
        for python in ["pyo3", "numpy"] {
            if top != "py" && has(line, python) {
                fault(python);
            }
        }
        for word in NOT_REPRODUCIBLE {
            let is_known = FUSED.iter().any(|(file, function)| {
                *file == path && function.lines().any(|known| known.trim() == line.trim())
            });
            if has(line, word) && !is_known {
                fault(word);
            }
        }
        for method in METHODS {
            if [".", "f64::", "f32::"].iter().any(|of| has(line, &format!("{of}{method}("))) {
                fault(method);
            }
        }
        for word in PANICS {
            if has(line, word) {
                fault(word);
            }
        }
        for word in ["assert!", "assert_eq!", "assert_ne!"] {
            // Assertions at compile time are allowed.
            if has(line, word) && !line.contains("const _: () =") && !line.contains("const {") {
                fault(word);
            }
        }
        let indexed = |(file, text, _): &(&str, &str, &str)| *file == path && source[number].contains(text);
        let is_known = LOOPS.iter().any(|(file, _)| *file == path) || INDEXED.iter().any(indexed);
        if has_index(line) && !is_known {
            fault("an index without a reason");
        }
        if has(line, "unsafe") {
            if !UNSAFE.contains(&path) && !path.starts_with("py/array/") {
                fault("unsafe");
            }
            let after = line.split("unsafe").last().expect("a part").trim_start();
            let reason = &source[number.saturating_sub(6)..number];
            if (after.is_empty() || after.starts_with('{'))
                && !reason.iter().any(|line| line.contains("SAFETY:"))
            {
                fault("unsafe without SAFETY");
            }
        }
    }
    faults
}

fn files(under: &Path, prefix: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(under).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = format!("{prefix}{}", path.file_name().expect("a name").to_string_lossy());
        if path.is_dir() {
            files(&path, &format!("{name}/"), found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push((name, fs::read_to_string(&path).expect("a text")));
        }
    }
}

#[test]
fn the_source_keeps_the_rules() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    for known in ["lib.rs", "isa.rs", "kernel/sum.rs", "walk.rs", "parallel/mod.rs", "py/array.rs"] {
        assert!(found.iter().any(|(name, _)| name == known), "{known} is not where it was");
    }
    let faults: Vec<String> = found.iter().flat_map(|(name, source)| faults(name, source)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The paths in `use` statements, with trees expanded, and in expressions from a module name on.
fn paths(code: &str) -> Vec<Vec<String>> {
    fn tree(text: &str, before: &[String], found: &mut Vec<Vec<String>>) {
        let (mut depth, mut from) = (0, 0);
        let ends = text.char_indices().chain([(text.len(), ',')]);
        let parts: Vec<&str> = ends
            .filter_map(|(at, c)| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                (c == ',' && depth == 0).then(|| {
                    let part = &text[from..at];
                    from = text.len().min(at + 1);
                    part
                })
            })
            .collect();
        for part in parts {
            let (head, inner) =
                part.split_once('{').map_or((part, None), |(head, inner)| (head, Some(inner)));
            let words = head.split("::").map(str::trim).filter(|word| !word.is_empty());
            let path: Vec<String> = before.iter().cloned().chain(words.map(str::to_owned)).collect();
            match inner {
                Some(inner) => tree(inner.trim_end().trim_end_matches('}'), &path, found),
                None => found.push(path),
            }
        }
    }
    let mut found = Vec::new();
    let text = code.replace('\n', " ");
    for (at, _) in text.match_indices("use ") {
        if !text[..at].ends_with(is_word) {
            tree(text[at + 4..].split(';').next().expect("a part"), &[], &mut found);
        }
    }
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(root).filter(|(at, _)| !text[..*at].ends_with("::")) {
            let path = text[at..].split(|c| !is_word(c) && c != ':').next().expect("a part");
            found.push(path.split("::").map(str::to_owned).collect());
        }
    }
    found
}

/// The file that a path refers to, from within another file: that of the longest prefix of the path that is a module.
fn file_of(path: &[String], within: &[&str], modules: &BTreeMap<Vec<String>, String>) -> Option<String> {
    let mut at: Vec<String> = within.iter().map(|word| (*word).to_owned()).collect();
    let mut words = path.iter().peekable();
    match words.peek().map(|word| word.as_str()) {
        Some("crate") => at.clear(),
        Some("super" | "self") => {}
        _ => return None,
    }
    for word in words {
        match word.as_str() {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            word => {
                at.push(word.to_owned());
                if !modules.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
        }
    }
    modules.get(&at).cloned()
}

/// An import cycle: its files, in order.
fn circle(imports: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit(
        at: &str,
        imports: &BTreeMap<String, BTreeSet<String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> bool {
        if way.iter().any(|before| before == at) {
            way.push(at.to_owned());
            return true;
        }
        if done.contains(at) {
            return false;
        }
        way.push(at.to_owned());
        if imports.get(at).is_some_and(|next| next.iter().any(|next| visit(next, imports, way, done))) {
            return true;
        }
        way.pop();
        done.insert(at.to_owned());
        false
    }
    let (mut way, mut done) = (Vec::new(), BTreeSet::new());
    imports.keys().any(|file| visit(file, imports, &mut way, &mut done)).then_some(way)
}

/// The imports of the files of a source tree, without self-imports and the root, which lists all modules.
fn imports_of(files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let module = |name: &str| -> Vec<String> {
        let path = name.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').filter(|word| *word != "lib").map(str::to_owned).collect()
    };
    let modules: BTreeMap<_, _> = files.iter().map(|(name, _)| (module(name), name.clone())).collect();
    let of = |(name, source): &(String, String)| {
        let code = without_tests(&code(source));
        let own = module(name);
        let within: Vec<&str> = own.iter().map(String::as_str).collect();
        let named = paths(&code).into_iter().filter_map(|path| file_of(&path, &within, &modules));
        (name.clone(), named.filter(|file| file != name && file != "lib.rs").collect())
    };
    files.iter().map(of).collect()
}

#[test]
fn no_file_imports_itself_by_way_of_others() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    let imports = imports_of(&found);
    for (file, imported) in [
        ("py/clip.rs", "py/call.rs"),
        ("py/array/plain.rs", "py/array.rs"),
        ("py/array.rs", "py/array/memory.rs"),
        ("parallel/rows.rs", "kernel/rows.rs"),
        ("walk.rs", "walk/view.rs"),
        ("walk/work.rs", "isa.rs"),
        ("parallel/rows.rs", "parallel/reduce.rs"),
        ("parallel/reduce/slices.rs", "parallel/reduce/list.rs"),
    ] {
        assert!(imports[file].contains(imported), "{file} imports {:?}", imports[file]);
    }
    assert_eq!(circle(&imports), None);
}

#[test]
fn a_circle_of_imports_is_seen() {
    let file = |name: &str, source: &str| (name.to_owned(), source.to_owned());
    let files = [
        file("lib.rs", "mod a; mod b;"),
        file("a.rs", "use crate::b::{self, inner::{f, g}};"),
        file("b/mod.rs", "mod inner; fn f() { self::inner::g() }"),
        file("b/inner.rs", "pub use super::super::a::x;"),
    ];
    let found = circle(&imports_of(&files)).expect("a circle");
    assert_eq!(found, ["a.rs", "b/mod.rs", "b/inner.rs", "a.rs"]);
    let files = [
        file("a.rs", "use crate::b::x; use std::crate_b::y;"),
        file("b.rs", "// use crate::a;\nuse self::y;"),
    ];
    assert_eq!(circle(&imports_of(&files)), None);
}

#[test]
fn every_reason_for_an_index_is_needed() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    let lines = |file: &str| {
        let (_, source) = found.iter().find(|(name, _)| name == file).expect("a file of the list");
        let code = without_tests(&code(source));
        let lines: Vec<_> = code.lines().map(str::to_owned).zip(source.lines().map(str::to_owned)).collect();
        lines
    };
    for (file, text, reason) in INDEXED {
        assert!(file.starts_with("py/") && !reason.is_empty());
        let is_there = lines(file).iter().any(|(code, source)| has_index(code) && source.contains(text));
        assert!(is_there, "{file}: no index in a line with {text}");
    }
    for (file, reason) in LOOPS {
        assert!(!file.starts_with("py/") && !reason.is_empty());
        assert!(lines(file).iter().any(|(code, _)| has_index(code)), "{file}: no index");
    }
}

#[test]
fn what_is_fused_is_known() {
    for (file, function) in FUSED {
        let source =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file)).expect("a text");
        assert_eq!(source.matches(function).count(), 1, "{file}");
        for line in function.lines().filter(|line| line.contains("mul_add")) {
            assert_eq!(source.matches(line).count(), 1, "{line}");
        }
    }
}

#[test]
fn words_are_seen_where_they_are() {
    // The rules find their words in the real files.
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    let mut seen = found.iter().map(|(name, source)| (name, without_tests(&code(source))));
    let has_word = |at: &str, word: &str| {
        seen.clone().any(|(name, code)| name == at && code.lines().any(|line| has(line, word)))
    };
    assert!(has_word("parallel/pool.rs", "rayon"));
    assert!(has_word("py/array.rs", "numpy"));
    assert!(has_word("isa.rs", "unsafe"));
    assert!(seen.any(|(name, code)| name == "kernel/power.rs" && code.contains(" exp2(")));
}

#[test]
fn the_rules_can_be_broken() {
    let one = |path, source, fault: &str| {
        let found = faults(path, source);
        assert_eq!(found, [format!("{path}:{fault}")], "{source}");
    };
    one("walk.rs", "use rayon::prelude::*;", "1: rayon");
    one("parallel/mod.rs", "use pyo3::Python;", "1: pyo3");
    one("element.rs", "\nuse numpy::PyArray1;", "2: numpy");
    one("kernel/sum.rs", "use crate::walk::View;", "1: walk");
    one("kernel/sum.rs", "use crate::{isa, parallel};", "1: parallel");
    one("walk.rs", "use crate::parallel::threads;", "1: parallel");
    one("parallel/reduce.rs", "fn f() { crate::py::g() }", "1: py");
    one("parallel/reduce/list.rs", "fn f() { crate::py::g() }", "1: py");
    one("walk/view.rs", "use crate::parallel::threads;", "1: parallel");
    one("isa.rs", "use crate::kernel::sum::Sum;", "1: kernel");
    one("kernel/max.rs", "// SAFETY: none\nfn f() { unsafe { g() } }", "2: unsafe");
    one("isa.rs", "fn f() {\n    unsafe { g() }\n}", "2: unsafe without SAFETY");
    one("isa.rs", "fn f() {\n    unsafe\n    { g() }\n}", "2: unsafe without SAFETY");
    one("isa.rs", "// SAFETY: far\n\n\n\n\n\n\nunsafe { g() }", "8: unsafe without SAFETY");
    one("kernel/sum.rs", "let x = a.mul_add(b, c);", "1: mul_add");
    one("kernel/sum.rs", "x.mul_add(x, sum)", "1: mul_add");
    one("element.rs", "x.mul_add(y, sum)", "1: mul_add");
    one("py/norm.rs", "let x = f64::powi(a, 2);", "1: powi");
    one("kernel/power.rs", "let x = a.exp2();", "1: exp2");
    one("kernel/power.rs", "let x = f64::ln(a);", "1: ln");
    one("walk.rs", "let x = a.unwrap();", "1: .unwrap()");
    one("py/call.rs", "let x = a\n    .expect(\"why\");", "2: .expect(");
    one("py/call.rs", "/* a /* b */ */ panic!(\"no\")", "1: panic!");
    one("py/call.rs", "assert!(a > b);", "1: assert!");
    one("py/call.rs", "let x = a[0];", "1: an index without a reason");
    one("py/call.rs", "let x = f()[0];", "1: an index without a reason");
    one("py/call.rs", "let x = f()?[1..];", "1: an index without a reason");
    one("py/call.rs", "let x = a[i][j];", "1: an index without a reason");
    one("py/call.rs", "\nfirst.call(&a.b[..n]);", "2: an index without a reason");
    one("py/run.rs", "strides[axis] = step;", "1: an index without a reason");
    one("element/half.rs", "let x = a[0];", "1: an index without a reason");
    one("py/call.rs", "let quote = '\"'; todo!()", "1: todo!");
    one("py/call.rs", "let quote = '\\''; todo!() // '", "1: todo!");
    one("py/call.rs", "let raw = r#\" \\\" \"#; unimplemented!()", "1: unimplemented!");
    one("py/call.rs", "#[cfg(test)]\nmod tests { fn f() { {} } }\nfn g() { h.unwrap() }", "3: .unwrap()");
}

#[test]
fn the_rules_let_the_rest_pass() {
    for (path, source) in [
        ("walk.rs", "// rayon, pyo3 and numpy\n/* unsafe { a.unwrap() } */ let s = \"panic! /* // rayon\";"),
        ("walk.rs", "let s = r#\"a.unwrap() \" todo!()\"#; let c = '\"'; let s = b\"powf\";"),
        ("walk.rs", "fn walked<'a>(x: &'a [u8]) -> &'a u8 { x.unwrap_or('a', 'b').expected() }"),
        ("walk.rs", "let s = \"two\nlines of rayon\";"),
        ("kernel/power.rs", "fn exp2(z: f64) -> f64 { exp2(z) * self.log2 + Log2::of(x).minus(y) }"),
        ("kernel/power.rs", "#[cfg(test)]\nmod tests { fn f() { a.unwrap(); b.powf(c) } }"),
        ("isa.rs", "#[expect(unsafe_code, reason = \"x\")]\n// SAFETY: y\n// and z\nunsafe { f() }"),
        ("py/array.rs", "use numpy::npyffi; // SAFETY: y\n\n\n\n\n\nunsafe { f() }"),
        ("parallel/pool.rs", "use rayon::ThreadPool; use crate::walk::View; let pyramid = 1;"),
        ("lib.rs", "pub mod parallel; mod py;"),
        ("py/array/order.rs", "        strides[axis] = step;"),
        (
            "py/call.rs",
            "#[inline] fn f<'a>(x: &'a [u8], y: [u8; 2]) -> Vec<[u8; 2]> { vec![0; 2]; for z in [1, 2] {} }",
        ),
    ] {
        assert_eq!(faults(path, source), [""; 0], "{source}");
    }
}
