//! Messages that are not JSON, or JSON that is not a message. Errors in characters are in `text.rs`.

use super::{Inputs, SEED, listed, text};

/// The members that each request carries, so that those of MCP 2026-07-28 are processed up to their error.
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
const VALUES: [&str; 9] = ["null", "true", "1", "1.5", r#""x""#, "[]", "{}", "[1]", r#"{"a":1}"#];

pub(super) fn classes() -> [(&'static str, Inputs); 10] {
    [
        ("broken_json", broken()),
        ("deep_nesting", deep()),
        ("numbers", numbers()),
        ("invalid_utf8", text::invalid_utf8()),
        ("duplicate_keys", duplicate_keys()),
        ("wrong_types", wrong_types()),
        ("ids", ids()),
        ("batches", batches()),
        ("cancels", cancels()),
        ("characters", text::characters()),
    ]
}

/// An echo with this id and value, written unchanged.
pub(super) fn echo(id: &str, value: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"test/echo","params":{{"value":{value},{META}}}}}"#)
}

fn bytes(texts: impl IntoIterator<Item = String>) -> Inputs {
    texts.into_iter().map(String::into_bytes).collect()
}

/// Pseudorandom numbers, the same each time.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) const fn new() -> Self {
        Self(SEED)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

fn broken() -> Inputs {
    let whole = echo("1", "1");
    let mut inputs = bytes(listed("broken_json"));
    inputs.extend((1..whole.len()).step_by(6).map(|end| whole.as_bytes()[..end].to_vec()));
    let mut numbers = Numbers::new();
    inputs.extend((0..40).map(|_| {
        let mut broken = whole.clone().into_bytes();
        let at = numbers.below(broken.len());
        broken[at] = b"{}[]\",:\\\0/-e.t"[numbers.below(14)];
        broken
    }));
    inputs
}

fn deep() -> Inputs {
    let mut inputs = Vec::new();
    for depth in [10, 125, 126, 127, 128, 129, 1000, 100_000] {
        let array = "[".repeat(depth) + &"]".repeat(depth);
        let object = r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth);
        inputs.extend([echo("1", &array), echo("1", &object), echo(&array, "1"), array, "[".repeat(depth)]);
    }
    bytes(inputs)
}

fn numbers() -> Inputs {
    let numbers = [listed("numbers"), vec!["1".repeat(400), "7".repeat(100_000)]].concat();
    bytes(numbers.iter().flat_map(|number| [echo("1", number), echo(number, "1")]))
}

fn duplicate_keys() -> Inputs {
    let members = [r#""jsonrpc":"2.0""#, r#""id":1"#, r#""method":"test/echo""#, r#""params":{}"#];
    let all = members.join(",");
    let mut inputs: Vec<String> = members.iter().map(|again| format!("{{{all},{again}}}")).collect();
    inputs.extend(["id", "method", "params", "jsonrpc"].map(|name| format!("{{{all},\"{name}\":null}}")));
    let escaped = [r#""\u0069d":2"#, r#""m\u0065thod":"test/stats""#, r#""par\u0061ms":[]"#];
    inputs.extend(escaped.map(|again| format!("{{{all},{again}}}")));
    inputs.push(echo("1", r#"1,"value":2,"value":3"#));
    inputs.push(format!("{{{all},{}}}", vec![r#""x":1"#; 10_000].join(",")));
    for method in CANCELS {
        inputs.push(cancel(method, r#"{"requestId":1,"requestId":2,"id":3,"id":4}"#));
    }
    bytes(inputs)
}

fn wrong_types() -> Inputs {
    let whole = [("jsonrpc", r#""2.0""#), ("id", "1"), ("method", r#""test/echo""#), ("params", "{}")];
    let mut inputs = Vec::new();
    for value in VALUES {
        for (wrong, _) in whole {
            let members = whole
                .map(|(name, right)| format!("\"{name}\":{}", if name == wrong { value } else { right }));
            inputs.push(format!("{{{}}}", members.join(",")));
        }
        for more in ["result", "error"] {
            inputs.push(format!(r#"{{"jsonrpc":"2.0","id":1,"{more}":{value}}}"#));
            inputs.push(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"test/echo","{more}":{value}}}"#));
        }
        inputs.push(format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{value},"message":{value}}}}}"#));
        inputs.push(format!(r#"{{"jsonrpc":"2.0","method":{value}}}"#));
        inputs.push(value.to_owned());
    }
    bytes(inputs)
}

fn ids() -> Inputs {
    let mut ids: Vec<String> = VALUES.map(str::to_owned).to_vec();
    for length in [0, 1, 255, 256, 257, 100_000] {
        ids.push(format!("\"{}\"", "i".repeat(length)));
    }
    ids.extend([r#""\u0000""#, r#""é""#, r#""1""#, "-1", "0", "2.0", "1e3", "false"].map(str::to_owned));
    let requests = ids.iter().map(|id| echo(id, "1"));
    let answers = ids.iter().map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#));
    bytes(requests.chain(answers))
}

fn batches() -> Inputs {
    let one = echo("1", "1");
    let notification = r#"{"jsonrpc":"2.0","method":"test/nothing"}"#;
    let many = |text: &str, count: usize| format!("[{}]", vec![text; count].join(","));
    let mut inputs = vec!["[]".to_owned(), "[[]]".to_owned(), "[[[]],[]]".to_owned(), "[1,2,3]".to_owned()];
    inputs.extend(VALUES.map(|value| format!("[{value}]")));
    for count in [1, 2, 1024, 1025, 10_000] {
        inputs.extend([many("1", count), many("{}", count), many(notification, count)]);
    }
    inputs.extend([
        many(&one, 1),
        many(&one, 2),
        many(&one, 1025),
        format!("[[{one}]]"),
        format!("[{one},[{one}]]"),
    ]);
    inputs.extend([format!("[{one}"), format!("[{one},"), format!("[{one},]"), format!("[{one}]]")]);
    bytes(inputs)
}

const CANCELS: [&str; 4] =
    ["$/cancel_request", "$/cancelRequest", "notifications/cancelled", "session/cancel"];

fn cancel(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

fn cancels() -> Inputs {
    let long = format!("\"{}\"", "r".repeat(100_000));
    let keys = ["1000000", "-1", r#""nobody""#, r#""""#, "1.0", "1e400", "9223372036854775808", &long];
    let mut inputs = Vec::new();
    for method in CANCELS {
        for key in keys.iter().copied().chain(VALUES) {
            inputs.push(cancel(
                method,
                &format!(r#"{{"requestId":{key},"id":{key},"sessionId":{key},"reason":{key}}}"#),
            ));
        }
        inputs.extend(["null", "[]", "[1]", "{}", "1"].map(|params| cancel(method, params)));
        inputs.push(cancel(method, "{}").replace(r#""method""#, r#""id":77,"method""#));
    }
    bytes(inputs)
}
