use super::*;

fn read(most: usize, pieces: &[&[u8]]) -> Vec<Read> {
    let mut events = Events::new(most);
    let mut all = Vec::new();
    for piece in pieces {
        events.push(piece);
        all.extend(std::iter::from_fn(|| events.next()));
    }
    all
}

fn data(data: &'static str) -> Read {
    Read::Event(Event { data: Bytes::from_static(data.as_bytes()), ..Event::default() })
}

#[test]
fn every_end_of_line_and_every_cut_gives_the_same_events() {
    let streams: [&[u8]; 3] = [
        b"\xef\xbb\xbfid: 1-2\nretry: 500\ndata: \n\n:\n\ndata: {\"a\":1}\n\nevent: x\ndata:one\ndata: two\n\n",
        b"id: 1-2\r\nretry: 500\r\ndata: \r\n\r\n:\r\n\r\ndata: {\"a\":1}\r\n\r\nevent: x\r\ndata:one\r\ndata: two\r\n\r\n",
        b"id: 1-2\rretry: 500\rdata: \r\r:\r\rdata: {\"a\":1}\r\revent: x\rdata:one\rdata: two\r\r",
    ];
    let priming =
        Event { id: Some("1-2".to_owned()), retry: Some(Duration::from_millis(500)), ..Event::default() };
    let named =
        Event { name: Some("x".to_owned()), data: Bytes::from_static(b"one\ntwo"), ..Event::default() };
    let expected = vec![Read::Event(priming), data("{\"a\":1}"), Read::Event(named)];
    for stream in streams {
        assert_eq!(read(1024, &[stream]), expected);
        for cut in 0..stream.len() {
            let (before, after) = stream.split_at(cut);
            assert_eq!(read(1024, &[before, after]), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(read(1024, &bytes), expected);
    }
}

#[test]
fn long_lines_of_an_event_are_joined_as_short_ones_are() {
    let (longest, long, short) = ("z".repeat(3 * MAX_PART), "x".repeat(LONG), "y".repeat(10));
    for lines in [
        vec![&long],
        vec![&longest],
        vec![&long, &short],
        vec![&longest, &short],
        vec![&short, &longest],
        vec![&long, &longest],
    ] {
        let lines: Vec<&str> = lines.into_iter().map(String::as_str).collect();
        let stream = format!("data: {}\n\ndata: ok\n\n", lines.join("\ndata: "));
        let event = Event { data: lines.join("\n").into(), ..Event::default() };
        for size in [7, 4096, MAX_PART + 1, stream.len()] {
            let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
            assert_eq!(read(1 << 20, &pieces), vec![Read::Event(event.clone()), data("ok")]);
        }
    }
}

#[test]
fn a_long_event_is_as_large_as_its_line_and_a_short_one_holds_no_memory_of_those_before_it() {
    let most = 1 << 20;
    let long = |bytes: usize| "x".repeat(bytes);
    let event = |bytes: usize| format!("data: {}\n\n", long(bytes));
    let oversize = event(most * 2);
    let lines = format!("data: {}\ndata: {}\n\n", long(most / 2), long(most / 4));
    for before in [String::new(), event(most), oversize, lines] {
        for bytes in [100, 5000, LONG, 2 * LONG, most] {
            for piece in [16 * 1024, usize::MAX] {
                let mut events = Events::new(most);
                let mut last = None;
                let stream = before.clone() + &event(bytes);
                for piece in stream.as_bytes().chunks(piece) {
                    events.push(piece);
                    last = std::iter::from_fn(|| events.next()).last().or(last);
                }
                drop(events);
                let Some(Read::Event(Event { data, .. })) = last else { panic!("an event") };
                assert!(data.len() == bytes && data.is_unique());
                // The only owner of memory gets all of it.
                let room = Vec::from(data).capacity();
                let allowed = if bytes < LONG { 2 * LONG } else { bytes + FIELD };
                assert!(
                    room <= allowed,
                    "{bytes} bytes hold {room} after {} in pieces of {piece}",
                    before.len()
                );
            }
        }
    }
}

#[test]
fn the_memory_of_a_long_line_is_freed_wherever_it_ends_in_its_buffer() {
    for bytes in (LONG..3 * MAX_PART).step_by(LONG / 3) {
        for most in [LONG / 2, 4 * MAX_PART] {
            let mut events = Events::new(most);
            let stream = format!("data: {}\n\ndata: ok\n", "x".repeat(bytes));
            for piece in stream.as_bytes().chunks(16 * 1024) {
                events.push(piece);
                while events.next().is_some() {}
            }
            let room = events.buffer.capacity() + events.parts.capacity() + events.data.lines.capacity();
            assert!(room <= 2 * LONG, "{room} are kept after {bytes} of {most}");
        }
    }
}

#[test]
fn a_line_in_parts_has_the_limits_and_line_ends_of_a_short_one() {
    let most = 3 * MAX_PART;
    let longest = most + FIELD;
    for end in ["\n", "\r", "\r\n"] {
        for (field, bytes, expected) in [
            ("data:", longest - "data:".len(), vec![Read::TooLarge, data("ok")]),
            (
                "data:",
                most,
                vec![Read::Event(Event { data: "x".repeat(most).into(), ..Event::default() }), data("ok")],
            ),
            ("data:", most + 1, vec![Read::TooLarge, data("ok")]),
            ("data:", longest, vec![Read::TooLarge, data("ok")]),
            (":", longest, vec![data("ok")]),
            ("id:", longest, vec![data("ok")]),
            (":", MAX_PART, vec![data("ok")]),
        ] {
            let stream = format!("{field}{}{end}{end}data: ok{end}{end}", "x".repeat(bytes));
            let line = field.len() + bytes;
            // The last piece of the line ends with it, before its line end, and within that.
            for size in [16 * 1024, LONG, MAX_PART, line, line + 1, line + 2, line.div_ceil(5)] {
                let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
                let found = read(most, &pieces);
                assert!(
                    found == expected,
                    "{field}{bytes} with {end:?} in pieces of {size}: {}",
                    found.len()
                );
            }
        }
    }
}

#[test]
fn an_oversize_event_is_reported_once_and_the_next_is_read() {
    let long = format!("data: {}\n\ndata: ok\n\n", "x".repeat(500));
    let pieces: Vec<&[u8]> = long.as_bytes().chunks(7).collect();
    assert_eq!(read(100, &pieces), vec![Read::TooLarge, data("ok")]);
    assert_eq!(read(100, &[long.as_bytes()]), vec![Read::TooLarge, data("ok")]);
    let lines = format!("{}\ndata: ok\n\n", "data: xxxxxxxxxx\n".repeat(50));
    assert_eq!(read(100, &[lines.as_bytes()]), vec![Read::TooLarge, data("ok")]);
}

#[test]
fn a_long_comment_takes_no_event_with_it_however_it_comes() {
    for line in [": ", "id: ", "event: ", "foo: "] {
        let stream = format!("{line}{}\ndata: ok\n\n", "x".repeat(300));
        assert_eq!(read(100, &[stream.as_bytes()]), vec![data("ok")], "{line}");
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(7).collect();
        assert_eq!(read(100, &pieces), vec![data("ok")], "{line} in pieces");
    }
}

#[test]
fn an_unknown_field_is_ignored() {
    let stream: &[u8] = b"nonsense\nfoo: bar\nretry: 1x\n: comment\ndata\nid: \0\n\n\n\n";
    assert_eq!(read(100, &[stream]), vec![data("")]);
    assert_eq!(read(100, &[b": only a comment\n\n"]), vec![]);
}

#[test]
fn the_last_event_of_a_stream_counts_without_its_end_if_it_is_a_whole_object() {
    let last = |stream: &[u8], size: usize| {
        let mut events = Events::new(64);
        for piece in stream.chunks(size) {
            events.push(piece);
            while events.next().is_some() {}
        }
        let last = events.finish();
        assert_eq!((events.finish(), events.next()), (None, None), "there is one");
        last
    };
    let whole = Event { data: Bytes::from_static(b"{\"a\":1}"), ..Event::default() };
    let numbered = Event { id: Some("7".to_owned()), ..whole.clone() };
    for (stream, event) in [
        ("data: {\"a\":1}", Some(&whole)),
        ("data: {\"a\":1}\n", Some(&whole)),
        ("data: {\"a\":1}\r", Some(&whole)),
        ("id: 7\ndata: {\"a\":1}\nid: 81", Some(&numbered)),
        ("id: 7\ndata: {\"a\":1}\nda", Some(&numbered)),
        ("data: x\n\ndata: {\"a\":1}", Some(&whole)),
        ("data: {\"a\":1", None),
        ("data: {\"a\":1}\n\n", None),
        ("data: {\"a\":1}}", None),
        ("data: [1]", None),
        ("data: 1", None),
        ("id: 7", None),
        (":", None),
        ("", None),
    ] {
        for size in [1, 3, 100] {
            assert_eq!(last(stream.as_bytes(), size).as_ref(), event, "{stream:?}");
        }
    }
    let long = format!("data: {{\"a\":\"{}\"}}", "x".repeat(1000));
    assert_eq!(last(long.as_bytes(), 7), None, "it is over the limit");
}
