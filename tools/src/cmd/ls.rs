//! `railring ls`: lists the objects of a store.

use anyhow::Result;
use railring::store::{ListEntry, ObjectSummary};
use serde::Serialize;

use crate::args::LsArgs;
use crate::output::{Align, Format, Table, say};
use crate::units::{Bytes, date};
use crate::{Context, Reported, chain, stores};

/// So many objects are held to sort them and to align their columns.
const SORTED_MAX: usize = 10_000;

const COLUMNS: &[(&str, Align)] = &[
    ("SIZE", Align::Right),
    ("STRIPES", Align::Right),
    ("COPIES", Align::Right),
    ("GEN", Align::Right),
    ("PUT", Align::Left),
    ("NAME", Align::Left),
];

#[derive(Debug, Serialize)]
struct Line {
    key: String,
    generation: u64,
    size_bytes: u64,
    stripes: u32,
    copies: u16,
    created_ns: u64,
    warnings: Vec<String>,
}

pub(crate) fn run(args: &LsArgs, context: &mut Context) -> Result<()> {
    let store = stores::open_to_read(&args.store)?;
    let mut held: Vec<ObjectSummary> = Vec::new();
    let mut damaged = false;
    for entry in store.list(&args.prefix) {
        context.stop.check()?;
        match entry {
            Ok(ListEntry::Object(object)) => {
                if held.len() == SORTED_MAX {
                    print(args, context, std::mem::take(&mut held))?;
                }
                held.push(object);
            }
            Ok(ListEntry::Damaged(error)) => {
                damaged = true;
                say(format_args!("error: {}", chain(&error.into())));
            }
            Ok(_) => {}
            Err(error) => {
                damaged = true;
                say(format_args!("error: {}", chain(&error.into())));
            }
        }
    }
    print(args, context, held)?;
    if damaged { Err(Reported.into()) } else { Ok(()) }
}

fn print(args: &LsArgs, context: &mut Context, mut objects: Vec<ObjectSummary>) -> Result<()> {
    objects.sort_by(|a, b| a.key.cmp(&b.key));
    objects.iter().for_each(|object| stores::pass_on(&object.warnings));
    if args.format.format() == Format::Json {
        return objects.into_iter().try_for_each(|object| context.out.json(&line(&object)));
    }
    if objects.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(COLUMNS);
    for object in objects {
        table.row(vec![
            Bytes(object.size_bytes).to_string(),
            object.stripes.to_string(),
            object.copies.to_string(),
            object.generation.to_string(),
            date(object.created_ns),
            object.key.to_string(),
        ]);
    }
    Ok(table.print(&mut context.out)?)
}

fn line(object: &ObjectSummary) -> Line {
    Line {
        key: object.key.to_string(),
        generation: object.generation,
        size_bytes: object.size_bytes,
        stripes: object.stripes,
        copies: object.copies,
        created_ns: object.created_ns,
        warnings: object.warnings.iter().map(ToString::to_string).collect(),
    }
}
