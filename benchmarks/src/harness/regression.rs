//! A straight line through points on logarithmic scales.

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
