//! A Debian kernel that has rdma_rxe as a module, unpacked in the cache, not installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::proc::{output_of, run_lines};

/// The package that depends on the current kernel. The `-cloud` flavour has no rdma_rxe.
const META_PACKAGE: &str = "linux-image-amd64";
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(15 * 60);

/// An unpacked kernel package.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The folder it is unpacked to.
    folder: PathBuf,
    /// Its release, as `uname -r` gives it.
    release: String,
}

impl Kernel {
    /// The kernel in `cache`, downloaded if there is none.
    pub(crate) fn provide(cache: &Path) -> Result<Kernel> {
        let folder = cache.join("kernel");
        if !folder.exists() {
            download(cache, &folder)?;
        }
        let releases = names_in(&folder.join("lib/modules"))?;
        let [release] = releases.as_slice() else {
            bail!("{} should hold one kernel; delete it to fetch it anew", folder.display());
        };
        Ok(Kernel { release: release.clone(), folder })
    }

    /// The bootable image.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(format!("boot/vmlinuz-{}", self.release))
    }

    /// Files of a module and all it needs, in loading order; none if it is built in. An error if
    /// the kernel has no such module.
    pub(crate) fn module_files(&self, name: &str) -> Result<Vec<PathBuf>> {
        let mut command = Command::new("modprobe");
        command.arg("-d").arg(&self.folder).args(["-S", &self.release, "--show-depends", name]);
        let said = output_of(command.env("PATH", path_with_sbin()))?;
        let files = said.lines().filter_map(|line| line.strip_prefix("insmod "));
        Ok(files.filter_map(|line| line.split_whitespace().next()).map(PathBuf::from).collect())
    }
}

/// Names in a folder, in order.
fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Fetches and unpacks the package beside `folder`, then renames: a half kernel is never found.
fn download(cache: &Path, folder: &Path) -> Result<()> {
    let package = package_name()?;
    eprintln!("guest: downloading {package}");
    let unpacked = cache.join(format!("kernel.{}", std::process::id()));
    let result = unpack(&package, &unpacked).and_then(|()| {
        std::fs::rename(&unpacked, folder).with_context(|| format!("no {}", folder.display()))
    });
    // What failed is gone; what worked has another name by now.
    let _ = std::fs::remove_dir_all(&unpacked);
    result
}

fn package_name() -> Result<String> {
    let find = || -> Result<Option<String>> {
        let said = output_of(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
        let names = said.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).find(|name| name.starts_with("linux-image-")))
    };
    if let Ok(Some(name)) = find() {
        return Ok(name);
    }
    // A fresh machine has no package lists yet.
    step(Command::new("apt-get").args(["update", "-qq"]))?;
    find()?.with_context(|| format!("apt-cache knows no {META_PACKAGE}"))
}

fn unpack(package: &str, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("no {}", folder.display()))?;
    step(Command::new("apt-get").args(["download", "-qq", package]).current_dir(folder))?;
    let names = names_in(folder)?;
    let archive = names.iter().find(|name| name.ends_with(".deb")).context("no package came")?;
    let archive = folder.join(archive);
    step(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(folder))?;
    std::fs::remove_file(&archive).context("cannot remove the archive")?;
    let releases = names_in(&folder.join("lib/modules"))?;
    ensure!(releases.len() == 1, "{package} holds {} kernels", releases.len());
    let mut depmod = Command::new("depmod");
    step(depmod.arg("-b").arg(folder).arg(&releases[0]).env("PATH", path_with_sbin()))
}

fn step(command: &mut Command) -> Result<()> {
    let mut said = Vec::new();
    let ended = run_lines(command, DOWNLOAD_LIMIT, |line| said.push(line.to_owned()))?;
    ensure!(ended.success(), "{command:?} ended with {}:\n{}", ended.status, said.join("\n"));
    Ok(())
}

/// PATH with the folders where administration tools lie, which a user's own may lack.
pub(crate) fn path_with_sbin() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}
