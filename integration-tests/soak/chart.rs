//! The samples as one self-contained SVG picture: a panel for each value, over the same seconds.

use std::fmt::Write as _;

use crate::samples::Sample;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 96.0;
const PANEL: f64 = 130.0;
const GAP: f64 = 44.0;
const PANELS: [Panel; 4] = [
    Panel {
        title: "memory (MiB)",
        colour: "#1f6feb",
        value: |sample| mebibytes(sample.memory),
        from_start: false,
    },
    Panel {
        title: "open descriptors",
        colour: "#9a6700",
        value: |sample| number(sample.descriptors),
        from_start: true,
    },
    Panel { title: "tasks alive", colour: "#1a7f37", value: |sample| number(sample.tasks), from_start: true },
    Panel {
        title: "requests and calls in flight",
        colour: "#8250df",
        value: |sample| number(sample.slots),
        from_start: true,
    },
];

struct Panel {
    title: &'static str,
    colour: &'static str,
    value: fn(&Sample) -> f64,
    /// Whether it must return to its initial value.
    from_start: bool,
}

#[expect(clippy::cast_precision_loss, reason = "a picture is less exact than that")]
const fn number(value: u64) -> f64 {
    value as f64
}

fn mebibytes(bytes: u64) -> f64 {
    number(bytes) / f64::from(1 << 20)
}

/// `title` and `verdict` are above the panels. `before`: the values of the dashed lines. `quiet`: the seconds in
/// which the peers were gone.
pub(crate) fn chart(
    title: &str,
    verdict: &str,
    samples: &[Sample],
    before: &Sample,
    quiet: &[[f64; 2]],
) -> String {
    let end = samples.last().map_or(1.0, |sample| sample.at.as_secs_f64()).max(1.0);
    let across = |seconds: f64| LEFT + (WIDTH - LEFT - RIGHT) * seconds / end;
    let height = TOP + (PANEL + GAP) * number(PANELS.len() as u64) + 14.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#24292f\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"17\" font-weight=\"600\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"46\">{}</text>\n",
        escaped(title),
        escaped(verdict),
    );
    legend(&mut svg);
    let mut top = TOP;
    for panel in &PANELS {
        draw(&mut svg, panel, top, samples, before, &across, end, quiet);
        top += PANEL + GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String) {
    let _ = writeln!(
        svg,
        "<g stroke=\"#57606a\"><line x1=\"{LEFT}\" y1=\"60\" x2=\"{}\" y2=\"60\" stroke-width=\"2\"/>\
         <line x1=\"{}\" y1=\"60\" x2=\"{}\" y2=\"60\" stroke-dasharray=\"5 4\"/></g>\
         <rect x=\"{}\" y=\"54\" width=\"26\" height=\"12\" fill=\"#eaeef2\"/>\
         <text x=\"{}\" y=\"64\">sampled each second</text><text x=\"{}\" y=\"64\">before the first peer</text>\
         <text x=\"{}\" y=\"64\">the peers have gone</text>",
        LEFT + 26.0,
        LEFT + 190.0,
        LEFT + 216.0,
        LEFT + 390.0,
        LEFT + 34.0,
        LEFT + 224.0,
        LEFT + 424.0,
    );
}

#[expect(clippy::too_many_arguments, reason = "one panel of one picture")]
fn draw(
    svg: &mut String,
    panel: &Panel,
    top: f64,
    samples: &[Sample],
    before: &Sample,
    across: &impl Fn(f64) -> f64,
    end: f64,
    quiet: &[[f64; 2]],
) {
    let most = samples.iter().chain([before]).map(panel.value).fold(1.0, f64::max);
    let step = nice(most / 4.0);
    let ceiling = (most / step).ceil() * step;
    let bottom = top + PANEL;
    let up = |value: f64| bottom - PANEL * value / ceiling;
    let right = WIDTH - RIGHT;
    for [from, to] in quiet {
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{PANEL}\" fill=\"#eaeef2\"/>",
            across(*from),
            (across(*to) - across(*from)).max(0.0)
        );
    }
    let _ =
        writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"600\">{}</text>", top - 6.0, panel.title);
    let mut tick = 0.0;
    while tick <= ceiling + step / 2.0 {
        let y = up(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#d0d7de\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            LEFT - 8.0,
            y + 4.0
        );
        tick += step;
    }
    let step = nice(end / 8.0).max(1.0);
    let mut second = 0.0;
    while second <= end {
        let x = across(second);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{bottom}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#57606a\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second} s</text>",
            bottom + 4.0,
            bottom + 17.0
        );
        second += step;
    }
    if panel.from_start {
        let y = up((panel.value)(before));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#57606a\" stroke-dasharray=\"5 4\"/>"
        );
    }
    let mut points = String::new();
    for sample in samples {
        let (x, y) = (across(sample.at.as_secs_f64()), up((panel.value)(sample)));
        let _ = write!(points, "{x:.1},{y:.1} ");
    }
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
        points.trim_end(),
        panel.colour
    );
}

/// The next of 1, 2, 5, 10, 20 and so on.
fn nice(value: f64) -> f64 {
    let magnitude = 10_f64.powf(value.max(1.0).log10().floor());
    let fits = |step: &f64| step * magnitude >= value;
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * magnitude
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_sample_is_a_point_within_the_picture() {
        let sample = |at| Sample {
            at: Duration::from_secs(at),
            memory: at << 20,
            descriptors: at * 3,
            tasks: 70 - at,
            slots: at * at,
            ..Sample::default()
        };
        let samples: Vec<_> = (0..=60).map(sample).collect();
        let svg = chart("a <wire>", "all is well", &samples, &samples[0], &[[20.0, 25.0], [55.0, 60.0]]);
        assert!(svg.contains("a &lt;wire&gt;") && svg.ends_with("</svg>\n"));
        let lines: Vec<_> =
            svg.split("points=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(lines.len(), PANELS.len());
        for line in lines {
            let points: Vec<(f64, f64)> = line
                .split(' ')
                .filter_map(|point| point.split_once(','))
                .filter_map(|(x, y)| Some((x.parse().ok()?, y.parse().ok()?)))
                .collect();
            assert_eq!(points.len(), samples.len());
            assert!(
                points.iter().all(|(x, y)| (LEFT..=WIDTH - RIGHT).contains(x) && *y >= TOP),
                "{points:?}"
            );
        }
    }

    #[test]
    fn axis_steps_are_round_numbers() {
        let cases = [(0.2, 1.0), (1.0, 1.0), (1.5, 2.0), (30.0, 50.0), (75.0, 100.0), (1200.0, 2000.0)];
        for (value, step) in cases {
            assert!((nice(value) - step).abs() < 1e-9, "{value}: {}", nice(value));
        }
    }
}
