//! Objects in a real store on real directories, and where such directories can be.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use railring_catalog::{ObjectKey, Placement};
use railring_store::{PutOptions, Store};
use tempfile::TempDir;

/// A store over directories of its own, which go when it is dropped.
#[derive(Debug)]
pub struct Disks {
    _home: TempDir,
    /// The directories, one per disk.
    pub directories: Vec<PathBuf>,
    /// The store.
    pub store: Store,
    sources: PathBuf,
}

/// An object in a store, and the file it was put from.
#[derive(Debug)]
pub struct StoredObject {
    /// Where it lies.
    pub placement: Placement,
    /// What it was put from.
    pub file: File,
}

impl Disks {
    /// `count` directories below `base`.
    ///
    /// # Panics
    /// `base` is not writable.
    #[must_use]
    pub fn new(base: &Path, count: usize) -> Disks {
        let home = tempfile::Builder::new()
            .prefix("railring-")
            .tempdir_in(base)
            .expect("the directory of a test is writable");
        let directories: Vec<PathBuf> =
            (0..count).map(|index| home.path().join(format!("disk{index}"))).collect();
        let store = Store::create(&directories).expect("the directories are new");
        let sources = home.path().join("sources");
        std::fs::create_dir(&sources).expect("it is writable");
        Disks { _home: home, directories, store, sources }
    }

    /// Puts `bytes` under `test/name`.
    ///
    /// # Panics
    /// The disk is full, or the options make no sense.
    pub fn put(&self, name: &str, bytes: &[u8], options: &PutOptions) -> StoredObject {
        let path = self.sources.join(name);
        std::fs::write(&path, bytes).expect("there is room");
        let key = ObjectKey::new("test", name).expect("a plain name");
        let mut go_on = |_| ControlFlow::Continue(());
        let report = self.store.put_file(&key, &path, options, &mut go_on).expect("it is put");
        let file = File::open(&path).expect("it was just written");
        StoredObject { placement: report.placement, file }
    }

    /// The data file that owner `copy` of stripe `index` lies in, and where.
    ///
    /// # Panics
    /// There is no such owner.
    #[must_use]
    pub fn extent(placement: &Placement, index: usize, copy: usize) -> (PathBuf, u64) {
        let owner = placement.stripes[index].owners[copy];
        let source = &placement.sources[usize::from(owner.source)];
        (Path::new(&source.endpoint).join(&source.handle), owner.offset)
    }
}

/// Random bytes from a seed.
#[must_use]
pub fn random_bytes(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut out);
    out
}

/// The seed of a test: `RAILRING_SEED`, or a new one. Printed, so that a failure can be repeated.
#[must_use]
pub fn seed(test: &str) -> u64 {
    let given = std::env::var("RAILRING_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: RAILRING_SEED={seed}");
    seed
}
