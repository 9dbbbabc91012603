//! What all tests of the store share: keys, contents, and reading an object back by its placement.

use crate::memory::Memory;
use railring_catalog::checksum::{BlockTable, stripe_checksum, table_bytes};
use railring_catalog::{ObjectKey, Owner, Placement};
use railring_store::{ListEntry, OpenMode, OpenOptions, PutError, PutOptions, PutReport};
use railring_store::{StorageBackend, Store};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) fn key(text: &str) -> ObjectKey {
    text.parse().expect("a legal name")
}

pub(crate) fn directories(count: usize) -> Vec<PathBuf> {
    (0..count).map(|i| PathBuf::from(format!("/disk{i}"))).collect()
}

/// Bytes that tell their place.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

pub(crate) fn options(stripe_bytes: u64, copies: u16) -> PutOptions {
    PutOptions { stripe_bytes, block_bytes: 4096, copies, ..PutOptions::default() }
}

pub(crate) fn put(
    store: &Store,
    name: &str,
    bytes: &[u8],
    options: &PutOptions,
) -> Result<PutReport, PutError> {
    store.put(&key(name), &mut &bytes[..], options, &mut |_| ControlFlow::Continue(()))
}

pub(crate) fn new_store(count: usize) -> (Memory, Store) {
    let memory = Memory::new(&directories(count));
    let store = Store::create_on(Arc::new(memory.clone()), &directories(count)).expect("new");
    (memory, store)
}

pub(crate) fn open(memory: &Memory, count: usize) -> Store {
    open_as(memory, &directories(count), OpenMode::ReadWrite).expect("a good store")
}

pub(crate) fn open_as(
    memory: &Memory,
    directories: &[PathBuf],
    mode: OpenMode,
) -> Result<Store, railring_store::OpenError> {
    Store::open_on(Arc::new(memory.clone()), directories, OpenOptions::new(mode))
}

fn read_exact(
    backend: &dyn StorageBackend,
    placement: &Placement,
    owner: &Owner,
    offset: u64,
    len: u64,
) -> Result<Vec<u8>, String> {
    let source = &placement.sources[usize::from(owner.source)];
    let path = Path::new(&source.endpoint).join(&source.handle);
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let file = backend.open(&path).map_err(fail)?;
    let mut bytes = vec![0; len as usize];
    let done = file.read_at(&mut bytes, offset).map_err(fail)?;
    if done < bytes.len() {
        return Err(format!("{}: {done} of {len} bytes at {offset}", path.display()));
    }
    Ok(bytes)
}

/// One copy of one stripe, with its padding, checked in every way there is.
fn read_owner(
    backend: &dyn StorageBackend,
    placement: &Placement,
    index: usize,
    owner: &Owner,
) -> Result<Vec<u8>, String> {
    let stripe = &placement.stripes[index];
    let padded = stripe.len_bytes.next_multiple_of(4096);
    let mut bytes = read_exact(backend, placement, owner, owner.offset, padded)?;
    if bytes[stripe.len_bytes as usize..].iter().any(|&b| b != 0) {
        return Err(format!("stripe {index}: padding is not zero"));
    }
    bytes.truncate(stripe.len_bytes as usize);
    let actual = stripe_checksum(&bytes);
    if stripe.checksum != Some(actual) {
        return Err(format!("stripe {index}: checksum {actual:016x}, not {:?}", stripe.checksum));
    }
    let table = table_bytes(stripe.len_bytes, placement.block_bytes);
    let table_padded = table.next_multiple_of(4096);
    let mut table_read = read_exact(backend, placement, owner, owner.table_offset, table_padded)?;
    table_read.truncate(table as usize);
    let expected = stripe.table_checksum.ok_or("no table checksum")?;
    let checked =
        BlockTable::verify(&table_read, stripe.len_bytes, placement.block_bytes, expected)
            .map_err(|e| format!("stripe {index}: {e}"))?;
    match checked.first_bad_block(0, &bytes) {
        Some(block) => Err(format!("stripe {index}: block {block} differs from the table")),
        None => Ok(bytes),
    }
}

/// Reads a whole object from every owner of every stripe; all must be right.
pub(crate) fn read_all(
    backend: &dyn StorageBackend,
    placement: &Placement,
) -> Result<Vec<u8>, String> {
    placement.validate().map_err(|e| e.to_string())?;
    let mut object = Vec::new();
    for (index, stripe) in placement.stripes.iter().enumerate() {
        let mut copies = Vec::new();
        for owner in &stripe.owners {
            copies.push(read_owner(backend, placement, index, owner)?);
        }
        if copies.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(format!("stripe {index}: copies differ"));
        }
        object.append(&mut copies[0]);
    }
    Ok(object)
}

/// What is asked of the manifests beside the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replicas {
    All,
    MayBeMissing,
}

/// Name, generation and contents of everything that is listed, sorted; every byte verified.
pub(crate) fn everything(
    backend: &dyn StorageBackend,
    store: &Store,
    replicas: Replicas,
) -> Result<Vec<(String, u64, Vec<u8>)>, String> {
    let mut all = Vec::new();
    for entry in store.list("") {
        let ListEntry::Object(object) = entry.map_err(|e| e.to_string())? else {
            return Err("a damaged object".into());
        };
        let found = store.find(&object.key).map_err(|e| e.to_string())?;
        let found = found.ok_or("listed and not found")?;
        if replicas == Replicas::All && !found.warnings.is_empty() {
            return Err(format!("{}: {:?}", object.key, found.warnings));
        }
        let bytes =
            read_all(backend, &found.placement).map_err(|e| format!("{}: {e}", object.key))?;
        all.push((object.key.to_string(), object.generation, bytes));
    }
    all.sort();
    Ok(all)
}
