//! The guest's first file system: busybox, kernel modules in loading order, and `init.sh`, as a
//! cpio archive.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::kernel::Kernel;

const INIT: &str = include_str!("init.sh");

/// Modules the guest needs, and whether a kernel may lack them: a later one has the hash built in.
/// The hash comes before rxe, which otherwise refuses every link.
const MODULES: &[(&str, Presence)] = &[
    ("crc32_generic", Presence::Optional),
    ("crc32c_generic", Presence::Optional),
    ("virtio_pci", Presence::Required),
    ("virtio_net", Presence::Required),
    ("virtio_console", Presence::Required),
    ("9pnet_virtio", Presence::Required),
    ("9p", Presence::Required),
    ("overlay", Presence::Required),
    ("ib_uverbs", Presence::Required),
    ("rdma_ucm", Presence::Required),
    ("rdma_rxe", Presence::Required),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Required,
    Optional,
}

/// Folders of the archive; init mounts over most of them.
const FOLDERS: &[&str] = &["bin", "dev", "proc", "sys", "modules", "lower", "layer", "whole"];
const MODE_FOLDER: u32 = 0o040_755;
const MODE_PROGRAM: u32 = 0o100_755;
const MODE_FILE: u32 = 0o100_644;

/// Writes the archive for `kernel` to `path`.
pub(crate) fn write(kernel: &Kernel, path: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for folder in FOLDERS {
        archive.entry(folder, MODE_FOLDER, b"");
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"];
    let busybox = busybox.iter().find_map(|path| std::fs::read(path).ok());
    archive.entry("bin/busybox", MODE_PROGRAM, &busybox.context("there is no busybox")?);
    archive.entry("init", MODE_PROGRAM, INIT.as_bytes());

    let mut list = String::new();
    let mut seen = HashSet::new();
    for (name, presence) in MODULES {
        let files = match kernel.module_files(name) {
            Err(_) if *presence == Presence::Optional => continue,
            files => files.with_context(|| format!("the kernel lacks {name}"))?,
        };
        for file in files {
            let name = file.file_name().context("a module is a file")?.to_string_lossy();
            if seen.insert(name.clone().into_owned()) {
                let module = std::fs::read(&file).context("cannot read a module")?;
                archive.entry(&format!("modules/{name}"), MODE_FILE, &module);
                list.push_str(&name);
                list.push('\n');
            }
        }
    }
    archive.entry("modules.list", MODE_FILE, list.as_bytes());
    let mut file = std::fs::File::create(path).context("cannot make the initrd")?;
    file.write_all(&archive.finish()).context("cannot write the initrd")
}

/// A cpio archive in the "newc" format, the one the kernel unpacks (cpio(5), and the kernel's
/// buffer-format.rst): headers of hexadecimal fields; names and data padded to four bytes.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(data.len()).expect("a module is far below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        // magic, inode, mode, uid, gid, links, mtime, size, device and special device, name, check
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, b"");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_the_kernels_format() {
        let mut archive = Archive::default();
        archive.entry("bin", MODE_FOLDER, b"");
        archive.entry("init", MODE_PROGRAM, b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // 110 bytes of header, the name with its zero, padded to 4.
        assert!(text.starts_with("07070100000001000041ed"), "{text}");
        let second = &text[116..];
        assert!(second.starts_with("07070100000002000081ed"), "{second}");
        assert_eq!(&second[54..62], "00000005", "the size is the seventh field");
        assert_eq!(&second[110..124], "init\0\0hello\0\0\0");
        assert!(second[124..].starts_with("070701") && text.contains("TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
