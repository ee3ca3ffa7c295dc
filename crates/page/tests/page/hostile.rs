//! Texts of peers that are not what they seem.

use rescind_core::{Outcome, RequestLog};
use serde_json::{Value, json};

use crate::client::serve;

const SCRIPT: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>";

#[tokio::test]
async fn a_method_that_is_html_is_a_string_of_json_and_long_ones_are_cut() {
    let shown = serve().await;
    let client = shown.client().await;
    let long = "\u{202e}".repeat(100_000);
    for method in
        [SCRIPT, "a\r\ndata: {\"now\":0}\r\n\r\nevent: evil", &long, "\u{1b}[2J\0", "\u{2028}\u{2029}"]
    {
        assert!(matches!(
            client.call::<_, Value>(method, &json!({})).start().unwrap().outcome().await,
            Outcome::Failed(_)
        ));
    }
    let mut events = shown.events().await;
    let view = events.until(|view| view["ended"].as_array().is_some_and(|ended| ended.len() == 5)).await;
    let methods: Vec<_> = view["ended"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ended| ended["request"]["method"].as_str().unwrap())
        .collect();
    assert!(methods.contains(&SCRIPT), "it is a string, which the page shows as text: {methods:?}");
    for method in methods {
        assert!(method.len() <= 400, "{} bytes", method.len());
        assert!(
            method.chars().all(|shown| !shown.is_control() && !('\u{2028}'..='\u{202e}').contains(&shown)),
            "{method:?}"
        );
    }
    let page = shown.get(&shown.path).await.body;
    assert!(!page.contains("alert("), "nothing of a peer is in the page itself");
    assert!(view.to_string().len() < 20_000, "{} bytes", view.to_string().len());
}

#[test]
fn the_page_has_no_code_that_makes_html_of_a_text_and_takes_nothing_from_elsewhere() {
    let page = include_str!("../../src/page.html");
    for forbidden in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function",
        "setAttribute(\"on",
        "srcdoc",
        "javascript:",
        "<iframe",
        "<link rel=\"stylesheet\"",
        "@import",
        "url(",
        "import(",
    ] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    // The one URL is the name of a format.
    assert!(page.matches("://").count() == 1 && page.contains("xmlns='http://www.w3.org/2000/svg'"));
    assert_eq!((page.matches("<script").count(), page.matches("<style").count()), (1, 1));
    assert_eq!(page.matches("nonce=\"{nonce}\"").count(), 2);
}

#[tokio::test]
async fn a_log_of_no_connection_is_an_empty_page() {
    let page = rescind_page::Page::new(&RequestLog::new()).unwrap().bind("127.0.0.1:0").await.unwrap();
    assert_eq!(page.url().len(), format!("http://{}//", page.address()).len() + 64);
}
