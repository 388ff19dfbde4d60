//! kube-proxy
fn main() {}
