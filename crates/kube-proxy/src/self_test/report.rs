//! Results of tests as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use crate::platform::TestAddresses;

/// The result of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tested {
    /// the addresses of the connection
    pub addresses: TestAddresses,
    /// the duration of connecting and of a token in both directions; the error of a failed connection
    pub result: Result<Duration, String>,
}

// === impl Tested ===

impl Tested {
    /// The connection, as `explain` and `trace` read it.
    fn connection(&self) -> String {
        format!("{} -> {}/TCP", self.addresses.client, self.addresses.destination())
    }
}

/// The results as JSON, whose schema is that of docs/cli.md.
pub fn json(tested: &[Tested]) -> Value {
    let families = tested.iter().map(|one| {
        json!({
            "family": one.addresses.family().to_string(),
            "connection": one.connection(),
            "endpoint": one.addresses.endpoint.to_string(),
            "seconds": one.result.as_ref().ok().map(Duration::as_secs_f64),
            "error": one.result.as_ref().err(),
        })
    });
    json!({"version": 1, "families": families.collect::<Vec<_>>()})
}

/// The same for people, from that JSON; `None` if it has another form.
pub fn text(results: &Value) -> Option<String> {
    let families = results.get("families")?.as_array()?.iter().map(|one| {
        let field = |name| one.get(name).and_then(Value::as_str);
        let (family, connection, endpoint) = (field("family")?, field("connection")?, field("endpoint")?);
        Some(match (one.get("seconds").and_then(Value::as_f64), field("error")) {
            (Some(seconds), _) => {
                format!(
                    "{family}: {connection} reaches {endpoint}, and its answer comes back: {:.2} ms\n",
                    seconds * 1e3
                )
            }
            (None, Some(error)) => format!("{family}: {connection} fails: {error}\n"),
            (None, None) => return None,
        })
    });
    families.collect()
}

/// True if the connection of some family failed, by that JSON.
pub fn fails(results: &Value) -> bool {
    let families = results.get("families").and_then(Value::as_array).into_iter().flatten();
    families.into_iter().any(|one| one.get("error").is_some_and(|error| !error.is_null()))
}

#[cfg(test)]
mod tests {
    use ferry_api::wire::address::parse_cidr;

    use super::*;

    #[test]
    fn results_are_printed() {
        let addresses = TestAddresses::of(parse_cidr("10.99.0.0/29").unwrap()).unwrap();
        let tested = [
            Tested { addresses, result: Ok(Duration::from_micros(1_230)) },
            Tested { addresses, result: Err("no answer within 2 s".to_owned()) },
        ];
        assert_eq!(
            text(&json(&tested)).unwrap(),
            "IPv4: 10.99.0.2 -> 10.99.0.1:80/TCP reaches 10.99.0.3, and its answer comes back: 1.23 ms\n\
             IPv4: 10.99.0.2 -> 10.99.0.1:80/TCP fails: no answer within 2 s\n"
        );
        assert!(fails(&json(&tested)) && !fails(&json(&tested[..1])));
        assert_eq!(text(&json!({"families": [{"family": "IPv4"}]})), None);
    }
}
