//! `railring rm`: removes objects with all their generations.

use anyhow::Result;
use railring::store::Removed;
use serde::Serialize;

use crate::args::RmArgs;
use crate::output::{Format, say};
use crate::{Context, Reported, chain, stores};

#[derive(Debug, Serialize)]
struct Report<'a> {
    key: &'a str,
    removed: bool,
    data_pinned: bool,
}

pub(crate) fn run(args: &RmArgs, context: &mut Context) -> Result<()> {
    let store = stores::open_to_write(&args.store)?;
    let mut failed = false;
    for key in &args.keys {
        context.stop.check()?;
        let removed = match store.remove(key) {
            Ok(removed) => removed,
            Err(error) => {
                say(format_args!("error: {key}: {}", chain(&error.into())));
                failed = true;
                continue;
            }
        };
        failed |= removed == Removed::Absent;
        let name = key.to_string();
        if args.format.format() == Format::Json {
            let (removed, data_pinned) =
                (removed != Removed::Absent, removed == Removed::DataPinned);
            context.out.json(&Report { key: &name, removed, data_pinned })?;
            continue;
        }
        match removed {
            Removed::Absent => say(format_args!("error: there is no object {name}")),
            Removed::Gone => context.out.line(format_args!("removed {name}"))?,
            Removed::DataPinned => context.out.line(format_args!(
                "removed {name}; its data goes when the processes that read it are done"
            ))?,
        }
    }
    if failed { Err(Reported.into()) } else { Ok(()) }
}
