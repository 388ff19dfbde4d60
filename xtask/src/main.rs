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
mod mutants;
mod setup;
mod shell;
mod sources;
mod tally;
mod test;
mod vm;

use std::process::ExitCode;

const USAGE: &str = "cargo xt COMMAND

  check                  fmt, clippy, doc, layers, deny: everything that needs no privilege and runs nothing
  layers                 the allowed dependencies between crates, circles between modules, where unsafe may stand, sizes of files
  deny                   licences, sources and duplicates of all dependencies, by deny.toml
  test [--setup]         everything that can fail: check, all tests, fuzz, demo (root); ends with `N passed, N failed`;
                         with --setup installs missing packages first (Debian, Ubuntu, Fedora) and prints their names
  golden [--accept]      the case folders; with --accept their expected files are written anew
  fuzz [--seconds 20] [TARGET ...]
                         each fuzz target for that long, two at a time
  mutants [--crate CRATE] [--shard K/N] [--file GLOB]
                         the share of small changes that tests notice, in the pure crates and the pure files of the modes; hours
  vm [--kernel SERIES] [PROGRAM ...]
                         the tests that depend on the kernel, on Linux 6.1 and 6.12 in emulated machines (root); or a program there
  bench [--mode MODE] [--upstream KUBE-PROXY] [SERVICES ...]
                         builds the shipped profile and prints measurements
  bench fleet [--nodes 50] [--services 200] [--endpoints 10] [--changes 1000] [--phases start,churn,unavailable,certificates,restart]
        [--sides alone,ours,upstream] [--upstream KUBE-PROXY] [--cluster 5000] [--keep]
                         what that many proxies cost one API server, of ours and of upstream's (root)
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
        "fuzz" => fuzz::run(rest),
        "mutants" => mutants::run(rest),
        "vm" => vm::run(rest),
        "bench" => bench::run(rest),
        "demo" => demo::run(rest),
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
