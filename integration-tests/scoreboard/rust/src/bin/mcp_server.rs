//! An MCP server made with rmcp, as its documentation shows: tools that look at the token of their request.

use std::time::Duration;

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    handler::server::wrapper::Parameters,
    model::{CallToolResult, ContentBlock, ProgressNotificationParam},
    schemars,
    service::RequestContext,
    tool, tool_handler, tool_router,
    transport::stdio,
};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Wait {
    seconds: f64,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Echo {
    text: String,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Count {
    to: u32,
}

#[derive(Clone)]
struct Tools;

#[tool_router]
impl Tools {
    #[tool(description = "Waits, or ends when its request is cancelled")]
    async fn wait(
        &self,
        Parameters(Wait { seconds }): Parameters<Wait>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        tokio::select! {
            () = context.ct.cancelled() => Err(ErrorData::internal_error("cancelled", None)),
            () = tokio::time::sleep(Duration::from_secs_f64(seconds)) => Ok(said("waited")),
        }
    }

    #[tool(description = "Answers with its text")]
    async fn echo(&self, Parameters(Echo { text }): Parameters<Echo>) -> Result<CallToolResult, ErrorData> {
        Ok(said(&text))
    }

    #[tool(description = "Counts, five numbers a second, and reports progress")]
    async fn count(
        &self,
        Parameters(Count { to }): Parameters<Count>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        for step in 1..=to {
            tokio::select! {
                () = context.ct.cancelled() => return Err(ErrorData::internal_error("cancelled", None)),
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
            if let Some(token) = context.meta.get_progress_token() {
                let progress =
                    ProgressNotificationParam::new(token, f64::from(step)).with_total(f64::from(to));
                let _ = context.peer.notify_progress(progress).await;
            }
        }
        Ok(said("counted"))
    }
}

fn said(text: &str) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

#[tool_handler]
impl ServerHandler for Tools {}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    Tools.serve(stdio()).await?.waiting().await?;
    Ok(())
}
