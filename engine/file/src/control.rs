//! The control half of a file rail: opening files and registering memory, from any thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use railring_dma::{Region, RegionId};
use railring_transport::{
    Alignment, ConnectError, ConnectionCounts, ControlStats, Notes, RailControl, RailInfo,
    RailKind, RegisterError, Registration, SourceRef, TargetId,
};
use railring_uring::{BufferSlot, TableError, Tables, errno_name};
use rustix::fs::{FileType, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::directory::{self, Directory, MemoryFileSystem};
use crate::inject::Injector;
use crate::memory::{BUFFER_BYTES, BUFFERS_PER_REGION_MAX, Memory};
use crate::options::DirectIo;
use crate::targets::{OpenFile, TARGETS_MAX, Targets};

/// How often, and how long apart, a file that a remover holds locked is tried again: it either goes
/// away or is let go within moments.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(4);

/// What both halves of a rail know.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) targets: Targets,
    pub(crate) memory: Memory,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Shared { targets: Targets::new(), memory: Memory::new() }
    }
}

/// How a rail was set up.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) weight: u32,
    pub(crate) node: Option<u32>,
    pub(crate) directory: Directory,
    /// Whether files are opened with O_DIRECT, and for what alignment reads are then made.
    pub(crate) direct: Option<Alignment>,
    pub(crate) wish: DirectIo,
    pub(crate) injector: Option<Arc<dyn Injector>>,
}

/// The control half of a file rail. Any thread may call it, and any call may block on the disk.
#[derive(Debug)]
pub struct FileControl {
    setup: Setup,
    shared: Arc<Shared>,
    /// The ring's tables; none with blocking workers.
    tables: Option<Tables>,
    notes: Notes,
    registered: Mutex<Registered>,
    /// Files opened and closed.
    files: ConnectionCounts,
}

#[derive(Debug, Default)]
struct Registered {
    buffers: HashMap<RegionId, Vec<BufferSlot>>,
    bytes_of: HashMap<RegionId, u64>,
    summary: Registration,
}

impl FileControl {
    pub(crate) fn new(setup: Setup, shared: Arc<Shared>, tables: Option<Tables>) -> Self {
        FileControl {
            setup,
            shared,
            tables,
            notes: Notes::default(),
            registered: Mutex::new(Registered::default()),
            files: ConnectionCounts::default(),
        }
    }

    pub(crate) fn say(&self, line: String) {
        self.notes.say(&self.setup.name, line);
    }

    /// How much memory is registered with the ring, and why some is not.
    #[must_use]
    pub fn registration(&self) -> Registration {
        self.registered().summary.clone()
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        // A panicking holder can have left a region out of the summary, nothing worse.
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bad_handle(&self, source: SourceRef<'_>, why: &'static str) -> ConnectError {
        ConnectError::BadHandle {
            rail: self.setup.name.clone(),
            handle: source.handle.to_owned(),
            why,
        }
    }

    fn open_failed(&self, source: SourceRef<'_>, errno: Errno) -> ConnectError {
        let (rail, handle) = (self.setup.name.clone(), source.handle.to_owned());
        match errno {
            Errno::NOENT => ConnectError::Stale { rail, handle },
            Errno::LOOP | Errno::XDEV => {
                self.bad_handle(source, "it leads through a symbolic link or out of the directory")
            }
            _ => ConnectError::Io { rail, handle, source: io::Error::from(errno) },
        }
    }

    /// Opens the file, with O_DIRECT if the rail reads so and the file can.
    fn open(&self, handle: &Path) -> Result<OwnedFd, Errno> {
        let plain = || self.setup.directory.open_file(handle, OFlags::empty());
        let Some(granted) = self.setup.direct else { return plain() };
        let injected = self.setup.injector.as_deref().and_then(Injector::open_direct);
        let opened = match injected {
            Some(errno) => Err(Errno::from_raw_os_error(errno)),
            None => self.setup.directory.open_file(handle, OFlags::DIRECT),
        };
        let why = match opened {
            Ok(file) => match directory::direct_alignment(&file) {
                Some(needed) if needed.strictest(granted) == granted => return Ok(file),
                Some(_) => "they need a larger alignment than the rail's".to_owned(),
                None => "the file system says so".to_owned(),
            },
            Err(Errno::INVAL) => "EINVAL".to_owned(),
            Err(errno) => return Err(errno),
        };
        if self.setup.wish == DirectIo::Require {
            return Err(Errno::INVAL);
        }
        self.say(format!("some files are read through the page cache, without O_DIRECT ({why})"));
        plain()
    }

    /// Refuses what is not a regular file, sets the descriptor's flags for reading, and pins the
    /// file.
    fn prepare(&self, source: SourceRef<'_>, file: &OwnedFd) -> Result<(), ConnectError> {
        let failed = |errno| self.open_failed(source, errno);
        let kind = FileType::from_raw_mode(rustix::fs::fstat(file).map_err(failed)?.st_mode);
        let special = self.setup.injector.as_deref().is_some_and(Injector::special_files);
        if kind != FileType::RegularFile && !special {
            return Err(self.bad_handle(source, "it is not a regular file"));
        }
        // On tmpfs O_NONBLOCK makes the ring read at once, in the system call that hands the read
        // over: tmpfs does not tell the kernel that its reads need not wait, so they would go
        // through the kernel's worker threads, at several times the cost. Elsewhere some kernels
        // turn reads of a busy disk into EAGAIN for it.
        if self.setup.directory.memory() != Some(MemoryFileSystem::Tmpfs) || special {
            let flags = rustix::fs::fcntl_getfl(file).map_err(failed)?;
            rustix::fs::fcntl_setfl(file, flags - OFlags::NONBLOCK).map_err(failed)?;
        }
        self.pin(source, file)
    }

    /// Takes the shared lock that keeps a store from removing the file while it is open here.
    fn pin(&self, source: SourceRef<'_>, file: &OwnedFd) -> Result<(), ConnectError> {
        let mut attempts_left = LOCK_ATTEMPTS;
        loop {
            match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if attempts_left > 0 => {
                    attempts_left -= 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                // File systems without locks have no remover that uses them either.
                Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => break,
                Err(errno) => return Err(self.open_failed(source, errno)),
            }
        }
        let stat = rustix::fs::fstat(file).map_err(|errno| self.open_failed(source, errno))?;
        if stat.st_nlink == 0 {
            return Err(self.open_failed(source, Errno::NOENT));
        }
        Ok(())
    }

    fn register_file(&self, file: &OwnedFd) -> Option<railring_uring::FileSlot> {
        let tables = self.tables.as_ref()?;
        match tables.register_file(file.as_fd()) {
            Ok(slot) => Some(slot),
            Err(TableError::Full { slots }) => {
                if slots > 0 {
                    self.say(format!(
                        "more than {slots} files are open; the rest are not registered"
                    ));
                }
                None
            }
            Err(error) => {
                self.say(format!("files are not registered: {error}"));
                None
            }
        }
    }

    /// Registers all of the region's memory, or none.
    fn register_buffers(
        &self,
        tables: &Tables,
        region: &Region,
    ) -> Result<Vec<BufferSlot>, TableError> {
        let total = region.mapped_bytes();
        let mut slots = Vec::new();
        let mut from = 0;
        while from < total {
            let bytes = BUFFER_BYTES.min(total - from);
            let registered = region
                .base()
                .addr()
                .checked_add(from)
                .map(|address| region.base().with_addr(address))
                .ok_or(TableError::TooLong { bytes: total, limit_bytes: usize::MAX })
                .and_then(|base: NonNull<u8>| tables.register_buffer(base, bytes));
            match registered {
                Ok(slot) => slots.push(slot),
                Err(error) => {
                    slots.iter().for_each(|slot| tables.unregister_buffer(*slot));
                    return Err(error);
                }
            }
            from += bytes;
        }
        Ok(slots)
    }

    fn unregistered(&self, why: String) {
        self.say(format!("memory is used unregistered: {why}"));
        self.registered().summary.unregistered_because.get_or_insert(why);
    }
}

/// Why memory is used unregistered, in words.
fn why_unregistered(error: &TableError) -> String {
    match error {
        TableError::Io(error) if error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            match limit {
                Some(bytes) => format!("RLIMIT_MEMLOCK is {bytes} B; raise it (ulimit -l)"),
                None => "the kernel has no memory for it (ENOMEM)".to_owned(),
            }
        }
        TableError::Io(error) => {
            format!("registering it gives {}", errno_name(error.raw_os_error().unwrap_or(0)))
        }
        TableError::Full { slots: 0 } => "the ring has no registered buffers".to_owned(),
        other => other.to_string(),
    }
}

impl RailControl for FileControl {
    fn info(&self) -> RailInfo {
        RailInfo {
            kind: RailKind::File,
            name: self.setup.name.clone(),
            weight: self.setup.weight,
            node: self.setup.node,
            device: None,
            listeners: Vec::new(),
            notes: self.notes.all(),
        }
    }

    fn stats(&self) -> ControlStats {
        self.files.with(self.registered().summary.bytes)
    }

    fn reaches(&self, endpoint: &str) -> bool {
        !endpoint.is_empty() && self.setup.directory.is(Path::new(endpoint))
    }

    /// Registers with the ring; what cannot be is used unregistered, so this does not fail.
    fn register(&self, region: &Region) -> Result<(), RegisterError> {
        let Some(tables) = &self.tables else { return Ok(()) };
        let id = region.id();
        if self.registered().buffers.contains_key(&id) {
            return Ok(());
        }
        let room = BUFFERS_PER_REGION_MAX.saturating_mul(BUFFER_BYTES);
        if !self.shared.memory.has_room_for(id) || region.mapped_bytes() > room {
            self.unregistered(
                "it is more regions, or a longer one, than the rail keeps".to_owned(),
            );
            return Ok(());
        }
        match self.register_buffers(tables, region) {
            Ok(slots) => {
                let mut registered = self.registered();
                if registered.buffers.contains_key(&id) {
                    // Another thread was faster.
                    slots.iter().for_each(|slot| tables.unregister_buffer(*slot));
                    return Ok(());
                }
                self.shared.memory.publish(region, &slots);
                registered.buffers.insert(id, slots);
                registered.bytes_of.insert(id, region.mapped_bytes() as u64);
                registered.summary.bytes += region.mapped_bytes() as u64;
            }
            Err(error) => self.unregistered(why_unregistered(&error)),
        }
        Ok(())
    }

    /// Nothing: reads into memory that is not registered are only a little slower than pinning it
    /// would be once.
    fn register_briefly(&self, _region: &Region) -> Result<(), RegisterError> {
        Ok(())
    }

    fn unregister(&self, region: RegionId) {
        let Some(tables) = &self.tables else { return };
        let slots = {
            let mut registered = self.registered();
            let bytes = registered.bytes_of.remove(&region).unwrap_or(0);
            registered.summary.bytes -= bytes;
            registered.buffers.remove(&region)
        };
        let Some(slots) = slots else { return };
        self.shared.memory.withdraw(region);
        slots.iter().for_each(|slot| tables.unregister_buffer(*slot));
    }

    fn connect(&self, source: SourceRef<'_>) -> Result<TargetId, ConnectError> {
        if !self.reaches(source.endpoint) {
            return Err(ConnectError::Unreachable {
                rail: self.setup.name.clone(),
                endpoint: source.endpoint.to_owned(),
            });
        }
        let handle =
            directory::checked_handle(source.handle).map_err(|why| self.bad_handle(source, why))?;
        let file = self.open(handle).map_err(|errno| self.open_failed(source, errno))?;
        self.prepare(source, &file)?;
        let registered = self.register_file(&file);
        let file = OpenFile { descriptor: Arc::new(file), registered };
        self.files.made();
        self.shared.targets.insert(file).map_err(|file| {
            self.close(file);
            ConnectError::TooManyTargets { rail: self.setup.name.clone(), limit: TARGETS_MAX }
        })
    }

    fn disconnect(&self, target: TargetId) {
        if let Some(file) = self.shared.targets.remove(target) {
            self.close(file);
        }
    }
}

impl FileControl {
    fn close(&self, file: OpenFile) {
        self.files.retired();
        // Explicitly, because the ring lets go of a registered file later than it is told to.
        let _ = rustix::fs::flock(&file.descriptor, FlockOperation::Unlock);
        if let (Some(tables), Some(slot)) = (&self.tables, file.registered) {
            tables.unregister_file(slot);
        }
    }
}
