//! Compiles the crate for the engine of threads.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=rescind_shuttle");
}
