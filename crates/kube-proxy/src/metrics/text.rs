//! Encodes metrics in Prometheus' text format, to the letter as Go's library does: a bucket whose bound is written differently
//! would be a series of its own, and a sum over nodes with upstream's proxy and this one would be wrong.

use std::fmt::Write as _;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

/// Appends families of metrics to a page. Writing to a String cannot fail.
pub(super) fn append(page: &mut String, families: &[MetricFamily]) {
    for family in families {
        let (name, kind) = (family.name(), family.get_field_type());
        let word = match kind {
            MetricType::COUNTER => "counter",
            MetricType::GAUGE => "gauge",
            MetricType::HISTOGRAM => "histogram",
            // No row of the tables has these types.
            MetricType::SUMMARY | MetricType::UNTYPED => continue,
        };
        head(page, name, word, family.help());
        for metric in family.get_metric() {
            match kind {
                MetricType::HISTOGRAM => histogram(page, name, metric),
                MetricType::COUNTER => sample(page, name, metric.get_label(), None, metric.get_counter().get_value()),
                _ => sample(page, name, metric.get_label(), None, metric.get_gauge().get_value()),
            }
        }
    }
}

/// Appends the HELP and TYPE lines of a metric.
pub(super) fn head(page: &mut String, name: &str, kind: &str, help: &str) {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

/// A number as Go's library writes it in metrics: as few digits as it needs, with an exponent from a million and below a
/// ten-thousandth.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(-4..6) => value.to_string(),
        Ok(exponent) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs()),
        Err(_) => scientific,
    }
}

fn histogram(page: &mut String, name: &str, metric: &Metric) {
    let (histogram, labels) = (metric.get_histogram(), metric.get_label());
    let bucket = format!("{name}_bucket");
    for part in histogram.get_bucket() {
        sample(page, &bucket, labels, Some(part.upper_bound()), part.cumulative_count() as f64);
    }
    sample(page, &bucket, labels, Some(f64::INFINITY), histogram.get_sample_count() as f64);
    sample(page, &format!("{name}_sum"), labels, None, histogram.get_sample_sum());
    sample(page, &format!("{name}_count"), labels, None, histogram.get_sample_count() as f64);
}

/// One line; `bound` is a bucket's.
fn sample(page: &mut String, name: &str, labels: &[LabelPair], bound: Option<f64>, value: f64) {
    let labels = labels.iter().map(|label| (label.name(), escaped(label.value())));
    let all: Vec<_> = labels.chain(bound.map(|bound| ("le", number(bound)))).collect();
    page.push_str(name);
    for (at, (label, text)) in all.iter().enumerate() {
        let _ = write!(page, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' });
    }
    let _ = writeln!(page, "{} {}", if all.is_empty() { "" } else { "}" }, number(value));
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntGaugeVec, Opts, Registry};

    use super::*;

    #[test]
    fn numbers_are_gos() {
        for (value, wanted) in [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.256, "0.256"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (0.000_012, "1.2e-05"),
            (999_999.0, "999999"),
            (1e6, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (-16_777_216.0, "-1.6777216e+07"),
            (1_795_517_509.659_835_3, "1.7955175096598353e+09"),
            (u64::MAX as f64, "1.8446744073709552e+19"),
            (1e100, "1e+100"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), wanted);
        }
    }

    #[test]
    fn a_page_is_gos() {
        let registry = Registry::new();
        let sizes = HistogramOpts::new("b_bytes", "Size\nand \\").buckets(vec![64.0, 4_194_304.0]);
        let sizes = HistogramVec::new(sizes, &["verb"]).unwrap();
        let info = IntGaugeVec::new(Opts::new("a_info", "Text"), &["z", "y"]).unwrap();
        registry.register(Box::new(sizes.clone())).unwrap();
        registry.register(Box::new(info.clone())).unwrap();
        sizes.with_label_values(&["GET"]).observe(2_000_000.0);
        info.with_label_values(&["a\"b\\", "c\nd"]).set(-1);
        let mut page = String::new();
        append(&mut page, &registry.gather());
        assert_eq!(
            page,
            "# HELP a_info Text\n# TYPE a_info gauge\na_info{y=\"c\\nd\",z=\"a\\\"b\\\\\"} -1\n\
             # HELP b_bytes Size\\nand \\\\\n# TYPE b_bytes histogram\n\
             b_bytes_bucket{verb=\"GET\",le=\"64\"} 0\n\
             b_bytes_bucket{verb=\"GET\",le=\"4.194304e+06\"} 1\n\
             b_bytes_bucket{verb=\"GET\",le=\"+Inf\"} 1\n\
             b_bytes_sum{verb=\"GET\"} 2e+06\nb_bytes_count{verb=\"GET\"} 1\n"
        );
    }
}
