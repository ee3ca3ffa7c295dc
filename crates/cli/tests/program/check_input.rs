//! `rescind check` with profiles and programs that cannot be used: one sentence each, that says what to do.
#![cfg(unix)]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const RESCIND: &str = env!("CARGO_BIN_EXE_rescind");

fn facts(options: &[&str], peer: &[&str]) -> Output {
    let mut command = Command::new(RESCIND);
    command.arg("check").args(options).arg("--").args(peer);
    command.stdin(Stdio::null()).output().unwrap()
}

const FIXTURE: [&str; 6] = [RESCIND, "fixture", "--dialect", "acp", "--listen", "stdio"];

/// The sentence on stderr, after the exit code for wrong usage.
fn sentence(output: &Output, what: &str) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{what}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{what}: {said}");
    assert!(output.stdout.is_empty(), "{what}");
    said
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rescind-input-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_profile_that_cannot_be_used_is_reported_with_what_to_change() {
    let folder = Folder::new("profiles");
    for (profile, words) in [
        (
            "[requests.slow]\nmethod = \"m\"\nparam = {}\n",
            &["line 4, column 1", "unknown field `param`", "`params`"][..],
        ),
        ("[requests.slow]\nmethod = \"no/such\"\n", &["`no/such`", "-32601", "--init lists"]),
        ("[session]\nscratch = \"nowhere\"\n", &["nowhere is missing"]),
        (
            "[requests.slow]\nmethod = \"m\"\nparams = { text = { file = \"no.py\" } }\n",
            &["`no.py` of the profile is missing"],
        ),
        ("[requests.slow]\nmethod = \"m\"\nparams = { id = \"${session}\" }\n", &["`${session}`", "binds"]),
        (
            "[requests.quick]\nmethod = \"test/echo\"\nparams = { value = 7 }\n[requests.slow]\nmethod = \"test/echo\"\n",
            &["ends by itself after"],
        ),
    ] {
        let file = folder.file("profile.toml", &format!("name = \"x\"\n{profile}"));
        let said = sentence(&facts(&["--dialect", "acp", "--profile", &file], &FIXTURE), profile);
        for word in words {
            assert!(said.contains(word), "{profile}: {word}: {said}");
        }
    }
}

#[test]
fn a_program_that_cannot_be_used_is_reported_with_what_to_do() {
    let lines = format!("'{RESCIND}' fixture --dialect lsp --listen stdio --framing newline");
    let heads = format!("'{RESCIND}' fixture --dialect acp --listen stdio --framing content-length");
    let refused = |message: &str| {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32000,"message":"{message}"}}}}"#);
        format!("read l; echo '{frame}'; exec cat > /dev/null")
    };
    let (login, workspace) = (refused("Authentication required"), refused("no workspace folder"));
    for (dialect, script, words) in [
        ("acp", "exit 0", &["exit status: 0", "by hand"][..]),
        ("acp", "echo no licence >&2; exit 3", &["exit status: 3", "no licence", "by hand"]),
        ("lsp", "echo Starting...; exec yes Starting...", &["not a frame", "logs on stderr", "--framing"]),
        (
            "lsp",
            "echo Starting...; read -r l; exit 0",
            &["not a message: Starting...", "logs on stderr", "--framing"],
        ),
        ("acp", "exec yes Starting...", &["not a message: Starting...", "logs on stderr"]),
        ("acp", "exec cat > /dev/null", &["the connection was closed", "--stdio"]),
        ("acp", "exec cat", &["`initialize` was refused", "another protocol", "--dialect"]),
        ("acp", &login, &["Authentication required", "[handshake]", "a login"]),
        ("acp", &workspace, &["no workspace folder", "[handshake]", "a workspace"]),
        ("lsp", &lines, &["--framing"]),
        ("acp", &heads, &["exit status: 2", "the header block is invalid", "--framing"]),
        (
            "acp",
            "printf 'Content-Length: 2\\r\\n\\r\\n{}'; exec cat > /dev/null",
            &["add --framing content-length"],
        ),
    ] {
        let said = sentence(&facts(&["--dialect", dialect], &["sh", "-c", script]), script);
        for word in words {
            assert!(said.contains(word), "{script}: {word}: {said}");
        }
    }
}

/// A language server in a few words: it answers `initialize`, and each other request with an error at once.
const NO_WORKSPACE: &str = r#"
    say() { printf 'Content-Length: %d\r\n\r\n%s' "${#1}" "$1"; }
    id=0
    while IFS= read -r head; do
        length=${head#*: }; length=${length%?}; read -r empty
        body=$(dd bs=1 count="$length" 2> /dev/null)
        case $body in
            *'"id"'*) id=$((id + 1)) ;;
            *) continue ;;
        esac
        case $body in
            *'"initialize"'*) say '{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}' ;;
            *) say '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32803,"message":"no workspace is open"}}' ;;
        esac
    done"#;

#[test]
fn a_request_that_a_program_refuses_without_a_workspace_is_reported_with_what_to_do() {
    let options = ["--dialect", "lsp", "--slow", "textDocument/references", "--quick", "workspace/symbol"];
    let said = sentence(&facts(&options, &["sh", "-c", NO_WORKSPACE]), "a workspace");
    for word in ["`textDocument/references`", "-32803", "no workspace is open", "a setup"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// Whether a process runs. A dead one that nobody has waited for does not.
fn is_running(pid: &str) -> bool {
    let state = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
    let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
fn a_program_that_forks_leaves_no_process_and_no_scratch_copy() {
    let folder = Folder::new("forks");
    std::fs::create_dir_all(folder.0.join("workspace")).unwrap();
    folder.file("workspace/a.txt", "here");
    let pids = folder.0.join("pids");
    let profile = folder.file(
        "profile.toml",
        &format!(
            "name = \"x\"\n[session]\nscratch = \"workspace\"\nenv = {{ PIDS = \"{}\", COPY = \"${{scratch}}\" }}\n",
            pids.display()
        ),
    );
    // The forked process keeps no pipe of the program.
    let script = r#"cat a.txt > /dev/null || exit 9
        sleep 1000 < /dev/null > /dev/null 2>&1 &
        echo "$! $COPY $(pwd)" >> "$PIDS"
        exec "$0" fixture --dialect acp --listen stdio"#;
    let output = facts(&["--dialect", "acp", "--profile", &profile], &["sh", "-c", script, RESCIND]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let started = std::fs::read_to_string(&pids).unwrap();
    assert!(!started.is_empty());
    let until = Instant::now() + Duration::from_secs(10);
    for line in started.lines() {
        let mut words = line.split(' ');
        let (pid, copy, at) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        assert_eq!(copy, at, "the copy is the working directory");
        while is_running(pid) {
            assert!(Instant::now() < until, "the process {pid} is left behind");
            std::thread::yield_now();
        }
        assert!(!std::path::Path::new(copy).exists(), "{copy} is left behind");
    }
}

/// A check that ends in a sentence leaves no process either: neither of a program that has ended, nor of one that hangs.
#[test]
fn a_program_that_forks_and_cannot_be_checked_leaves_no_process() {
    let folder = Folder::new("orphans");
    let refusal = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"Log in"}}"#;
    for (name, then) in
        [("ended", "exit 0".to_owned()), ("hangs", format!("read l; echo '{refusal}'; exec sleep 1000"))]
    {
        let pids = folder.0.join(name);
        let fork = "sleep 1000 < /dev/null > /dev/null 2>&1 &";
        let script = format!("{fork} echo $! >> '{0}'; echo $$ >> '{0}'; {then}", pids.display());
        sentence(&facts(&["--dialect", "acp"], &["sh", "-c", &script]), name);
        let started = std::fs::read_to_string(&pids).unwrap();
        assert!(started.lines().count() >= 2, "{started}");
        let until = Instant::now() + Duration::from_secs(10);
        for pid in started.lines() {
            while is_running(pid) {
                assert!(Instant::now() < until, "{name}: the process {pid} is left behind");
                std::thread::yield_now();
            }
        }
    }
}
