//! Limits at their ends: nothing at all, and for ever.

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ACP, MCP};
use crate::message::BadMessage;

