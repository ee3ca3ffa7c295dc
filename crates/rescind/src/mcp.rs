//! The methods of the Model Context Protocol, revision 2025-11-25, with the types of the crate `rust-mcp-schema`.
//!
//! ```no_run
//! use rescind::mcp::{CallTool, types};
//! use rescind::{CallContext, HandlerResult, Router};
//!
//! async fn call_tool(ctx: CallContext, params: types::CallToolRequestParams) -> HandlerResult<types::CallToolResult> {
//!     ctx.run_until_cancelled(run(params.name)).await?
//! }
//!
//! async fn run(tool: String) -> HandlerResult<types::CallToolResult> {
//!     Ok(types::CallToolResult { content: Vec::new(), is_error: Some(tool != "search"), meta: None, structured_content: None })
//! }
//!
//! let router = Router::new().serve::<CallTool>(call_tool);
//! # let _ = router;
//! ```

use rescind_core::Method;

pub use rust_mcp_schema::mcp_2025_11_25 as types;

macro_rules! methods {
    ($($name:ident: $method:literal, $request:ident($params:ty) -> $answer:ident;)*) => {
        $(
            #[doc = concat!("`", $method, "`: [`types::", stringify!($request), "`] and [`types::", stringify!($answer), "`].")]
            #[derive(Debug)]
            pub enum $name {}

            impl Method for $name {
                const NAME: &'static str = $method;
                type Params = $params;
                type Answer = types::$answer;
            }
        )*

        #[cfg(test)]
        mod tests {
            use super::*;

            #[test]
            fn the_names_are_those_of_the_schema() {
                $(assert_eq!($name::NAME, types::$request::method_value());)*
            }
        }
    };
}

methods! {
    Initialize: "initialize", InitializeRequest(types::InitializeRequestParams) -> InitializeResult;
    Ping: "ping", PingRequest(Option<types::RequestParams>) -> Result;
    ListTools: "tools/list", ListToolsRequest(Option<types::PaginatedRequestParams>) -> ListToolsResult;
    CallTool: "tools/call", CallToolRequest(types::CallToolRequestParams) -> CallToolResult;
    ListResources: "resources/list", ListResourcesRequest(Option<types::PaginatedRequestParams>) -> ListResourcesResult;
    ListResourceTemplates: "resources/templates/list",
        ListResourceTemplatesRequest(Option<types::PaginatedRequestParams>) -> ListResourceTemplatesResult;
    ReadResource: "resources/read", ReadResourceRequest(types::ReadResourceRequestParams) -> ReadResourceResult;
    Subscribe: "resources/subscribe", SubscribeRequest(types::SubscribeRequestParams) -> Result;
    Unsubscribe: "resources/unsubscribe", UnsubscribeRequest(types::UnsubscribeRequestParams) -> Result;
    ListPrompts: "prompts/list", ListPromptsRequest(Option<types::PaginatedRequestParams>) -> ListPromptsResult;
    GetPrompt: "prompts/get", GetPromptRequest(types::GetPromptRequestParams) -> GetPromptResult;
    Complete: "completion/complete", CompleteRequest(types::CompleteRequestParams) -> CompleteResult;
    SetLevel: "logging/setLevel", SetLevelRequest(types::SetLevelRequestParams) -> Result;
    CreateMessage: "sampling/createMessage", CreateMessageRequest(types::CreateMessageRequestParams) -> CreateMessageResult;
    Elicit: "elicitation/create", ElicitRequest(types::ElicitRequestParams) -> ElicitResult;
    ListRoots: "roots/list", ListRootsRequest(Option<types::RequestParams>) -> ListRootsResult;
}
