//! Reads a crate's Cargo.toml, as far as our own manifests go: tables, keys, values, arrays.

use super::source::Source;

/// When a dependency is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By the crate itself.
    Normal,
    /// By its tests, examples and benchmarks only.
    Dev,
    /// By its build script.
    Build,
}

/// One dependency line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The package.
    pub name: String,
    /// When it is used.
    pub kind: Kind,
    /// The condition of a `[target.'…'.dependencies]` table.
    pub target: Option<String>,
    /// What stands right of the name: `.workspace = true`, or `= …`.
    pub spec: String,
    /// Its line in the manifest, from 1.
    pub line: usize,
}

impl Dependency {
    /// Whether its version comes from the workspace's one table.
    #[must_use]
    pub fn is_from_table(&self) -> bool {
        let spec: String = self.spec.chars().filter(|c| !c.is_whitespace()).collect();
        spec == ".workspace=true"
            || (spec.starts_with("={") && spec.contains("workspace=true"))
                && !spec.contains("version=")
                && !spec.contains("path=")
                && !spec.contains("git=")
    }
}

/// A crate's manifest.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// Its path below the workspace root.
    pub path: String,
    /// The crate's name.
    pub name: String,
    /// All keys with their tables: `("package", "license.workspace", "true")`.
    pub keys: Vec<(String, String, String)>,
    /// All dependencies.
    pub dependencies: Vec<Dependency>,
}

impl Manifest {
    /// Reads the manifest.
    #[must_use]
    pub fn parse(source: &Source) -> Manifest {
        let mut manifest = Manifest { path: source.path.clone(), ..Manifest::default() };
        let mut table = String::new();
        for (line, text) in logical_lines(&source.text) {
            if let Some(name) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                table = name.trim_matches(['[', ']']).trim().to_owned();
                continue;
            }
            manifest.read_key(&table, line, &text);
        }
        manifest
    }

    fn read_key(&mut self, table: &str, line: usize, text: &str) {
        let Some((key, value)) = text.split_once('=') else { return };
        let (key, value) = (key.trim(), value.trim());
        self.keys.push((table.to_owned(), key.to_owned(), value.to_owned()));
        if (table, key) == ("package", "name") {
            self.name = value.trim_matches('"').to_owned();
        }
        let (target, kind) = match table.rsplit_once('.') {
            Some((target, last)) if target.starts_with("target.") => (Some(target), last),
            _ => (None, table),
        };
        let kind = match kind {
            "dependencies" => Kind::Normal,
            "dev-dependencies" => Kind::Dev,
            "build-dependencies" => Kind::Build,
            _ => return,
        };
        let end = text.find(['.', '=', ' ']).unwrap_or(text.len());
        self.dependencies.push(Dependency {
            name: text[..end].to_owned(),
            kind,
            target: target.map(|target| target["target.".len()..].trim_matches('\'').to_owned()),
            spec: text[end..].trim().to_owned(),
            line,
        });
    }

    /// The value of a key, if the manifest has it.
    #[must_use]
    pub fn value(&self, table: &str, key: &str) -> Option<&str> {
        let found = self.keys.iter().find(|(t, k, _)| t == table && k == key);
        found.map(|(_, _, value)| &**value)
    }

    /// The folder of the crate, below the workspace root.
    #[must_use]
    pub fn folder(&self) -> &str {
        self.path.trim_end_matches("Cargo.toml").trim_end_matches('/')
    }
}

/// Lines without remarks and blanks, arrays over several lines joined, each with its first number.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let line = without_remark(line).trim();
        match lines.last_mut().filter(|_| open) {
            Some((_, joined)) => joined.push_str(line),
            None if line.is_empty() => continue,
            None => lines.push((index + 1, line.to_owned())),
        }
        let joined = lines.last().map_or("", |(_, joined)| joined);
        open = joined.matches('[').count() > joined.matches(']').count();
    }
    lines
}

fn without_remark(line: &str) -> &str {
    let mut quoted = false;
    for (at, character) in line.char_indices() {
        match character {
            '"' => quoted = !quoted,
            '#' if !quoted => return &line[..at],
            _ => {}
        }
    }
    line
}

/// The manifests of all member crates, without the root's.
#[must_use]
pub fn manifests(sources: &[Source]) -> Vec<Manifest> {
    let members = sources.iter().filter(|source| source.path.ends_with("/Cargo.toml"));
    members.map(Manifest::parse).filter(|manifest| !manifest.name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "[package]\nname = \"x\" # a remark\nlicense.workspace = true\n\n\
        [dependencies]\na.workspace = true\nb = { workspace = true, optional = true }\nc = \"1\"\n\
        [target.'cfg(loom)'.dev-dependencies]\nd = { version = \"2\" }\n\
        [features]\nfull = [\n    \"b\",\n    \"e\",\n]\n";

    #[test]
    fn a_manifest_is_read() {
        let manifest = Manifest::parse(&Source::new("x/Cargo.toml", SAMPLE));
        assert_eq!((&*manifest.name, manifest.folder()), ("x", "x"));
        assert_eq!(manifest.value("package", "license.workspace"), Some("true"));
        assert_eq!(manifest.value("features", "full"), Some("[\"b\",\"e\",]"));
        let found: Vec<_> = manifest
            .dependencies
            .iter()
            .map(|d| (&*d.name, d.kind, d.target.as_deref(), d.is_from_table(), d.line))
            .collect();
        let expected = [
            ("a", Kind::Normal, None, true, 6),
            ("b", Kind::Normal, None, true, 7),
            ("c", Kind::Normal, None, false, 8),
            ("d", Kind::Dev, Some("cfg(loom)"), false, 10),
        ];
        assert_eq!(found, expected);
    }
}
