//! The project's own commands: `cargo xtask test`, `cargo xtask callgrind` and `cargo xtask guest`.

mod callgrind;
mod guest;
mod packages;
mod proc;
mod proving;
mod readme;
mod report;
mod stages;
mod tally;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use packages::Install;
use stages::{Options, Output, STAGES};
use workspace::Workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Tests, instruction counts and guests of this project")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what the tests need, then run them all.
    ///
    /// A test that cannot run prints a line `SKIP <test>: <reason>` with println! and returns; it
    /// counts as skipped, and so does an ignored test. RAILRING_REQUIRE=word,word makes a skip
    /// whose test or reason contains one of the words a failure (`all`: every skip). Whole logs of
    /// the stages are kept in target/xtask.
    Test {
        /// Run only this stage; may be given several times
        #[arg(long, value_name = "NAME")]
        stage: Vec<String>,
        /// Name the stages and end
        #[arg(long)]
        list: bool,
        /// Install no package; say what is missing
        #[arg(long)]
        no_install: bool,
        /// Show every line of every command
        #[arg(long, short)]
        verbose: bool,
    },
    /// Compare instruction counts with docs/results/callgrind.json, at the tolerance given there.
    Callgrind {
        /// Write the counts of this run as the new record
        #[arg(long)]
        record: bool,
    },
    Guest(guest::Arguments),
    /// Break the engine on purpose, in a copy of the tree, and show who catches each breakage.
    ///
    /// `cargo xtask mutations --help` names what it takes.
    #[command(disable_help_flag = true)]
    Mutations {
        /// What the program is told
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<String>,
    },
    /// Run the engine on simulated rails in virtual time, everything checked: one seed, or many.
    ///
    /// `cargo xtask simulate --help` names what it takes.
    #[command(disable_help_flag = true)]
    Simulate {
        /// What the simulation is told
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            match proc::stop_signal() {
                Some(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
                None => ExitCode::FAILURE,
            }
        }
    }
}

/// Does the task; its exit status.
fn run(task: Task) -> Result<u8> {
    proc::watch_signals()?;
    match task {
        Task::Test { list: true, .. } => {
            for stage in STAGES {
                println!("{:<10} {}", stage.name, stage.about);
            }
        }
        Task::Test { stage, no_install, verbose, .. } => {
            let options = Options {
                only: stage,
                install: if no_install { Install::Never } else { Install::WhenMissing },
                output: if verbose { Output::Full } else { Output::Brief },
            };
            stages::run(&Workspace::load()?, &options)?;
        }
        Task::Callgrind { record } => {
            let mode = if record { callgrind::Mode::Record } else { callgrind::Mode::Compare };
            let tally = callgrind::run(&Workspace::load()?, mode, |line| println!("{line}"))?;
            for skip in tally.skips() {
                println!("SKIP {}: {}", skip.test, skip.reason);
            }
            let (passed, failed) = (tally.passed(), tally.failed);
            println!("{passed} passed, {failed} failed, {} skipped", tally.skipped());
            if failed > 0 {
                anyhow::bail!("instruction counts are above their limits");
            }
        }
        Task::Guest(arguments) => return guest::run(&arguments),
        Task::Mutations { arguments } => return proving::run("mutations", &arguments),
        Task::Simulate { arguments } => return proving::run("simulate", &arguments),
    }
    Ok(0)
}
