//! Enough of Rust's grammar to see through comments and literals, and to find functions and test
//! code.

/// `text` with the contents of comments, strings and characters replaced by spaces; lines and
/// byte offsets stay what they were.
#[must_use]
pub fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut masked = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        for byte in &mut masked[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // Whole literals are blanked, so no character is cut in two.
    String::from_utf8_lossy(&masked).into_owned()
}

/// The end of the comment or literal that starts at `at`; `at` itself if none does.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let after_word = at > 0 && is_word(bytes[at - 1]);
    match rest[0] {
        b'/' if rest.starts_with(b"//") => line_end(bytes, at),
        b'/' if rest.starts_with(b"/*") => block_comment_end(bytes, at),
        b'"' => string_end(bytes, at + 1),
        b'\'' => char_end(bytes, at),
        b'r' | b'b' | b'c' if !after_word => prefixed_end(bytes, at),
        _ => at,
    }
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_u32);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// The end of a string whose contents start at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a character literal at `at`; `at` itself for a lifetime or label.
fn char_end(bytes: &[u8], at: usize) -> usize {
    let Some(&first) = bytes.get(at + 1) else { return at };
    if first == b'\\' {
        let close = bytes[at + 3..].iter().position(|&byte| byte == b'\'');
        return close.map_or(bytes.len(), |length| at + 3 + length + 1);
    }
    // One character, of up to four bytes, and a closing quote: else it is a lifetime.
    let width = match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    if bytes.get(at + 1 + width) == Some(&b'\'') { at + width + 2 } else { at }
}

/// The end of `r"…"`, `r#"…"#`, `b"…"`, `b'…'`, `br"…"`, `c"…"` or `cr"…"` at `at`; else `at`.
fn prefixed_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let letters = rest.iter().take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count();
    let raw = rest[..letters].contains(&b'r');
    let hashes = rest[letters..].iter().take_while(|&&byte| byte == b'#').count();
    let open = at + letters + hashes;
    match bytes.get(open) {
        Some(b'"') if raw => raw_string_end(bytes, open + 1, hashes),
        Some(b'"') if hashes == 0 => string_end(bytes, open + 1),
        Some(b'\'') if hashes == 0 && rest[0] == b'b' && letters == 1 => char_end(bytes, open),
        _ => at,
    }
}

fn raw_string_end(bytes: &[u8], start: usize, hashes: usize) -> usize {
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let found = bytes[start..].windows(close.len()).position(|window| window == close);
    found.map_or(bytes.len(), |length| start + length + close.len())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The words of masked Rust with their offsets: identifiers, keywords and numbers.
pub fn words(masked: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = masked.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + bytes[at..].iter().position(|&byte| is_word(byte))?;
        let length = bytes[start..].iter().take_while(|&&byte| is_word(byte)).count();
        at = start + length;
        Some((start, &masked[start..at]))
    })
}

/// The line, from 1, of a byte offset.
#[must_use]
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line of its `fn`, from 1.
    pub line: usize,
    /// Lines from its `fn` to its closing brace.
    pub lines: usize,
}

/// All functions with a body in masked Rust, nested ones included.
#[must_use]
pub fn functions(masked: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let mut words = words(masked).peekable();
    while let Some((start, word)) = words.next() {
        let Some(&(_, name)) = words.peek() else { break };
        // `fn(` is a type; a function has a name right behind.
        let named = masked[start + word.len()..].trim_start().starts_with(name);
        if word != "fn" || !named {
            continue;
        }
        if let Some(end) = item_end(masked, start).filter(|&end| masked.as_bytes()[end] == b'}') {
            let line = line_of(masked, start);
            let lines = line_of(masked, end) - line + 1;
            found.push(Function { name: name.to_owned(), line, lines });
        }
    }
    found
}

/// The offset of the `}` or `;` that ends the item that starts at `start`.
fn item_end(masked: &str, start: usize) -> Option<usize> {
    let (mut depth, mut braces) = (0_i32, 0_i32);
    for (at, byte) in masked.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 && braces == 0 => return Some(at),
            b'{' => braces += 1,
            b'}' => {
                braces -= 1;
                if braces <= 0 && depth <= 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Byte ranges of items under `#[test]` or a `#[cfg(…)]` that asks for `test`.
#[must_use]
pub fn test_ranges(masked: &str) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    for (start, _) in masked.match_indices("#[") {
        let Some(length) = masked[start..].find(']') else { continue };
        let attribute = masked[start + 2..start + length].trim();
        let asks = attribute == "test"
            || (attribute.starts_with("cfg")
                && words(attribute).any(|(_, word)| word == "test")
                && !attribute.contains("not(test"));
        if let Some(end) = item_end(masked, start + length + 1).filter(|_| asks) {
            ranges.push(start..end + 1);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_offsets_stay() {
        let text = "a \"x // y\" b // c\n/* d /* e */ f */ g 'h' 'i: loop r#\"j \" k\"# l b'm' \
                    br\"n\" '\\'' o '\\\\' p \"\\\"q\" r";
        let masked = mask(text);
        assert_eq!(masked.len(), text.len());
        let kept: Vec<_> = words(&masked).map(|(_, word)| word).collect();
        assert_eq!(kept, ["a", "b", "g", "i", "loop", "l", "o", "p", "r"]);
        assert_eq!(line_of(text, text.find('g').expect("there")), 2);
    }

    #[test]
    fn umlauts_in_literals_do_not_break_the_rest() {
        assert_eq!(mask("x('ü', \"é\") y").trim_end(), format!("x({0:4}, {0:4}) y", ""));
    }

    #[test]
    fn functions_have_names_and_lengths() {
        let text = "trait T { fn declared(&self) -> [u8; 4]; }\nfn one() {}\n\
                    pub fn two(\n    f: fn(u8) -> u8,\n) {\n    let s = \"}\";\n}\n";
        let found = functions(&mask(text));
        let expected = [("one", 2, 1), ("two", 3, 5)];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (function, (name, line, lines)) in found.iter().zip(expected) {
            assert_eq!((&*function.name, function.line, function.lines), (name, line, lines));
        }
    }

    #[test]
    fn test_code_is_found() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() {} }\n#[test]\nfn c() {}\n\
                    #[cfg(not(test))]\nfn d() {}\n#[cfg(all(test, not(loom)))]\n\
                    mod e { }\nfn f() {}";
        let masked = mask(text);
        let ranges = test_ranges(&masked);
        let inside = |name: &str| {
            let at = masked.find(name).expect("it is there");
            ranges.iter().any(|range| range.contains(&at))
        };
        let tested: Vec<_> =
            ["a()", "b()", "c()", "d()", "e {", "f()"].into_iter().filter(|n| inside(n)).collect();
        assert_eq!(tested, ["b()", "c()", "e {"]);
    }
}
