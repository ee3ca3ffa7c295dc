//! The server's part in each kind of run: with a slow request, with a quick one, and after a cancel.

use std::time::Duration;

use rescind_core::FrameKind;
use serde_json::Value;

use super::{ByWhat, Due, Event, Own, Play, Run};
use crate::client::server_dialect::{CancelForm, OWN_ID};

/// How long after a cancel a late answer comes, if the program makes no other request before.
const LATE: Duration = Duration::from_millis(300);
impl Run<'_> {
    pub(super) async fn begin_slow(&mut self) {
        match self.kind {
            Play::AnsweredFirst => self.end_slow(true).await,
            Play::Serve => self.ask().await,
            Play::Pair => {
                if self.slow.len() == 2 {
                    self.progress().await;
                    self.later(self.settings.step, Due::Release);
                }
                if self.slow.len() == 1 {
                    self.later(self.settings.step * 2, Due::Release);
                }
            }
            Play::Timeout => self.later(self.settings.step, Due::Release),
            Play::Cancelled | Play::LateResult | Play::LateError | Play::Close | Play::Initialize => {
                self.progress().await;
                self.later(self.settings.step, Due::Release);
            }
        }
    }

    async fn progress(&mut self) {
        let frames: Vec<(Value, Value)> = self
            .slow
            .iter()
            .filter_map(|slow| Some((slow.id.clone(), self.server.progress(&slow.params)?)))
            .collect();
        for (id, frame) in frames {
            if let Some(dialogue) = &mut self.dialogue {
                dialogue.beside(&id, FrameKind::Notification, None, &frame).await;
            }
            self.note(Event::Said(frame.to_string()));
        }
    }

    /// Makes the server's own request.
    async fn ask(&mut self) {
        let session = self.slow.last().map(|slow| slow.session.clone()).unwrap_or_default();
        let frame = self.server.own_request(&session);
        self.beside_slow(FrameKind::Request, &frame).await;
        self.note(Event::Asked(frame.to_string()));
        self.own = Own::Open;
        self.later(self.settings.wait, Due::OwnCancel);
    }

    pub(super) async fn beside_slow(&mut self, kind: FrameKind, frame: &Value) {
        let slow = self.slow.last().map(|slow| slow.id.clone()).unwrap_or_default();
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.beside(&slow, kind, Some(&Value::from(OWN_ID)), frame).await;
        }
    }

    pub(super) async fn quick(&mut self, id: Value) {
        self.held.push(id);
        match self.kind {
            Play::LateResult | Play::LateError if self.slow.iter().any(|slow| slow.cancelled.is_some()) => {
                self.end_slow(self.kind == Play::LateResult).await;
                self.answer_held().await;
            }
            // Its cancel may be on the way, on a transport that does not keep the order.
            Play::LateResult | Play::LateError => {
                self.later(LATE, Due::Late);
                self.later(LATE, Due::Quick);
            }
            Play::AnsweredFirst => {
                // The program's cancel must find it alive.
                let cancelled = self.slow.iter().any(|slow| slow.cancelled.is_some());
                self.later(if cancelled { Duration::ZERO } else { self.settings.wait * 3 }, Due::Quick);
            }
            Play::Serve if self.own == Own::Cancelled => {
                self.own = Own::Done;
                self.answer_held().await;
                self.end_slow(true).await;
            }
            Play::Cancelled | Play::Pair | Play::Serve | Play::Timeout | Play::Close | Play::Initialize => {
                self.answer_held().await;
            }
        }
    }

    pub(super) async fn answer_held(&mut self) {
        for id in std::mem::take(&mut self.held) {
            let frame = self.server.normal(&id, "quick");
            self.answer(&id, &frame, false).await;
        }
    }

    pub(super) async fn cancel(&mut self, form: &CancelForm) {
        let by = match form {
            CancelForm::OfRequest { .. } => ByWhat::Request,
            CancelForm::OfSession(_) => ByWhat::Session,
        };
        let mut found = false;
        for slow in self.slow.iter_mut().filter(|slow| form.means(&slow.id, &slow.session)) {
            found = true;
            slow.cancelled.get_or_insert(by);
        }
        if found {
            self.after_cancel().await;
        }
    }

    pub(super) async fn after_cancel(&mut self) {
        match self.kind {
            Play::LateResult | Play::LateError => self.later(LATE, Due::Late),
            Play::AnsweredFirst => self.later(LATE, Due::Quick),
            Play::Pair => {
                self.end_cancelled().await;
                self.later(LATE, Due::Release);
            }
            Play::Cancelled | Play::Serve | Play::Timeout | Play::Close | Play::Initialize => {
                self.end_cancelled().await;
            }
        }
    }

    /// Ends the cancelled requests as the dialect demands.
    async fn end_cancelled(&mut self) {
        let ended: Vec<(Value, ByWhat)> = self
            .slow
            .iter_mut()
            .filter(|slow| slow.open)
            .filter_map(|slow| {
                let by = slow.cancelled?;
                slow.open = false;
                Some((slow.id.clone(), by))
            })
            .collect();
        for (id, by) in ended {
            if self.server.owes_silence() {
                if let Some(dialogue) = &mut self.dialogue {
                    dialogue.silence(&id).await;
                }
            } else {
                let frame = self.server.cancelled(&id, by == ByWhat::Session);
                self.answer(&id, &frame, true).await;
            }
        }
    }

    /// Answers the open slow requests: with a normal result, or as cancelled.
    pub(super) async fn end_slow(&mut self, normally: bool) {
        let mut ended = Vec::new();
        for slow in self.slow.iter_mut().filter(|slow| slow.open) {
            slow.open = false;
            ended.push((slow.id.clone(), slow.cancelled));
        }
        for (id, by) in ended {
            let frame = if normally {
                self.server.normal(&id, "slow")
            } else {
                self.server.cancelled(&id, by == Some(ByWhat::Session))
            };
            self.answer(&id, &frame, !normally).await;
        }
    }
}
