//! What a peer in another process can be told, one line of text per command.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::{Lie, MemoryPeer, Over, PeerError, Stage, Write};
use crate::objects::{self, Shape};

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Hold the object that [`objects::build`] makes of these, as on one endpoint.
    Object {
        /// Its name, without spaces.
        name: String,
        /// How it is cut.
        shape: Shape,
        /// The seed of its bytes.
        seed: u64,
    },
    /// Hold files below a directory as they are asked for.
    Serve(PathBuf),
    /// Take longer for a stage.
    Delay(Stage, Duration),
    /// Lie about memory.
    Lie(Lie),
    /// Let queue pairs live on after their TCP connections.
    Keep,
    /// Make all queue pairs fail.
    Shut,
    /// Take an object's registration away.
    Revoke(String),
    /// Write into a reader's memory; the answer is the code of the work completion.
    Write(Over, Write),
    /// The answer is how many queue pairs live.
    Connections,
    /// The process ends at once, without a word to anybody.
    Exit,
}

/// A line that is no command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a command: {0:?}")]
pub struct CommandError(pub String);

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Object { name, shape, seed } => {
                let Shape { size_bytes, stripe_bytes, block_bytes, copies } = shape;
                write!(f, "object {name} {size_bytes} {stripe_bytes} {block_bytes} {copies} {seed}")
            }
            Command::Serve(directory) => write!(f, "serve {}", directory.display()),
            Command::Delay(stage, by) => {
                let stage = match stage {
                    Stage::Hello => "hello",
                    Stage::Ready => "ready",
                    Stage::Open => "open",
                };
                write!(f, "delay {stage} {}", by.as_millis())
            }
            Command::Lie(Lie::Truth) => f.write_str("lie none 0"),
            Command::Lie(Lie::Key(bits)) => write!(f, "lie key {bits}"),
            Command::Lie(Lie::Address(by)) => write!(f, "lie address {by}"),
            Command::Lie(Lie::Length(by)) => write!(f, "lie length {by}"),
            Command::Lie(Lie::Generation(by)) => write!(f, "lie generation {by}"),
            Command::Keep => f.write_str("keep"),
            Command::Shut => f.write_str("shut"),
            Command::Revoke(handle) => write!(f, "revoke {handle}"),
            Command::Write(over, Write { address, rkey, bytes, fill }) => {
                let over = match over {
                    Over::Oldest => "oldest",
                    Over::Newest => "newest",
                };
                write!(f, "write {over} {address} {rkey} {bytes} {fill}")
            }
            Command::Connections => f.write_str("connections"),
            Command::Exit => f.write_str("exit"),
        }
    }
}

/// The words of a line behind its first, each to be read as what is expected.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn text(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }
}

fn parse(verb: &str, rest: &str) -> Option<Command> {
    let mut words = Words(rest.split_whitespace());
    let command = match verb {
        "object" => Command::Object {
            name: words.text()?.to_owned(),
            shape: Shape {
                size_bytes: words.number()?,
                stripe_bytes: words.number()?,
                block_bytes: words.number()?,
                copies: words.number()?,
            },
            seed: words.number()?,
        },
        // A path may have spaces.
        "serve" if !rest.is_empty() => return Some(Command::Serve(rest.into())),
        "delay" => {
            let stage = match words.text()? {
                "hello" => Stage::Hello,
                "ready" => Stage::Ready,
                "open" => Stage::Open,
                _ => return None,
            };
            Command::Delay(stage, Duration::from_millis(words.number()?))
        }
        "lie" => Command::Lie(match words.text()? {
            "none" => words.number::<u64>().map(|_| Lie::Truth)?,
            "key" => Lie::Key(words.number()?),
            "address" => Lie::Address(words.number()?),
            "length" => Lie::Length(words.number()?),
            "generation" => Lie::Generation(words.number()?),
            _ => return None,
        }),
        "keep" => Command::Keep,
        "shut" => Command::Shut,
        "revoke" => Command::Revoke(words.text()?.to_owned()),
        "write" => {
            let over = match words.text()? {
                "oldest" => Over::Oldest,
                "newest" => Over::Newest,
                _ => return None,
            };
            let (address, rkey) = (words.number()?, words.number()?);
            let (bytes, fill) = (words.number()?, words.number()?);
            Command::Write(over, Write { address, rkey, bytes, fill })
        }
        "connections" => Command::Connections,
        "exit" => Command::Exit,
        _ => return None,
    };
    words.text().is_none().then_some(command)
}

impl FromStr for Command {
    type Err = CommandError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let line = line.trim();
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        parse(verb, rest.trim()).ok_or_else(|| CommandError(line.to_owned()))
    }
}

impl MemoryPeer {
    /// Does it, and answers with what there is to say.
    ///
    /// # Errors
    /// As the method of the same name.
    pub fn obey(&self, command: &Command) -> Result<String, PeerError> {
        match command {
            Command::Object { name, shape, seed } => {
                let (known, files) = objects::build(name, *shape, &["peer".to_owned()], *seed);
                self.put(&known.placement.handle, known.placement.generation, &files[0])?;
            }
            Command::Serve(directory) => self.serve(directory),
            Command::Delay(stage, by) => self.delay(*stage, *by),
            Command::Lie(lie) => self.lie(*lie),
            Command::Keep => self.keep_queue_pairs(),
            Command::Shut => self.shut()?,
            Command::Revoke(handle) => self.revoke(handle)?,
            Command::Write(over, write) => return Ok(self.write(*over, *write)?.to_string()),
            Command::Connections => return Ok(self.connections().to_string()),
            Command::Exit => std::process::exit(0),
        }
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_back_as_itself() {
        let shape = Shape { size_bytes: 9, stripe_bytes: 8, block_bytes: 4096, copies: 1 };
        let commands = [
            Command::Object { name: "a".to_owned(), shape, seed: 7 },
            Command::Serve("/a folder/b".into()),
            Command::Delay(Stage::Hello, Duration::from_millis(5)),
            Command::Delay(Stage::Ready, Duration::ZERO),
            Command::Delay(Stage::Open, Duration::from_secs(1)),
            Command::Lie(Lie::Truth),
            Command::Lie(Lie::Key(1)),
            Command::Lie(Lie::Address(2)),
            Command::Lie(Lie::Length(3)),
            Command::Lie(Lie::Generation(4)),
            Command::Keep,
            Command::Shut,
            Command::Revoke("a.1".to_owned()),
            Command::Write(Over::Newest, Write { address: 1, rkey: 2, bytes: 3, fill: 4 }),
            Command::Connections,
            Command::Exit,
        ];
        for command in commands {
            assert_eq!(command.to_string().parse(), Ok(command.clone()), "{command}");
        }
        for bad in
            ["", "shut down", "delay hello", "delay never 1", "lie key x", "serve", "write 1"]
        {
            assert_eq!(bad.parse::<Command>(), Err(CommandError(bad.to_owned())));
        }
    }
}
