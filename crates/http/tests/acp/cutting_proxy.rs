//! A proxy that cuts event streams in their middle.

use std::sync::Arc;

use rescind_testkit::support::Serving;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Where a response is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// So many bytes reach the client.
    pub(crate) after: usize,
    /// So many more leave the server and are lost.
    pub(crate) lost: usize,
}

/// A proxy that serves until it is dropped.
pub(crate) struct CuttingProxy {
    pub(crate) url: String,
    _serving: Serving,
}

impl CuttingProxy {
    /// A proxy before the server with this URL. `plan` gets the head of each GET. `None`: its response is not cut.
    pub(crate) async fn before(
        url: &str,
        plan: impl Fn(&str) -> Option<Cut> + Send + Sync + 'static,
    ) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = socket.local_addr().unwrap().to_string();
        let server = url.trim_start_matches("http://").trim_end_matches("/acp").to_owned();
        let own_url = url.replace(&server, &own);
        let plan = Arc::new(plan);
        let serving = Serving::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = socket.accept().await {
                let (server, plan) = (server.clone(), Arc::clone(&plan));
                connections.spawn(async move {
                    let server = TcpStream::connect(server).await.unwrap();
                    carry(client, server, &*plan).await;
                });
            }
        });
        Self { url: own_url, _serving: serving }
    }
}

/// Carries bytes both ways until either side closes or the response is cut. Both connections close then.
async fn carry(mut client: TcpStream, mut server: TcpStream, plan: &(dyn Fn(&str) -> Option<Cut> + Sync)) {
    let (mut asked, mut answered) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut cut: Option<Cut> = None;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let bytes = &asked[..read.unwrap_or(0)];
                let head = String::from_utf8_lossy(bytes);
                if head.starts_with("GET ") {
                    cut = plan(&head);
                }
                if bytes.is_empty() || server.write_all(bytes).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let bytes = &answered[..read.unwrap_or(0)];
                let passed = cut.map_or(bytes.len(), |cut| cut.after.min(bytes.len()));
                if bytes.is_empty() || client.write_all(&bytes[..passed]).await.is_err() {
                    return;
                }
                if let Some(cut) = &mut cut {
                    cut.after -= passed;
                    let lost = bytes.len() - passed;
                    if cut.after == 0 && lost >= cut.lost {
                        return;
                    }
                    cut.lost -= lost;
                }
            }
        }
    }
}
