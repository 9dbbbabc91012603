//! What the longer examples share: a real file in a store over two directories, and an engine.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ops::ControlFlow;

use railring::store::PutOptions;
use railring::{Engine, Object, RailSet, Store};
use tempfile::TempDir;

/// A file in a store of its own, open for reading. The store goes when this is dropped.
#[derive(Debug)]
pub struct Demo {
    /// Its engine: one rail per directory.
    pub engine: Engine,
    /// The file, as an object.
    pub object: Object,
    _home: TempDir,
}

/// Puts the file that the first argument names, or else the running program itself, into a new
/// store over two directories, in stripes of 256 KiB, and opens it.
///
/// # Errors
/// The file cannot be read, or there is no room for it.
pub fn demo() -> Result<Demo, Box<dyn Error>> {
    let path = match std::env::args_os().nth(1) {
        Some(path) => path.into(),
        None => std::env::current_exe()?,
    };
    let home = tempfile::tempdir()?;
    let disks = [home.path().join("disk0"), home.path().join("disk1")];
    let store = Store::create(&disks)?;
    let options = PutOptions { stripe_bytes: 256 << 10, ..PutOptions::default() };
    let key = "demo/file".parse()?;
    let put = store.put_file(&key, &path, &options, &mut |_| ControlFlow::Continue(()))?;
    let engine = Engine::builder().rails(RailSet::directories(&disks)?).build()?;
    let object = engine.open(&put.placement)?;
    Ok(Demo { engine, object, _home: home })
}
