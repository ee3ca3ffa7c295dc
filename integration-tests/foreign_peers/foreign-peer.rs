//! The program `foreign-peer`: see `peer/mod.rs`.

mod peer;

fn main() -> std::process::ExitCode {
    peer::run(std::env::args().skip(1))
}
