//! The health check response of one Service.

use ferry_api::object::ObjectName;
use hyper::StatusCode;

use crate::serve::http::HttpResponse;

/// The response to a load balancer about a Service with this number of ready endpoints on this node, in upstream's layout.
/// `healthy`: no change has been pending too long.
pub(super) fn answer(service: &ObjectName, local_endpoints: u32, healthy: bool) -> HttpResponse {
    let (namespace, name) = (json(service.namespace()), json(service.name()));
    let ok = local_endpoints > 0 && healthy;
    HttpResponse {
        status: if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE },
        headers: vec![
            ("content-type", "application/json".to_owned()),
            ("x-content-type-options", "nosniff".to_owned()),
            ("x-load-balancing-endpoint-weight", local_endpoints.to_string()),
        ],
        body: format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
             \t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
        ),
        ..HttpResponse::default()
    }
}

/// A JSON string: names in manifests may be any text.
fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_upstreams_to_the_byte() {
        let answer = answer(&ObjectName::new("default", "web"), 2, true);
        assert_eq!(answer.status, StatusCode::OK);
        let headers: Vec<_> = answer.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(
            headers,
            [
                ("content-type", "application/json"),
                ("x-content-type-options", "nosniff"),
                ("x-load-balancing-endpoint-weight", "2"),
            ]
        );
        let body = r#"{
	"service": {
		"namespace": "default",
		"name": "web"
	},
	"localEndpoints": 2,
	"serviceProxyHealthy": true
}"#;
        assert_eq!(answer.body, body);
    }

    #[test]
    fn it_is_503_without_endpoints_and_without_health() {
        let name = ObjectName::new("default", "web");
        for (endpoints, healthy) in [(0, true), (3, false), (0, false)] {
            let answer = answer(&name, endpoints, healthy);
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{endpoints} {healthy}");
            let end = format!("\t\"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}");
            assert!(answer.body.ends_with(&end), "{}", answer.body);
        }
    }

    #[test]
    fn any_name_makes_json() {
        let answer = answer(&ObjectName::new("a\"b", "c\\d\n\u{7f}é"), 1, true);
        let value: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(value["service"]["namespace"], "a\"b");
        assert_eq!(value["service"]["name"], "c\\d\n\u{7f}é");
    }
}
