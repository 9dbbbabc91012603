//! The bytes that simulated rails read: sources by endpoint and handle, shared by all rails.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What one source holds.
#[derive(Clone, Debug)]
pub struct SourceContent {
    /// The object's generation; a rail that was connected for another one answers `STALE`.
    pub generation: u64,
    /// The bytes, from offset 0 of the source.
    pub bytes: Arc<[u8]>,
    /// Which of them are block tables: where a corrupt table is corrupted. Empty if none.
    pub tables: Range<u64>,
}

impl SourceContent {
    /// Bytes without block tables.
    #[must_use]
    pub fn new(generation: u64, bytes: impl Into<Arc<[u8]>>) -> Self {
        SourceContent { generation, bytes: bytes.into(), tables: 0..0 }
    }

    /// And the block tables lie in this range.
    #[must_use]
    pub fn with_tables(mut self, tables: Range<u64>) -> Self {
        self.tables = tables;
        self
    }
}

/// One source, whether it holds something or not (any more).
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) endpoint: String,
    content: Mutex<Option<SourceContent>>,
}

impl Source {
    /// What it holds now; shares the bytes.
    pub(crate) fn content(&self) -> Option<SourceContent> {
        lock(&self.content).clone()
    }
}

type Handles = BTreeMap<String, Arc<Source>>;

/// All sources of a world.
#[derive(Debug, Default)]
pub(crate) struct ObjectStore {
    endpoints: Mutex<BTreeMap<String, Handles>>,
}

impl ObjectStore {
    /// Lets `handle` at `endpoint` hold `content`, instead of what it held.
    pub(crate) fn put(&self, endpoint: &str, handle: &str, content: SourceContent) {
        let mut endpoints = lock(&self.endpoints);
        let handles = endpoints.entry(endpoint.to_owned()).or_default();
        let source = handles.entry(handle.to_owned()).or_insert_with(|| {
            Arc::new(Source { endpoint: endpoint.to_owned(), content: Mutex::new(None) })
        });
        *lock(&source.content) = Some(content);
    }

    /// Lets `handle` at `endpoint` hold nothing. Rails that are connected to it answer `NOT_FOUND`.
    pub(crate) fn remove(&self, endpoint: &str, handle: &str) {
        if let Some(source) = self.find(endpoint, handle) {
            *lock(&source.content) = None;
        }
    }

    /// The source, if there ever was one.
    pub(crate) fn find(&self, endpoint: &str, handle: &str) -> Option<Arc<Source>> {
        lock(&self.endpoints).get(endpoint)?.get(handle).cloned()
    }
}

/// A panic elsewhere leaves these maps whole: each holds a lock only for one insertion.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
