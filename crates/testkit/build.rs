//! Lists the vector files, so that they are compiled in and a program needs no files at run time.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("vectors");
    println!("cargo::rerun-if-changed=vectors");
    let mut list = String::from("&[\n");
    for folder in sorted(&root)?.iter().filter(|path| path.is_dir()) {
        println!("cargo::rerun-if-changed={}", folder.display());
        for file in sorted(folder)?.iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
            let dialect = folder.file_name().unwrap_or_default().to_string_lossy();
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            // Writing into a string does not fail.
            let _ =
                writeln!(list, "({dialect:?}, {name:?}, include_str!({:?})),", file.display().to_string());
        }
    }
    list.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("vectors.rs");
    fs::write(out, list)
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}
