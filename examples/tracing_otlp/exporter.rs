//! Exports spans over OTLP, as JSON over HTTP.

use std::error::Error;
use std::time::Duration;

use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;

/// The exporter runs on a thread of its own, and the HTTP client needs the runtime.
#[derive(Debug)]
struct OnRuntime(HyperClient, tokio::runtime::Handle);

#[async_trait::async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.0.clone();
        self.1.spawn(async move { client.send_bytes(request).await }).await?
    }
}

/// The provider of the tracer. It exports to this collector, if there is one.
pub(crate) fn provider(collector: Option<&str>) -> Result<SdkTracerProvider, Box<dyn Error>> {
    let resource = Resource::builder().with_service_name("rescind-example").build();
    let provider = SdkTracerProvider::builder().with_resource(resource);
    let Some(collector) = collector else { return Ok(provider.build()) };
    let client = HyperClient::with_default_connector(Duration::from_secs(5), None);
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(OnRuntime(client, tokio::runtime::Handle::current()))
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(format!("{}/v1/traces", collector.trim_end_matches('/')))
        .build()?;
    Ok(provider.with_batch_exporter(exporter).build())
}
