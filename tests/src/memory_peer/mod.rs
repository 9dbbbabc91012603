//! A passive peer: it holds objects in registered memory that others may read, says over TCP where
//! they are, and otherwise does nothing, unless a test tells it to misbehave.

mod command;
mod connection;
mod faults;
mod process;
mod storage;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use railring::topology::{DiscoverError, Discovery};
use railring_verbs::ffi::{
    CqError, Device, DeviceError, MrError, Pd, PdError, PortQueryError, QpError,
};
use railring_verbs::{LocalPort, PortError};

pub use command::{Command, CommandError};
pub use faults::{Lie, Over, Stage, Write};
pub use process::PeerProcess;

use connection::Connection;
use faults::Faults;
use storage::Storage;

/// Where a peer serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its RDMA device.
    pub device: String,
    /// The device's port; without one its first active.
    pub port: Option<u32>,
    /// The entry of the port's GID table; without one the routable RoCE v2 one is chosen.
    pub gid_index: Option<u16>,
    /// The TCP port that it listens on, on loopback and the device's networks; 0 for any.
    pub listen: u16,
}

impl PeerConfig {
    /// On the first active port of a device, listening anywhere.
    #[must_use]
    pub fn on(device: &str) -> PeerConfig {
        PeerConfig { device: device.to_owned(), port: None, gid_index: None, listen: 0 }
    }
}

/// Why a peer does not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its port.
    #[error(transparent)]
    Port(#[from] PortQueryError),
    /// The machine's description.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The port to use, and its GID.
    #[error(transparent)]
    Local(#[from] PortError),
    /// Its protection domain.
    #[error(transparent)]
    Pd(#[from] PdError),
    /// A completion queue.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// A queue pair.
    #[error(transparent)]
    Qp(#[from] QpError),
    /// A registration.
    #[error(transparent)]
    Mr(#[from] MrError),
    /// Memory to register.
    #[error("no memory of {bytes} B: {why}")]
    Memory {
        /// How much.
        bytes: usize,
        /// The cause.
        why: String,
    },
    /// There is no such object, or no such connection.
    #[error("there is no {0}")]
    Nothing(String),
    /// A socket or a file.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What all threads of a peer share.
struct Shared {
    local: LocalPort,
    device: Device,
    pd: Pd,
    storage: Mutex<Storage>,
    faults: Mutex<Faults>,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// How many hellos were answered.
    greeted: AtomicU64,
    is_ending: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A peer that serves from this process. Dropping it is its death: its queue pairs and memory are
/// gone at once.
pub struct MemoryPeer {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for MemoryPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryPeer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl MemoryPeer {
    /// Opens the device and listens.
    ///
    /// # Errors
    /// One variant per cause.
    pub fn start(config: PeerConfig) -> Result<MemoryPeer, PeerError> {
        let PeerConfig { device, port, gid_index, listen } = config;
        let local = LocalPort::find(&Discovery::live().read()?, &device, port, gid_index)?;
        let device = Device::open(&device)?;
        let pd = Pd::new(&device)?;
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, listen))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            local,
            device,
            pd,
            storage: Mutex::default(),
            faults: Mutex::default(),
            connections: Mutex::default(),
            greeted: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("peer".to_owned())
            .spawn(move || accept(&listener, &theirs))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(MemoryPeer { shared, address, acceptor: Some(acceptor) })
    }

    /// Where it listens, as placements name it: `host:port`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Keeps `bytes` in registered memory, to be opened as `handle` of this generation.
    ///
    /// # Errors
    /// There is no memory, or it cannot be registered.
    pub fn put(&self, handle: &str, generation: u64, bytes: &[u8]) -> Result<(), PeerError> {
        lock(&self.shared.storage).put(&self.shared.pd, handle, Some(generation), bytes)
    }

    /// From now on handles that are not known are files below `directory`, of any generation.
    pub fn serve(&self, directory: &Path) {
        lock(&self.shared.storage).serve(directory);
    }

    /// From now on the peer takes so much longer for a stage.
    pub fn delay(&self, stage: Stage, by: std::time::Duration) {
        lock(&self.shared.faults).delay(stage, by);
    }

    /// From now on what it says about its memory is wrong.
    pub fn lie(&self, lie: Lie) {
        lock(&self.shared.faults).lie = lie;
    }

    /// From now on queue pairs live on after their TCP connections, for late writes.
    pub fn keep_queue_pairs(&self) {
        lock(&self.shared.faults).keeps_queue_pairs = true;
    }

    /// Makes every queue pair fail. The TCP connections stay.
    ///
    /// # Errors
    /// The device refuses.
    pub fn shut(&self) -> Result<(), PeerError> {
        for connection in lock(&self.shared.connections).iter() {
            connection.breaker.fail()?;
        }
        Ok(())
    }

    /// Takes an object's registration away. The peer goes on handing out its key, which is a lie.
    ///
    /// # Errors
    /// There is no such object.
    pub fn revoke(&self, handle: &str) -> Result<(), PeerError> {
        lock(&self.shared.storage).revoke(handle)
    }

    /// Writes `bytes` times `fill` to `address` of a reader, and returns the code of the work
    /// completion: 0 if it arrived.
    ///
    /// # Errors
    /// Nobody is connected, the queue pair is not ready yet, or the device refuses the request.
    pub fn write(&self, over: Over, write: Write) -> Result<u32, PeerError> {
        let connections = lock(&self.shared.connections);
        let chosen = match over {
            Over::Oldest => connections.first(),
            Over::Newest => connections.last(),
        };
        let chosen = chosen.cloned();
        drop(connections);
        let nobody = || PeerError::Nothing("connection to write over".to_owned());
        chosen.ok_or_else(nobody)?.write(&self.shared.pd, write)
    }

    /// How many queue pairs live.
    #[must_use]
    pub fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// How many hellos were answered with a queue pair.
    #[must_use]
    pub fn greeted(&self) -> u64 {
        self.shared.greeted.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryPeer {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Shared::is_ending`.
        self.shared.is_ending.store(true, Ordering::Release);
        for connection in lock(&self.shared.connections).drain(..) {
            connection.end();
        }
        lock(&self.shared.storage).clear();
        // The acceptor sleeps in accept(2): a connection wakes it.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            // One that panicked has said so itself.
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn is_ending(&self) -> bool {
        // Acquire: pairs with the Release in `MemoryPeer::drop`.
        self.is_ending.load(Ordering::Acquire)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut talks = Vec::new();
    for stream in listener.incoming() {
        if shared.is_ending() {
            break;
        }
        let Ok(stream) = stream else { continue };
        let theirs = Arc::clone(shared);
        let talk = std::thread::Builder::new().name("peer talk".to_owned()).spawn(move || {
            if let Err(error) = connection::serve(&theirs, stream) {
                // Readers that misbehave or go away are what tests are about.
                eprintln!("memory peer: {error}");
            }
        });
        talks.extend(talk);
        talks.retain(|talk| !talk.is_finished());
    }
    for talk in talks {
        let _ = talk.join();
    }
}
