//! A profile with the values of this machine: the texts and URIs (RFC 8089) of files, and the path of the scratch copy.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::profile::{HandshakeStep, Profile};

/// A file of a profile that cannot be used, or a name that nothing defines, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnresolvedProfile(String);

impl Profile {
    /// Returns the profile with its files, URIs and paths filled in. `base` is the folder of the profile. `scratch` is
    /// the copy of the scratch folder; without it the folder itself is used.
    ///
    /// A file is looked for in the scratch folder and then beside the profile.
    ///
    /// # Errors
    /// If a file or the scratch folder is missing, if a file whose text is wanted is not UTF-8, or if a string uses a
    /// `"${name}"` that no step binds.
    pub fn resolve(&self, base: &Path, scratch: Option<&Path>) -> Result<Self, UnresolvedProfile> {
        let base = absolute(base)?;
        let scratch = match (&self.session.scratch, scratch) {
            (None, _) => None,
            (Some(_), Some(copy)) => Some(absolute(copy)?),
            (Some(folder), None) => Some(base.join(folder)),
        };
        if let Some(missing) = scratch.as_deref().filter(|folder| !folder.is_dir()) {
            return Err(UnresolvedProfile(format!(
                "the scratch folder {} is missing; `scratch` under [session] is a folder beside the profile",
                missing.display()
            )));
        }
        let mut places = Places { base, scratch, bound: BTreeSet::new() };
        let mut profile = self.clone();
        profile.session.scratch.clone_from(&places.scratch);
        for step in profile.handshake.steps.iter_mut().chain(&mut profile.session.setup) {
            places.step(step)?;
        }
        for request in profile.requests.values_mut() {
            places.fill(&mut request.params)?;
            request.result.as_mut().map_or(Ok(()), |result| places.fill(result))?;
        }
        if let Some(witness) = &mut profile.witness {
            places.fill(&mut witness.params)?;
        }
        // The values that a session binds are unknown to other processes, and to answers.
        places.bound.clear();
        for reply in profile.session.replies.values_mut() {
            places.fill(reply)?;
        }
        let command = profile.witness.iter_mut().flat_map(|witness| &mut witness.command);
        for text in profile.session.env.values_mut().chain(command) {
            places.text(text)?;
        }
        Ok(profile)
    }
}

fn absolute(path: &Path) -> Result<PathBuf, UnresolvedProfile> {
    std::path::absolute(path)
        .map_err(|error| UnresolvedProfile(format!("the path {} cannot be used: {error}", path.display())))
}

/// Where files are looked for, and the names that are bound so far.
struct Places {
    base: PathBuf,
    scratch: Option<PathBuf>,
    bound: BTreeSet<String>,
}

const SCRATCH: &str = "${scratch}";

impl Places {
    fn step(&mut self, step: &mut HandshakeStep) -> Result<(), UnresolvedProfile> {
        self.fill(&mut step.params)?;
        self.bound.extend(step.bind.keys().cloned());
        Ok(())
    }

    fn fill(&self, value: &mut Value) -> Result<(), UnresolvedProfile> {
        match value {
            Value::String(text) => self.text(text)?,
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.fill(item))?,
            Value::Object(members) => {
                members.values_mut().try_for_each(|member| self.fill(member))?;
                if let Some(filled) = self.file(members)? {
                    *value = Value::String(filled);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    fn text(&self, text: &mut String) -> Result<(), UnresolvedProfile> {
        if text.contains(SCRATCH) && !self.bound.contains("scratch") {
            let Some(scratch) = &self.scratch else {
                return Err(UnresolvedProfile(format!(
                    "`{SCRATCH}` is used, and there is no `scratch` under [session] that names a folder"
                )));
            };
            *text = text.replace(SCRATCH, &scratch.to_string_lossy());
        }
        // Only a string that is a name as a whole is surely meant as one.
        let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        match name {
            Some(name) if !name.contains(['$', '{', '}']) && !self.bound.contains(name) => Err(
                UnresolvedProfile(format!("`{text}` is used before a step of the session binds `{name}`")),
            ),
            _ => Ok(()),
        }
    }

    /// What `{ file = NAME }` and `{ file-uri = NAME }` mean.
    fn file(&self, members: &Map<String, Value>) -> Result<Option<String>, UnresolvedProfile> {
        let mut all = members.iter();
        let (Some((key, Value::String(name))), None) = (all.next(), all.next()) else { return Ok(None) };
        match key.as_str() {
            "file" => self.read(name).map(Some),
            "file-uri" => self.find(name).map(|path| Some(file_uri(&path))),
            _ => Ok(None),
        }
    }

    fn read(&self, name: &str) -> Result<String, UnresolvedProfile> {
        let path = self.find(name)?;
        std::fs::read_to_string(&path).map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
                _ => error.to_string(),
            };
            UnresolvedProfile(format!("the file {} of the profile cannot be used: {why}", path.display()))
        })
    }

    fn find(&self, name: &str) -> Result<PathBuf, UnresolvedProfile> {
        let folders = self.scratch.iter().chain([&self.base]);
        // Without its `.` components, which a URI must not have.
        let places = folders.map(|folder| folder.join(name).components().collect::<PathBuf>());
        let places: Vec<PathBuf> = places.collect();
        if let Some(found) = places.iter().find(|place| place.exists()) {
            return Ok(found.clone());
        }
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Err(UnresolvedProfile(format!(
            "the file `{name}` of the profile is missing: there is no {}",
            looked.join(" and no ")
        )))
    }
}

/// The `file:` URI of an absolute path. Bytes other than letters, digits, `-._~` and separators are percent-encoded.
fn file_uri(path: &Path) -> String {
    uri(&bytes(path))
}

#[cfg(unix)]
fn bytes(path: &Path) -> Vec<u8> {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec()
}

/// Windows' separators become those of URIs: `C:\a` is `/C:/a`, and `\\server\a` is `//server/a`.
#[cfg(not(unix))]
fn bytes(path: &Path) -> Vec<u8> {
    with_slashes(&path.to_string_lossy()).into_bytes()
}

#[cfg(any(not(unix), test))]
fn with_slashes(path: &str) -> String {
    let plain = match path.strip_prefix(r"\\?\UNC\") {
        Some(share) => format!(r"\\{share}"),
        None => path.strip_prefix(r"\\?\").unwrap_or(path).to_owned(),
    };
    let slashed = plain.replace('\\', "/");
    if slashed.starts_with('/') { slashed } else { format!("/{slashed}") }
}

fn uri(path: &[u8]) -> String {
    // A share of Windows has two separators, and its first part is the host.
    let path = path.strip_prefix(b"//").unwrap_or(path);
    let mut uri = "file://".to_owned();
    let has_drive = matches!(path, [b'/', letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    for (at, byte) in path.iter().enumerate() {
        let is_drive = has_drive && at == 2;
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(byte) || is_drive {
            uri.push(char::from(*byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::profile::RequestKind;

    /// A folder that is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rescind profile-{name}-{}", std::process::id()));
            std::fs::create_dir_all(path.join("workspace")).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, bytes: &[u8]) {
            std::fs::write(self.0.join(name), bytes).unwrap();
        }

        fn resolve(&self, text: &str, scratch: Option<&Path>) -> Result<Profile, UnresolvedProfile> {
            Profile::from_toml(&format!("name = \"x\"\n{text}")).unwrap().resolve(&self.0, scratch)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn files_are_taken_from_the_scratch_copy_or_beside_the_profile() {
        let (folder, copy) = (Folder::new("files"), Folder::new("copy"));
        folder.write("beside.py", "x = 'é'\n".as_bytes());
        folder.write("workspace/big.py", b"old");
        copy.write("big.py", b"new");
        let text = r#"
            [session]
            scratch = "workspace"
            env = { ROOT = "${scratch}/lib" }
            replies = { "workspace/workspaceFolders" = [ { uri = { file-uri = "." } } ] }
            setup = [ { notify = "open", params = { text = { file = "big.py" }, other = { file = "beside.py", x = 1 } } } ]
            [requests.slow]
            method = "m"
            params = { uri = { file-uri = "./big.py" }, text = [ { file = "beside.py" } ], at = "in ${scratch}." }
            [witness]
            command = [ "cat", "${scratch}/count" ]
        "#;
        let profile = folder.resolve(text, Some(&copy.0)).unwrap();
        let path = copy.0.display().to_string();
        let uri = file_uri(&copy.0);
        assert_eq!(profile.session.scratch.as_deref(), Some(copy.0.as_path()));
        assert_eq!(profile.session.env["ROOT"], format!("{path}/lib"));
        assert_eq!(profile.session.replies["workspace/workspaceFolders"], json!([{ "uri": uri }]));
        assert_eq!(
            profile.session.setup[0].params,
            json!({ "text": "new", "other": {"file": "beside.py", "x": 1} })
        );
        assert_eq!(
            profile.requests[&RequestKind::Slow].params,
            json!({ "uri": format!("{uri}/big.py"), "text": ["x = 'é'\n"], "at": format!("in {path}.") })
        );
        assert_eq!(profile.witness.unwrap().command, ["cat", &format!("{path}/count")]);
        let before = folder.resolve(text, None).unwrap();
        assert_eq!(before.session.setup[0].params["text"], "old");
    }

    #[test]
    fn a_missing_file_or_folder_is_named() {
        let folder = Folder::new("missing");
        folder.write("latin.py", b"\xe9");
        let slow = |params: &str| format!("[requests.slow]\nmethod = \"m\"\nparams = {params}\n");
        for (text, told) in [
            (
                slow("{ text = { file = \"no.py\" } }"),
                "the file `no.py` of the profile is missing: there is no /",
            ),
            (slow("{ uri = { file-uri = \"no.py\" } }"), "the file `no.py` of the profile is missing"),
            (
                slow("{ text = { file = \"latin.py\" } }"),
                "latin.py of the profile cannot be used: it is not UTF-8 text",
            ),
            (
                "[session]\nscratch = \"nowhere\"\n".to_owned(),
                "nowhere is missing; `scratch` under [session]",
            ),
            (slow("{ at = \"${scratch}\" }"), "there is no `scratch` under [session]"),
            ("[session]\nenv = { A = \"${scratch}\" }\n".to_owned(), "there is no `scratch` under [session]"),
            (
                slow("{ id = \"${session}\" }"),
                "`${session}` is used before a step of the session binds `session`",
            ),
        ] {
            let error = folder.resolve(&text, None).unwrap_err().to_string();
            assert!(error.contains(told) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn a_name_is_bound_by_an_earlier_step_of_the_handshake_or_the_setup() {
        let folder = Folder::new("bound");
        let bound = r#"
            [session]
            setup = [ { method = "b", params = { a = "${a}" }, bind = { c = "result" } } ]
            [handshake]
            steps = [ { method = "a", bind = { a = "result.a" } } ]
            [requests.slow]
            method = "m"
            params = { a = "${a}", c = "${c}", text = "a template: ${HOME} and ${x}" }
        "#;
        let params = folder.resolve(bound, None).unwrap().requests[&RequestKind::Slow].params.clone();
        assert_eq!(params["a"], "${a}", "the session gives the value");
        let early = bound.replace("method = \"a\", bind", "method = \"a\", params = { c = \"${c}\" }, bind");
        assert!(folder.resolve(&early, None).is_err());
    }

    #[test]
    fn a_uri_encodes_what_is_not_plain() {
        for (path, expected) in [
            ("/home/me/big.py", "file:///home/me/big.py"),
            ("/a b/50%/c#d?e.py", "file:///a%20b/50%25/c%23d%3Fe.py"),
            ("/é/日.py", "file:///%C3%A9/%E6%97%A5.py"),
            ("/a:b/[x]+(y)&z=1,'~-_.py", "file:///a%3Ab/%5Bx%5D%2B%28y%29%26z%3D1%2C%27~-_.py"),
            ("/", "file:///"),
        ] {
            assert_eq!(uri(path.as_bytes()), expected);
        }
    }

    #[test]
    fn a_path_of_windows_keeps_its_drive_or_its_server() {
        for (path, expected) in [
            (r"C:\a b\c.py", "file:///C:/a%20b/c.py"),
            (r"\\?\C:\a\c.py", "file:///C:/a/c.py"),
            (r"\\server\share\c.py", "file://server/share/c.py"),
            (r"\\?\UNC\server\share\c.py", "file://server/share/c.py"),
        ] {
            assert_eq!(uri(with_slashes(path).as_bytes()), expected);
        }
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_not_utf_8_are_encoded_as_they_are() {
        let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"/a\xff");
        assert_eq!(file_uri(Path::new(path)), "file:///a%FF");
    }
}
