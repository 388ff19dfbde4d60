//! Diagnostics of a Service's fields that are not served as specified, whatever its endpoints are.

use std::net::IpAddr;

use ferry_api::object::{DEFAULT_AFFINITY_SECONDS, MAX_AFFINITY_SECONDS, OddField, OddValue, Parsed, Service};

use crate::diagnostic::{Cause, FieldPath, Findings};
use crate::sources::unreadable;
use crate::special::special;

/// Reports values that an API server would reject, and their substitutes.
pub(super) fn check_odd(odd: &OddValue, findings: &mut Findings<'_>) {
    let text = &odd.text;
    let timeout = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    let (field, message) = match odd.field {
        OddField::Type => ("spec.type", format!("{text:?} is no type: taken for ClusterIP")),
        OddField::SessionAffinity => {
            ("spec.sessionAffinity", format!("{text:?} is no session affinity: taken for None"))
        }
        OddField::NegativeTimeout => {
            (timeout, format!("{text} is no timeout: {DEFAULT_AFFINITY_SECONDS} seconds are taken"))
        }
        OddField::LongTimeout => {
            (timeout, format!("{text} is too long a timeout: {MAX_AFFINITY_SECONDS} seconds are taken"))
        }
        OddField::InternalTrafficPolicy => {
            ("spec.internalTrafficPolicy", format!("{text:?} is no policy: taken for Cluster"))
        }
        OddField::ExternalTrafficPolicy => {
            ("spec.externalTrafficPolicy", format!("{text:?} is no policy: taken for Cluster"))
        }
        OddField::HealthCheckNodePort => {
            ("spec.healthCheckNodePort", format!("{text} is no port: the service has no health check port"))
        }
    };
    let cause = if odd.field == OddField::LongTimeout { Cause::Excess } else { Cause::Object };
    findings.add(FieldPath::plain(field), cause, &message);
}

/// Reports problems of fields that both families read, apart from cluster IPs, source ranges and ports.
pub(super) fn check_addresses(service: &Service, findings: &mut Findings<'_>) {
    let mut check = |field, address: &Parsed<IpAddr>| match address {
        Ok(address) => {
            if let Some(what) = special(*address) {
                findings.add(field, Cause::Special, &format_args!("{address} is {what}: not served"));
            }
        }
        Err(text) => findings.add(field, Cause::Object, &format_args!("{text:?} is no address: not served")),
    };
    for (index, address) in service.external_ips.iter().enumerate() {
        check(FieldPath::at("spec.externalIPs", index, ""), address);
    }
    for (index, ingress) in service.ingress.iter().enumerate() {
        if ingress.proxy_mode && ingress.ip.is_ok() {
            continue;
        }
        check(FieldPath::at("status.loadBalancer.ingress", index, ".ip"), &ingress.ip);
    }
    if service.affinity_seconds == Some(0) {
        let field = FieldPath::plain("spec.sessionAffinityConfig.clientIP.timeoutSeconds");
        findings.add(field, Cause::Object, &"a memory of 0 seconds: session affinity is off");
    }
}

/// Reports source ranges that admit no source. They matter to load balancer addresses only.
pub(super) fn check_source_ranges(service: &Service, findings: &mut Findings<'_>) {
    for (index, text) in unreadable(service) {
        let field = FieldPath::at("spec.loadBalancerSourceRanges", index, "");
        findings.add(field, Cause::SourceRange, &format_args!("{text:?} is no range: it admits no client"));
    }
}
