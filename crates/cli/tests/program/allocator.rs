//! The fixture sets its allocator when it starts.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

/// The value of `GLIBC_TUNABLES` in the environment of a fixture that answers. The process id is the one with which
/// it was started.
fn tunables(set: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rescind"));
    command.args(["fixture", "--dialect", "acp", "--listen", "stdio"]);
    command.env_remove("GLIBC_TUNABLES").env_remove("RESCIND_ALLOCATOR_SET");
    for name in ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"] {
        command.env_remove(name);
    }
    if let Some(set) = set {
        command.env("GLIBC_TUNABLES", set);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"test/echo\"}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.contains("\"id\":1"), "{answer}");
    let environment = std::fs::read(format!("/proc/{}/environ", child.id())).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    let environment = String::from_utf8(environment).unwrap();
    // glibc parses its settings in place and may replace each colon with a zero byte.
    let (_, value) = environment.split_once("GLIBC_TUNABLES=").unwrap_or_default();
    let settings = value.split(['\0', ':']).take_while(|setting| setting.starts_with("glibc."));
    settings.collect::<Vec<_>>().join(":")
}

#[test]
fn a_fixture_sets_the_allocator_to_release_large_blocks() {
    let ours =
        "glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072:glibc.malloc.arena_max=2";
    assert_eq!(tunables(None), ours);
}

#[test]
fn the_users_allocator_settings_are_kept() {
    let theirs = "glibc.malloc.mmap_threshold=262144:glibc.malloc.tcache_count=3";
    let both = format!("{theirs}:glibc.malloc.trim_threshold=131072:glibc.malloc.arena_max=2");
    assert_eq!(tunables(Some(theirs)), both);
    assert_eq!(tunables(Some(&both)), both, "all is set");
}
