//! Checks every file of the fuzzer's corpus with the assertions of its target: on any toolchain, without the fuzzer.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use rescind_verification::Tally;
use rescind_verification::coverage::{self, ENGINES};
use rescind_verification::fuzz::TARGETS;

/// The most files of a target, and the most bytes.
const MAX_FILES_AND_BYTES: (usize, u64) = (60, 200 * 1024);

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_file_of_the_corpus_holds() {
    let mut replayed = 0;
    let _ = Tally::taken();
    for target in TARGETS {
        let folder = fuzz().join("corpus").join(target.name);
        let files = names(&folder);
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        for file in &files {
            let data = fs::read(folder.join(file)).unwrap();
            let held = catch_unwind(|| target.check(&data));
            assert!(held.is_ok(), "fuzz/corpus/{}/{file} fails; why stands above", target.name);
            replayed += 1;
        }
        println!("{:20} {:3} files", target.name, files.len());
    }
    let judged = Tally::taken();
    println!("judged {judged}");
    let engine = ENGINES.iter().find(|engine| engine.name == "fuzz").unwrap();
    let judged: BTreeSet<_> = judged.judged().map(|(number, _)| number).collect();
    assert_eq!(
        judged,
        engine.checks.iter().copied().collect(),
        "what is claimed is judged, and nothing else"
    );
    let far = format!("{replayed} files of {} targets replayed", TARGETS.len());
    coverage::reached("fuzz", "the committed corpus", &far).unwrap();
    assert!(replayed >= 10 * TARGETS.len(), "{replayed} files are too few to mean anything");
}

#[test]
fn the_corpus_is_small() {
    for target in TARGETS {
        let folder = fuzz().join("corpus").join(target.name);
        let files = names(&folder);
        let bytes: u64 = files.iter().map(|file| fs::metadata(folder.join(file)).unwrap().len()).sum();
        let is_small = files.len() <= MAX_FILES_AND_BYTES.0 && bytes <= MAX_FILES_AND_BYTES.1;
        assert!(is_small, "{}: {} files, {bytes} bytes: run `cargo fuzz cmin`", target.name, files.len());
    }
}

#[test]
fn every_fuzz_target_has_exactly_one_program_and_one_folder() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names(&fuzz().join("corpus")), targets, "the folders of the corpus");
    let programs = names(&fuzz().join("fuzz_targets"));
    let programs: BTreeSet<String> =
        programs.iter().map(|file| file.trim_end_matches(".rs").to_owned()).collect();
    assert_eq!(programs, targets, "the programs");
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for target in targets {
        let source = fs::read_to_string(fuzz().join(format!("fuzz_targets/{target}.rs"))).unwrap();
        assert!(source.contains(&format!("check(\"{target}\", data)")), "{target} runs another target");
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not in the manifest");
    }
}

#[test]
fn an_unknown_target_is_refused() {
    assert!(catch_unwind(|| rescind_verification::fuzz::check("nothing", b"")).is_err());
}

/// Pieces of streams, from which a fuzzer would need long to find the interesting ones.
const PIECES: [&[u8]; 41] = [
    b"\n",
    b"\r\n",
    b" ",
    b"\xef\xbb\xbf",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b",",
    b":",
    b"x",
    b"7",
    b"\xff",
    b"{}",
    b"{\n",
    b"}\n",
    b"[\n",
    b"{\"id\":7,\n",
    b"\"result\":1",
    b"\"a\":[",
    b"NaN",
    b"{\"id\":1,\"error\":2}",
    b"{\"type\":1}",
    b"{\"type\":1,\"payload\":2}\n",
    b"{\"jsonrpc\":1}",
    b"Loading: ",
    b"Loading {\n",
    b"\"jsonrpc\":2\n",
    b"Content-Length: ",
    b"content-length: 2\r\n\r\n{}",
    b"Content-Length: 9\n",
    b"Content-Type: a; charset=x\r\n",
    b"Content-Length : 2\r\n",
    b"Content-Length: 3\r\n\r\n{}",
    b"Content-Length: 8\n\n[]",
    b"}Content-Length: 2\r\n",
    b"0123456789abcdef",
    b"INFO: started\n",
    b"Content-Length: 2\r\n\r\n",
];

#[test]
fn random_streams_of_lines_and_blocks_hold() {
    let mut state = 0x1234_5678_u32;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    };
    let of = |name| TARGETS.iter().find(|target| target.name == name).unwrap();
    let targets = [of("newline"), of("content_length")];
    for _ in 0..ROUNDS {
        let mut stream = vec![u8::try_from(random(256)).unwrap()];
        for _ in 0..random(24) {
            stream.extend_from_slice(PIECES[random(PIECES.len())]);
        }
        // Long runs reach the limits of a block and of noise.
        if random(40) == 0 {
            let piece = PIECES[random(PIECES.len())];
            let length = [700, 8 * 1024, 64 * 1024][random(3)];
            for _ in 0..=length / piece.len() {
                stream.extend_from_slice(piece);
            }
            for _ in 0..random(8) {
                stream.extend_from_slice(PIECES[random(PIECES.len())]);
            }
        }
        for target in targets {
            let held = catch_unwind(|| target.check(&stream));
            assert!(held.is_ok(), "{} fails on {:?}", target.name, String::from_utf8_lossy(&stream));
        }
    }
    let _ = Tally::taken();
}

const ROUNDS: usize = 500;
