use std::fs;
use std::time::Duration;

use ferry_lab::api::Authority;

use super::*;

#[tokio::test]
async fn replaced_authorities_are_part_of_the_identity() {
    let folder = std::env::temp_dir().join(format!("ferry-origin-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let [ca, kubeconfig] = ["ca", "kubeconfig"].map(|name| folder.join(name));
    let [first, second] = ["first", "second"].map(|name| Authority::new(name).certificate());
    fs::write(&ca, &first).unwrap();
    let text = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {}}]\n\
                clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca}}]\n";
    fs::write(&kubeconfig, text).unwrap();
    let access = Access::load(kubeconfig.to_str().unwrap(), None).unwrap();
    let options = client::ClientOptions {
        content_type: String::new(),
        accept_content_types: String::new(),
        qps: -1.0,
        burst: 0,
        user_agent: "test".to_owned(),
        timing: client::TimeLimits { recheck: Duration::ZERO, ..client::TimeLimits::default() },
    };
    let client = Client::new(access, options, Metrics::new().unwrap().rest).unwrap();
    let cluster = CurrentCluster::of("https://127.0.0.1:1".to_owned(), client.clone());
    let before = cluster.identity();
    fs::write(&ca, first + &second).unwrap();
    // Whatever its result, a request reads the files.
    let path_and_query = "/".to_owned();
    let call = client::Call { verb: client::Verb::List, resource: "", path_and_query, body: Vec::new().into() };
    assert!(client.send(&call).await.is_err());
    let after = cluster.identity();
    assert_eq!(after, ClusterIdentity::of("https://127.0.0.1:1", Some(&fs::read(&ca).unwrap())));
    assert_ne!(after, before);
    fs::remove_dir_all(folder).unwrap();
}
