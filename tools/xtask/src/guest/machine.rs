//! One guest as a QEMU process: two NUMA nodes, each with a PCIe root that its NICs hang below.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::proc::Group;

/// What QEMU runs the guest's processor with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Accelerator {
    /// Emulation: slow, and works everywhere.
    Tcg,
    /// The machine's own processor; a nested /dev/kvm may exist and not work.
    Kvm,
}

/// The size of a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Processors, at least 2: half of them on each node.
    pub cpus: u32,
    /// Memory of both nodes.
    pub memory_mib: u32,
    /// NICs, one rail each; even ones on node 0, odd ones on node 1.
    pub nics: u32,
    /// What runs the processors.
    pub accelerator: Accelerator,
}

/// What one guest is to boot and do.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// 1 or 2: the last byte of its addresses.
    pub number: u32,
    /// Its size.
    pub shape: Shape,
    /// The kernel image.
    pub kernel: &'a Path,
    /// Its first file system.
    pub initrd: &'a Path,
    /// The folder with its job, which it can write.
    pub job: PathBuf,
    /// The folder for results, which it can write.
    pub out: &'a Path,
    /// One end of a stream socket pair per NIC, if it has a peer.
    pub links: Vec<OwnedFd>,
    /// What every line of its output begins with; empty to pass bytes through as they come.
    pub prefix: String,
}

/// A running guest; dropping it ends its QEMU.
#[derive(Debug)]
pub(crate) struct Machine {
    group: Group,
    job: PathBuf,
    readers: Vec<JoinHandle<()>>,
}

impl Machine {
    /// Starts QEMU, and threads that pass on what the guest and QEMU say.
    pub(crate) fn start(plan: Plan<'_>) -> Result<Machine> {
        // setpriv: the kernel ends QEMU should we be killed without a chance to do so ourselves.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
        command.args(arguments(&plan)).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Only this child may inherit its ends of the links.
        for link in &plan.links {
            fcntl_setfd(link.as_fd(), FdFlags::empty()).context("cannot pass on a link")?;
        }
        let mut group = Group::spawn(&mut command)?;
        drop(plan.links);
        let (output, error) = group.take_pipes();
        let mut readers = Vec::new();
        if let Some(output) = output {
            let prefix = plan.prefix.clone();
            readers.push(reader("guest output", move || pass_on(output, &prefix))?);
        }
        if let Some(error) = error {
            readers.push(reader("qemu errors", move || pass_on_errors(error))?);
        }
        Ok(Machine { group, job: plan.job, readers })
    }

    /// Whether QEMU has ended.
    pub(crate) fn has_ended(&self) -> Result<bool> {
        self.group.has_ended()
    }

    /// Ends QEMU if it still runs, and passes on the rest of what was said.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.group.end()?;
        for reader in self.readers.drain(..) {
            // A reader that panicked has said so itself.
            let _ = reader.join();
        }
        Ok(())
    }

    /// The command's exit status, if it came to its end.
    pub(crate) fn status(&self) -> Option<u8> {
        std::fs::read_to_string(self.job.join("status")).ok()?.trim().parse().ok()
    }

    /// Seconds of guest time until the command started, if it did.
    pub(crate) fn started(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.job.join("started")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The last lines of the guest's console, for when something went wrong.
    pub(crate) fn console_tail(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(self.job.join("console")) {
            // A console that cannot be read is shown as an empty one.
            let _ = file.read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text).replace('\r', "");
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

fn reader(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(body).context("cannot start a thread")
}

/// Passes on what the command says: bytes as they come, or whole lines behind a prefix. Our own
/// output may be closed; the guest then still runs to its end.
fn pass_on(mut from: impl Read, prefix: &str) {
    let mut to = std::io::stdout();
    if prefix.is_empty() {
        let mut bytes = [0; 8192];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let _ = to.write_all(&bytes[..count]).and_then(|()| to.flush());
        }
        return;
    }
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while let Ok(1..) = from.read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line);
        let _ = writeln!(to, "{prefix}{}", text.trim_end_matches(['\n', '\r']));
        line.clear();
    }
}

fn pass_on_errors(from: impl Read) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        // A single guest's NICs are on purpose connected to nothing.
        if !line.contains("is not connected to host network") {
            eprintln!("qemu: {line}");
        }
    }
}

fn arguments(plan: &Plan<'_>) -> Vec<String> {
    let shape = plan.shape;
    let (accelerator, cpu) = match shape.accelerator {
        Accelerator::Tcg => ("tcg,thread=multi", "max"),
        Accelerator::Kvm => ("kvm", "host"),
    };
    let mut list = words("-machine q35 -display none -nodefaults -no-user-config -no-reboot");
    list.extend(words(&format!("-accel {accelerator} -cpu {cpu} -smp {}", shape.cpus)));
    list.extend(words(&format!("-m {}", shape.memory_mib)));
    list.extend(["-kernel".into(), plan.kernel.display().to_string()]);
    list.extend(["-initrd".into(), plan.initrd.display().to_string()]);
    list.extend(["-append".into(), "console=ttyS0 quiet panic=-1 net.ifnames=0".into()]);
    for (name, path, access) in [
        ("machine", Path::new("/"), ",readonly=on,multidevs=remap"),
        ("job", &plan.job, ""),
        ("out", plan.out, ""),
    ] {
        let path = escaped(path);
        let share = format!("local,id={name},path={path},security_model=none{access}");
        list.extend(["-fsdev".into(), share]);
        list.extend(words(&format!("-device virtio-9p-pci,fsdev={name},mount_tag={name}")));
    }
    let console = format!("file,id=console,path={}", escaped(&plan.job.join("console")));
    list.extend(["-chardev".into(), console]);
    // Not a stdio device: that one hangs up on the guest at the end of QEMU's (empty) input.
    list.extend(words("-serial chardev:console -chardev file,id=output,path=/dev/stdout"));
    list.extend(words("-device virtio-serial-pci"));
    list.extend(words("-device virtserialport,chardev=output,name=railring.output"));
    list.extend(nodes(shape));
    for nic in 0..shape.nics {
        list.extend(nic_arguments(plan, nic));
    }
    list
}

/// Two nodes with half of the processors and memory, and a PCIe root on each.
fn nodes(shape: Shape) -> Vec<String> {
    let half = shape.cpus / 2;
    let memory = shape.memory_mib / 2;
    let mut list = Vec::new();
    for (node, first, last) in [(0, 0, half - 1), (1, half, shape.cpus - 1)] {
        list.extend(words(&format!(
            "-object memory-backend-ram,id=memory{node},size={memory}M \
             -numa node,nodeid={node},cpus={first}-{last},memdev=memory{node} \
             -device pxb-pcie,id=root{node},bus=pcie.0,bus_nr={},numa_node={node}",
            16 + 64 * node,
        )));
    }
    list
}

/// A NIC below a port of its node's PCIe root, on a link to the peer or on a hub of its own.
fn nic_arguments(plan: &Plan<'_>, nic: u32) -> Vec<String> {
    let link = usize::try_from(nic).ok().and_then(|nic| plan.links.get(nic));
    let network = match link {
        Some(link) => format!("socket,id=net{nic},fd={}", link.as_raw_fd()),
        None => format!("hubport,id=net{nic},hubid={nic}"),
    };
    words(&format!(
        "-netdev {network} \
         -device pcie-root-port,id=port{nic},bus=root{node},chassis={chassis},slot={nic} \
         -device virtio-net-pci,netdev=net{nic},bus=port{nic},romfile=,host_mtu=4200,\
         mac=52:54:00:{number:02x}:00:{nic:02x}",
        node = nic % 2,
        chassis = nic + 1,
        number = plan.number,
    ))
}

/// A comma ends a value in QEMU's options unless it is doubled.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
