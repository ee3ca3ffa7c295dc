//! An axum application with a WebSocket route.

use axum::Router;
use axum::routing::{any, get};
use rescind_testkit::support::Serving;
use rescind_websocket::{MountedListener, UpgradeOptions, mount};

pub async fn serve(options: UpgradeOptions) -> (MountedListener, String, Serving) {
    let (upgrades, listener) = mount(options);
    let app = Router::new().route("/agent", any(upgrades)).route("/", get(async || "a page of ours"));
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/agent", tcp.local_addr().unwrap());
    let serving = Serving::spawn(async { axum::serve(tcp, app).await.unwrap() });
    (listener.at(&url), url, serving)
}
