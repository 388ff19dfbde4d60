use super::*;

#[test]
fn a_sample_is_spread_over_all() {
    let state =
        |name: &str| ServiceState { name: ObjectName::new("demo", name), ports: Vec::new(), health_check: None };
    let all: Vec<ServiceState> = (0..10).map(|number| state(&number.to_string())).collect();
    let all: Vec<&ServiceState> = all.iter().collect();
    let names = |number| -> Vec<String> { sampled(&all, number).iter().map(|state| state.name.to_string()).collect() };
    assert_eq!(names(Some(3)), ["demo/0", "demo/3", "demo/6"]);
    assert_eq!(names(Some(100)).len(), 10);
    assert_eq!(names(None).len(), 10);
    assert_eq!(names(Some(0)), [""; 0]);
}
