//! The dependencies of the crate: DESIGN.md gives the reason of every direct one, and of no other.

#![allow(clippy::expect_used, missing_docs, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn text(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("a text")
}

/// The dependencies of a Cargo.toml, in the form of DESIGN.md: with their use in parentheses if it is not general.
fn depended_on(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut remark = None;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            remark = match section.trim_end_matches(']') {
                "dependencies" => Some(""),
                "dev-dependencies" => Some(" (benches)"),
                "target.'cfg(target_os = \"linux\")'.dependencies" => Some(" (Linux)"),
                // A new kind of section, such as `[dependencies.name]`: it must be added to this match and to DESIGN.md.
                other => other.contains("dependencies").then_some(" (?)"),
            };
            if remark == Some(" (?)") {
                found.insert(section.to_owned());
            }
        } else if let (Some(remark), Some((name, _)), false) =
            (remark, line.split_once('='), line.starts_with('#'))
        {
            found.insert(format!("{}{remark}", name.trim()));
        }
    }
    found
}

/// The first column of the table of dependencies.
fn explained(design: &str) -> BTreeSet<String> {
    let section =
        design.split("\n## ").find(|section| section.starts_with("Dependencies\n")).expect("a section");
    let rows = section.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let names = rows.skip(2).flat_map(|cell| cell.split(','));
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn every_dependency_is_explained_and_nothing_else() {
    let (depended_on, explained) = (depended_on(&text("Cargo.toml")), explained(&text("DESIGN.md")));
    assert!(depended_on.contains("rayon") && depended_on.len() >= 5, "{depended_on:?}");
    assert_eq!(depended_on, explained, "Cargo.toml at the left, DESIGN.md at the right");
}

#[test]
fn python_needs_at_run_time_what_the_design_says() {
    let manifest = text("pyproject.toml");
    let mut needed = manifest.lines().filter_map(|line| line.strip_prefix("dependencies = "));
    assert_eq!((needed.next(), needed.next()), (Some("[\"numpy>=1.26\"]"), None));
    assert!(text("DESIGN.md").contains("At run time Python needs NumPy 1.26 or later and nothing else."));
}

#[test]
fn dependencies_are_seen_where_they_are() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\n# a = \"1\"\nb = \"1\"\nc = { version = \"1\" }\n\n\
                    [target.'cfg(target_os = \"linux\")'.dependencies]\nd.workspace = true\n\
                    [dev-dependencies]\ne = \"1\"\n[build-dependencies]\nf = \"1\"\n[profile.release]\nlto = true";
    let expected = ["b", "build-dependencies]", "c", "d.workspace (Linux)", "e (benches)", "f (?)"];
    assert_eq!(depended_on(manifest), expected.map(str::to_owned).into());
    let design = "# x\n\n## Dependencies\n\n| crate | why |\n|---|---|\n| b, c | good |\n| d (Linux) | e, f |\n\nText.\n## Z\n| z | |";
    assert_eq!(explained(design), ["b", "c", "d (Linux)"].map(str::to_owned).into());
}
