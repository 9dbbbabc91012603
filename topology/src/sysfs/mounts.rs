//! The mount table, from `mountinfo` or from the older `mounts`.

use super::Reader;

/// One mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Major and minor device number, where the table has it.
    pub(super) device: Option<String>,
    /// The part of the file system that is mounted.
    pub(super) root: String,
    /// Where.
    pub(super) point: String,
    pub(super) filesystem: String,
    /// What is mounted, as in `/dev/nvme0n1p1`.
    pub(super) source: String,
    /// Options of the mount and of the file system, comma-separated.
    pub(super) options: String,
}

pub(super) fn read(reader: &Reader<'_>) -> Vec<Mount> {
    if let Some(text) = reader.tree.optional("proc/self/mountinfo") {
        return text.lines().filter_map(from_mountinfo).collect();
    }
    let text = reader.tree.optional("proc/self/mounts");
    let text = text.or_else(|| reader.tree.optional("proc/mounts")).unwrap_or_default();
    text.lines().filter_map(from_mounts).collect()
}

/// `36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sda1 rw` (proc_pid_mountinfo(5)).
fn from_mountinfo(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let before: Vec<&str> = before.split(' ').collect();
    let [_, _, device, root, point, options, ..] = before.as_slice() else { return None };
    let mut after = after.split(' ');
    let (filesystem, source) = (after.next()?, after.next()?);
    let super_options = after.next().unwrap_or_default();
    Some(Mount {
        device: Some((*device).to_owned()),
        root: unescape(root),
        point: unescape(point),
        filesystem: filesystem.to_owned(),
        source: unescape(source),
        options: format!("{options},{super_options}"),
    })
}

/// `/dev/sda1 /point ext4 rw 0 0`.
fn from_mounts(line: &str) -> Option<Mount> {
    let mut words = line.split(' ');
    let (source, point) = (words.next()?, words.next()?);
    Some(Mount {
        device: None,
        root: "/".to_owned(),
        point: unescape(point),
        filesystem: words.next()?.to_owned(),
        source: unescape(source),
        options: words.next().unwrap_or_default().to_owned(),
    })
}

/// Spaces, tabs, newlines and backslashes stand in the table as three octal digits.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let code = after.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => plain.push(char::from(code)),
            None => plain.push('\\'),
        }
        rest = if code.is_some_and(|code| code.is_ascii()) { &after[3..] } else { after };
    }
    plain.push_str(rest);
    plain
}

/// The mount that `path` lies on: the last of those with the longest mount point above it.
pub(super) fn holding<'a>(mounts: &'a [Mount], path: &str) -> Option<&'a Mount> {
    let above = |mount: &&Mount| {
        let point = mount.point.trim_end_matches('/');
        path.strip_prefix(point).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    mounts.iter().filter(above).max_by_key(|mount| mount.point.trim_end_matches('/').len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_are_read() {
        let line =
            "36 35 259:2 /a /mnt/x\\040y rw,noatime shared:1 - ext4 /dev/nvme0n1p2 rw,seclabel";
        let mount = from_mountinfo(line).expect("a mount");
        assert_eq!((mount.point.as_str(), mount.device.as_deref()), ("/mnt/x y", Some("259:2")));
        assert_eq!((mount.filesystem.as_str(), mount.root.as_str()), ("ext4", "/a"));
        let mount = from_mounts("none /dev/cpuset cgroup rw,cpuset,noprefix 0 0").expect("a mount");
        assert_eq!(
            (mount.point.as_str(), mount.options.as_str()),
            ("/dev/cpuset", "rw,cpuset,noprefix")
        );
        assert_eq!(unescape("a\\\\b\\134\\0"), "a\\\\b\\\\0");
    }

    #[test]
    fn the_longest_mount_point_above_holds_a_path() {
        let at = |point: &str| Mount {
            device: None,
            root: "/".into(),
            point: point.into(),
            filesystem: "ext4".into(),
            source: point.into(),
            options: String::new(),
        };
        let mounts = [at("/"), at("/data"), at("/data/a"), at("/database")];
        for (path, point) in
            [("/data/a/x", "/data/a"), ("/data/ab", "/data"), ("/data", "/data"), ("/x", "/")]
        {
            assert_eq!(holding(&mounts, path).map(|m| m.point.as_str()), Some(point), "{path}");
        }
        assert_eq!(holding(&[], "/x"), None);
    }
}
