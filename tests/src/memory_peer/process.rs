//! A peer in a process of its own, which can be killed.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::Command;

/// A running `memory_peer` process; dropping it kills it.
#[derive(Debug)]
pub struct PeerProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    endpoint: String,
}

impl PeerProcess {
    /// Starts `program`, which is the binary `memory_peer`, on an RDMA device.
    ///
    /// # Errors
    /// It does not start, or has no device; what it said is on standard error.
    pub fn start(program: &str, device: &str) -> io::Result<PeerProcess> {
        let mut child = std::process::Command::new(program)
            .args(["--device", device])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut peer = PeerProcess { child, input, output, endpoint: String::new() };
        let line = peer.line()?;
        let endpoint = line.strip_prefix("ready ").ok_or_else(|| io::Error::other(line.clone()))?;
        peer.endpoint = endpoint.to_owned();
        Ok(peer)
    }

    /// Where it listens, as placements name it.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Tells it to do something and waits for its answer.
    ///
    /// # Errors
    /// It is gone, or could not do it.
    pub fn tell(&mut self, command: &Command) -> io::Result<String> {
        writeln!(self.input, "{command}")?;
        let line = self.line()?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", answer) => Ok(answer.to_owned()),
            _ => Err(io::Error::other(line)),
        }
    }

    /// Kills it, without giving it a chance to say anything to its readers.
    pub fn kill(&mut self) {
        // One that is dead already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
