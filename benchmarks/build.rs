//! The toolchain and profile of the program: instruction counts compare only if these are the same.

use std::path::Path;
use std::process::Command;

fn main() {
    let asked = |name: &str| std::env::var(name).unwrap_or_default();
    let rustc = Command::new(asked("RUSTC")).arg("--version").output();
    let rustc = rustc.map(|told| String::from_utf8_lossy(&told.stdout).trim().to_owned()).unwrap_or_default();
    // The third ancestor of `PROFILE/build/PACKAGE/out`.
    let out = asked("OUT_DIR");
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name).unwrap_or_default();
    println!("cargo:rustc-env=BUILT_WITH={rustc}");
    println!("cargo:rustc-env=BUILT_AS={}", profile.to_string_lossy());
    println!("cargo:rustc-env=BUILT_FOR={}", asked("TARGET"));
    println!("cargo:rerun-if-changed=build.rs");
}
