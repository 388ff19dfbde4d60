//! Mode winuserspace: connections and datagrams through the proxy, at the addresses that the machine has. Wine can't add any.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::kit::{Folder, Proxy, eventually, get, output, program};

/// An address of this machine that is not loopback's, and that others don't reach by this test: no packet is sent.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").unwrap();
    socket.local_addr().unwrap().ip()
}

/// Endpoints of both protocols at one port: they answer with a prefix.
fn serve(at: IpAddr) -> u16 {
    let listener = TcpListener::bind((at, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let datagrams = UdpSocket::bind((at, port)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut text = Vec::new();
                stream.read_to_end(&mut text).unwrap();
                stream.write_all(&[b"endpoint ", &text[..]].concat()).unwrap();
            });
        }
    });
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((length, client)) = datagrams.recv_from(&mut bytes) {
            datagrams.send_to(&[b"endpoint ", &bytes[..length]].concat(), client).unwrap();
        }
    });
    port
}

/// Sends a text over TCP, and returns the answer.
fn ask(to: SocketAddr, text: &str) -> Option<String> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(text.as_bytes()).ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The same over UDP.
fn ask_by_datagram(to: SocketAddr, text: &str) -> Option<String> {
    let socket = UdpSocket::bind((to.ip(), 0)).ok()?;
    socket.set_read_timeout(Some(Duration::from_millis(300))).ok()?;
    socket.send_to(text.as_bytes(), to).ok()?;
    let mut bytes = [0; 2048];
    let (length, from) = socket.recv_from(&mut bytes).ok()?;
    (from == to).then(|| String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// A port that nothing listens at, of either protocol.
fn free_port(at: IpAddr) -> u16 {
    loop {
        let listener = TcpListener::bind((at, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        if UdpSocket::bind((at, port)).is_ok() {
            return port;
        }
    }
}

/// A Service with a node port and an external IP, of both protocols, and its slice.
fn manifest(own: IpAddr, [node_port, port, target]: [u16; 3], ready: bool) -> String {
    let ports = ["TCP", "UDP"].map(|protocol| {
        let name = protocol.to_lowercase();
        format!("{{name: {name}, port: {port}, targetPort: {target}, nodePort: {node_port}, protocol: {protocol}}}")
    });
    let targets = ["TCP", "UDP"]
        .map(|protocol| format!("{{name: {}, port: {target}, protocol: {protocol}}}", protocol.to_lowercase()));
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node-1}}\nstatus: {{addresses: [{{type: InternalIP, address: {own}}}]}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\nspec: {{type: NodePort, clusterIP: 10.96.0.10, \
         clusterIPs: [10.96.0.10], ipFamilies: [IPv4], externalIPs: [{own}], ports: [{}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web-1, namespace: default, labels: \
         {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\nports: [{}]\nendpoints: [{{addresses: [{own}], nodeName: node-1, \
         conditions: {{ready: {ready}}}}}]\n",
        ports.join(", "),
        targets.join(", "),
    )
}

#[test]
fn connections_and_datagrams_reach_endpoints_and_are_counted() {
    let own = own_address();
    let ports = [free_port(own), free_port(own), serve(own)];
    let folder = Folder::new("relay");
    folder.write("all.yaml", &manifest(own, ports, true));
    let proxy = Proxy::start(&folder, &["--proxy-mode=winuserspace"]);
    for port in &ports[..2] {
        let to = SocketAddr::new(own, *port);
        eventually("TCP reaches the endpoint", || ask(to, "hello").as_deref() == Some("endpoint hello"));
        eventually("UDP reaches the endpoint", || ask_by_datagram(to, "hello").as_deref() == Some("endpoint hello"));
    }
    let long = "x".repeat(300_000);
    let answer = ask(SocketAddr::new(own, ports[0]), &long).unwrap();
    assert_eq!(answer.len(), "endpoint ".len() + long.len());
    let page = get(proxy.metrics, "/metrics").unwrap();
    let connections: Vec<&str> =
        page.lines().filter(|line| line.starts_with("kubeproxy_userspace_connections_total{")).collect();
    assert!(connections.len() == 2 && connections[0].contains("service=\"web\""), "{connections:?}");
    assert!(page.contains("kubeproxy_userspace_way{way=\"bind\"} 1"), "{page}");
    folder.write("all.yaml", &manifest(own, ports, false));
    eventually("without an endpoint nothing listens", || TcpStream::connect((own, ports[0])).is_err());
}

#[test]
fn an_interface_that_is_missing_is_named_with_those_that_exist() {
    let folder = Folder::new("interface");
    let file = folder.path.join("config.yaml");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n---\n\
                apiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nuserspaceInterface: Ethernet 17\n";
    std::fs::write(&file, text).unwrap();
    let (code, text) = output(program().args([&format!("--config={}", file.display()), &folder.flag()]));
    assert!(
        code == 1 && text.contains("no interface Ethernet 17 for the addresses of Services: name one of "),
        "{text}"
    );
    assert!(text.contains("as userspaceInterface"), "{text}");
}
