//! `railring stat`: one object, how it is cut, where it lies, and whether its files are there.

use anyhow::{Result, bail};
use railring::Placement;
use railring::store::{DataFileStat, ObjectStat};
use serde::Serialize;

use crate::args::StatArgs;
use crate::output::{Align, Format, Table};
use crate::units::{Bytes, Count, date, plural};
use crate::{Context, stores};

#[derive(Debug, Serialize)]
struct Report<'a> {
    key: String,
    generation: u64,
    size_bytes: u64,
    stripes: usize,
    stripe_bytes: u64,
    block_bytes: u32,
    copies: u16,
    created_ns: u64,
    older_generations: &'a [u64],
    files: Vec<FileReport<'a>>,
    warnings: Vec<String>,
    placement: &'a Placement,
}

#[derive(Debug, Serialize)]
struct FileReport<'a> {
    directory: String,
    file: &'a str,
    stripes: usize,
    file_bytes: Option<u64>,
    expected_bytes: u64,
    state: String,
}

pub(crate) fn run(args: &StatArgs, context: &mut Context) -> Result<()> {
    let store = stores::open_to_read(&args.store)?;
    let Some(object) = store.stat(&args.key)? else {
        bail!("there is no object {}", args.key);
    };
    match args.format.format() {
        Format::Json => json(context, &object),
        Format::Text => text(context, &object),
    }
}

fn json(context: &mut Context, object: &ObjectStat) -> Result<()> {
    let placement = &object.placement;
    let files = object.files.iter().map(|file| FileReport {
        directory: file.directory.display().to_string(),
        file: &file.file,
        stripes: stripes_of(placement, file),
        file_bytes: file.file_bytes,
        expected_bytes: file.expected_bytes,
        state: state(file),
    });
    context.out.json(&Report {
        key: placement.key.to_string(),
        generation: placement.generation,
        size_bytes: placement.size_bytes,
        stripes: placement.stripes.len(),
        stripe_bytes: placement.stripe_bytes,
        block_bytes: placement.block_bytes,
        copies: object.copies,
        created_ns: object.created_ns,
        older_generations: &object.older_generations,
        files: files.collect(),
        warnings: object.warnings.iter().map(ToString::to_string).collect(),
        placement,
    })
}

fn text(context: &mut Context, object: &ObjectStat) -> Result<()> {
    let placement = &object.placement;
    let out = &mut context.out;
    let size = placement.size_bytes;
    out.line(format_args!("name        {}", placement.key))?;
    out.line(format_args!("size        {} ({} bytes)", Bytes(size), Count(size)))?;
    let stripes = plural(placement.stripes.len() as u64, "stripe", "stripes");
    let (stripe, block) = (Bytes(placement.stripe_bytes), Bytes(placement.block_bytes.into()));
    out.line(format_args!("cut into    {stripes} of {stripe}, verified in blocks of {block}"))?;
    out.line(format_args!("copies      {}", object.copies))?;
    out.line(format_args!("generation  {}", placement.generation))?;
    out.line(format_args!("put         {}", date(object.created_ns)))?;
    if !object.older_generations.is_empty() {
        let older: Vec<String> = object.older_generations.iter().map(u64::to_string).collect();
        out.line(format_args!("also there  generation {}", older.join(", ")))?;
    }
    out.line("")?;
    let mut table = Table::new(&[
        ("STRIPES", Align::Right),
        ("BYTES", Align::Right),
        ("STATE", Align::Left),
        ("FILE", Align::Left),
    ]);
    for file in &object.files {
        table.row(vec![
            stripes_of(placement, file).to_string(),
            file.expected_bytes.to_string(),
            state(file),
            file.directory.join(&file.file).display().to_string(),
        ]);
    }
    table.print(out)?;
    stores::pass_on(&object.warnings);
    Ok(())
}

/// Stripes of which this file has a copy.
fn stripes_of(placement: &Placement, file: &DataFileStat) -> usize {
    let endpoint = file.directory.to_str();
    let is_file = |source: u16| {
        let source = placement.sources.get(usize::from(source));
        source.is_some_and(|s| Some(&*s.endpoint) == endpoint && s.handle == file.file)
    };
    let has = placement.stripes.iter().filter(|s| s.owners.iter().any(|o| is_file(o.source)));
    has.count()
}

fn state(file: &DataFileStat) -> String {
    match (file.file_bytes, &file.header) {
        (None, _) => "missing".to_owned(),
        (Some(bytes), _) if bytes < file.expected_bytes => {
            format!("truncated to {bytes} bytes")
        }
        (Some(_), Err(reason)) => format!("header damaged: {reason}"),
        (Some(_), Ok(())) => "there".to_owned(),
    }
}
