//! A server of an engine as a process of its own.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process, thread};

#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "nats")]
    Nats,
}

/// How the server is set up.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Options {
    Usual,
    /// The user `us%er` with the password `p@ss-hunter2`.
    Login,
    /// It can store about 1 MB.
    Full,
}

impl Program {
    const fn variable(self) -> &'static str {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis => "RESCIND_REDIS_SERVER",
            #[cfg(feature = "nats")]
            Self::Nats => "RESCIND_NATS_SERVER",
        }
    }

    const fn scheme(self) -> &'static str {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis => "redis",
            #[cfg(feature = "nats")]
            Self::Nats => "nats",
        }
    }

    /// What the server says when it can be used.
    const fn ready(self) -> &'static str {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis => "Ready to accept connections",
            #[cfg(feature = "nats")]
            Self::Nats => "Server is ready",
        }
    }

    fn arguments(self, port: u16, folder: &Path, options: Options) -> Vec<String> {
        let path = |name: &str, config: &str| {
            let file = folder.join(name);
            fs::write(&file, config).unwrap();
            file.display().to_string()
        };
        let (port, folder) = (port.to_string(), folder.display().to_string());
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            #[cfg(feature = "redis")]
            Self::Redis => {
                let config = match options {
                    Options::Usual => "",
                    Options::Login => "user default off\nuser us%er on >p@ss-hunter2 ~* &* +@all\n",
                    Options::Full => "maxmemory 2mb\nmaxmemory-policy noeviction\n",
                };
                let file = path("redis.conf", config);
                words(&[&file, "--port", &port, "--bind", "127.0.0.1", "--dir", &folder, "--save", ""])
            }
            #[cfg(feature = "nats")]
            Self::Nats => {
                let config = match options {
                    Options::Usual => "",
                    Options::Login => "authorization { user: \"us%er\", password: \"p@ss-hunter2\" }\n",
                    Options::Full => "jetstream { max_file_store: 1000000 }\n",
                };
                let file = path("nats.conf", config);
                words(&["-c", &file, "-a", "127.0.0.1", "-p", &port, "-js", "-sd", &folder])
            }
        }
    }
}

/// A running server. It ends when this is dropped.
pub(super) struct Server {
    pub(super) program: Program,
    pub(super) port: u16,
    options: Options,
    path: PathBuf,
    folder: PathBuf,
    process: Child,
}

impl Server {
    /// `None`: the variable of the engine is not set.
    pub(super) fn start(program: Program, options: Options) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let variable = program.variable();
        let Some(path) = env::var_os(variable).map(PathBuf::from) else {
            // Not by a macro, whose text the tests would hide.
            let _ = writeln!(io::stderr(), "SKIPPED: a test of {program:?}, because {variable} is not set");
            return None;
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("rescind-engine-{}-{number}", process::id()));
        fs::create_dir(&folder).unwrap();
        // Another process may take the port meanwhile. Then the server ends at once.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(process) = run(program, &path, port, &folder, options) {
                return Some(Self { program, port, options, path, folder, process });
            }
        }
        fs::remove_dir_all(&folder).unwrap();
        panic!("{} did not start on ten ports", path.display());
    }

    pub(super) fn url(&self, login: &str) -> String {
        format!("{}://{login}127.0.0.1:{}", self.program.scheme(), self.port)
    }

    /// Ends it at once, as a crash does.
    pub(super) fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Removes what it stored.
    pub(super) fn forget(&self) {
        fs::remove_dir_all(&self.folder).unwrap();
        fs::create_dir(&self.folder).unwrap();
    }

    /// Starts it again on the same port.
    pub(super) fn start_again(&mut self) {
        let process = run(self.program, &self.path, self.port, &self.folder, self.options);
        self.process = process.expect("the server did not start again");
    }

    /// Suspends it: its connections stay open, and it does not answer.
    pub(super) fn stop(&self) {
        self.send("-STOP");
        // Its threads stop a moment later, and may answer until then.
        while !self.is_stopped() {
            thread::yield_now();
        }
    }

    /// Systems without `/proc` are believed to stop at once.
    fn is_stopped(&self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.process.id())) else { return true };
        threads.flatten().all(|one| fs::read_to_string(one.path().join("stat")).unwrap().contains(") T "))
    }

    pub(super) fn go_on(&self) {
        self.send("-CONT");
    }

    fn send(&self, signal: &str) {
        let sent = Command::new("kill").arg(signal).arg(self.process.id().to_string()).status().unwrap();
        assert!(sent.success(), "{signal}: {sent}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Starts the program and waits until it can be used. `None`: it ended.
fn run(program: Program, path: &Path, port: u16, folder: &Path, options: Options) -> Option<Child> {
    let mut command = Command::new(path);
    command.args(program.arguments(port, folder, options)).stdin(Stdio::null());
    // Redis writes its log to stdout, NATS to stderr.
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (stdout, stderr) = (process.stdout.take().unwrap(), process.stderr.take().unwrap());
    let (log, rest): (Box<dyn Read + Send>, Box<dyn Read + Send>) = match program {
        #[cfg(feature = "redis")]
        Program::Redis => (Box::new(stdout), Box::new(stderr)),
        #[cfg(feature = "nats")]
        Program::Nats => (Box::new(stderr), Box::new(stdout)),
    };
    let mut log = BufReader::new(log);
    let (mut line, mut all) = (String::new(), String::new());
    while !line.contains(program.ready()) {
        line.clear();
        if log.read_line(&mut line).unwrap() == 0 {
            let status = process.wait().unwrap();
            let _ = writeln!(io::stderr(), "{} ended with {status}: {all}", path.display());
            return None;
        }
        all.push_str(&line);
    }
    // A full pipe would stop the server.
    for mut output in [Box::new(log) as Box<dyn Read + Send>, rest] {
        thread::spawn(move || io::copy(&mut output, &mut io::sink()));
    }
    Some(process)
}
