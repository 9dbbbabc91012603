//! Putting an object: streaming it into staged files, in memory that does not depend on its size.

use crate::backend::FileLock;
use crate::directory::DirectoryFile;
use crate::error::{PutError, StoreWarning};
use crate::format::DATA_HEADER_BYTES;
use crate::manifest::{Extent, Manifest, StripeSums};
use crate::names::{KeyHash, Name, lease, staged_data};
use crate::store::{OpenMode, Store, now_ns};
use railring_catalog::checksum::{StreamingChecksum, block_checksum, table_checksum};
use railring_catalog::{
    BLOCK_BYTES_DEFAULT, EXTENT_ALIGN, Geometry, GeometryError, ObjectKey, Placement, STRIPES_MAX,
};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

/// The stripe size objects are put with when nothing else is asked for: 4 MiB.
pub const STRIPE_BYTES_DEFAULT: u64 = 4 << 20;

/// Bytes read and written at a time. A multiple of every legal block size.
const BUFFER_BYTES: usize = 1 << 20;
const ZEROS: [u8; EXTENT_ALIGN as usize] = [0; EXTENT_ALIGN as usize];

/// How an object is put.
#[derive(Clone, Debug)]
pub struct PutOptions {
    /// Stripe size: 1 byte to 4 GiB.
    pub stripe_bytes: u64,
    /// Block size: a power of two from 4 KiB to 1 MiB.
    pub block_bytes: u32,
    /// In how many directories each stripe lies: 1 to all.
    pub copies: u16,
    /// Length of the object, if known; another length fails the put.
    pub expected_size: Option<u64>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            stripe_bytes: STRIPE_BYTES_DEFAULT,
            block_bytes: BLOCK_BYTES_DEFAULT,
            copies: 1,
            expected_size: None,
        }
    }
}

/// How far a put is; reported once for each megabyte or so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutProgress {
    /// Bytes of the object that are staged.
    pub bytes_done: u64,
    /// All bytes of the object, if known.
    pub bytes_total: Option<u64>,
    /// Stripes that are staged completely.
    pub stripes_done: u32,
}

/// What was put.
#[derive(Clone, Debug)]
pub struct PutReport {
    /// The new generation, durable in at least one directory.
    pub placement: Placement,
    /// Bytes written to disks: copies, tables, padding, headers and manifests.
    pub bytes_written: u64,
    /// What did not go well but does not matter to the object.
    pub warnings: Vec<StoreWarning>,
}

impl Store {
    /// Puts everything `source` gives as a new generation of `key`. Older generations are
    /// removed when no reader holds them. Needs about 2 MiB, and 40 bytes for each stripe and copy.
    ///
    /// `progress` is called between pieces of work and may end the put. Puts run side by side,
    /// those of one key too: each becomes a generation of its own.
    ///
    /// # Errors
    /// In every case but [`PutError::Indeterminate`] the object is what it was before, and
    /// nothing of the put stays on disk (or it is settled at the next opening).
    pub fn put(
        &self,
        key: &ObjectKey,
        source: &mut dyn Read,
        options: &PutOptions,
        progress: &mut dyn FnMut(PutProgress) -> ControlFlow<()>,
    ) -> Result<PutReport, PutError> {
        let mut job = PutJob::begin(self, key, options)?;
        job.stream(source, progress)?;
        job.publish()
    }

    /// Puts a regular file, and fails if it shrinks, grows or is written to meanwhile.
    ///
    /// # Errors
    /// As [`Store::put`]; and if `path` is not a regular file.
    pub fn put_file(
        &self,
        key: &ObjectKey,
        path: &Path,
        options: &PutOptions,
        progress: &mut dyn FnMut(PutProgress) -> ControlFlow<()>,
    ) -> Result<PutReport, PutError> {
        let mut file = File::open(path).map_err(PutError::Source)?;
        let before = file.metadata().map_err(PutError::Source)?;
        if !before.is_file() {
            return Err(PutError::NotAFile { path: path.to_owned() });
        }
        let expected_size = Some(options.expected_size.unwrap_or(before.len()));
        let options = PutOptions { expected_size, ..options.clone() };
        let mut job = PutJob::begin(self, key, &options)?;
        job.stream(&mut file, progress)?;
        let after = file.metadata().map_err(PutError::Source)?;
        if after.len() != before.len() || after.modified().ok() != before.modified().ok() {
            return Err(PutError::SourceChanged { path: path.to_owned() });
        }
        job.publish()
    }
}

/// A put under way. Dropped before it is finished, it takes everything back.
#[derive(Debug)]
pub(crate) struct PutJob<'a> {
    pub(crate) store: &'a Store,
    /// Held exclusively: the sign that this put lives.
    pub(crate) lease: DirectoryFile,
    pub(crate) manifest: Manifest,
    /// By directory; made when its first stripe comes.
    pub(crate) staged: Vec<Option<StagedFile>>,
    /// Set when the generation is chosen.
    pub(crate) name: Option<Name>,
    pub(crate) state: PutState,
    pub(crate) bytes_written: u64,
    first: u16,
    expected_size: Option<u64>,
}

/// How much of a put may be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutState {
    /// Everything.
    Private,
    /// Nothing: the manifest is, or may be, visible.
    Published,
}

/// A data file that has no final name yet.
#[derive(Debug)]
pub(crate) struct StagedFile {
    pub(crate) file: DirectoryFile,
    /// Where the next stripe goes; a multiple of [`EXTENT_ALIGN`].
    pub(crate) end: u64,
}

impl<'a> PutJob<'a> {
    fn begin(store: &'a Store, key: &ObjectKey, options: &PutOptions) -> Result<Self, PutError> {
        if store.mode != OpenMode::ReadWrite {
            return Err(PutError::NotWritable { mode: store.mode });
        }
        let size = options.expected_size.unwrap_or(0);
        Geometry::new(size, options.stripe_bytes, options.block_bytes)?;
        let (copies, directories) = (options.copies, store.directory_count());
        if copies == 0 || copies > directories {
            return Err(PutError::Copies { copies, directories });
        }
        let nonce = store.nonce()?;
        let lock = store.lock()?;
        let lease = store.first().create(&lease(nonce))?;
        let manifest = Manifest {
            store_id: store.id,
            key: key.clone(),
            generation: 0,
            nonce,
            created_ns: now_ns(),
            size_bytes: 0,
            stripe_bytes: options.stripe_bytes,
            block_bytes: options.block_bytes,
            directories,
            copies,
            stripes: Vec::new(),
            extents: Vec::new(),
        };
        let job = Self {
            store,
            lease,
            manifest,
            staged: (0..directories).map(|_| None).collect(),
            name: None,
            state: PutState::Private,
            bytes_written: 0,
            first: (KeyHash::of(key).0 % u64::from(directories)) as u16,
            expected_size: options.expected_size,
        };
        // From here on the job's drop cleans up. Nobody else can hold a lease just made.
        job.lease.lock(FileLock::Exclusive)?;
        drop(lock);
        Ok(job)
    }

    fn stream(
        &mut self,
        source: &mut dyn Read,
        progress: &mut dyn FnMut(PutProgress) -> ControlFlow<()>,
    ) -> Result<(), PutError> {
        let mut source = Source { inner: source, done: 0, expected: self.expected_size };
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut table = Vec::new();
        while self.stripe(&mut source, &mut buffer, &mut table, progress)?.is_continue() {}
        self.manifest.size_bytes = source.done;
        if let Some(expected) = self.expected_size.filter(|&e| e != source.done) {
            return Err(PutError::SourceShrank { expected, actual: source.done });
        }
        Ok(())
    }

    /// Stages one stripe with all copies; breaks at the end of the source.
    fn stripe(
        &mut self,
        source: &mut Source<'_>,
        buffer: &mut [u8],
        table: &mut Vec<u8>,
        progress: &mut dyn FnMut(PutProgress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, PutError> {
        let (stripe_bytes, block) = (self.manifest.stripe_bytes, self.manifest.block_bytes);
        let index = self.manifest.stripes.len();
        let mut hash = StreamingChecksum::new();
        let mut done = 0;
        table.clear();
        while done < stripe_bytes {
            let wanted = (stripe_bytes - done).min(BUFFER_BYTES as u64) as usize;
            let bytes = source.fill(&mut buffer[..wanted])?;
            if bytes.is_empty() {
                break;
            }
            if done == 0 {
                self.begin_stripe(index)?;
            }
            hash.update(bytes);
            table
                .extend(bytes.chunks(block as usize).flat_map(|b| block_checksum(b).to_le_bytes()));
            self.write_copies(index, bytes, done)?;
            done += bytes.len() as u64;
            let now = PutProgress {
                bytes_done: source.done,
                bytes_total: self.expected_size,
                stripes_done: index as u32 + u32::from(done == stripe_bytes),
            };
            if progress(now).is_break() {
                return Err(PutError::Cancelled);
            }
            if bytes.len() < wanted {
                break;
            }
        }
        if done == 0 {
            return Ok(ControlFlow::Break(()));
        }
        self.finish_stripe(index, done, table)?;
        self.manifest
            .stripes
            .push(StripeSums { stripe: hash.finish(), table: table_checksum(table) });
        Ok(if done < stripe_bytes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Chooses the stripe's owners and where it goes there.
    fn begin_stripe(&mut self, index: usize) -> Result<(), PutError> {
        if index >= STRIPES_MAX as usize {
            let stripes = index as u64 + 1;
            return Err(GeometryError::TooManyStripes { stripes }.into());
        }
        let n = u64::from(self.manifest.directories);
        for copy in 0..self.manifest.copies {
            let place = u64::from(self.first) + index as u64 + u64::from(copy);
            let directory = (place % n) as u16;
            let offset = self.staged_file(directory)?.end;
            self.manifest.extents.push(Extent { directory, offset, table_offset: 0 });
        }
        Ok(())
    }

    fn staged_file(&mut self, directory: u16) -> Result<&mut StagedFile, PutError> {
        let (store, nonce) = (self.store, self.manifest.nonce);
        let slot = &mut self.staged[usize::from(directory)];
        if slot.is_none() {
            let place = store.directory(directory).unwrap_or_else(|| store.first());
            let file = place.create(&staged_data(nonce))?;
            *slot = Some(StagedFile { file, end: DATA_HEADER_BYTES as u64 });
        }
        Ok(slot.as_mut().expect("made just above"))
    }

    /// Writes `bytes` at `offset` of the stripe's slot, in every owner's file.
    fn write_copies(&mut self, index: usize, bytes: &[u8], offset: u64) -> Result<(), PutError> {
        for extent in self.manifest.extents(index) {
            if let Some(staged) = &self.staged[usize::from(extent.directory)] {
                staged.file.write_all_at(bytes, extent.offset + offset)?;
                self.bytes_written += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// Writes the padding and the table behind a stripe of `len` bytes.
    fn finish_stripe(&mut self, index: usize, len: u64, table: &[u8]) -> Result<(), PutError> {
        let padded = len.next_multiple_of(EXTENT_ALIGN);
        let table_bytes = table.len() as u64;
        let table_padded = table_bytes.next_multiple_of(EXTENT_ALIGN);
        self.write_copies(index, &ZEROS[..(padded - len) as usize], len)?;
        self.write_copies(index, table, padded)?;
        let rest = (table_padded - table_bytes) as usize;
        self.write_copies(index, &ZEROS[..rest], padded + table_bytes)?;
        let copies = usize::from(self.manifest.copies);
        for extent in &mut self.manifest.extents[index * copies..] {
            extent.table_offset = extent.offset + padded;
            if let Some(staged) = &mut self.staged[usize::from(extent.directory)] {
                staged.end = extent.table_offset + table_padded;
            }
        }
        Ok(())
    }
}

/// What is put, counted, and held to the expected length.
struct Source<'a> {
    inner: &'a mut dyn Read,
    done: u64,
    expected: Option<u64>,
}

impl Source<'_> {
    /// Fills `buffer`; fewer bytes only at the end of the source.
    fn fill<'b>(&mut self, buffer: &'b mut [u8]) -> Result<&'b [u8], PutError> {
        let mut len = 0;
        while len < buffer.len() {
            match self.inner.read(&mut buffer[len..]) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(PutError::Source(e)),
            }
        }
        self.done += len as u64;
        match self.expected {
            Some(expected) if self.done > expected => Err(PutError::SourceGrew { expected }),
            _ => Ok(&buffer[..len]),
        }
    }
}
