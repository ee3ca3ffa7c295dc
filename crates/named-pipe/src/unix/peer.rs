//! The user at the other end.

use crate::PipeError;

/// The peer must run as the user of this process. root counts as another user.
pub(super) fn check_same_user(theirs: u32) -> Result<(), PipeError> {
    compare(rustix::process::geteuid().as_raw(), theirs)
}

const fn compare(ours: u32, theirs: u32) -> Result<(), PipeError> {
    if ours == theirs { Ok(()) } else { Err(PipeError::ForeignPeer { ours, theirs }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_of_another_user_is_refused_and_both_are_named() {
        assert!(compare(1000, 1000).is_ok());
        for (ours, theirs) in [(1000, 1001), (1000, 0), (0, 1000)] {
            let error = compare(ours, theirs).unwrap_err();
            assert!(matches!(error, PipeError::ForeignPeer { .. }));
            let text = error.to_string();
            assert!(text.contains(&ours.to_string()) && text.contains(&theirs.to_string()), "{text}");
        }
        let current_uid = rustix::process::geteuid().as_raw();
        assert!(check_same_user(current_uid).is_ok());
        assert!(check_same_user(current_uid.wrapping_add(1)).is_err());
    }
}
