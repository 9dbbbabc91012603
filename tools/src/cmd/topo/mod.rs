//! `railring topo`: what this machine is, which of it are rails, which core polls each, and why.

mod capture;
mod page;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use railring::topology::assign::{Policy, Rails};
use railring::topology::render::{explain, json, svg, text};
use railring::topology::{Discovery, Machine, Plan, assign};

use crate::args::{SourceArgs, TopoArgs, TopoCommand};
use crate::output::{Out, note};
use crate::{Context, UsageError};

pub(crate) fn run(args: &TopoArgs, context: &mut Context) -> Result<()> {
    if let Some(TopoCommand::Capture(capture)) = &args.command {
        return capture::run(capture, context);
    }
    let policy = policy(args)?;
    let machine = discovery(&args.source)?.read()?;
    tell_unknown(&args.source, &machine);
    let plan = assign(&machine, &policy)?;
    show(args, &machine, &plan, &mut context.out)
}

fn policy(args: &TopoArgs) -> Result<Policy> {
    let specs = args.specs()?;
    let named = !args.only.is_empty() || !args.except.is_empty();
    if !specs.is_empty() && named {
        let problem = "--rail names all rails; --only and --except choose among those found";
        return Err(UsageError(problem.to_owned()).into());
    }
    Ok(Policy {
        rails: if specs.is_empty() { Rails::Auto } else { Rails::Given(specs) },
        only: args.only.clone(),
        except: args.except.clone(),
        ..args.place.policy()
    })
}

/// The sources that were named, else this machine.
fn discovery(source: &SourceArgs) -> Result<Discovery> {
    if let Some(root) = &source.sysfs_root {
        check_root(root)?;
    }
    let from = match (&source.sysfs_root, &source.hwloc_xml) {
        (Some(root), _) if root.is_file() => Discovery::archive(root),
        (Some(root), _) => Discovery::sysfs_root(root),
        (None, Some(xml)) => Discovery::hwloc_xml(xml),
        (None, None) => Discovery::live(),
    };
    let from = match (&source.hwloc_xml, source.sysfs_root.is_some()) {
        (Some(xml), true) => from.with_hwloc_xml(xml),
        _ if source.hwloc => from.with_hwloc_live(),
        _ => from,
    };
    let live = source.sysfs_root.is_none() && source.hwloc_xml.is_none();
    let absolute = |path: &PathBuf| if live { std::path::absolute(path) } else { Ok(path.clone()) };
    source.directory.iter().try_fold(from, |from, path| {
        let path = absolute(path).with_context(|| format!("cannot use {}", path.display()))?;
        Ok(from.directory(path))
    })
}

/// Refuses a root that describes no machine at all: most likely a typing error.
fn check_root(root: &Path) -> Result<()> {
    let kind = fs::metadata(root).with_context(|| format!("cannot read {}", root.display()))?;
    if kind.is_dir() && !["sys", "proc"].iter().any(|folder| root.join(folder).is_dir()) {
        let problem = format!(
            "{} describes no machine: it holds neither sys nor proc; name the folder above them, \
             or a file that `railring topo capture` wrote",
            root.display()
        );
        return Err(UsageError(problem).into());
    }
    Ok(())
}

/// A root without CPUs reads as a machine of which nothing is known.
fn tell_unknown(source: &SourceArgs, machine: &Machine) {
    if let Some(root) = &source.sysfs_root
        && machine.cpus.online.is_empty()
    {
        let root = root.display();
        note(format_args!("no cpu is known below {root}: its sys and proc are not a machine's"));
    }
}

fn show(args: &TopoArgs, machine: &Machine, plan: &Plan, out: &mut Out) -> Result<()> {
    if args.json {
        return Ok(out.bytes(json(machine, Some(plan)).as_bytes())?);
    }
    if let Some(path) = &args.svg {
        let drawing = svg(machine, Some(plan));
        if path == Path::new("-") {
            return Ok(out.bytes(drawing.as_bytes())?);
        }
        return fs::write(path, drawing)
            .with_context(|| format!("cannot write {}", path.display()));
    }
    let options = page::options();
    if let Some(rail) = &args.explain {
        return Ok(out.bytes(explain(machine, plan, rail, options)?.as_bytes())?);
    }
    Ok(out.bytes(text(machine, Some(plan), options).as_bytes())?)
}
