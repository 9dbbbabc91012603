//! Child processes: each in a group of its own, read line by line, and none left behind on any exit
//! path.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Groups that are alive now; the signal thread ends them.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
/// The signal that asked us to stop; 0 if none did.
static STOP_SIGNAL: AtomicI32 = AtomicI32::new(0);

fn groups() -> MutexGuard<'static, Vec<Pid>> {
    GROUPS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The signal that asked this process to stop, if one did.
pub(crate) fn stop_signal() -> Option<i32> {
    // Acquire pairs with the Release in `watch_signals`.
    Some(STOP_SIGNAL.load(Ordering::Acquire)).filter(|&signal| signal != 0)
}

/// Turns SIGINT, SIGTERM and SIGHUP into the end of all children. Whoever waits for a child then
/// sees it end, finds [`stop_signal`] set, and unwinds through the usual destructors.
pub(crate) fn watch_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .context("cannot watch for signals")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                // Release: pairs with the Acquire in `stop_signal`.
                STOP_SIGNAL.store(signal, Ordering::Release);
                for &group in groups().iter() {
                    let _ = kill_process_group(group, Signal::TERM);
                }
                std::thread::sleep(Duration::from_secs(3));
                for &group in groups().iter() {
                    let _ = kill_process_group(group, Signal::KILL);
                }
            }
        })
        .context("cannot start the signal thread")?;
    Ok(())
}

/// A child that leads a process group; dropping it ends the whole group.
#[derive(Debug)]
pub(crate) struct Group {
    child: std::process::Child,
    pid: Pid,
    reaped: bool,
}

impl Group {
    /// Starts `command` as the leader of a new process group, without an input.
    pub(crate) fn spawn(command: &mut Command) -> Result<Group> {
        let name = command.get_program().to_string_lossy().into_owned();
        if stop_signal().is_some() {
            bail!("{name} was not started: asked to stop");
        }
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = Pid::from_child(&child);
        groups().push(pid);
        Ok(Group { child, pid, reaped: false })
    }

    /// The leader's process id, which is the group's.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for the leader, then ends whatever else is left of its group.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        // The leader stays a zombie until the group is signalled, so the id cannot be another's.
        while let Err(error) =
            waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {
            if error != rustix::io::Errno::INTR {
                return Err(error).context("cannot wait for a child");
            }
        }
        self.end()
    }

    /// Whether the leader has ended; it stays a zombie until [`Group::wait`].
    pub(crate) fn has_ended(&self) -> Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = waitid(WaitId::Pid(self.pid), options).context("cannot ask for a child")?;
        Ok(ended.is_some())
    }

    /// The leader's output and error, where they are pipes that nobody took yet.
    pub(crate) fn take_pipes(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Ends the group at once.
    pub(crate) fn end(&mut self) -> Result<ExitStatus> {
        if !self.reaped {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        let status = self.child.wait().context("cannot wait for a child")?;
        self.reaped = true;
        groups().retain(|&pid| pid != self.pid);
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The leader's status.
    pub status: ExitStatus,
    /// Whether it was ended for taking longer than its limit.
    pub timed_out: bool,
}

impl Ended {
    /// Whether it ended by itself with status 0.
    pub(crate) fn success(&self) -> bool {
        self.status.success() && !self.timed_out
    }
}

/// Runs `command` with its output and error joined, giving each line to `on_line` as it comes.
/// After `limit` the whole group is ended.
pub(crate) fn run_lines(
    command: &mut Command,
    limit: Duration,
    mut on_line: impl FnMut(&str),
) -> Result<Ended> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone().context("cannot copy a pipe end")?).stderr(writer);
    let mut group = Group::spawn(command)?;
    // The command still holds our copies of the writing end; without them the pipe ends with the
    // child.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let timer = Timer::start(group.pid(), limit)?;
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).context("cannot read a child's output")? > 0 {
        on_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
        line.clear();
    }
    let status = group.wait()?;
    Ok(Ended { status, timed_out: timer.stop() })
}

/// Runs a short command quietly and returns its output; an error names it and what it said.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let name = format!("{command:?}");
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Ends a process group when its time is up.
struct Timer {
    stop: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<bool>,
}

impl Timer {
    fn start(group: Pid, limit: Duration) -> Result<Timer> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("time limit".into())
            .spawn(move || {
                let late = stopped.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
                // A group that is no longer listed was reaped: its id may be another's by now.
                if late && groups().contains(&group) {
                    let _ = kill_process_group(group, Signal::KILL);
                    return true;
                }
                false
            })
            .context("cannot start a timer")?;
        Ok(Timer { stop, thread })
    }

    /// Whether the limit was reached.
    fn stop(self) -> bool {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_order_with_the_status() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let ended =
            run_lines(&mut command, Duration::from_secs(20), |line| lines.push(line.to_owned()))
                .expect("sh runs");
        assert_eq!(lines, ["one".to_owned(), "two".to_owned()]);
        assert_eq!((ended.status.code(), ended.timed_out), (Some(3), false));
    }

    #[test]
    fn a_grandchild_does_not_outlive_its_group() {
        let mut pid = 0;
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 >/dev/null 2>&1 & echo $!"]);
        run_lines(&mut command, Duration::from_secs(20), |line| {
            pid = line.parse().expect("a process id");
        })
        .expect("sh runs");
        assert!(pid > 0);
        for _ in 0..200 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("process {pid} is still there");
    }

    #[test]
    fn the_limit_ends_the_group() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600; true"]);
        let ended = run_lines(&mut command, Duration::from_millis(50), |_| {}).expect("sh runs");
        assert!(ended.timed_out && !ended.success());
    }
}
