//! The passive memory peer as a process: commands come on standard input, one a line, each answered
//! by `ok` or `error`; it ends when its input does. Tests and `railring bench verbs` start it.
//!
//! ```text
//! memory_peer --device rxe0 [--port N] [--gid-index N] [--listen PORT] [--serve DIR]...
//! ready 127.0.0.1:40211
//! ```

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use railring_tests::memory_peer::{Command, MemoryPeer, PeerConfig};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("memory_peer: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let (config, directories) = arguments(std::env::args().skip(1))?;
    let peer = MemoryPeer::start(config).map_err(|error| error.to_string())?;
    directories.iter().for_each(|directory| peer.serve(directory));
    say(&format!("ready {}", peer.endpoint()))?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let command = line.parse::<Command>().map_err(|error| error.to_string());
        let done = command.and_then(|c| peer.obey(&c).map_err(|error| error.to_string()));
        match done {
            Ok(answer) => say(format!("ok {answer}").trim_end())?,
            Err(why) => say(&format!("error {why}"))?,
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

fn arguments(
    mut given: impl Iterator<Item = String>,
) -> Result<(PeerConfig, Vec<PathBuf>), String> {
    let mut config = PeerConfig::on("");
    let mut directories = Vec::new();
    while let Some(name) = given.next() {
        let value = given.next().ok_or_else(|| format!("{name} needs a value"))?;
        let wrong = || format!("{name} cannot be {value}");
        match &*name {
            "--device" => config.device = value,
            "--port" => config.port = Some(value.parse().map_err(|_| wrong())?),
            "--gid-index" => config.gid_index = Some(value.parse().map_err(|_| wrong())?),
            "--listen" => config.listen = value.parse().map_err(|_| wrong())?,
            "--serve" => directories.push(value.into()),
            _ => return Err(format!("there is no option {name}")),
        }
    }
    if config.device.is_empty() {
        return Err("say --device NAME".to_owned());
    }
    Ok((config, directories))
}
