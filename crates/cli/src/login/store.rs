//! The file of a login, which all bridges of a user to the same server share, and the lock beside it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A login. It has no `Debug`, because all of its tokens would show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    /// The address of the server, whose name is also that of the file.
    pub(super) server: String,
    pub(super) issuer: String,
    pub(super) token_endpoint: String,
    pub(super) revocation_endpoint: Option<String>,
    pub(super) client: Client,
    /// The server, as the token is meant for it.
    pub(super) resource: String,
    pub(super) scopes: Vec<String>,
    pub(super) access_token: String,
    pub(super) refresh_token: Option<String>,
    /// In milliseconds since 1970. `None`: the server has not said it.
    pub(super) expires_at: Option<u64>,
    /// In milliseconds.
    pub(super) lifetime: Option<u64>,
}

/// What the authorization server knows of this program.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Client {
    pub(super) id: String,
    pub(super) secret: Option<String>,
    pub(super) secret_in_body: bool,
    /// The port of the redirect with which it was registered.
    pub(super) redirect_port: Option<u16>,
}

/// A token is renewed this long before its end, or a quarter of its life if that is shorter.
const BEFORE_END: Duration = Duration::from_secs(60);

impl Stored {
    pub(super) fn has_expired(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= now())
    }

    /// The time until it must be renewed. `None`: it cannot be, or nobody knows its end.
    pub(super) fn renews_in(&self) -> Option<Duration> {
        let (at, lifetime) = self.refresh_token.as_ref().and(self.expires_at.zip(self.lifetime))?;
        let before = BEFORE_END.min(Duration::from_millis(lifetime / 4));
        Some(Duration::from_millis(at.saturating_sub(now())).saturating_sub(before))
    }
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The paths of a login.
pub(super) struct LoginFile {
    folder: PathBuf,
    name: String,
}

impl LoginFile {
    /// The file for this server and this client, in the user's state folder. `None`: the user has no such folder.
    pub(super) fn of(server: &str, client: Option<&str>) -> Option<Self> {
        Some(Self { folder: state_folder()?.join("rescind").join("logins"), name: name(server, client) })
    }

    fn path(&self, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{end}", self.name))
    }

    /// The login that is stored now. A file that others may read, or of another server, does not count.
    pub(super) fn read(&self, server: &str) -> Option<Stored> {
        let path = self.path("json");
        let text = is_private(&path).then(|| fs::read(&path).ok()).flatten()?;
        serde_json::from_slice(&text).ok().filter(|stored: &Stored| stored.server == server)
    }

    /// Replaces the login, at once for each reader.
    ///
    /// # Errors
    /// The reason why it cannot be written, in one sentence.
    pub(super) fn write(&self, stored: &Stored) -> Result<(), String> {
        let (new, path) = (self.path(&format!("{}.new", std::process::id())), self.path("json"));
        let written = || -> io::Result<()> {
            drop(fs::remove_file(&new));
            let mut file = private_file().create_new(true).open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(stored)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        written().map_err(|error| format!("the login could not be stored in {}: {error}", path.display()))
    }

    /// Deletes the login. Returns whether there was one.
    ///
    /// # Errors
    /// The reason why it cannot be deleted, in one sentence.
    pub(super) fn delete(&self) -> Result<bool, String> {
        let path = self.path("json");
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("{} could not be deleted: {error}", path.display())),
        }
    }

    /// Takes the lock, if no other process has it. The lock ends with its process at the latest.
    ///
    /// # Errors
    /// The reason why there can be no lock, in one sentence.
    pub(super) fn try_lock(&self) -> Result<Option<Lock>, String> {
        let path = self.path("lock");
        let locked = || -> Result<Option<File>, io::Error> {
            private_folder(&self.folder)?;
            let file = private_file().create(true).truncate(false).open(&path)?;
            match file.try_lock() {
                Ok(()) => Ok(Some(file)),
                Err(TryLockError::WouldBlock) => Ok(None),
                Err(TryLockError::Error(error)) => Err(error),
            }
        };
        let locked = locked().map_err(|error| format!("{} could not be locked: {error}", path.display()))?;
        let lock = locked.map(|file| Lock { _file: file, address: self.path("url") });
        if let Some(lock) = &lock {
            // That of a process that was killed.
            lock.hide();
        }
        Ok(lock)
    }

    /// The address at which the process that has the lock waits for the user, if it could not open a browser.
    pub(super) fn address(&self) -> Option<String> {
        fs::read_to_string(self.path("url")).ok().filter(|text| !text.is_empty())
    }
}

/// The lock of a login, until it is dropped.
pub(super) struct Lock {
    _file: File,
    address: PathBuf,
}

impl Lock {
    /// Tells the processes that wait where the user can log in.
    pub(super) fn show(&self, url: &str) {
        // Without it they wait longer.
        let shown = private_file().create(true).truncate(true).open(&self.address);
        drop(shown.and_then(|mut file| file.write_all(url.as_bytes())));
    }

    /// Tells them that the user has answered.
    pub(super) fn hide(&self) {
        drop(fs::remove_file(&self.address));
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.hide();
    }
}

/// The beginning of the address without its query, for people, and a hash of all.
fn name(server: &str, client: Option<&str>) -> String {
    let short = server.split_once("://").map_or(server, |(_, rest)| rest);
    let short = short.split('?').next().unwrap_or_default();
    let short: String = short
        .chars()
        .take(40)
        .map(|sign| if sign.is_ascii_alphanumeric() || sign == '.' { sign } else { '_' })
        .collect();
    let hash = Sha256::digest(format!("{server}\n{}", client.unwrap_or_default()));
    let hash = hash.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    format!("{short}-{hash:016x}")
}

fn state_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if cfg!(windows) {
        return variable("LOCALAPPDATA");
    }
    variable("XDG_STATE_HOME").or_else(|| std::env::home_dir().map(|home| home.join(".local").join("state")))
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn private_folder(path: &Path) -> io::Result<()> {
    let mut folder = fs::DirBuilder::new();
    folder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.create(path)
}

/// The rights of others than the user.
#[cfg(unix)]
const OTHERS: u32 = 0o077;

#[cfg(unix)]
fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;

    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & OTHERS == 0)
}

/// A user's folder is private there.
#[cfg(not(unix))]
fn is_private(_: &Path) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn stored(server: &str) -> Stored {
        let client = Client { id: "c".to_owned(), secret: None, secret_in_body: false, redirect_port: None };
        Stored {
            server: server.to_owned(),
            issuer: "https://as".to_owned(),
            token_endpoint: "https://as/t".to_owned(),
            revocation_endpoint: None,
            client,
            resource: server.to_owned(),
            scopes: Vec::new(),
            access_token: "a".to_owned(),
            refresh_token: Some("r".to_owned()),
            expires_at: Some(now() + 3_600_000),
            lifetime: Some(3_600_000),
        }
    }

    #[test]
    fn a_login_is_private_and_one_that_others_can_read_does_not_count() {
        let folder = std::env::temp_dir().join(format!("rescind-store-{}", std::process::id()));
        let file = LoginFile { folder: folder.join("logins"), name: name("https://h/mcp", None) };
        assert!(file.read("https://h/mcp").is_none() && file.delete() == Ok(false));
        let lock = file.try_lock().unwrap().unwrap();
        assert!(file.try_lock().unwrap().is_none(), "another process has it");
        file.write(&stored("https://h/mcp")).unwrap();
        file.write(&stored("https://h/mcp")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file.path("json")), mode(&file.folder)), (0o600, 0o700));
        assert!(file.read("https://h/mcp").is_some() && file.read("https://h/other").is_none());
        fs::set_permissions(file.path("json"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(file.read("https://h/mcp").is_none());
        lock.show("https://as/a");
        assert_eq!((file.address().as_deref(), mode(&file.path("url"))), (Some("https://as/a"), 0o600));
        drop(lock);
        assert!(file.address().is_none() && file.try_lock().unwrap().is_some());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_name_shows_the_server_and_no_query_and_differs_for_each_client() {
        let own = name("https://tools.example/mcp?key=secret", None);
        assert!(own.starts_with("tools.example_mcp-") && !own.contains("secret"), "{own}");
        assert_ne!(own, name("https://tools.example/mcp", None));
        assert_ne!(own, name("https://tools.example/mcp?key=secret", Some("c")));
    }

    #[test]
    fn a_token_is_renewed_a_minute_or_a_quarter_of_its_life_before_its_end() {
        let mut login = stored("https://h/mcp");
        let within = |login: &Stored, seconds: std::ops::Range<u64>| {
            login.renews_in().is_some_and(|time| seconds.contains(&time.as_secs()))
        };
        assert!(within(&login, 3530..3541) && !login.has_expired());
        (login.expires_at, login.lifetime) = (Some(now() + 40_000), Some(40_000));
        assert!(within(&login, 25..31));
        login.expires_at = Some(now() - 1);
        assert!(within(&login, 0..1) && login.has_expired());
        login.expires_at = None;
        assert!(login.renews_in().is_none() && !login.has_expired());
        let without = Stored { refresh_token: None, ..stored("https://h/mcp") };
        assert!(without.renews_in().is_none());
    }
}
