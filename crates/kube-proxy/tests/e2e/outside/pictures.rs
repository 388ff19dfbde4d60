//! The status page in a browser, wide, dark and on a phone; and the documentation's pictures of it.
#![expect(clippy::indexing_slicing, reason = "of bytes of a picture, whose format is checked")]

use std::path::{Path, PathBuf};

use crate::browser::{Browser, View};
use crate::support::{METRICS, Machine, Running};

/// Environment variable of `cargo xt pictures`; if set, the documentation's pictures are replaced.
const ACCEPT: &str = "FERRY_PICTURES";

const WIDE: View = View { name: "wide", width: 1100, height: 800, dark: false, mobile: false };
const DARK: View = View { name: "dark", width: 1100, height: 800, dark: true, mobile: false };
const PHONE: View = View { name: "phone", width: 375, height: 667, dark: false, mobile: true };

/// The pages, parts of their texts, and their pictures in the documentation.
const PAGES: [(&str, &[&str], Option<&str>); 3] = [
    (
        "/ui",
        &[
            "3 Services, 2 endpoints in EndpointSlices, 2 addresses and node ports",
            "healthy",
            "shop/web-copy",
            "belongs to another Service",
            "Self-test",
            "Last changes",
        ],
        Some("status-page.png"),
    ),
    ("/ui/services", &["shop/cart", "http TCP: 10.96.0.20:80"], None),
    ("/ui/explain?q=svc%20shop%2Fcart", &["has no endpoint", "htpp/TCP"], Some("status-page-explain.png")),
];

/// The smallest contrast of all texts outside of pictures, each against the nearest opaque background behind it, or the browser's own. It is
/// (L1 + 0.05) / (L2 + 0.05), L being the relative luminance (WCAG 2.2, contrast minimum: 4.5 for text).
const CONTRAST: &str = "(() => {
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const luminance = (color) => {
        const [r, g, b] = channels(color).map((value) => linear(value / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const background = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (channels(color).length === 3) return color;
        }
        return matchMedia('(prefers-color-scheme: dark)').matches ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)';
    };
    const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const contrast = (element) => {
        const one = luminance(getComputedStyle(element).color), other = luminance(background(element));
        return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    };
    return Math.min(...[...document.body.querySelectorAll(':not(svg *)')].filter(hasText).map(contrast));
})()";

fn service(name: &str, address: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"shop"}},"spec":{{"clusterIP":"{address}",
        "clusterIPs":["{address}"],"ipFamilies":["IPv4"],"ports":[{{"name":"http","port":80,"protocol":"TCP"}}]}}}}"#
    )
}

fn slice(service: &str, port: &str, endpoint: &str) -> String {
    format!(
        r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"{service}-1","namespace":"shop","labels":
        {{"kubernetes.io/service-name":"{service}"}}}},"addressType":"IPv4","ports":[{{"name":"{port}","port":8080,"protocol":"TCP"}}],
        "endpoints":[{{"addresses":["{endpoint}"],"conditions":{{"ready":true}}}}]}}"#
    )
}

/// A node with an address of its own, three Services, and two mistakes: an address that another Service has, and a port under
/// another name.
fn machine() -> Machine {
    let machine = Machine::node();
    for (name, address) in [("web", "10.96.0.20"), ("web-copy", "10.96.0.20"), ("cart", "10.96.0.11")] {
        machine.write(&format!("manifests/{name}.json"), &service(name, address));
    }
    machine.write("manifests/web-1.json", &slice("web", "http", "10.244.1.7"));
    machine.write("manifests/cart-1.json", &slice("cart", "htpp", "10.244.1.8"));
    machine
}

fn start(machine: &Machine) -> Running<'_> {
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
                  clusterCIDR: 10.244.1.0/24\n---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n\
                  controlSocket: \"\"\nselfTestPeriod: 1s\n";
    let config = machine.write("config.yaml", config);
    let manifests = machine.manifests();
    let mut running =
        machine.start_bare(&["--config", &config, "--manifests", &manifests, "--hostname-override=node-a"]);
    running.until_synced();
    for number in 10..20 {
        let endpoint = format!("10.244.1.{number}");
        machine.write("manifests/web-1.json", &slice("web", "http", &endpoint));
        running.until("a change of the endpoint", |running| {
            running.get(METRICS, "/ui/explain?q=svc%20shop%2Fweb").body.contains(&format!("{endpoint}:8080"))
        });
    }
    running.until("the self-test", |running| running.get(METRICS, "/ui").body.matches("gets through").count() == 2);
    running
}

/// A page is readable in this view, and loads nothing that its policy forbids.
fn check(browser: &mut Browser, path: &str, parts: &[&str], view: View) {
    let context = format!("{path}, {}", view.name);
    browser.open(&format!("http://{METRICS}{path}"), view);
    let text = browser.value("document.body.innerText").to_string();
    for part in parts {
        assert!(text.contains(part), "{context}: no {part:?}: {text}");
    }
    let width = browser.value("document.documentElement.scrollWidth").as_u64().expect("a number");
    assert!(width <= u64::from(view.width), "{context}: {width} pixels wide");
    let contrast = browser.value(CONTRAST).as_f64().expect("a number");
    assert!(contrast >= 4.5, "{context}: a text has contrast {contrast:.2}");
    let is_light = browser.value("getComputedStyle(document.body).color") != "rgb(0, 0, 0)";
    assert_eq!(is_light, view.dark, "{context}: the text is light on dark alone");
    assert_eq!(browser.value("document.scripts.length"), 0, "{context}");
    assert!(browser.complaints().is_empty(), "{context}: {:?}", browser.complaints());
}

/// The path of a picture in the documentation.
fn documented(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Width and height of a picture in PNG, from its first chunk.
fn size(picture: &[u8]) -> (u32, u32) {
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"), "no PNG");
    let number = |at: usize| u32::from_be_bytes(*picture[at..].first_chunk().expect("it has a first chunk"));
    (number(16), number(20))
}

/// The documentation's pictures aren't compared pixel by pixel, since times and fonts differ.
#[test]
fn pages_are_readable_in_a_browser() {
    let machine = machine();
    let _running = start(&machine);
    let mut browser = Browser::start(&machine);
    for (path, parts, picture) in PAGES {
        for view in [DARK, PHONE, WIDE] {
            check(&mut browser, path, parts, view);
        }
        let Some(name) = picture else { continue };
        let height = browser.value("Math.ceil(document.body.getBoundingClientRect().bottom) + 8").as_u64();
        let height = u32::try_from(height.expect("a number")).expect("a page's height");
        let taken = browser.picture(WIDE, height);
        assert_eq!(size(&taken), (WIDE.width, height));
        if std::env::var_os(ACCEPT).is_some() {
            std::fs::write(documented(name), &taken).expect("writing a picture");
        }
        let kept = std::fs::read(documented(name)).expect("reading a picture");
        assert_eq!(size(&kept).0, WIDE.width, "docs/{name} is of another view");
    }
}
