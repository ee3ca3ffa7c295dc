//! The list of the nodes of a cluster without an engine.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Uri;

use super::EngineError;
use crate::names::NodeName;

/// The nodes of a cluster without an engine, and their URLs. A clone is the same list.
#[derive(Clone, Debug, Default)]
pub struct NodeList(Arc<Mutex<Listed>>);

#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) urls: HashMap<NodeName, Uri>,
    /// Read anew whenever the members are read.
    file: Option<PathBuf>,
}

impl NodeList {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A list in a file: a line `NAME=URL` for each node; `#` at the start of a line or after a space begins a comment. It is read
    /// again when a node is not known, and every three seconds. A file that names no node any more, or cannot be read, changes
    /// nothing.
    #[must_use]
    pub fn of_file(file: impl Into<PathBuf>) -> Self {
        let list = Self::default();
        list.listed().file = Some(file.into());
        list
    }

    /// Adds a node, or changes its URL.
    pub fn set(&self, name: NodeName, url: Uri) {
        self.listed().urls.insert(name, url);
    }

    /// Removes a node.
    pub fn remove(&self, name: &NodeName) {
        self.listed().urls.remove(name);
    }

    pub(crate) fn listed(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it names nodes, and not this one.
    pub(crate) fn lacks(&self, name: &NodeName) -> bool {
        let listed = self.listed();
        !listed.urls.is_empty() && !listed.urls.contains_key(name)
    }

    pub(crate) fn url(&self, name: &NodeName) -> Option<Uri> {
        self.listed().urls.get(name).cloned()
    }

    pub(crate) async fn read(&self) -> Result<(), EngineError> {
        let Some(file) = self.listed().file.clone() else { return Ok(()) };
        let text = tokio::fs::read_to_string(&file).await;
        let wrong = |why: &dyn std::fmt::Display| EngineError::List(format!("{}: {why}", file.display()));
        let text = text.map_err(|error| wrong(&error))?;
        let urls = parse(&without_comments(&text)).map_err(|error| wrong(&error))?;
        let mut listed = self.listed();
        // An editor may empty the file before it writes it.
        if urls.is_empty() && !listed.urls.is_empty() {
            return Err(wrong(&"it names no node"));
        }
        listed.urls = urls;
        Ok(())
    }
}

/// The lines of a file as a list, without its comments.
fn without_comments(text: &str) -> String {
    let entry = |line: &str| {
        let comment = line.match_indices('#').map(|(at, _)| at);
        let is_begin = |at: &usize| *at == 0 || line[..*at].ends_with([' ', '\t']);
        let end = comment.into_iter().find(is_begin).unwrap_or(line.len());
        line[..end].to_owned()
    };
    text.lines().map(entry).collect::<Vec<_>>().join(",")
}

/// Reads `NAME=URL,NAME=URL`.
pub(crate) fn parse(list: &str) -> Result<HashMap<NodeName, Uri>, String> {
    let mut nodes = HashMap::new();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, url) = entry.split_once('=').ok_or_else(|| format!("{entry:?} is not NAME=URL"))?;
        let name: NodeName = name.trim().parse().map_err(|error| format!("{name:?}: {error}"))?;
        if nodes.insert(name.clone(), node_url(url.trim())?).is_some() {
            return Err(format!("{name} is listed twice"));
        }
    }
    Ok(nodes)
}

/// Reads the URL of a node.
pub(crate) fn node_url(url: &str) -> Result<Uri, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(uri),
        _ => Err(format!("{url:?} is no http:// or https:// URL")),
    }
}

impl FromIterator<(NodeName, Uri)> for NodeList {
    fn from_iter<I: IntoIterator<Item = (NodeName, Uri)>>(nodes: I) -> Self {
        let list = Self::default();
        list.listed().urls.extend(nodes);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_has_comments_and_one_that_is_broken_for_a_moment_changes_nothing() {
        let file = std::env::temp_dir().join(format!("rescind-list-{}", std::process::id()));
        let list = NodeList::of_file(&file);
        assert!(matches!(list.read().await, Err(EngineError::List(_))), "there is no file");
        std::fs::write(&file, "").unwrap();
        list.read().await.unwrap();
        let text = "# three, or two nodes\nn1=http://127.0.0.1:1/rpc\t# the first\n\n  n2 = http://127.0.0.1:2/#rpc\n";
        std::fs::write(&file, text).unwrap();
        list.read().await.unwrap();
        let (one, two): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let is_read = || list.url(&one).is_some() && list.url(&two).is_some();
        assert!(is_read() && !list.lacks(&one) && list.lacks(&"n3".parse().unwrap()));
        for broken in ["", "# nothing\n", "n1\n", "n1=ftp://127.0.0.1\n", "n1=http://a/\nn1=http://b/\n"] {
            std::fs::write(&file, broken).unwrap();
            let error = list.read().await.unwrap_err().to_string();
            assert!(error.starts_with("the list of nodes: ") && is_read(), "{broken:?}: {error}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(list.read().await.is_err() && is_read());
    }
}
