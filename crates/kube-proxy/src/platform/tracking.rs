//! Connection tracking: sets the limit of entries and the timeouts of the configuration, once, at the start.
//!
//! A parameter is written only if its value differs, so that a process without the privilege finds what `--init-only` has set. The
//! limit and the size of the hash table belong to the initial network namespace: elsewhere, as in a container with a network of
//! its own, they can't be written. One warning names all that could not be written, or why none could, and the proxy goes on.

use std::io;

use ferry_api::config::{Conntrack, GoDuration};
use ferry_api::object::Family;
use ferry_kernel::conntrack::{self, ConntrackError, ConntrackSocket};
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::module::{self, Module};
use ferry_kernel::sysctl;

/// With a value other than 0, TCP packets outside of their connection's window count as valid.
pub const TCP_BE_LIBERAL: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";
/// Most entries of the connection tracking table.
const MAX: &str = "net.netfilter.nf_conntrack_max";
/// The module that answers queries about connections, and whose loading loads connection tracking.
const NETLINK_MODULE: &str = "nf_conntrack_netlink";
/// Number of buckets of the hash table; of the module, not of a network namespace.
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";
/// Entries per bucket, at most.
const ENTRIES_PER_BUCKET: u64 = 4;
/// The limit by number of processors, at most (upstream since 1.36): more entries than this take too much memory by default.
const MOST_SCALED: u64 = 1 << 20;
/// The processors that are online: `0-3,8`.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// A kernel parameter and its configured value.
type Parameter = (&'static str, u64);

/// Sets all parameters of this section whose values differ, in the network namespace of this thread.
pub fn set_connection_tracking(config: &Conntrack) {
    let limit = limit(config, processors());
    let wanted: Vec<Parameter> = limit.into_iter().map(|limit| (MAX, limit)).chain(timeouts(config)).collect();
    if wanted.is_empty() {
        return;
    }
    let failures = match ensure_loaded() {
        Ok(()) => wanted.into_iter().flat_map(set_one).collect(),
        Err(error) => vec![format!("all ({})", explained(&error, &module::find(NETLINK_MODULE)))],
    };
    if !failures.is_empty() {
        let parameters = failures.join(", ");
        tracing::warn!(parameters, "Failed to set connection tracking parameters, keeping the kernel's values");
    }
}

/// Sets a parameter, and what belongs to it; returns what failed.
fn set_one((name, value): Parameter) -> Option<String> {
    match set(name, value) {
        Ok(()) if name == MAX => grow_table(value).err().map(|error| failure(HASH_SIZE, &error)),
        Ok(()) => None,
        Err(error) => Some(failure(name, &error)),
    }
}

/// The most entries: by the number of processors, and at least the configured minimum; `None` leaves the kernel's.
fn limit(config: &Conntrack, processors: u64) -> Option<u64> {
    let per_core = u64::try_from(config.max_per_core).ok().filter(|number| *number > 0)?;
    let scaled = per_core.saturating_mul(processors).min(MOST_SCALED);
    Some(scaled.max(u64::try_from(config.min).unwrap_or(0)))
}

/// The timeouts that are configured, in seconds, and the treatment of packets outside of a window.
fn timeouts(config: &Conntrack) -> impl Iterator<Item = Parameter> {
    let timeouts = [
        ("net.netfilter.nf_conntrack_tcp_timeout_established", config.tcp_established_timeout),
        ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", config.tcp_close_wait_timeout),
        ("net.netfilter.nf_conntrack_udp_timeout", config.udp_timeout),
        ("net.netfilter.nf_conntrack_udp_timeout_stream", config.udp_stream_timeout),
    ];
    let is_set = |(_, timeout): &(_, GoDuration)| !timeout.is_zero();
    let seconds = timeouts.into_iter().filter(is_set).map(|(name, timeout)| (name, timeout.whole_seconds()));
    seconds.chain(config.tcp_be_liberal.then_some((TCP_BE_LIBERAL, 1)))
}

/// Number of processors that are online.
fn processors() -> u64 {
    let listed = std::fs::read_to_string(ONLINE).ok().and_then(|text| count(&text));
    // The number that this process may use is the best guess where /sys is not mounted.
    listed.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |number| number.get() as u64))
}

/// Number of numbers in a list of ranges.
fn count(list: &str) -> Option<u64> {
    list.trim().split(',').try_fold(0_u64, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

fn set(name: &str, value: u64) -> io::Result<()> {
    let value = value.to_string();
    let now = sysctl::read(name)?;
    if now != value {
        sysctl::write(name, &value)?;
        tracing::info!(entry = name, value, "Set sysctl");
    }
    Ok(())
}

/// Grows the hash table, if it is too small for so many entries.
fn grow_table(entries: u64) -> io::Result<()> {
    let wanted = entries / ENTRIES_PER_BUCKET;
    let text = std::fs::read_to_string(HASH_SIZE)?;
    let now: u64 = text.trim().parse().map_err(io::Error::other)?;
    if now < wanted {
        std::fs::write(HASH_SIZE, wanted.to_string())?;
        tracing::info!(entry = HASH_SIZE, value = wanted, "Set sysctl");
    }
    Ok(())
}

/// Has the kernel load connection tracking: any query does.
fn ensure_loaded() -> Result<(), ConntrackError> {
    if !sysctl::read(MAX).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    let nothing =
        conntrack::Filter { family: Family::V4, protocol: 0, destination: None, port: None, unanswered: false };
    ConntrackSocket::open()?.dump(&nothing, &mut |_| {}).map(drop)
}

/// The error of a query; with advice if the kernel lacks what answers it.
fn explained(error: &ConntrackError, module: &Module) -> String {
    match error {
        ConntrackError::Unusable(cause) if ErrorClass::of(cause).lacks_subsystem() && !module.is_present() => {
            format!("the kernel offers no connection tracking: {cause}; {module}")
        }
        _ => error.to_string(),
    }
}

fn failure(name: &str, error: &io::Error) -> String {
    format!("{name} ({error})")
}

#[cfg(test)]
mod tests {
    use ferry_kernel::module::ModuleState;
    use ferry_kernel::netns::Namespace;

    use super::*;

    fn per_core(max_per_core: i32, min: i32) -> Conntrack {
        Conntrack { max_per_core, min, ..Conntrack::default() }
    }

    #[test]
    fn the_limit_follows_the_processors_between_the_minimum_and_a_mebi() {
        for (config, processors, want) in [
            (per_core(32_768, 131_072), 2, Some(131_072)),
            (per_core(32_768, 131_072), 8, Some(262_144)),
            (per_core(32_768, 131_072), 64, Some(1_048_576)),
            (per_core(32_768, 2_000_000), 64, Some(2_000_000)),
            (per_core(i32::MAX, 0), u64::MAX, Some(1_048_576)),
            (per_core(0, 131_072), 8, None),
        ] {
            assert_eq!(limit(&config, processors), want, "{config:?}, {processors} processors");
        }
    }

    #[test]
    fn processors_are_counted_in_ranges() {
        let counts = ["0\n", "0-3,8", "0-1,4-7,9", "", "3-1", "x", "0-18446744073709551615"].map(count);
        assert_eq!(counts, [Some(1), Some(5), Some(7), None, None, None, None]);
        assert!(processors() > 0);
    }

    /// Numbers of errors, errno(3).
    const EPERM: i32 = 1;
    const EINVAL: i32 = 22;
    const EPROTONOSUPPORT: i32 = 93;

    #[test]
    fn a_kernel_without_connection_tracking_is_named_once_with_the_module() {
        let module = |state| Module { name: NETLINK_MODULE.to_owned(), state, release: "6.1".to_owned() };
        let lacks = |number| ConntrackError::Unusable(io::Error::from_raw_os_error(number));
        // Without netfilter, and without a module of it.
        for error in [lacks(EPROTONOSUPPORT), lacks(EINVAL)] {
            let text = explained(&error, &module(ModuleState::Loadable));
            assert!(text.starts_with("the kernel offers no connection tracking: "), "{text}");
            assert!(text.contains("run `modprobe -- nf_conntrack_netlink`"), "{text}");
            assert_eq!(
                explained(&error, &module(ModuleState::Loaded)),
                error.to_string(),
                "something else withholds it"
            );
        }
        let denied = lacks(EPERM);
        assert_eq!(explained(&denied, &module(ModuleState::Loadable)), denied.to_string());
    }

    fn log_of(config: &Conntrack) -> String {
        crate::logging::logged(0, || set_connection_tracking(config))
    }

    #[test]
    fn timeouts_are_set_once_in_whole_seconds() {
        let seconds = GoDuration::from_secs;
        let config = Conntrack {
            tcp_established_timeout: seconds(86_399),
            tcp_close_wait_timeout: GoDuration::from_millis(3_500),
            tcp_be_liberal: true,
            udp_timeout: seconds(31),
            udp_stream_timeout: seconds(181),
            ..Conntrack::default()
        };
        let ((log, kernels, kept), logs, values) = Namespace::new()
            .unwrap()
            .run(move || {
                let all = [
                    "tcp_timeout_established",
                    "tcp_timeout_close_wait",
                    "tcp_be_liberal",
                    "udp_timeout",
                    "udp_timeout_stream",
                ];
                let read = |name: &str| sysctl::read(&format!("net.netfilter.nf_conntrack_{name}")).unwrap();
                let kernels = all.map(read);
                let unset = (log_of(&Conntrack::default()), kernels, all.map(read));
                (unset, [log_of(&config), log_of(&config)], all.map(read))
            })
            .unwrap();
        assert_eq!((log.as_str(), kept), ("", kernels), "what is not configured is not written");
        let [first, second] = logs;
        assert_eq!((first.matches("\"Set sysctl\"").count(), second.as_str()), (5, ""), "{first}");
        let line = "entry=\"net.netfilter.nf_conntrack_tcp_timeout_close_wait\" value=\"4\"";
        assert!(first.contains(line), "{first}");
        assert_eq!(values, ["86399", "4", "1", "31", "181"]);
    }

    /// In a network namespace of its own, the limit is that of the initial one, and can't be written.
    #[test]
    fn what_cannot_be_written_is_named_once() {
        let now: i32 = sysctl::read(MAX).unwrap().parse().unwrap();
        let log = move |min| Namespace::new().unwrap().run(move || log_of(&per_core(1, min))).unwrap();
        let (same, other) = (log(now), log(now + 1));
        assert!(!same.contains(MAX), "an equal value is not written: {same}");
        assert_eq!(other.lines().filter(|line| line.starts_with('W')).count(), 1, "{other}");
        assert!(other.contains(&format!("parameters=\"{MAX} (Permission denied")), "{other}");
    }
}
