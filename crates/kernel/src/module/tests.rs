use super::*;

const DEP: &str =
    "kernel/net/netfilter/xt_ipvs.ko.xz: kernel/net/netfilter/ipvs/ip_vs.ko.xz kernel/lib/only-needed.ko.xz
kernel/net/netfilter/ipvs/ip_vs.ko.xz: kernel/net/netfilter/nf_conntrack.ko.xz
kernel/net/netfilter/ipvs/ip_vs_rr.ko:
kernel/net/netfilter/ipvs/ip_vs_sh.ko.zst: kernel/net/netfilter/ipvs/ip_vs.ko.xz
kernel/drivers/net/dummy-net.ko.gz:
updates/ip_vs_wlc.kotlin:
";

const PROC: &str = "ip_vs_sh 12288 1 - Live 0xffffffffc0a12000
ip_vs 225280 3 ip_vs_rr,ip_vs_sh, Live 0x0000000000000000
ip_vs_lc 12288 0 - Loading 0x0000000000000000
ip_vs_wrr 12288 0 - Unloading 0x0000000000000000 (OE)
short 1
";

/// A directory with files, deleted at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("ferry-modules-{}-{name}", std::process::id()));
        let all = [("proc/sys/kernel/osrelease", "6.12.95+deb12-amd64\n")];
        for (path, content) in all.iter().chain(files) {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Self(root)
    }

    fn state(&self, name: &str) -> ModuleState {
        let found = find_below(&self.0, name);
        assert_eq!(found.release, "6.12.95+deb12-amd64");
        found.state
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn files_of_modules_are_recognised() {
    let found =
        ["ip_vs", "xt_ipvs", "ip_vs_rr", "ip_vs_sh", "dummy_net", "only_needed", "ip_vs_wlc", "vs", "ip_vs.ko", ""];
    assert_eq!(
        found.map(|name| lists_file(DEP, name)),
        [true, true, true, true, true, false, false, false, false, false]
    );
    assert!(lists_file("kernel/arch/x86/events/amd/amd-uncore.ko\n", "amd_uncore"));
    for line in ["", ":", "/", "kernel/", "kernel/x.ko.bz2", "no module"] {
        assert_eq!(file_module(line), None, "{line:?}");
    }
}

#[test]
fn only_initialised_modules_are_live() {
    let found = ["ip_vs", "ip_vs_sh", "ip_vs_lc", "ip_vs_wrr", "short", "ip_vs_r", ""];
    assert_eq!(found.map(|name| lists_live(PROC, name)), [true, true, false, false, false, false, false]);
}

#[test]
fn a_module_has_the_state_that_the_files_show() {
    let tree = Tree::new(
        "states",
        &[
            ("proc/modules", PROC),
            ("sys/module/ip_vs_nq/initstate", "live\n"),
            ("sys/module/ip_vs_lc/initstate", "coming\n"),
            ("sys/module/bridge/parameters/x", "1"),
            ("lib/modules/6.12.95+deb12-amd64/modules.dep", &format!("{DEP}kernel/net/ip_vs_lc.ko:\n")),
            ("lib/modules/6.12.95+deb12-amd64/modules.builtin", "kernel/net/netfilter/nf-nat.ko\n"),
        ],
    );
    for (name, state) in [
        ("ip_vs", ModuleState::Loaded),
        ("ip_vs_nq", ModuleState::Loaded),
        ("ip_vs_lc", ModuleState::Loadable),
        ("bridge", ModuleState::BuiltIn),
        ("nf_nat", ModuleState::BuiltIn),
        ("nf-nat", ModuleState::BuiltIn),
        ("ip_vs_rr", ModuleState::Loadable),
        ("dummy-net", ModuleState::Loadable),
        ("ip_vs_mh", ModuleState::Absent),
    ] {
        assert_eq!(tree.state(name), state, "{name}");
        assert_eq!(find_below(&tree.0, name).is_present(), matches!(state, ModuleState::Loaded | ModuleState::BuiltIn));
    }
}

#[test]
fn what_a_container_does_not_show_is_unknown() {
    let tree = Tree::new("container", &[("proc/modules", PROC)]);
    assert_eq!(tree.state("ip_vs"), ModuleState::Loaded);
    assert_eq!(tree.state("ip_vs_rr"), ModuleState::Unknown);
    let other = Tree::new("other", &[("lib/modules/6.1.0-50-amd64/modules.dep", DEP)]);
    assert_eq!(other.state("ip_vs_rr"), ModuleState::Unknown, "modules of another kernel");
    let partly = Tree::new("partly", &[("lib/modules/6.12.95+deb12-amd64/modules.builtin", "kernel/x.ko\n")]);
    assert_eq!(partly.state("ip_vs_rr"), ModuleState::Unknown, "the list of loadable ones is missing");
    assert_eq!(partly.state("x"), ModuleState::BuiltIn);
}

#[test]
fn the_text_names_the_commands() {
    let text = |state| Module { name: "ip_vs_rr".to_owned(), state, release: "6.12.95".to_owned() }.to_string();
    assert_eq!(text(ModuleState::Loaded), "kernel module ip_vs_rr is loaded");
    assert_eq!(text(ModuleState::BuiltIn), "kernel module ip_vs_rr is built into the kernel");
    assert_eq!(
        text(ModuleState::Loadable),
        "kernel module ip_vs_rr is not loaded: run `modprobe -- ip_vs_rr`, and write `ip_vs_rr` to \
         /etc/modules-load.d/kube-proxy.conf, which loads it at the next boot"
    );
    assert_eq!(
        text(ModuleState::Absent),
        "kernel module ip_vs_rr does not exist on this machine: kernel 6.12.95 was built without it, or the package with its \
         modules is not installed; once it is, run `modprobe -- ip_vs_rr`, and write `ip_vs_rr` to \
         /etc/modules-load.d/kube-proxy.conf, which loads it at the next boot"
    );
    assert_eq!(
        text(ModuleState::Unknown),
        "kernel module ip_vs_rr is not loaded as far as visible here, and /lib/modules/6.12.95 is not visible, as in a \
         container; on the node, run `modprobe -- ip_vs_rr`, and write `ip_vs_rr` to /etc/modules-load.d/kube-proxy.conf, which \
         loads it at the next boot"
    );
}

/// Facts of the running kernel, whatever it is.
#[test]
fn the_running_kernel_is_asked() {
    let absent = find("no-such-module");
    assert_eq!(absent.name, "no_such_module");
    assert!(matches!(absent.state, ModuleState::Absent | ModuleState::Unknown));
    assert_eq!(absent.release, crate::sysctl::read("kernel.osrelease").unwrap());
    // every kernel has parameters of its own under this name
    assert_eq!(find("kernel").state, ModuleState::BuiltIn);
}
