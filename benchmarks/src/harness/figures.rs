//! The measured figures, and their competitors.

use serde_json::{Value, json};

use crate::subject::Name;

/// The number of bins of a distribution for each factor of ten.
const BINS: f64 = 16.0;

/// Times in nanoseconds, in the form of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// The number of times.
    pub count: usize,
    /// The median.
    pub p50: u64,
    /// The 99th percentile. `None` with fewer than a hundred times, where it would be the slowest.
    pub p99: Option<u64>,
    /// The 99.9th percentile. `None` with fewer than a thousand times.
    pub p999: Option<u64>,
    /// The longest.
    pub max: u64,
    /// The start of each bin on the logarithmic scale, and its count. Empty bins are omitted.
    pub bins: Vec<(f64, usize)>,
}

impl Distribution {
    /// Returns `None` without samples.
    #[must_use]
    pub fn new(mut samples: Vec<u64>) -> Option<Self> {
        samples.sort_unstable();
        let max = *samples.last()?;
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
        let of_at_least = |least, share| (samples.len() >= least).then(|| at(share));
        let (p99, p999) = (of_at_least(100, 0.99), of_at_least(1000, 0.999));
        let mut bins: Vec<(f64, usize)> = Vec::new();
        for sample in &samples {
            let begin = 10_f64.powf(((*sample).max(1) as f64).log10().mul_add(BINS, 0.0).floor() / BINS);
            match bins.last_mut() {
                Some((last, count)) if (*last - begin).abs() < f64::EPSILON * begin => *count += 1,
                _ => bins.push((begin, 1)),
            }
        }
        Some(Self { count: samples.len(), p50: at(0.5), p99, p999, max, bins })
    }
}

/// One cell of the report.
#[derive(Clone, Debug, PartialEq)]
pub enum Figure {
    /// Many times.
    Times(Distribution),
    /// One number.
    Number {
        /// The number.
        value: f64,
        /// Its unit.
        unit: &'static str,
    },
    /// "none", "never", or another text in place of a number.
    Said(&'static str),
}

impl Figure {
    /// The number, or the median.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Times(times) => Some(times.p50 as f64),
            Self::Number { value, .. } => Some(*value),
            Self::Said(_) => None,
        }
    }
}

/// The result of one competitor in one case.
#[derive(Clone, Debug)]
pub struct Row {
    /// W1 to W9, "scale" or "wires".
    pub workload: &'static str,
    /// The case: "64 B", "running".
    pub case: String,
    /// The place: the transport and the threads.
    pub place: &'static str,
    /// The measure: "round trip", "to handler".
    pub measure: &'static str,
    /// The competitor.
    pub name: Name,
    /// The result.
    pub figure: Figure,
    /// Its value as a multiple of the floor's value in the same case.
    pub ratio: Option<f64>,
}

impl Row {
    /// A row without a ratio, which [`set_ratios`] adds.
    #[must_use]
    pub const fn new(
        workload: &'static str,
        case: String,
        place: &'static str,
        measure: &'static str,
        name: Name,
        figure: Figure,
    ) -> Self {
        Self { workload, case, place, measure, name, figure, ratio: None }
    }

    /// Whether both rows have the same workload, case, place and measure.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        self.workload == other.workload
            && self.case == other.case
            && self.place == other.place
            && self.measure == other.measure
    }

    /// The row as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut row = json!({
            "workload": self.workload, "case": self.case, "place": self.place, "measure": self.measure,
            "library": self.name.library, "version": self.name.version,
            "configuration": self.name.configuration, "note": self.name.carries.note(), "ratio_to_floor": self.ratio,
        });
        match &self.figure {
            Figure::Times(times) => {
                let Distribution { count, p50, p99, p999, max, bins } = times;
                row["nanoseconds"] =
                    json!({"count": count, "p50": p50, "p99": p99, "p99.9": p999, "max": max, "bins": bins});
            }
            Figure::Number { value, unit } => {
                row["value"] = json!(value);
                row["unit"] = json!(unit);
            }
            Figure::Said(said) => row["said"] = json!(said),
        }
        row
    }
}

/// Sets each row's multiple of the first of these floors that has a figure in the same case.
pub fn set_ratios(rows: &mut [Row], floors: &[Name]) {
    let is_floor =
        |row: &&Row| floors.contains(&row.name) && row.figure.value().is_some_and(|value| value > 0.0);
    let candidates: Vec<Row> = rows.iter().filter(is_floor).cloned().collect();
    for row in rows {
        let of = |floor: &Name| candidates.iter().find(|one| one.name == *floor && one.is_beside(row));
        let floor = floors.iter().find_map(of).and_then(|floor| floor.figure.value());
        row.ratio = floor.and_then(|floor| Some(row.figure.value()? / floor));
    }
}

// A straight line through points on logarithmic scales.

/// How a total grows with a number: as its `exponent`th power. 1 is proportional, 0 is constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The slope of the line.
    pub exponent: f64,
    /// The figure at one.
    pub at_one: f64,
}

impl Fit {
    /// The line that fits the logarithms of these points best. `None` with fewer than two points, or if one is not
    /// positive.
    #[must_use]
    pub fn new(points: &[(f64, f64)]) -> Option<Self> {
        if points.len() < 2 || points.iter().any(|(x, y)| *x <= 0.0 || *y <= 0.0) {
            return None;
        }
        let count = points.len() as f64;
        let logs = || points.iter().map(|(x, y)| (x.ln(), y.ln()));
        let (mean_x, mean_y) =
            (logs().map(|(x, _)| x).sum::<f64>() / count, logs().map(|(_, y)| y).sum::<f64>() / count);
        let spread: f64 = logs().map(|(x, _)| (x - mean_x).powi(2)).sum();
        let slope: f64 = logs().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / spread;
        Some(Self { exponent: slope, at_one: slope.mul_add(-mean_x, mean_y).exp() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Carries;

    #[test]
    fn quantiles_are_of_the_samples() {
        let times = Distribution::new((1..=1000).rev().collect()).expect("there are samples");
        assert_eq!((times.count, times.p50, times.max), (1000, 501, 1000));
        assert_eq!((times.p99, times.p999), (Some(990), Some(999)));
        assert_eq!(times.bins.iter().map(|(_, count)| count).sum::<usize>(), 1000);
        assert!(times.bins.windows(2).all(|pair| pair[0].0 < pair[1].0), "{:?}", times.bins);
        assert!(Distribution::new(Vec::new()).is_none());
    }

    #[test]
    fn few_samples_have_no_quantile_that_only_their_slowest_could_be() {
        for (count, has) in
            [(99, [false, false]), (100, [true, false]), (999, [true, false]), (1000, [true; 2])]
        {
            let times = Distribution::new((1..=count).collect()).expect("there are samples");
            assert_eq!([times.p99.is_some(), times.p999.is_some()], has, "{count}");
        }
    }

    #[test]
    fn a_ratio_is_to_the_floor_of_the_same_case_only() {
        let of = |library, case: &str, value| {
            let name = Name { library, version: "", configuration: "", carries: Carries::Bytes };
            Row::new(
                "W1",
                case.to_owned(),
                "memory",
                "round trip",
                name,
                Figure::Number { value, unit: "ns" },
            )
        };
        let mut rows = [of("floor", "a", 10.0), of("us", "a", 15.0), of("us", "b", 15.0)];
        let floor = rows[0].name;
        set_ratios(&mut rows, &[floor]);
        assert_eq!(rows.map(|row| row.ratio), [Some(1.0), Some(1.5), None]);
    }

    #[test]
    fn a_square_has_the_exponent_two() {
        let fit = Fit::new(&[(1.0, 3.0), (10.0, 300.0), (100.0, 30_000.0)]).expect("a line");
        assert!((fit.exponent - 2.0).abs() < 1e-9 && (fit.at_one - 3.0).abs() < 1e-9, "{fit:?}");
    }

    #[test]
    fn a_line_needs_two_points() {
        assert_eq!(Fit::new(&[(1.0, 1.0)]), None);
        assert_eq!(Fit::new(&[(1.0, 1.0), (2.0, 0.0)]), None);
    }
}
