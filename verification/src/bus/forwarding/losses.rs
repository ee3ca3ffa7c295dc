//! What is lost with a node, a connection or a view.

use super::{Answer, Client, Life, OWNER, Place, State, Step, Which, Work};

impl State {
    pub(super) fn suffer(&mut self, step: Step) -> &'static str {
        match step {
            Step::Dies(node) => {
                self.mishaps.deaths -= 1;
                self.live(node, Life::Dead);
                self.die(node)
            }
            Step::Restarts(node) => {
                self.live(node, Life::Second);
                "node restarts"
            }
            Step::Cut(which) => {
                self.mishaps.cuts -= 1;
                if which == Which::Request && self.client == Client::Waits {
                    self.client = Client::Leaves;
                }
                self.message_mut(which).place = Place::Returning(Answer::Lost);
                "connection cut"
            }
            Step::NewView(node, view) => {
                self.mishaps.new_views -= 1;
                if let Some(place) = self.views.get_mut(usize::from(node)) {
                    *place = view;
                }
                "new view"
            }
            _ => "",
        }
    }

    fn live(&mut self, node: u8, life: Life) {
        if let Some(place) = self.lives.get_mut(usize::from(node)) {
            *place = life;
        }
    }

    /// A dead node's work is lost, and so are the connections of the clients that entered through it.
    fn die(&mut self, node: u8) -> &'static str {
        if node == OWNER {
            self.early = false;
            self.accepted = false;
            if matches!(self.work, Work::Runs | Work::Signalled) {
                self.work = Work::Ended;
            }
        }
        let mut event = "node dies";
        for which in [Which::Request, Which::Cancel] {
            let message = self.message_mut(which);
            let is_entry = message.entry == node;
            let is_open = match message.place {
                Place::Coming { forwarded, .. } => forwarded,
                Place::AtOwner | Place::Returning(_) => true,
                Place::Unsent | Place::Answered(_) => false,
            };
            if is_entry && is_open {
                message.place = Place::Answered(Answer::Lost);
                event = "answer lost with the entry node";
                if which == Which::Request && self.client == Client::Waits {
                    self.client = Client::Leaves;
                }
            }
        }
        event
    }
}
