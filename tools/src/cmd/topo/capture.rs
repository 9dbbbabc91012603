//! `railring topo capture`: everything `topo` reads, in one archive.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use railring::topology::Discovery;
use railring::topology::capture::Mask;

use crate::Context;
use crate::args::CaptureArgs;
use crate::output::say;
use crate::units::{Bytes, plural};

pub(super) fn run(args: &CaptureArgs, context: &mut Context) -> Result<()> {
    let live = args.sysfs_root.is_none();
    let from = match &args.sysfs_root {
        Some(root) => Discovery::sysfs_root(root),
        None => Discovery::live(),
    };
    let from = args.directory.iter().try_fold(from, |from, path| {
        let path = if live { std::path::absolute(path) } else { Ok(path.clone()) };
        Ok::<_, std::io::Error>(from.directory(path?))
    })?;
    let mask = if args.mask { Mask::HardwareAddresses } else { Mask::Nothing };
    let mut archive = Vec::new();
    let captured = from.capture(&mut archive, mask)?;
    let to_stdout = args.output == Path::new("-");
    if to_stdout {
        context.out.bytes(&archive)?;
    } else {
        write(&args.output, &archive)?;
    }
    let masked = match mask {
        Mask::HardwareAddresses => {
            let addresses = plural(captured.masked as u64, "address", "addresses");
            format!(", {addresses} masked")
        }
        _ => String::new(),
    };
    let files = plural(captured.files as u64, "file", "files");
    let line = format!(
        "captured {files} of {} in an archive of {}{masked}",
        Bytes(captured.bytes),
        Bytes(archive.len() as u64)
    );
    if to_stdout {
        say(line);
        return Ok(());
    }
    Ok(context.out.line(line)?)
}

/// The archive appears under its name when it is complete.
fn write(path: &Path, archive: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut name = path.file_name().map(ToOwned::to_owned).with_context(cannot)?;
    if path.exists() && !path.is_file() {
        // A device or a pipe.
        let file = fs::OpenOptions::new().write(true).open(path);
        return file.and_then(|mut file| file.write_all(archive)).with_context(cannot);
    }
    name.push(format!(".railring-{}", std::process::id()));
    let staged: PathBuf = path.with_file_name(name);
    let written = File::create_new(&staged).and_then(|mut file| file.write_all(archive));
    let named = written.and_then(|()| fs::rename(&staged, path));
    named.inspect_err(|_| drop(fs::remove_file(&staged))).with_context(cannot)
}
