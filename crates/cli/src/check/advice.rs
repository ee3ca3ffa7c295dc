//! Advice to the user about a peer that cannot be checked.

/// The reason, and after it what to do, where that is known. One sentence.
pub(super) fn with_advice(why: &str) -> String {
    match advice(why) {
        Some(advice) => format!("{why}; {advice}"),
        None => why.to_owned(),
    }
}

fn advice(why: &str) -> Option<&'static str> {
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    let is_noise = says(&["is no message", "not a message", "not a frame", "broke the framing"]);
    if is_noise && why.to_ascii_lowercase().contains("content-length") {
        return Some("it speaks another framing: add --framing content-length");
    }
    if is_noise {
        return Some(
            "messages alone belong on stdout, and logs on stderr; or it speaks another framing: see --framing",
        );
    }
    if says(&["`initialize` was refused"]) && says(&["-32601"]) {
        return Some("it speaks another protocol: see --dialect");
    }
    if says(&["`initialize` was refused", "`session/new` was refused"]) {
        return Some(
            "say under [handshake] of a profile what this peer needs, such as a login or a workspace",
        );
    }
    if says(&["-32601"]) {
        return Some("name a method that the peer serves: --init lists what it offers");
    }
    if says(&["-32602"]) {
        return Some("give the params that the peer wants: --init makes some");
    }
    if says(&["exit status", "signal:", "stops reading"]) {
        return Some("run the command by hand to see why it ends, or see --framing if it reads another one");
    }
    if says(&["was not answered within", "the connection was closed"]) {
        return Some(
            "see whether the program needs an argument such as --stdio, a workspace, or another --dialect or --framing",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_gets_the_advice_that_fits_it() {
        for (why, word) in [
            (
                "`initialize` was not answered within 30s; the peer wrote this, which is not a message: Content-Length: 2",
                "add --framing content-length",
            ),
            (
                "`initialize` was not answered within 30s; the peer wrote this, which is not a message: Starting",
                "logs on stderr",
            ),
            ("the peer broke the framing: `sh`: it wrote something that is not a frame", "see --framing"),
            ("`initialize` was refused: {}", "[handshake]"),
            ("`initialize` was refused: {\"error\":{\"code\":-32601}}", "--dialect"),
            ("no session could be opened: the connection was closed", "--stdio"),
            (
                "the peer sent more than 50000 messages in one session; the peer wrote this, which is not a message: x",
                "logs on stderr",
            ),
            ("the request `m` is refused with -32601, so it cannot be used", "--init lists"),
            ("the request `m` is refused with -32602, so it cannot be used", "params"),
            ("`sh`: it exited; exit status: 3; stderr ends: no licence", "by hand"),
            ("`initialize` was not answered within 30s", "--stdio"),
        ] {
            let told = with_advice(why);
            assert!(told.starts_with(why) && told.contains(word) && told.lines().count() == 1, "{told}");
        }
        assert_eq!(with_advice("the scratch folder x is missing"), "the scratch folder x is missing");
    }
}
