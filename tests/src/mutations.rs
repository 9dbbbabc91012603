//! The list of deliberate breakages: reading it, applying one to a text, choosing some by a commit.

/// A place in a file, and what is broken there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The file, from the root of the tree.
    pub file: String,
    old: Vec<String>,
    new: Vec<String>,
}

/// One breakage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// A short name.
    pub name: String,
    /// What is broken, in words.
    pub story: String,
    /// Where.
    pub edits: Vec<Edit>,
}

/// The breakages of a list as `tests/tests/mutations.list` explains it.
#[must_use]
pub fn read_list(text: &str) -> Vec<Mutation> {
    let mut mutations: Vec<Mutation> = Vec::new();
    for line in text.lines() {
        if let Some((name, story)) = line.strip_prefix("== ").and_then(|head| head.split_once(": "))
        {
            let (name, story) = (name.to_owned(), story.to_owned());
            mutations.push(Mutation { name, story, edits: Vec::new() });
            continue;
        }
        let Some(mutation) = mutations.last_mut() else { continue };
        if let Some(file) = line.strip_prefix("@ ") {
            mutation.edits.push(Edit { file: file.to_owned(), old: vec![], new: vec![] });
        } else if let Some(edit) = mutation.edits.last_mut() {
            if let Some(old) = line.strip_prefix("- ") {
                edit.old.push(old.trim().to_owned());
            } else if let Some(new) = line.strip_prefix("+ ") {
                edit.new.push(new.to_owned());
            }
        }
    }
    mutations
}

impl Edit {
    /// Replaces the lines of the edit in `text`, wherever they stand one after the other.
    ///
    /// # Errors
    /// They are not there: the list is not up to date.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        let lines: Vec<&str> = text.lines().collect();
        let count = self.old.len();
        let stands = |at: usize| (0..count).all(|line| lines[at + line].trim() == self.old[line]);
        let starts: Vec<usize> =
            (0..=lines.len().saturating_sub(count)).filter(|&at| stands(at)).collect();
        if starts.is_empty() || count == 0 {
            let Edit { file, old, .. } = self;
            return Err(format!("{file}: {old:?} is not there: bring the list up to date"));
        }
        let mut broken = String::new();
        let mut at = 0;
        while at < lines.len() {
            if starts.contains(&at) {
                self.new.iter().for_each(|line| broken.extend([line.as_str(), "\n"]));
                at += count;
            } else {
                broken.extend([lines[at], "\n"]);
                at += 1;
            }
        }
        Ok(broken)
    }
}

/// `count` of them, by a commit's hash: the same ones for the same commit.
#[must_use]
pub fn pick(mut mutations: Vec<Mutation>, commit: &str, count: usize) -> Vec<Mutation> {
    let mut hash = commit
        .bytes()
        .fold(7_u64, |hash, byte| hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
    let mut picked = Vec::new();
    while picked.len() < count && !mutations.is_empty() {
        hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        let at = usize::try_from(hash % mutations.len() as u64).unwrap_or(0);
        picked.push(mutations.swap_remove(at));
    }
    picked
}
