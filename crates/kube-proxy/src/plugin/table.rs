//! Formats the states of the proxies of all nodes as a table, and the state of one as details.

use ferry_kernel::text::{escaped, in_one_line};

use crate::ui::{FamilyStatus, NodeStatus, PassStatus, TestStatus};

/// A node in the table.
#[derive(Debug)]
pub(super) enum NodeRow {
    /// the columns of a node that has answered
    Answered([String; COLUMNS]),
    /// the line about one that can't be asked
    Unanswered(String),
}

/// The number of columns.
const COLUMNS: usize = 8;
const HEADINGS: [&str; COLUMNS] =
    ["NODE", "MODE", "HEALTH", "LOAD BALANCERS", "SERVICES", "PROBLEMS", "QUARANTINED", "LAST CHANGE"];
/// Changes that are printed of one node.
const CHANGES: usize = 10;

/// The table, without spaces at the ends of lines.
pub(super) fn table(rows: &[NodeRow]) -> String {
    let mut text = String::new();
    let answered: Vec<[&str; COLUMNS]> = [HEADINGS]
        .into_iter()
        .chain(rows.iter().filter_map(|row| match row {
            NodeRow::Answered(cells) => Some(cells.each_ref().map(String::as_str)),
            NodeRow::Unanswered(_) => None,
        }))
        .collect();
    if answered.len() > 1 {
        let width = |column: usize| {
            answered.iter().filter_map(|cells| cells.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        for cells in &answered {
            let line: String = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}   ")).collect();
            text += &format!("{}\n", line.trim_end());
        }
    }
    for row in rows {
        if let NodeRow::Unanswered(line) = row {
            text += &format!("{line}\n");
        }
    }
    text
}

/// The state of one node, with all that it names.
pub(super) fn details(status: &NodeStatus) -> String {
    let NodeStatus { families, self_test, kinds, counts, quarantined, problems, more_problems, passes, .. } = status;
    let mut text = table(&[NodeRow::of(&status.node, Ok(status.clone()))]);
    let mut line = |line: String| text += &format!("{}\n", escaped(&line));
    line(format!(
        "{}: {} Services, {} endpoints in EndpointSlices, {} addresses and node ports",
        status.program, counts.services, counts.endpoints, counts.frontends
    ));
    if !status.eligible {
        line("load balancers shall not use the node: it is being deleted, has a taint of the autoscaler, or isn't known yet".to_owned());
    }
    for FamilyStatus { family, waiting_seconds, reason, .. } in families {
        if let (Some(seconds), Some(reason)) = (waiting_seconds, reason) {
            line(format!("{family}: a change has waited for {seconds:.1} s: {reason}"));
        }
    }
    for TestStatus { family, seconds, failures, error, .. } in self_test {
        line(match (seconds, error) {
            (Some(seconds), _) => format!("self-test in {family}: gets through, in {:.2} ms", seconds * 1000.0),
            (None, error) => format!(
                "self-test in {family}: has failed {failures} times in a row: {}",
                error.as_deref().unwrap_or("for an unknown reason")
            ),
        });
    }
    for kind in kinds {
        let list = if kind.synced { "complete" } else { "not complete since the start" };
        let connection = if kind.connected { "open" } else { "closed" };
        let contact = kind.contact_seconds.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.0} s ago"));
        line(format!("{}: list {list}, connection {connection}, last sign of the API server {contact}", kind.kind));
    }
    for one in quarantined {
        let what = one.service.as_deref().unwrap_or("what all Services share");
        line(format!("quarantined: {} in {}: {}", what, one.family, one.error));
    }
    for problem in problems {
        let winner = problem.winner.as_ref().map(|winner| format!(" (it is that of {winner})")).unwrap_or_default();
        line(format!("problem: {} {}, {}: {}{winner}", problem.kind, problem.name, problem.field, problem.problem));
    }
    if *more_problems > 0 {
        line(format!("and {more_problems} more problems: the log has a line for each"));
    }
    passes.iter().rev().take(CHANGES).for_each(|pass| line(change(pass)));
    text
}

/// A line about a sync pass.
fn change(pass: &PassStatus) -> String {
    let PassStatus { time, family, seconds, operations, services, units, repairs, error } = pass;
    let mut text = format!("{time} {family}: {:.2} ms, {operations} operations", seconds * 1000.0);
    if let Some(error) = error {
        text += &format!(", failed: {error}");
    }
    if *repairs > 0 {
        text += &format!(", repaired {repairs} objects that others changed");
    }
    let names: Vec<&str> = services.iter().map(|name| name.as_deref().unwrap_or("what all Services share")).collect();
    if !names.is_empty() {
        text += &format!(": {}", names.join(", "));
    }
    let more = units.saturating_sub(names.len());
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

/// Health in a word for each family that isn't well.
fn health(families: &[FamilyStatus], tests: &[TestStatus]) -> String {
    let waiting = families.iter().filter(|family| !family.healthy).map(|family| family.family.clone());
    let failing = tests.iter().filter(|test| test.failing).map(|test| format!("self-test in {}", test.family));
    let unhealthy: Vec<String> = waiting.chain(failing).collect();
    if unhealthy.is_empty() { "healthy".to_owned() } else { format!("unhealthy: {}", unhealthy.join(", ")) }
}

// === impl NodeRow ===

impl NodeRow {
    /// The row of a node that has answered, or not.
    pub(super) fn of(node: &str, answer: anyhow::Result<NodeStatus>) -> Self {
        match answer {
            Err(error) => Self::Unanswered(format!("{}: {}", escaped(node), in_one_line(&format!("{error:#}")))),
            Ok(status) => {
                let last = status.passes.last().map_or_else(
                    || "none".to_owned(),
                    |pass| {
                        format!("{} ({:.2} ms)", pass.time.split('.').next().unwrap_or_default(), pass.seconds * 1000.0)
                    },
                );
                let problems = status.problems.len() + status.more_problems;
                let cells = [
                    node.to_owned(),
                    status.mode,
                    health(&status.families, &status.self_test),
                    if status.eligible { "yes" } else { "no" }.to_owned(),
                    status.counts.services.to_string(),
                    problems.to_string(),
                    status.quarantined.len().to_string(),
                    last,
                ];
                Self::Answered(cells.map(|cell| escaped(&cell)))
            }
        }
    }

    /// False for a node that can't be asked.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self, Self::Answered(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Quarantined;
    use crate::ui::{Counts, KindStatus, ObjectProblem};

    fn status() -> NodeStatus {
        NodeStatus {
            version: 1,
            program: "v1.36.3+ferry.0.1.0".to_owned(),
            node: "node-a".to_owned(),
            mode: "nftables".to_owned(),
            eligible: true,
            families: vec![FamilyStatus {
                family: "IPv4".to_owned(),
                healthy: true,
                waiting_seconds: None,
                reason: None,
            }],
            self_test: Vec::new(),
            kinds: Vec::new(),
            counts: Counts { services: 12, endpoints: 30, frontends: 14 },
            quarantined: Vec::new(),
            problems: Vec::new(),
            more_problems: 0,
            passes: vec![PassStatus {
                time: "2026-01-02T03:04:05.678Z".to_owned(),
                family: "IPv4".to_owned(),
                seconds: 0.000_42,
                operations: 3,
                services: vec![None, Some("shop/web".to_owned())],
                units: 4,
                repairs: 0,
                error: None,
            }],
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_node() {
        let rows = [
            NodeRow::of("node-a", Ok(status())),
            NodeRow::of("node-b", Err(anyhow::anyhow!("kubectl port-forward: no route\nto host\x1b[2J"))),
            NodeRow::of("a-longer-name", Ok(NodeStatus { eligible: false, passes: Vec::new(), ..status() })),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "NODE            MODE       HEALTH    LOAD BALANCERS   SERVICES   PROBLEMS   QUARANTINED   LAST CHANGE",
                "node-a          nftables   healthy   yes              12         0          0             2026-01-02T03:04:05 (0.42 ms)",
                "a-longer-name   nftables   healthy   no               12         0          0             none",
                "node-b: kubectl port-forward: no route; to host\\x1b[2J",
            ]
        );
        let unanswered: Vec<bool> = rows.iter().map(NodeRow::is_answered).collect();
        assert_eq!(unanswered, [true, false, true]);
    }

    #[test]
    fn details_name_what_is_wrong() {
        let status = NodeStatus {
            families: vec![FamilyStatus {
                family: "IPv6".to_owned(),
                healthy: false,
                waiting_seconds: Some(70.0),
                reason: Some("no buffer space".to_owned()),
            }],
            self_test: vec![
                TestStatus {
                    family: "IPv4".to_owned(),
                    seconds: Some(0.000_5),
                    failures: 0,
                    failing: false,
                    error: None,
                },
                TestStatus {
                    family: "IPv6".to_owned(),
                    seconds: None,
                    failures: 3,
                    failing: true,
                    error: Some("no answer".to_owned()),
                },
            ],
            kinds: vec![KindStatus {
                kind: "Service".to_owned(),
                synced: true,
                connected: false,
                contact_seconds: Some(7.4),
            }],
            quarantined: vec![Quarantined { family: "IPv4".to_owned(), service: None, error: "table full".to_owned() }],
            problems: vec![ObjectProblem {
                kind: "Service".to_owned(),
                name: "shop/web\u{202e}".to_owned(),
                field: "spec.clusterIP".to_owned(),
                problem: "belongs to another Service".to_owned(),
                winner: Some("shop/older".to_owned()),
            }],
            more_problems: 2,
            ..status()
        };
        let text = details(&status);
        for line in [
            "v1.36.3+ferry.0.1.0: 12 Services, 30 endpoints in EndpointSlices, 14 addresses and node ports",
            "IPv6: a change has waited for 70.0 s: no buffer space",
            "self-test in IPv4: gets through, in 0.50 ms",
            "self-test in IPv6: has failed 3 times in a row: no answer",
            "Service: list complete, connection closed, last sign of the API server 7 s ago",
            "quarantined: what all Services share in IPv4: table full",
            "problem: Service shop/web\\u202e, spec.clusterIP: belongs to another Service (it is that of shop/older)",
            "and 2 more problems: the log has a line for each",
            "2026-01-02T03:04:05.678Z IPv4: 0.42 ms, 3 operations: what all Services share, shop/web and 2 more",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?}: {text}");
        }
        assert!(
            text.contains("unhealthy: IPv6, self-test in IPv6") && !text.contains("load balancers shall not"),
            "{text}"
        );
    }
}
