//! The copy of a scratch folder: a session's own files, removed when its session ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A temporary folder. It is removed on drop.
#[derive(Debug)]
pub(super) struct ScratchCopy(PathBuf);

impl ScratchCopy {
    /// Copies a folder. Links are copied as links.
    ///
    /// # Errors
    /// One sentence, if the folder cannot be read or its copy cannot be written.
    pub(super) fn of(folder: &Path) -> Result<Self, String> {
        let failed =
            |error: io::Error| format!("the scratch folder {} cannot be copied: {error}", folder.display());
        if !folder.is_dir() {
            return Err(format!("the scratch folder {} is missing", folder.display()));
        }
        let copy = Self(create().map_err(failed)?);
        copy_into(folder, &copy.0).map_err(failed)?;
        Ok(copy)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchCopy {
    fn drop(&mut self) {
        // A program that is being killed may write a last file meanwhile.
        for _ in 0..20 {
            match fs::remove_dir_all(&self.0) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Creates a folder with a new name. Its path has no links, because programs compare paths.
fn create() -> io::Result<PathBuf> {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits).map_err(|error| io::Error::other(error.to_string()))?;
    let name = format!("rescind-check-{:016x}", u64::from_ne_bytes(bits));
    let path = std::env::temp_dir().join(name);
    fs::create_dir(&path)?;
    fs::canonicalize(path)
}

fn copy_into(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy_into(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            link(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(fs::read_link(from)?, to)
}

/// Links need a permission there, so their targets are copied.
#[cfg(not(unix))]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir(to)?;
        return copy_into(from, to);
    }
    fs::copy(from, to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_all_files_and_is_removed_with_its_session() {
        let folder = create().unwrap();
        fs::create_dir(folder.join("sub")).unwrap();
        fs::write(folder.join("sub/a.txt"), "a").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("sub/a.txt", folder.join("link")).unwrap();
        let copy = ScratchCopy::of(&folder).unwrap();
        let path = copy.path().to_owned();
        assert!(path != folder && path.is_absolute());
        assert_eq!(fs::read_to_string(path.join("sub/a.txt")).unwrap(), "a");
        #[cfg(unix)]
        assert_eq!(fs::read_link(path.join("link")).unwrap(), Path::new("sub/a.txt"));
        fs::write(path.join("new.txt"), "b").unwrap();
        drop(copy);
        assert!(!path.exists() && !folder.join("new.txt").exists());
        fs::remove_dir_all(&folder).unwrap();
        assert!(ScratchCopy::of(&folder).unwrap_err().contains("is missing"));
    }
}
