//! The commands README.md shows: found in its `sh` blocks, so that they can be run as printed.

/// Commands of all fenced blocks whose language is `sh`, one a line, with continued lines joined.
/// A block marked `sh no-run` is left out; so is `cargo xtask`, which would run itself.
pub(crate) fn commands(markdown: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = None;
    let mut continued = String::new();
    for line in markdown.lines() {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            if inside == Some(true) {
                read_command(line, &mut continued, &mut commands);
            }
            continue;
        };
        inside = match inside {
            Some(_) => None,
            None => Some(info.trim() == "sh"),
        };
    }
    commands
}

fn read_command(line: &str, continued: &mut String, commands: &mut Vec<String>) {
    let line = line.trim();
    if let Some(start) = line.strip_suffix('\\') {
        continued.push_str(start);
        return;
    }
    let command = format!("{}{line}", std::mem::take(continued));
    let skipped = command.is_empty() || command.starts_with('#');
    if !skipped && !command.contains("cargo xtask") {
        commands.push(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sh_blocks_are_commands_and_others_are_not() {
        let text = "# T\n```sh\n# a remark\ncargo run --release -- \\\n  demo\n\n\
                    cargo xtask test\n```\n\
                    cargo not\n```rust\nlet x;\n```\n```sh no-run\nrm -r x\n```\n```sh\nls\n```\n";
        assert_eq!(commands(text), ["cargo run --release -- demo", "ls"]);
    }
}
