//! SECURITY.md lists every limit that can be set with its default, and `limits_fixed.toml` every other with its value in the code.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rescind::{Limits, ServerLimits, TaskLimits};
use rescind_testkit::support::table;
use serde::Deserialize;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The forms of a number on the page: in kibibytes or mebibytes if it is a multiple, otherwise with commas from five
/// digits on.
fn shown(number: u64) -> Vec<String> {
    let digits = number.to_string();
    let commas = match digits.len() {
        5.. => format!("{},{}", &digits[..digits.len() - 3], &digits[digits.len() - 3..]),
        _ => digits.clone(),
    };
    let mut forms = vec![digits, commas];
    for (unit, name) in [(1 << 10, "KiB"), (1 << 20, "MiB")] {
        if number >= unit && number % unit == 0 {
            forms.push(format!("{} {name}", number / unit));
        }
    }
    forms
}

/// The rows of a page that contain this.
fn rows<'a>(page: &'a str, what: &str) -> Vec<&'a str> {
    page.lines().filter(|line| line.starts_with('|') && line.contains(what)).collect()
}

fn has_value(row: &str, forms: &[String]) -> bool {
    let row = format!("{} ", row.replace(['|', ';', ':'], " "));
    forms.iter().any(|form| [' ', ','].iter().any(|end| row.contains(&format!(" {form}{end}"))))
}

/// The fields of a plain struct, as `Debug` prints them, one on each line.
fn fields(debug: &str) -> Vec<(String, String)> {
    let pairs = debug.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(": "));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn security_md_lists_every_connection_limit_with_its_default() {
    let page = read("SECURITY.md");
    let fields = fields(&format!("{:#?}", Limits::default()));
    assert!(fields.len() >= 20, "{fields:?}");
    for (name, value) in fields {
        let forms = match value.parse::<u64>() {
            Ok(number) => shown(number),
            Err(_) if value == "None" => vec!["no limit".to_owned()],
            Err(_) => vec![value.trim_end_matches('s').to_owned() + " s"],
        };
        let rows = rows(&page, &format!("`{name}`"));
        assert!(rows.iter().any(|row| has_value(row, &forms)), "`{name}` is {forms:?}: {rows:?}");
    }
}

#[test]
fn security_md_lists_the_server_limits_with_their_defaults() {
    let page = read("SECURITY.md");
    let limits = ServerLimits::default();
    for (what, value) in [
        ("running, over all connections", limits.max_running_handlers as u64),
        ("draining, over all connections", limits.max_draining_handlers as u64),
        ("sessions of a `Server`", limits.max_connections as u64),
        ("bytes held over all connections", limits.max_memory_bytes as u64),
    ] {
        assert!(rows(&page, what).iter().any(|row| has_value(row, &shown(value))), "{what}: {value}");
    }
    let tasks = TaskLimits::default();
    for (what, value) in [
        ("tasks that are kept", tasks.max_tasks as u64),
        ("tasks that are kept", tasks.max_tasks_of_client as u64),
        ("bytes of their results", tasks.max_result_bytes as u64),
    ] {
        assert!(rows(&page, what).iter().any(|row| has_value(row, &shown(value))), "{what}: {value}");
    }
    let hours = [tasks.default_ttl, tasks.max_ttl].map(|time| format!("{} h", time.as_secs() / 3600));
    let kept = rows(&page, "how long a task is kept");
    assert!(hours.iter().all(|hours| kept.iter().any(|row| row.contains(hours))), "{hours:?}: {kept:?}");
    assert_eq!(limits.idle_timeout, None::<Duration>);
    assert!(rows(&page, "`ServerLimits::idle_timeout`").iter().any(|row| row.contains("| no limit |")));
}

/// `limits_fixed.toml`: the limits that cannot be set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixed {
    bound: Vec<Bound>,
    /// The bounds that have their row in SECURITY.md.
    in_security_md: Vec<Bound>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    what: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    then: String,
    #[serde(default)]
    constants: Vec<Constant>,
}

/// A constant: its file below `crates`, its name, its value in the source, and that value in the form of the row.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    r#in: String,
    name: String,
    is: String,
    shown: String,
}

impl Fixed {
    fn read() -> Self {
        toml::from_str(include_str!("limits_fixed.toml")).unwrap()
    }

    fn constants(&self) -> Vec<&Constant> {
        self.bound.iter().chain(&self.in_security_md).flat_map(|bound| &bound.constants).collect()
    }
}

#[test]
fn the_fixed_limits_are_listed_with_their_values() {
    let (fixed, page) = (Fixed::read(), read("SECURITY.md"));
    for Constant { r#in: file, name, is, .. } in fixed.constants() {
        let source = read(&format!("crates/{file}"));
        let lines: Vec<_> = source.lines().filter(|line| line.contains(&format!("const {name}: "))).collect();
        assert!(
            lines.len() == 1 && lines.iter().all(|line| line.ends_with(&format!("= {is};"))),
            "{file}: {name} is not {is}: {lines:?}"
        );
    }
    for Bound { what, value, then, constants } in &fixed.bound {
        assert!(!what.is_empty() && !value.is_empty(), "{what:?}: {value:?}");
        let row = format!("{what} | {value} | {then}");
        for Constant { name, shown, .. } in constants {
            assert!(row.contains(shown), "{name}: {shown} is not in {row}");
        }
    }
    for Bound { what, constants, .. } in &fixed.in_security_md {
        let rows = rows(&page, what);
        for Constant { name, shown, .. } in constants {
            assert!(rows.iter().any(|row| row.contains(shown)), "{name}: {shown} is not in {rows:?}");
        }
    }
}

/// Constants that do not cause a refusal, drop or cut of anything of a peer: sizes of reads and of caches, pauses,
/// turns, tags.
fn no_bounds() -> Vec<[&'static str; 2]> {
    table(include_str!("limits_none.txt")).collect()
}

/// The constants of a file that are numbers or times, without those of tests.
fn constants(source: &str) -> Vec<String> {
    let types = ["usize", "u64", "u32", "u16", "u8", "Duration"];
    let before_tests = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = before_tests.lines().filter_map(|line| line.split_once("const ")?.1.split_once(" = "));
    let declared = lines.filter_map(|(constant, _)| constant.split_once(": "));
    declared.filter(|(_, kind)| types.contains(kind)).map(|(name, _)| name.to_owned()).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// A new constant that is a limit must be added to `limits_fixed.toml`, and any other one to `limits_none.txt`.
#[test]
fn every_constant_is_listed_or_marked_as_no_limit() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let (fixed, no_bounds) = (Fixed::read(), no_bounds());
    let fixed = fixed.constants();
    assert_eq!((fixed.len(), no_bounds.len()), (106, 96), "the rows of the tables");
    let mut seen = 0;
    for name in ["core", "http", "named-pipe", "net", "page", "stdio", "websocket"] {
        let mut files = Vec::new();
        sources(&crates.join(name).join("src"), &mut files);
        for path in files {
            let file = path.strip_prefix(&crates).unwrap().to_str().unwrap().replace('\\', "/");
            for constant in constants(&fs::read_to_string(&path).unwrap()) {
                seen += 1;
                let bounds = fixed.iter().any(|fixed| fixed.r#in == file && fixed.name == constant);
                let plain = no_bounds
                    .iter()
                    .any(|[of, names]| *of == file && names.split(", ").any(|name| name == constant));
                assert!(bounds != plain, "crates/{file}: {constant} is in no list, or in both");
            }
        }
    }
    assert!(seen > fixed.len(), "{seen} constants were found");
}
