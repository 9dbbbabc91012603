//! How wide the page is, and whether it has colours.

use std::io::{self, IsTerminal};

use railring::topology::render::{Colour, TextOptions};
use rustix::termios::tcgetwinsize;

/// Where nothing tells how wide the page is.
const WIDTH: usize = 100;

/// The terminal's width, and colours if it wants any; for a file or a pipe neither.
pub(super) fn options() -> TextOptions {
    let is_terminal = io::stdout().is_terminal();
    let terminal = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let variable = |name| std::env::var(name).ok();
    TextOptions {
        width: width(terminal.filter(|_| is_terminal), variable("COLUMNS").as_deref()),
        colour: colour(is_terminal, variable("NO_COLOR").as_deref(), variable("TERM").as_deref()),
    }
}

/// The terminal's own word first; a pseudo-terminal may say 0.
fn width(terminal: Option<usize>, columns: Option<&str>) -> usize {
    let asked = || columns.and_then(|text| text.parse().ok());
    terminal.filter(|&columns| columns > 0).or_else(asked).filter(|&n| n > 0).unwrap_or(WIDTH)
}

fn colour(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Colour {
    // no-color.org: any value but the empty one.
    let refused = no_color.is_some_and(|value| !value.is_empty()) || term == Some("dumb");
    if is_terminal && !refused { Colour::Always } else { Colour::Never }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        assert_eq!(colour(true, None, Some("xterm")), Colour::Always);
        assert_eq!(colour(true, Some(""), None), Colour::Always);
        assert_eq!(colour(true, Some("1"), None), Colour::Never);
        assert_eq!(colour(true, None, Some("dumb")), Colour::Never);
        assert_eq!(colour(false, None, Some("xterm")), Colour::Never);
    }

    #[test]
    fn the_terminals_width_comes_first() {
        assert_eq!(width(Some(72), Some("90")), 72);
        assert_eq!(width(Some(0), Some("90")), 90);
        assert_eq!(width(None, Some("wide")), WIDTH);
        assert_eq!(width(None, None), WIDTH);
    }
}
