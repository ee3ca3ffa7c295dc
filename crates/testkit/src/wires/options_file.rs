//! The options of a scenario, for a fixture that is a process.

use std::path::{Path, PathBuf};
use std::process::id;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::vector::Scenario;

/// The options of a vector as a file, which is deleted on drop.
pub(super) struct OptionsFile(PathBuf);

impl OptionsFile {
    /// Writes the options of this scenario. `None`: they are the defaults.
    pub(super) fn write(scenario: &Scenario) -> Result<Option<Self>, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if scenario.vector.options.is_default() {
            return Ok(None);
        }
        let name = format!("rescind-options-{}-{}.json", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let text = serde_json::to_string(&scenario.vector.options).map_err(|error| error.to_string())?;
        std::fs::write(&path, text)
            .map_err(|error| format!("the options could not be written to {}: {error}", path.display()))?;
        Ok(Some(Self(path)))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OptionsFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}
