//! Parses the text format of Prometheus metrics.

use std::collections::BTreeMap;

/// The samples of one metric, summed by the value of one label.
pub(super) fn sums(text: &str, name: &str, label: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        let Some((labels, value)) = rest.strip_prefix('{').and_then(|rest| rest.rsplit_once("} ")) else { continue };
        let (Some(key), Some(value)) = (value_of(labels, label), number(value)) else { continue };
        *sums.entry(key.to_owned()).or_default() += value;
    }
    sums
}

/// The value of a label; quotes within values of other labels are escaped, so `label="` matches only the label itself.
fn value_of<'a>(labels: &'a str, label: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (name, after) = rest.split_once("=\"")?;
        let end = end_of_value(after)?;
        let (value, more) = after.split_at_checked(end)?;
        if name.trim_start_matches(',') == label {
            return Some(value);
        }
        rest = more.strip_prefix('"')?;
    }
}

fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, character)| {
        let ends = character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        ends.then_some(at)
    })
}

/// The value of a sample, which may be followed by a timestamp.
fn number(text: &str) -> Option<f64> {
    text.split(' ').next()?.parse().ok()
}

/// The first number after a word in the output of a tool, for example `packets 12 bytes 720`.
pub(super) fn after(text: &str, word: &str) -> Option<u64> {
    let mut words = text.split_ascii_whitespace().skip_while(|found| *found != word);
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP etcd_requests_total Etcd request counts.
# TYPE etcd_requests_total counter
etcd_requests_total{group="",operation="get",resource="services"} 3
etcd_requests_total{group="",operation="get",resource="pods"} 4 1700000000000
etcd_requests_total{group="a\"},operation=\"x",operation="list",resource="pods"} 1e+02
etcd_requests_total_more{operation="get"} 1000
etcd_requests_total 5
"#;

    #[test]
    fn samples_are_summed_by_a_label() {
        let want = BTreeMap::from([("get".to_owned(), 7.0), ("list".to_owned(), 100.0)]);
        assert_eq!(sums(TEXT, "etcd_requests_total", "operation"), want);
        assert_eq!(sums(TEXT, "etcd_requests_total", "verb"), BTreeMap::new());
        assert_eq!(sums("etcd_requests_total{operation=\"get", "etcd_requests_total", "operation"), BTreeMap::new());
    }

    #[test]
    fn a_counter_of_nft_is_read() {
        let text = "table inet fleet {\n\tcounter attempts {\n\t\tpackets 12 bytes 720\n\t}\n}\n";
        assert_eq!(after(text, "packets"), Some(12));
        assert_eq!(after(text, "drops"), None);
    }
}
