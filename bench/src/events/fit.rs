//! A line through points by least squares.

/// `base + slope * x`, and the share of the spread that it explains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    pub base: f64,
    pub slope: f64,
    pub r2: f64,
}

impl Line {
    /// Fits two points or more with different `x`.
    pub fn through(points: &[(f64, f64)]) -> Line {
        let n = points.len() as f64;
        let (mx, my) =
            (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
        let sum = |f: &dyn Fn(f64, f64) -> f64| points.iter().map(|p| f(p.0 - mx, p.1 - my)).sum::<f64>();
        let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
        Line { base: my - mx * xy / xx, slope: xy / xx, r2: xy * xy / (xx * yy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_on_a_line_give_it() {
        let line = Line::through(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]);
        assert_eq!((line.base, line.slope, line.r2), (3.0, 2.0, 1.0));
    }

    #[test]
    fn one_point_off_the_line_lowers_its_share() {
        let line = Line::through(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]);
        assert_eq!((line.slope, line.r2), (0.5, 0.25));
    }
}
