//! A peer: perftest's `ib_read_bw` and `ib_read_lat`, a server and a client on one device.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// What is measured, on both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) device: &'a str,
    pub(super) gid_index: u16,
    pub(super) bytes: u64,
    /// Reads under way at once.
    pub(super) depth: usize,
    /// Reads in all.
    pub(super) reads: usize,
}

/// What came of `ib_read_bw`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bandwidth {
    pub(super) bytes_per_s: f64,
    /// Of the client, start and end included.
    pub(super) cpu_s_per_gib: f64,
}

/// For a server to listen, and for a run to end, besides what is measured.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: f64 = 1_048_576.0;

/// Its version, or why there is none.
pub(super) fn version() -> Result<String> {
    let output = Command::new("ib_read_bw").arg("--version").output();
    let output = output.context("perftest is not installed")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = text.lines().find_map(|line| line.strip_prefix("Version: "));
    Ok(format!("perftest {}", number.unwrap_or("of unknown version").trim()))
}

pub(super) fn read_bw(job: &Job<'_>) -> Result<Bandwidth> {
    let depth = job.depth.to_string();
    let (said, cpu) = run("ib_read_bw", job, &["-t", &depth, "-o", &depth])?;
    // #bytes #iterations peak average rate; in MiB/s, as its help says.
    let average: f64 = field(&said, job.bytes, 3)?;
    let gib = crate::units::ratio(job.bytes * job.reads as u64, 1 << 30);
    Ok(Bandwidth { bytes_per_s: average * MIB, cpu_s_per_gib: cpu / gib })
}

/// The typical latency, which is the median, in microseconds.
pub(super) fn read_lat(job: &Job<'_>) -> Result<f64> {
    let (said, _) = run("ib_read_lat", job, &[])?;
    // #bytes #iterations t_min t_max t_typical ...
    field(&said, job.bytes, 4)
}

/// A column of the line of results, which begins with the size.
fn field(said: &str, bytes: u64, column: usize) -> Result<f64> {
    let size = bytes.to_string();
    let mut lines = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.first() == Some(&&*size));
    let value = line.as_ref().and_then(|words| words.get(column)?.parse().ok());
    value.with_context(|| format!("perftest printed no result: {}", said.trim()))
}

/// Ends the server, should the client not have.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // One that ended by itself is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the client said, and the CPU seconds it used.
fn run(program: &str, job: &Job<'_>, more: &[&str]) -> Result<(String, f64)> {
    // Free a moment ago: perftest cannot choose a port itself.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let options = [
        ("-d", job.device.to_owned()),
        ("-x", job.gid_index.to_string()),
        ("-s", job.bytes.to_string()),
        ("-n", job.reads.to_string()),
        ("-p", port.to_string()),
    ];
    let mut arguments = vec!["-F".to_owned()];
    arguments.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    arguments.extend(more.iter().map(|&word| word.to_owned()));
    let server = Command::new(program)
        .args(&arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{program} is not installed"))?;
    let mut server = Server(server);
    wait_until_listening(port, &mut server)?;
    // The shell's `time` counts the client alone.
    let line = format!("TIMEFORMAT='cpu %U %S'; time {program} {} 127.0.0.1", arguments.join(" "));
    let output = Command::new("bash").args(["-c", &line]).stdin(Stdio::null()).output()?;
    let (said, told) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let first = told.trim().lines().next().unwrap_or("it said nothing").to_owned();
        bail!("{program} ended with {}: {first}", output.status);
    }
    Ok((said.into_owned(), cpu_of(&told)?))
}

fn cpu_of(told: &str) -> Result<f64> {
    let line = told.lines().find_map(|line| line.strip_prefix("cpu "));
    let sum = line.and_then(|line| line.split(' ').map(|n| n.parse::<f64>().ok()).sum());
    sum.with_context(|| format!("no CPU time in: {}", told.trim()))
}

/// A connection would be taken for the client, so the kernel is asked.
fn wait_until_listening(port: u16, server: &mut Server) -> Result<()> {
    let wanted = format!(":{port:04X} ");
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
        // The local address is the second word, the state the fourth: 0A listens.
        let listens = tables.into_iter().flatten().any(|table| {
            table.lines().any(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                words.get(1).is_some_and(|at| format!("{at} ").ends_with(&wanted))
                    && words.get(3) == Some(&"0A")
            })
        });
        if listens {
            return Ok(());
        }
        if let Some(status) = server.0.try_wait()? {
            bail!("perftest's server ended with {status}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("perftest's server does not listen")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let said = "---\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n \
                    262144     1000             29.91              29.70              0.000119\n";
        assert_eq!(field(said, 262_144, 3).expect("there"), 29.70);
        assert!(field(said, 1, 3).is_err());
        assert_eq!(cpu_of("x\ncpu 0.25 1.50\n").expect("there"), 1.75);
        assert!(cpu_of("no time").is_err());
    }
}
