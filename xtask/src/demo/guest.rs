//! The processes of the demo. Pods and clients are instances of this program, run in their namespaces.

use super::namespace::Namespace;
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A process of the demo; killed when dropped.
pub(crate) struct Guest {
    process: Child,
    answers: Receiver<ClientAnswer>,
}

/// A new answer at a client, and its time.
pub(crate) struct ClientAnswer {
    pub(crate) at: SystemTime,
    pub(crate) text: String,
}

/// The pause between two connections of a client: the resolution of its measurement.
const PAUSE: Duration = Duration::from_micros(200);

/// Time limit for reactions that normally take milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Interval of checks that kube-proxy still runs.
const GLANCE: Duration = Duration::from_millis(100);

/// Time limit of a client's attempt. Short, because nothing answers before the rules are in force.
const TRY: Duration = Duration::from_millis(20);

// === impl Guest ===

impl Guest {
    /// Starts a process without answers.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let process = command.spawn().with_context(|| format!("starting {}", crate::shell::line(command)))?;
        Ok(Self { process, answers: channel().1 })
    }

    /// Starts a server that answers every connection with its name.
    pub(crate) fn pod(namespace: &Namespace, name: &str, port: u16) -> Result<Self> {
        Self::spawn(namespace.guest("demo-pod").args([name, &port.to_string()]))
    }

    /// Starts a client that connects repeatedly.
    pub(crate) fn client(namespace: &Namespace, address: &str) -> Result<Self> {
        let mut guest = Self::spawn(namespace.guest("demo-client").arg(address).stdout(Stdio::piped()))?;
        let output = guest.process.stdout.take().context("the output of a client")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let (nanos, text) = line.split_once(' ').unwrap_or(("0", &line));
                let at = UNIX_EPOCH + Duration::from_nanos(nanos.parse().unwrap_or(0));
                if sender.send(ClientAnswer { at, text: text.into() }).is_err() {
                    return;
                }
            }
        });
        guest.answers = answers;
        Ok(guest)
    }

    /// Waits for the next answer that contains this word, as long as kube-proxy runs.
    pub(crate) fn until(&mut self, word: &str, proxy: &mut Self) -> Result<ClientAnswer> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = String::from("nothing");
        while Instant::now() < deadline {
            match self.answers.recv_timeout(GLANCE) {
                Ok(answer) if answer.text.contains(word) => return Ok(answer),
                Ok(answer) => last = answer.text,
                Err(_) => ensure!(!proxy.ended(), "kube-proxy has ended"),
            }
        }
        bail!("no answer of {word} in {PATIENCE:?}; the client last saw: {last}")
    }

    /// True if the process has ended by itself.
    fn ended(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Both calls fail if the process has ended by itself, which is harmless.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Runs one of the hidden commands: a process inside a namespace of the demo.
///
/// # Errors
/// If its arguments are invalid, or an operation on its sockets fails.
pub(crate) fn run(command: &str, arguments: &[String]) -> Result<()> {
    match (command, arguments) {
        ("demo-pod", [name, port]) => serve(name, port.parse().context("port")?),
        ("demo-client", [address]) => ask(address.parse().context("address")?),
        ("demo-get", [address, path]) => get(address, path),
        _ => bail!("this command is for the demo's own use"),
    }
}

/// Answers every connection, of either family, with the pod's name and the client's address.
fn serve(name: &str, port: u16) -> Result<()> {
    let listener = TcpListener::bind(("::", port)).context("listening")?;
    loop {
        let (mut connection, client) = listener.accept().context("accepting")?;
        // A client may have closed its connection already.
        drop(
            connection
                .write_all(format!("hello from {name}; you come from {}\n", client.ip().to_canonical()).as_bytes()),
        );
    }
}

/// Connects repeatedly, and prints every answer that differs from the previous one, with the time.
fn ask(address: SocketAddr) -> Result<()> {
    let mut last = String::new();
    loop {
        let answer = greet(address).unwrap_or_else(|error| format!("no answer: {error}"));
        if answer != last {
            let nanos = SystemTime::now().duration_since(UNIX_EPOCH).context("reading the clock")?.as_nanos();
            println!("{nanos} {answer}");
            last = answer;
        }
        std::thread::sleep(PAUSE);
    }
}

fn greet(address: SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&address, TRY)?;
    connection.set_read_timeout(Some(TRY))?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer.trim_end().into())
}

/// Prints the answer to one HTTP request.
fn get(address: &str, path: &str) -> Result<()> {
    let mut connection = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    std::io::copy(&mut connection, &mut std::io::stdout())?;
    Ok(())
}
