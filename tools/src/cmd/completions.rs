//! `railring completions`: what a shell completes, made from the same description as the help.

use anyhow::Result;
use clap::CommandFactory;

use crate::Context;
use crate::args::{Cli, CompletionsArgs};

pub(crate) fn run(args: &CompletionsArgs, context: &mut Context) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "railring", &mut script);
    Ok(context.out.bytes(&script)?)
}
