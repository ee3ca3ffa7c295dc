//! The seconds of a load test as an SVG image: three charts, one below the other.

use std::fmt::Write as _;

use super::{Held, Second};
use crate::report::shown;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 940.0;
const HEIGHT: f64 = 200.0;
/// From a chart's title to the next one's.
const STEP: f64 = HEIGHT + 70.0;

/// One line of a chart.
struct Line {
    colour: &'static str,
    name: &'static str,
    value: fn(&Second) -> f64,
}

/// The charts: the time of an echo, the processors and the memory.
#[must_use]
pub fn chart(held: &Held) -> String {
    let p99 =
        Line { colour: "#8250df", name: "99th percentile of an echo", value: |second| second.p99 as f64 };
    let server = Line { colour: "#1a7f37", name: "server, % of a core", value: |second| second.server };
    let clients =
        Line { colour: "#9a6700", name: "all clients, % of a core", value: |second| second.clients };
    let memory = Line {
        colour: "#0969da",
        name: "the server's resident memory",
        value: |second| second.resident as f64,
    };
    let charts: [(&str, &[Line]); 3] = [("ns", &[p99]), ("%", &[server, clients]), ("B", &[memory])];
    let height = STEP * charts.len() as f64 + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (number, (unit, lines)) in charts.into_iter().enumerate() {
        one(&mut svg, STEP * number as f64 + 30.0, unit, lines, held);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A chart whose title is at this height.
fn one(svg: &mut String, top: f64, unit: &str, lines: &[Line], held: &Held) {
    let (high, low) = (top + 15.0, top + 15.0 + HEIGHT);
    let most = held
        .seconds
        .iter()
        .flat_map(|second| lines.iter().map(|line| (line.value)(second)))
        .fold(1.0, f64::max)
        * 1.1;
    let mut left = LEFT;
    for line in lines {
        let _ = writeln!(svg, "<text x=\"{left}\" y=\"{top}\" fill=\"{}\">{}</text>", line.colour, line.name);
        left += 260.0;
    }
    for share in [0.0, 0.5, 1.0] {
        let (y, value) = (low - share * HEIGHT, shown(most * share, unit));
        let _ =
            writeln!(svg, "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#d0d7de\"/>");
        let _ =
            writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{value}</text>", LEFT - 8.0, y + 4.0);
    }
    let last = held.seconds.len().saturating_sub(1).max(1) as f64;
    for line in lines {
        let point = |(second, what): (usize, &Second)| {
            let x = LEFT + (RIGHT - LEFT) * second as f64 / last;
            format!("{x:.1},{:.1}", low - (line.value)(what) / most * HEIGHT)
        };
        let points: Vec<_> = held.seconds.iter().enumerate().map(point).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            points.join(" "),
            line.colour
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\">{} s</text>",
        low + 18.0,
        held.seconds.len()
    );
    let _ =
        writeln!(svg, "<line x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{high}\" y2=\"{low}\" stroke=\"#57606a\"/>");
}
