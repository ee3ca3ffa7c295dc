//! What the head of a response asks for: another address, or a later time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Uri};

/// The address that a `Location` names, relative to the address of its request.
///
/// # Errors
/// Why it cannot be followed.
pub(crate) fn resolve(base: &Uri, location: &str) -> Result<Uri, &'static str> {
    let location = location.split('#').next().unwrap_or_default().trim();
    let (scheme, rest) = match scheme_of(location) {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => (base.scheme_str().unwrap_or("http").to_owned(), location),
    };
    let scheme: Scheme = match &*scheme {
        "http" => Scheme::HTTP,
        "https" if cfg!(feature = "rustls") => Scheme::HTTPS,
        "https" => return Err("https needs the feature `rustls`"),
        _ => return Err("its scheme is neither http nor https"),
    };
    if base.scheme_str() == Some("https") && scheme == Scheme::HTTP {
        return Err("it leads from https to http");
    }
    let (authority, target): (Authority, String) = if let Some(rest) = rest.strip_prefix("//") {
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let slash = if target.starts_with('/') { "" } else { "/" };
        (authority.parse().map_err(|_| "its host is not valid")?, format!("{slash}{target}"))
    } else if rest.len() < location.len() {
        return Err("it has a scheme and no host");
    } else {
        (base.authority().cloned().ok_or("its host is not known")?, joined(base, rest))
    };
    if authority.as_str().contains('@') {
        return Err("it has a user name or a password");
    }
    if authority.host().is_empty() {
        return Err("it has no host");
    }
    let target: PathAndQuery = without_dots(&target).parse().map_err(|_| "its path is not valid")?;
    Uri::builder()
        .scheme(scheme)
        .authority(authority)
        .path_and_query(target)
        .build()
        .map_err(|_| "it is not a URL")
}

fn scheme_of(location: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = location.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    is_scheme.then_some((scheme, rest))
}

/// A path that is relative to another one.
fn joined(base: &Uri, location: &str) -> String {
    let path = base.path();
    match location.bytes().next() {
        None => base.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        Some(b'/') => location.to_owned(),
        Some(b'?') => format!("{path}{location}"),
        Some(_) => {
            let folder = path.rfind('/').and_then(|end| path.get(..=end)).unwrap_or("/");
            format!("{folder}{location}")
        }
    }
}

/// Removes `.` and `..` from a path.
fn without_dots(target: &str) -> String {
    let (path, query) = target.find('?').map_or((target, ""), |at| target.split_at(at));
    if !path.contains("/.") {
        return target.to_owned();
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for part in path.split('/').skip(1) {
        is_folder = matches!(part, "." | "..");
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if is_folder && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}{query}", parts.join("/"))
}

/// The time that a `Retry-After` asks to wait.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(date(text)?))?;
    Some(at.duration_since(SystemTime::now()).unwrap_or_default())
}

/// The seconds since 1970 of a date as HTTP writes it: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut parts = text.split_once(", ")?.1.split(' ');
    let day: u64 = parts.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = parts.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year: u64 = parts.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut time =
        parts.next()?.splitn(3, ':').map(|part| part.parse::<u64>().ok().filter(|part| *part < 61));
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next()??);
    if parts.next()? != "GMT" {
        return None;
    }
    // Days from 1 March of year 0, in which a leap day is the last day of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_relative_to_its_request() {
        let base: Uri = "http://host:8000/a/mcp?x=1".parse().unwrap();
        for (location, address) in [
            ("/mcp/", "http://host:8000/mcp/"),
            ("mcp/", "http://host:8000/a/mcp/"),
            ("../b?y=2#part", "http://host:8000/b?y=2"),
            ("./", "http://host:8000/a/"),
            ("../../../x/.", "http://host:8000/x/"),
            ("?y=2", "http://host:8000/a/mcp?y=2"),
            ("", "http://host:8000/a/mcp?x=1"),
            ("//other/mcp", "http://other/mcp"),
            ("http://other:1", "http://other:1/"),
            ("HTTP://other?q", "http://other/?q"),
            (" /padded ", "http://host:8000/padded"),
        ] {
            assert_eq!(resolve(&base, location).unwrap().to_string(), address, "{location}");
        }
        for location in [
            "file:///etc/passwd",
            "ftp://host/",
            "javascript:alert(1)",
            "http:/mcp",
            "http://",
            "http://user:secret@host/",
            "http://a b/",
            "/a b",
            "data:,x",
            "//",
        ] {
            assert!(resolve(&base, location).is_err(), "{location}");
        }
        let secure: Uri = "https://host/mcp".parse().unwrap();
        assert!(resolve(&secure, "http://host/mcp").is_err());
        assert_eq!(resolve(&secure, "/x").is_ok(), cfg!(feature = "rustls"));
    }

    #[test]
    fn a_time_to_wait_is_a_number_of_seconds_or_a_date() {
        let read = |text: &str| {
            retry_after(&HeaderMap::from_iter([(http::header::RETRY_AFTER, text.parse().unwrap())]))
        };
        assert_eq!(read("0"), Some(Duration::ZERO));
        assert_eq!(read(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(read("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        for text in ["", "-1", "1.5", "soon", "Sun, 06 Nov", "Sun, 06 Nov 1994 08:49:37 UTC", "a, 0 Feb 0 x"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO), "it is over");
        assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(date("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800));
        assert_eq!(date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    }
}
