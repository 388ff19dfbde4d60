//! The project's development commands: `cargo xt COMMAND`. Each has its own file; this one only dispatches.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its user")]

mod bench;
mod binaries;
mod check;
mod circles;
mod demo;
mod deny;
mod fuzz;
mod golden;
mod lanes;
mod layers;
mod meanwhile;
mod mutants;
mod names;
mod package;
mod pictures;
mod reading_path;
mod rust;
mod setup;
mod shell;
mod sources;
mod tally;
mod test;
mod vm;
mod windows;

use std::process::ExitCode;

const USAGE: &str = "cargo xt COMMAND

  check                  fmt, clippy, doc, layers, deny: all checks that need no privilege and run no test
  layers                 dependencies between crates, circles between modules, ambiguous names of types, use of unsafe code,
                         sizes of files
  deny                   licences, sources and duplicates of all dependencies, by deny.toml
  test [--setup]         all checks and tests: check, tests, fuzz, demo (root); ends with `N passed, N failed`;
                         with --setup installs missing packages first (Debian, Ubuntu, Fedora) and prints their names
  golden [--accept]      tests of the case folders; with --accept rewrites their expected files
  pictures               takes the documentation's pictures of the status page anew (root, Chromium)
  fuzz [--seconds 20] [TARGET ...]
                         each fuzz target for that long, two at a time
  mutants [--crate CRATE] [--file GLOB]
                         mutation testing: the share of mutants that tests kill, in the pure crates and the modes' pure files;
                         minutes for each crate
  vm [--kernel KERNEL] [PROGRAM ...]
                         the tests that depend on the kernel, or a program, on Linux 6.1 and 6.12 in virtual machines (root)
  windows [--setup]      builds for Windows, and runs its tests under Wine
  bench [--mode MODE] [--upstream KUBE-PROXY] [SERVICES ...]
                         builds the shipped profile and prints measurements
  bench --figures FILE --upstream KUBE-PROXY SERVICES
                         measures what both proxies have in common, and writes it to a file
  bench --chart [docs/measured.json]
                         draws the figures of such a file as an SVG beside it
  bench fleet [--nodes 50] [--services 200] [--endpoints 10] [--changes 1000] [--phases start,churn,unavailable,certificates,restart]
        [--sides alone,ours,upstream] [--upstream KUBE-PROXY] [--cluster 5000] [--keep]
                         the load on one API server of that many proxies, ours and upstream's (root)
  package [--out target/package] [--dev]
                         the files of a release: executables, Debian package, list of components, manual page, checksums;
                         with --dev only a static executable of the development profile, for the tests of images
  demo [--setup] [--release] [--rules]
                         a client, a node and two pods in network namespaces; real traffic through kube-proxy (root)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", [].as_slice()),
    };
    let outcome = match command {
        "check" => check::run(rest),
        "layers" => layers::run(rest),
        "deny" => deny::run(rest),
        "test" => test::run(rest),
        "golden" => golden::run(rest),
        "pictures" => pictures::run(rest),
        "fuzz" => fuzz::run(rest),
        "mutants" => mutants::run(rest),
        "vm" => vm::run(rest),
        "windows" => windows::run(rest),
        "bench" => bench::run(rest),
        "demo" => demo::run(rest),
        "package" => package::run(rest),
        "demo-pod" | "demo-client" | "demo-get" => demo::guest::run(command, rest),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        other => Err(anyhow::anyhow!("unknown command {other}\n\n{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xt {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
