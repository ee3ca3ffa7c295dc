//! Children on every system. This program is both: the tests, and with `--child` the child that they start.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "these are tests")]

use std::future::poll_fn;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use rescind_core::{
    CloseReason, Framing, Link, Transport, TransportError, TransportErrorKind, TransportEvent,
};
use rescind_stdio::{ChildError, Command};
use rescind_testkit::support::{frames, in_time};

/// What [`Command`] gives a child to end after the end of its input.
const GRACE: Duration = Duration::from_millis(100);
/// Words with what a command line treats specially, in letters of several scripts.
const WORDS: [&str; 6] = ["two words", "", "a\"quote", r"back\slash\", "%PATH%", "\u{e9}\u{4e2d}\u{1f980}"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if let [_, flag, role, rest @ ..] = &*words
        && flag == "--child"
    {
        return child(role, rest);
    }
    let mut trials = Vec::new();
    macro_rules! trials {
        ($($(#[$when:meta])* $name:ident,)*) => {
            $($(#[$when])* trials.push(Trial::test(stringify!($name), || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
                runtime.block_on($name());
                Ok(())
            }));)*
        };
    }
    trials! {
        frames_go_to_a_child_and_back_and_closing_ends_it,
        the_transport_of_a_process_serves_its_parent,
        a_frame_of_a_megabyte_comes_back_whole,
        files_as_stdin_and_stdout_carry_frames,
        arguments_arrive_as_they_were_given,
        a_child_in_a_folder_with_spaces_and_other_letters_is_started,
        the_environment_of_a_child_is_what_it_is_given,
        the_working_directory_of_a_child_is_the_given_one,
        the_error_for_a_missing_program_contains_its_name,
        a_child_that_exits_at_once_is_an_error_with_status_and_stderr,
        a_child_that_exits_well_before_its_first_frame_is_an_error,
        a_child_that_exits_well_after_a_frame_ends_without_error,
        what_a_child_wrote_before_its_exit_is_read_after_it,
        a_write_to_a_dead_child_fails_after_its_answer_is_read,
        a_write_that_a_child_reads_before_its_exit_succeeds,
        the_error_of_a_write_to_a_dead_child_has_its_stderr,
        a_write_that_waits_fails_when_the_child_exits,
        lines_that_are_no_frames_are_passed_on,
        lines_that_end_with_a_return_byte_are_the_same_frames,
        a_length_with_return_bytes_is_read,
        a_bad_length_ends_with_an_error_with_stderr,
        of_a_flood_on_stderr_the_end_is_kept,
        a_child_that_ignores_the_end_of_its_input_is_ended_after_its_grace,
        what_a_child_started_ends_with_it_when_the_connection_closes,
        what_a_child_left_running_ends_with_its_exit,
        a_dropped_connection_ends_the_whole_tree_at_once,
        a_dropped_half_ends_the_child_by_the_end_of_its_input,
        #[cfg(windows)]
        a_tree_ends_with_the_process_that_started_it_even_if_that_is_killed,
        #[cfg(windows)]
        a_script_is_started_with_its_arguments_and_ends_with_what_it_runs,
    }
    trials.push(Trial::test("a_child_is_killed_after_its_runtime_is_gone", || {
        a_child_is_killed_after_its_runtime_is_gone();
        Ok(())
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The child. It returns its exit code.
fn child(role: &str, rest: &[String]) -> ExitCode {
    let word = |number: usize| rest.get(number).map_or("", String::as_str);
    match role {
        "cat" => copy(),
        "echo" => tokio::runtime::Runtime::new().unwrap().block_on(echo()),
        "arguments" => say(&format!("{rest:?}")),
        "variables" => {
            let names = ["GIVEN", "EARLIER", "CARGO_MANIFEST_DIR"];
            say(&format!("{:?}", names.map(|name| std::env::var(name).unwrap_or_default())));
        }
        "folder" => say(std::env::current_dir().unwrap().file_name().unwrap().to_str().unwrap()),
        // Says a number of lines, complains, reads a line if asked to, says an answer, and exits.
        "exit" => {
            for number in 0..word(1).parse().unwrap() {
                say(&format!("[{number}]"));
            }
            eprint!("{}", word(2));
            if word(3) == "read" {
                io::stdin().lock().read_line(&mut String::new()).unwrap();
            }
            for answer in rest.iter().skip(4) {
                say(answer);
            }
            return ExitCode::from(word(0).parse::<u8>().unwrap());
        }
        // Writes these bytes, then as `cat`.
        "bytes" => {
            eprint!("{}", word(1));
            io::stdout().write_all(word(0).as_bytes()).unwrap();
            io::stdout().flush().unwrap();
            copy();
        }
        "flood" => {
            for number in 0..4000 {
                eprintln!("line {number} of a flood on stderr");
            }
            eprintln!("last");
            say("{}");
            copy();
        }
        // Does not read, and exits when the address is connected to and closed.
        "deaf" => {
            let mut stream = TcpStream::connect(word(0)).unwrap();
            let _closed = stream.read(&mut [0]);
            return ExitCode::from(4);
        }
        // Stays, whatever ends, and holds a connection meanwhile.
        "stay" => stay(word(0)),
        // Starts one that stays, and then stays too, or exits.
        "parent" => {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--child", "stay", word(0)]).stdin(Stdio::null());
            #[expect(clippy::zombie_processes, reason = "the tests are about one that is left")]
            let _grandchild = command.spawn().unwrap();
            say("{}");
            if word(1) == "exit" {
                io::stdin().lock().read_line(&mut String::new()).unwrap();
                return ExitCode::SUCCESS;
            }
            stay(word(0));
        }
        // Starts a parent through this library.
        "owner" => tokio::runtime::Runtime::new().unwrap().block_on(async {
            let (mut link, _child) = started("parent", &[word(0), "stay"]).start().unwrap();
            assert_eq!(body(&mut link).await, "{}");
            say("{}");
            std::future::pending::<()>().await;
        }),
        other => panic!("there is no child {other}"),
    }
    ExitCode::SUCCESS
}

/// Everything back as it is, at once.
fn copy() {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = io::stdin().read(&mut piece) {
        io::stdout().write_all(&piece[..count]).unwrap();
        io::stdout().flush().unwrap();
    }
}

fn say(line: &str) {
    println!("{line}");
}

fn stay(address: &str) {
    let _held = TcpStream::connect(address).unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}

async fn echo() {
    let mut link = Box::new(rescind_stdio::this_process()).open().await.unwrap();
    while let Some(Ok(TransportEvent::Message(inbound))) = frames::event(&mut link).await {
        frames::send(&mut link, inbound.body).await.unwrap();
    }
    poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await.unwrap();
    let again = Box::new(rescind_stdio::this_process()).open().await;
    assert!(again.is_err(), "there is only one stdin");
}

fn started(role: &str, rest: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--child", role]).args(rest).child_kill_grace(GRACE)
}

async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    in_time("an event", frames::event(link)).await
}

async fn body(link: &mut Link) -> String {
    String::from_utf8(in_time("a frame", frames::body(link)).await.to_vec()).unwrap()
}

async fn send(link: &mut Link, body: impl Into<bytes::Bytes>) -> Result<(), TransportError> {
    in_time("sending", frames::send(link, body)).await
}

async fn close(link: &mut Link) -> Result<(), TransportError> {
    in_time("closing", poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx))).await
}

fn child_error(event: Option<Result<TransportEvent, TransportError>>) -> ChildError {
    let Some(Err(error)) = event else { panic!("expected an error, got {event:?}") };
    error.source.downcast_ref::<ChildError>().expect("it is the child's").clone()
}

async fn says(command: Command) -> String {
    body(&mut Box::new(command).open().await.unwrap()).await
}

/// Where processes that stay connect: a connection that ends shows that its process has ended, on every system.
struct Held(TcpListener);

impl Held {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    async fn next(&self) -> TcpStream {
        let listener = self.0.try_clone().unwrap();
        let accepted = tokio::task::spawn_blocking(move || listener.accept().unwrap().0);
        in_time("a process that stays", accepted).await.unwrap()
    }
}

/// Waits until the process at the other end has ended.
async fn ended(mut held: TcpStream) {
    let ended = tokio::task::spawn_blocking(move || held.read(&mut [0]));
    let read = in_time("the end of a process", ended).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

/// A folder with a space and letters of several scripts in its name, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = format!("rescind {name} \u{e9}\u{4e2d} {}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

async fn frames_go_to_a_child_and_back_and_closing_ends_it() {
    let (mut link, child) = started("cat", &[]).child_kill_grace(Duration::from_secs(20)).start().unwrap();
    send(&mut link, "{\"id\":1}").await.unwrap();
    assert_eq!(body(&mut link).await, "{\"id\":1}");
    assert_eq!(child.exit_status(), None);
    close(&mut link).await.unwrap();
    assert!(event(&mut link).await.is_none());
    assert!(child.exit_status().unwrap().success());
}

async fn the_transport_of_a_process_serves_its_parent() {
    let (mut link, child) = started("echo", &[]).child_kill_grace(Duration::from_secs(20)).start().unwrap();
    for number in 0..100 {
        send(&mut link, format!("[{number}]")).await.unwrap();
        assert_eq!(body(&mut link).await, format!("[{number}]"));
    }
    close(&mut link).await.unwrap();
    assert!(event(&mut link).await.is_none());
    assert!(child.exit_status().unwrap().success(), "{}", child.stderr_tail());
}

async fn a_frame_of_a_megabyte_comes_back_whole() {
    let (mut link, _child) = started("echo", &[]).start().unwrap();
    let large = format!("\"{}\"", "x".repeat(1024 * 1024));
    send(&mut link, large.clone()).await.unwrap();
    assert_eq!(body(&mut link).await, large);
}

async fn files_as_stdin_and_stdout_carry_frames() {
    let folder = Folder::new("files");
    let (input, output) = (folder.file("in"), folder.file("out"));
    std::fs::write(&input, "{\"id\":1}\n[2]\n").unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--child", "echo"])
        .stdin(std::fs::File::open(&input).unwrap())
        .stdout(std::fs::File::create(&output).unwrap())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "{\"id\":1}\n[2]\n");
}

async fn arguments_arrive_as_they_were_given() {
    assert_eq!(says(started("arguments", &WORDS)).await, format!("{WORDS:?}"));
}

async fn a_child_in_a_folder_with_spaces_and_other_letters_is_started() {
    let folder = Folder::new("program");
    let program = folder.file(&format!("an agent{}", std::env::consts::EXE_SUFFIX));
    // A link, and on Windows, where links need a privilege, a copy: a file that is written here is still open for writing in each
    // process that another test forks meanwhile, and cannot be started until that one has executed its program.
    #[cfg(unix)]
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
    #[cfg(windows)]
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let (mut link, child) = Command::new(&program).args(["--child", "cat"]).start().unwrap();
    send(&mut link, "{}").await.unwrap();
    assert_eq!(body(&mut link).await, "{}");
    drop(link);
    in_time("the end of the child", child.wait()).await;
}

async fn the_environment_of_a_child_is_what_it_is_given() {
    // Programs of Windows do not start without it.
    let kept = |command: Command| match std::env::var_os("SystemRoot") {
        Some(root) => command.env("SystemRoot", root),
        None => command,
    };
    let shows = || started("variables", &[]);
    let ours = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    assert_eq!(says(shows().env("GIVEN", "\u{e9} 1")).await, format!("{:?}", ["\u{e9} 1", "", &*ours]));
    let cleared = kept(shows().env("EARLIER", "2").env_clear()).env("GIVEN", "1");
    assert_eq!(says(cleared).await, format!("{:?}", ["1", "", ""]));
    assert_eq!(says(shows().env_remove("CARGO_MANIFEST_DIR")).await, format!("{:?}", ["", "", ""]));
}

async fn the_working_directory_of_a_child_is_the_given_one() {
    let folder = Folder::new("place");
    let name = folder.0.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(says(started("folder", &[]).current_dir(&folder.0)).await, name);
}

async fn the_error_for_a_missing_program_contains_its_name() {
    let error = Command::new("no-such-program-here").start().unwrap_err();
    assert_eq!(error.kind, TransportErrorKind::Open);
    assert!(error.to_string().contains("no-such-program-here"), "{error}");
}

async fn a_child_that_exits_at_once_is_an_error_with_status_and_stderr() {
    let (mut link, _child) = started("exit", &["3", "0", "no licence"]).start().unwrap();
    let error = child_error(event(&mut link).await);
    assert_eq!(error.status.and_then(|status| status.code()), Some(3));
    assert_eq!(error.stderr_tail, "no licence");
    assert!(error.to_string().contains("no licence"), "{error}");
    assert!(event(&mut link).await.is_none());
}

async fn a_child_that_exits_well_before_its_first_frame_is_an_error() {
    let (mut link, _child) = started("exit", &["0", "0"]).start().unwrap();
    assert!(child_error(event(&mut link).await).status.unwrap().success());
}

async fn a_child_that_exits_well_after_a_frame_ends_without_error() {
    let (mut link, child) = started("exit", &["0", "1"]).start().unwrap();
    assert_eq!(body(&mut link).await, "[0]");
    assert!(event(&mut link).await.is_none());
    assert!(in_time("the end of the child", child.wait()).await.success());
}

async fn what_a_child_wrote_before_its_exit_is_read_after_it() {
    let (mut link, child) = started("exit", &["0", "500"]).start().unwrap();
    in_time("the end of the child", child.wait()).await;
    for number in 0..500 {
        assert_eq!(body(&mut link).await, format!("[{number}]"));
    }
    assert!(event(&mut link).await.is_none());
}

async fn a_write_to_a_dead_child_fails_after_its_answer_is_read() {
    let (mut link, child) = started("exit", &["4", "0", "", "read", "[1]", "[2]"]).start().unwrap();
    send(&mut link, "{}").await.unwrap();
    in_time("the end of the child", child.wait()).await;
    for expected in ["[1]", "[2]"] {
        send(&mut link, "{}").await.unwrap();
        assert_eq!(body(&mut link).await, expected);
    }
    let error = child_error(event(&mut link).await);
    assert_eq!(error.status.and_then(|status| status.code()), Some(4));
    assert!(send(&mut link, "{}").await.unwrap_err().to_string().contains(": 4"));
}

async fn a_write_that_a_child_reads_before_its_exit_succeeds() {
    for _ in 0..10 {
        let (mut link, _child) = started("exit", &["0", "1", "", "read"]).start().unwrap();
        assert_eq!(body(&mut link).await, "[0]");
        send(&mut link, "go on").await.unwrap();
        assert!(event(&mut link).await.is_none());
    }
}

async fn the_error_of_a_write_to_a_dead_child_has_its_stderr() {
    let (mut link, child) = started("exit", &["4", "0", "too old"]).start().unwrap();
    in_time("the end of the child", child.wait()).await;
    assert!(child_error(event(&mut link).await).to_string().contains("too old"));
    let error = send(&mut link, "{}").await.unwrap_err();
    assert!(error.to_string().contains("too old"), "{error}");
    assert!(close(&mut link).await.is_err());
}

async fn a_write_that_waits_fails_when_the_child_exits() {
    let held = Held::new();
    let (mut link, _child) = started("deaf", &[&held.address()]).start().unwrap();
    let stream = held.next().await;
    let sending = tokio::spawn(async move { send(&mut link, "x".repeat(4 * 1024 * 1024)).await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!sending.is_finished(), "nobody reads it");
    drop(stream);
    assert!(in_time("the end of the write", sending).await.unwrap().is_err());
}

async fn lines_that_are_no_frames_are_passed_on() {
    let (mut link, _child) = started("bytes", &["Starting...\n"]).start().unwrap();
    assert_eq!(body(&mut link).await, "Starting...");
    send(&mut link, "{}").await.unwrap();
    assert_eq!(body(&mut link).await, "{}");
}

async fn lines_that_end_with_a_return_byte_are_the_same_frames() {
    let (mut link, _child) = started("bytes", &["{\"id\":1}\r\n[2]\r\n{}\n"]).start().unwrap();
    for expected in ["{\"id\":1}", "[2]", "{}"] {
        assert_eq!(body(&mut link).await.trim_end(), expected);
    }
}

async fn a_length_with_return_bytes_is_read() {
    let command = started("bytes", &["Content-Length: 2\r\n\r\n{}"]).framing(Framing::ContentLength);
    let mut link = Box::new(command).open().await.unwrap();
    assert_eq!(body(&mut link).await, "{}");
    send(&mut link, "[1]").await.unwrap();
    assert_eq!(body(&mut link).await, "[1]");
}

async fn a_bad_length_ends_with_an_error_with_stderr() {
    let command = started("bytes", &["Content-Length: x\r\n", "deprecated"]).framing(Framing::ContentLength);
    let (mut link, _child) = command.start().unwrap();
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::Rejected { .. }))));
    let error = event(&mut link).await;
    assert!(matches!(&error, Some(Err(error)) if error.kind == TransportErrorKind::Framing), "{error:?}");
}

async fn of_a_flood_on_stderr_the_end_is_kept() {
    let (mut link, child) = started("flood", &[]).child_kill_grace(Duration::from_secs(20)).start().unwrap();
    assert_eq!(body(&mut link).await, "{}");
    close(&mut link).await.unwrap();
    let tail = child.stderr_tail();
    assert!(tail.len() <= 9 * 1024 && tail.trim_end().ends_with("last"), "{tail}");
}

async fn a_child_that_ignores_the_end_of_its_input_is_ended_after_its_grace() {
    let held = Held::new();
    let (mut link, child) = started("stay", &[&held.address()]).start().unwrap();
    let stream = held.next().await;
    let since = Instant::now();
    close(&mut link).await.unwrap();
    assert!(since.elapsed() >= GRACE, "it had its grace");
    assert!(!child.exit_status().unwrap().success());
    ended(stream).await;
}

async fn what_a_child_started_ends_with_it_when_the_connection_closes() {
    let held = Held::new();
    let (mut link, _child) = started("parent", &[&held.address(), "stay"]).start().unwrap();
    let (one, other) = (held.next().await, held.next().await);
    assert_eq!(body(&mut link).await, "{}");
    close(&mut link).await.unwrap();
    ended(one).await;
    ended(other).await;
}

async fn what_a_child_left_running_ends_with_its_exit() {
    let held = Held::new();
    let (mut link, child) = started("parent", &[&held.address(), "exit"]).start().unwrap();
    let grandchild = held.next().await;
    assert_eq!(body(&mut link).await, "{}");
    send(&mut link, "go on").await.unwrap();
    assert!(in_time("the end of the child", child.wait()).await.success());
    ended(grandchild).await;
    assert!(event(&mut link).await.is_none(), "its pipes end, which the grandchild held");
}

async fn a_dropped_connection_ends_the_whole_tree_at_once() {
    let held = Held::new();
    let command = started("parent", &[&held.address(), "stay"]).child_kill_grace(Duration::from_secs(1000));
    let (link, child) = command.start().unwrap();
    let (one, other) = (held.next().await, held.next().await);
    drop(link);
    assert!(!in_time("the end of the child", child.wait()).await.success());
    ended(one).await;
    ended(other).await;
}

async fn a_dropped_half_ends_the_child_by_the_end_of_its_input() {
    let (link, child) = started("cat", &[]).start().unwrap();
    let Link { rx, tx, .. } = link;
    drop(tx);
    assert!(in_time("the end of the child", child.wait()).await.success());
    drop(rx);
}

fn a_child_is_killed_after_its_runtime_is_gone() {
    let held = Held::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (link, child, stream) = runtime.block_on(async {
        let (link, child) = started("stay", &[&held.address()]).start().unwrap();
        (link, child, held.next().await)
    });
    drop(runtime);
    drop(link);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        in_time("the end of the child", child.wait()).await;
        ended(stream).await;
    });
}

#[cfg(windows)]
async fn a_tree_ends_with_the_process_that_started_it_even_if_that_is_killed() {
    let held = Held::new();
    let mut owner = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--child", "owner", &held.address()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (one, other) = (held.next().await, held.next().await);
    owner.kill().unwrap();
    owner.wait().unwrap();
    ended(one).await;
    ended(other).await;
}

/// As `npx.cmd` is, which starts Node.js.
#[cfg(windows)]
async fn a_script_is_started_with_its_arguments_and_ends_with_what_it_runs() {
    let folder = Folder::new("script");
    let script = folder.file("agent.cmd");
    std::fs::write(&script, "@\"%AGENT%\" %*\r\n").unwrap();
    let agent = std::env::current_exe().unwrap();
    let run = |words: &[&str]| Command::new(&script).args(["--child"]).args(words).env("AGENT", &agent);
    assert_eq!(says(run(&["arguments", "two words", "-x=1"])).await, r#"["two words", "-x=1"]"#);
    let held = Held::new();
    let (link, child) = run(&["stay", &held.address()]).start().unwrap();
    let stream = held.next().await;
    drop(link);
    in_time("the end of the script", child.wait()).await;
    ended(stream).await;
}
