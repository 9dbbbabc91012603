//! The `railring` command: puts objects into a store, reads, lists, checks and measures.

mod args;
mod bench;
mod cmd;
mod heap;
mod output;
mod placed;
mod rail_table;
mod reader;
mod signals;
mod simulated;
mod stores;
mod traced;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::output::{Out, OutputError, say};
use crate::signals::{Interrupted, Stop};

/// The command line is well-formed and still makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// The work was done and what it found, already printed, is a failure.
#[derive(Debug, thiserror::Error)]
#[error("failed")]
pub(crate) struct Reported;

/// What every command works with.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) out: Out,
    pub(crate) stop: Stop,
}

#[global_allocator]
static HEAP: heap::Counted = heap::Counted;

const FAILED: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report(&error)),
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let mut context = Context { out: Out::new(), stop: Stop::on_signals()? };
    let result = dispatch(cli, &mut context);
    // What was found before a failure is still worth reading.
    let flushed = context.out.flush();
    result.and(flushed.map_err(Into::into))
}

fn dispatch(cli: &Cli, context: &mut Context) -> anyhow::Result<()> {
    match &cli.command {
        Command::Put(args) => cmd::put::run(args, context),
        Command::Get(args) => cmd::get::run(args, context),
        Command::Ls(args) => cmd::ls::run(args, context),
        Command::Stat(args) => cmd::stat::run(args, context),
        Command::Rm(args) => cmd::rm::run(args, context),
        Command::Verify(args) => cmd::verify::run(args, context),
        Command::Demo(args) => cmd::demo::run(args, context),
        Command::Doctor(args) => cmd::doctor::run(args, context),
        Command::Topo(args) => cmd::topo::run(args, context),
        Command::Bench(args) => bench::run(args, context),
        Command::Model(args) => cmd::model::run(args, context),
        Command::Completions(args) => cmd::completions::run(args, context),
    }
}

/// Says what went wrong, and turns it into an exit status.
fn report(error: &anyhow::Error) -> u8 {
    if let Some(OutputError(io)) = error.downcast_ref()
        && io.kind() == std::io::ErrorKind::BrokenPipe
    {
        // The reader has what it wanted.
        return 0;
    }
    if error.is::<Reported>() {
        return FAILED;
    }
    if error.is::<Interrupted>() {
        say("interrupted");
        return FAILED;
    }
    say(format_args!("error: {}", chain(error)));
    if error.is::<UsageError>() { USAGE } else { FAILED }
}

/// The causes in one line; many messages contain their cause already.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
