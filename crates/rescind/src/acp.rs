//! The methods of the Agent Client Protocol v1, with the types of the crate `agent-client-protocol-schema`.
//!
//! ```no_run
//! use rescind::acp::{Prompt, types};
//! use rescind::{CallContext, HandlerResult, Router};
//!
//! async fn prompt(ctx: CallContext, _: types::PromptRequest) -> HandlerResult<types::PromptResponse> {
//!     ctx.cancelled().await;
//!     Ok(types::PromptResponse::new(types::StopReason::Cancelled))
//! }
//!
//! let router = Router::new().serve::<Prompt>(prompt);
//! # let _ = router;
//! ```

use rescind_core::Method;

pub use agent_client_protocol_schema::{ProtocolVersion, v1 as types};

macro_rules! methods {
    ($($name:ident: $names:ident.$field:ident, $params:ident -> $answer:ident;)*) => {$(
        #[doc = concat!("`", stringify!($field), "`: [`types::", stringify!($params), "`] and [`types::", stringify!($answer), "`].")]
        #[derive(Debug)]
        pub enum $name {}

        impl Method for $name {
            const NAME: &'static str = types::$names.$field;
            type Params = types::$params;
            type Answer = types::$answer;
        }
    )*};
}

// The methods of an agent.
methods! {
    Initialize: AGENT_METHOD_NAMES.initialize, InitializeRequest -> InitializeResponse;
    Authenticate: AGENT_METHOD_NAMES.authenticate, AuthenticateRequest -> AuthenticateResponse;
    NewSession: AGENT_METHOD_NAMES.session_new, NewSessionRequest -> NewSessionResponse;
    LoadSession: AGENT_METHOD_NAMES.session_load, LoadSessionRequest -> LoadSessionResponse;
    SetSessionMode: AGENT_METHOD_NAMES.session_set_mode, SetSessionModeRequest -> SetSessionModeResponse;
    Prompt: AGENT_METHOD_NAMES.session_prompt, PromptRequest -> PromptResponse;
}

// The methods of a client.
methods! {
    RequestPermission: CLIENT_METHOD_NAMES.session_request_permission, RequestPermissionRequest -> RequestPermissionResponse;
    WriteTextFile: CLIENT_METHOD_NAMES.fs_write_text_file, WriteTextFileRequest -> WriteTextFileResponse;
    ReadTextFile: CLIENT_METHOD_NAMES.fs_read_text_file, ReadTextFileRequest -> ReadTextFileResponse;
    CreateTerminal: CLIENT_METHOD_NAMES.terminal_create, CreateTerminalRequest -> CreateTerminalResponse;
    TerminalOutput: CLIENT_METHOD_NAMES.terminal_output, TerminalOutputRequest -> TerminalOutputResponse;
    ReleaseTerminal: CLIENT_METHOD_NAMES.terminal_release, ReleaseTerminalRequest -> ReleaseTerminalResponse;
    WaitForTerminalExit: CLIENT_METHOD_NAMES.terminal_wait_for_exit, WaitForTerminalExitRequest -> WaitForTerminalExitResponse;
    KillTerminal: CLIENT_METHOD_NAMES.terminal_kill, KillTerminalRequest -> KillTerminalResponse;
}
