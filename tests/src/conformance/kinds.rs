//! The transports that are tested, each with its peers.

use std::path::PathBuf;
use std::sync::Arc;

use railring_file::{Backend, FileLink, FileRail, FileRailOptions};
use railring_sim::{
    Misuse, NullConfig, NullLink, NullRail, SimLink, SimRailConfig, SimWorld, SourceContent,
};
use railring_transport::{Alignment, RailControl};
use tempfile::TempDir;

use super::{ENDPOINTS, Time, Transport};

/// Simulated rails that want everything aligned to 512 bytes.
#[derive(Debug)]
pub struct Simulated {
    world: SimWorld,
    rails: usize,
}

impl Transport for Simulated {
    type Link = SimLink;
    const TIME: Time = Time::Virtual;

    fn new() -> Result<Self, String> {
        Ok(Simulated { world: SimWorld::new(20), rails: 0 })
    }

    fn endpoint(&self, index: usize) -> String {
        format!("server{index}")
    }

    fn put(&mut self, endpoint: usize, name: &str, bytes: &[u8]) -> String {
        self.world.put(&self.endpoint(endpoint), name, SourceContent::new(1, bytes));
        name.to_owned()
    }

    fn rail(&mut self, endpoint: usize, depth: u32) -> (Arc<dyn RailControl>, SimLink) {
        self.rails += 1;
        let bytes = 512;
        let config = SimRailConfig {
            window_wrs: depth,
            endpoints: Some(vec![self.endpoint(endpoint)]),
            request_bytes_max: 1 << 20,
            alignment: Alignment { offset_bytes: bytes, length_bytes: bytes, memory_bytes: bytes },
            misuse: Misuse::Refuse,
            ..SimRailConfig::new(format!("sim{}", self.rails))
        };
        let (control, link) = self.world.add_rail(config).expect("it makes sense");
        (control, link)
    }
}

/// Null rails, which move nothing and check nothing.
#[derive(Debug)]
pub struct Null(());

impl Transport for Null {
    type Link = NullLink;
    const TIME: Time = Time::Virtual;

    fn new() -> Result<Self, String> {
        Ok(Null(()))
    }

    fn endpoint(&self, index: usize) -> String {
        format!("null{index}")
    }

    fn put(&mut self, _: usize, name: &str, _: &[u8]) -> String {
        name.to_owned()
    }

    fn rail(&mut self, endpoint: usize, depth: u32) -> (Arc<dyn RailControl>, NullLink) {
        let name = self.endpoint(endpoint);
        let config = NullConfig { outstanding_wrs_max: depth, ..NullConfig::new(name) };
        let (control, link) = NullRail::new(config).expect("it makes sense");
        (control, link)
    }
}

/// File rails, by one backend.
#[derive(Debug)]
struct Files {
    home: TempDir,
    backend: Backend,
}

impl Files {
    fn new(backend: Backend) -> Result<Self, String> {
        // Beside this program: a disk, which /tmp may not be.
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let base = program.parent().ok_or("this program lies nowhere")?;
        let home = tempfile::Builder::new().prefix("railring-").tempdir_in(base);
        let home = home.map_err(|error| format!("{}: {error}", base.display()))?;
        let files = Files { home, backend };
        for endpoint in 0..ENDPOINTS {
            let made = std::fs::create_dir(files.directory(endpoint));
            made.map_err(|error| error.to_string())?;
        }
        Ok(files)
    }

    fn directory(&self, endpoint: usize) -> PathBuf {
        self.home.path().join(format!("disk{endpoint}"))
    }

    fn endpoint(&self, index: usize) -> String {
        self.directory(index).to_str().expect("a plain name").to_owned()
    }

    fn put(&mut self, endpoint: usize, name: &str, bytes: &[u8]) -> String {
        let path = self.directory(endpoint).join(name);
        std::fs::write(path, bytes).expect("there is room");
        name.to_owned()
    }

    fn rail(&mut self, endpoint: usize, depth: u32) -> (Arc<dyn RailControl>, FileLink) {
        let options = FileRailOptions {
            queue_depth: depth,
            backend: self.backend,
            ..FileRailOptions::default()
        };
        let rail = FileRail::open(&self.directory(endpoint), options);
        let (control, link) = rail.expect("the rail opens");
        (control, link)
    }
}

macro_rules! file_transport {
    ($(#[$doc:meta])+ $name:ident, $backend:expr) => {
        $(#[$doc])+
        #[derive(Debug)]
        pub struct $name(Files);

        impl Transport for $name {
            type Link = FileLink;
            const TIME: Time = Time::Real;

            fn new() -> Result<Self, String> {
                Files::new($backend).map($name)
            }

            fn endpoint(&self, index: usize) -> String {
                self.0.endpoint(index)
            }

            fn put(&mut self, endpoint: usize, name: &str, bytes: &[u8]) -> String {
                self.0.put(endpoint, name, bytes)
            }

            fn rail(&mut self, endpoint: usize, depth: u32) -> (Arc<dyn RailControl>, FileLink) {
                self.0.rail(endpoint, depth)
            }
        }
    };
}

file_transport!(
    /// File rails over io_uring, or over workers where that is refused.
    RingFile,
    Backend::Auto
);
file_transport!(
    /// File rails over blocking workers.
    FileWorkers,
    Backend::Workers
);
