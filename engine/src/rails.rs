//! Which rails an engine has: local directories, RDMA ports, and null rails for measuring. Those of
//! the machine's plan are in `discover.rs`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use railring_file::{FileRail, FileRailError, FileRailOptions};
use railring_sim::{NullConfig, NullRail, RailConfigError};
use railring_topology::assign::{AssignError, Policy};
use railring_topology::plan::PassedOver;
use railring_topology::railspec::RailTarget;
use railring_topology::{DiscoverError, Machine, RailSpec};
use railring_transport::RailControl;

use crate::link::AnyLink;

/// Why a rail could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RailError {
    /// A directory could not become a file rail.
    #[error("no rail on {}: {source}", directory.display())]
    File {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        source: FileRailError,
    },
    /// An RDMA port could not become a verbs rail.
    #[cfg(feature = "verbs")]
    #[error("no rail on {device}: {source}")]
    Verbs {
        /// The device.
        device: String,
        /// The cause.
        source: railring_verbs::VerbsRailError,
    },
    /// A rail given by hand is of a kind that this build or this version cannot make.
    #[error("rail {rail} cannot be made: {why}")]
    Unsupported {
        /// The rail as it was given.
        rail: String,
        /// Why, and what to do.
        why: &'static str,
    },
    /// A null rail makes no sense.
    #[error(transparent)]
    Null(#[from] RailConfigError),
    /// The machine could not be read.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The machine has no such plan.
    #[error(transparent)]
    Assign(#[from] AssignError),
}

/// Both halves of one rail.
pub(crate) struct AnyRail {
    pub(crate) control: Arc<dyn RailControl>,
    pub(crate) link: AnyLink,
    /// What it is to the machine's plan.
    pub(crate) spec: RailSpec,
}

/// The rails of an engine to be built, in the order in which CQEs number them.
#[derive(Default)]
pub struct RailSet {
    pub(crate) rails: Vec<AnyRail>,
    /// The machine they were found on; none for rails given by hand.
    pub(crate) machine: Option<Machine>,
    /// What the caller decided about their places.
    pub(crate) policy: Policy,
    pub(crate) unused: Vec<PassedOver>,
    pub(crate) passed_over: Vec<PassedOver>,
}

impl fmt::Debug for RailSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.rails.iter().map(|rail| rail.control.info().name);
        f.debug_list().entries(names).finish()
    }
}

impl RailSet {
    /// No rails yet.
    #[must_use]
    pub fn new() -> Self {
        RailSet::default()
    }

    /// One file rail per directory, with default options: a store's directories are one disk each.
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn directories<P: AsRef<Path>>(
        directories: impl IntoIterator<Item = P>,
    ) -> Result<Self, RailError> {
        let mut set = RailSet::new();
        for directory in directories {
            set = set.file(directory, FileRailOptions::default())?;
        }
        Ok(set)
    }

    /// Adds a file rail.
    ///
    /// # Errors
    /// The directory cannot be opened, or an option makes no sense.
    pub fn file(
        mut self,
        directory: impl AsRef<Path>,
        options: FileRailOptions,
    ) -> Result<Self, RailError> {
        let directory = directory.as_ref();
        let spec = RailSpec::new(RailTarget::File(directory.display().to_string()));
        self.push_file(directory, options, spec)?;
        Ok(self)
    }

    pub(crate) fn push_file(
        &mut self,
        directory: &Path,
        options: FileRailOptions,
        spec: RailSpec,
    ) -> Result<(), RailError> {
        let (control, link) = FileRail::open(directory, options)
            .map_err(|source| RailError::File { directory: directory.to_owned(), source })?;
        self.rails.push(AnyRail { control, link: AnyLink::File(Box::new(link)), spec });
        Ok(())
    }

    /// Adds a null rail.
    ///
    /// # Errors
    /// An option makes no sense.
    pub fn null(mut self, config: NullConfig) -> Result<Self, RailError> {
        let spec = RailSpec::new(RailTarget::Null(config.name.clone()));
        self.push_null(config, spec)?;
        Ok(self)
    }

    pub(crate) fn push_null(
        &mut self,
        config: NullConfig,
        spec: RailSpec,
    ) -> Result<(), RailError> {
        let (control, link) = NullRail::new(config)?;
        self.rails.push(AnyRail { control, link: AnyLink::Null(link), spec });
        Ok(())
    }

    /// Adds a verbs rail.
    ///
    /// # Errors
    /// The device, port or address cannot be used, or an option makes no sense.
    #[cfg(feature = "verbs")]
    pub fn verbs(mut self, options: railring_verbs::VerbsRailOptions) -> Result<Self, RailError> {
        let target = RailTarget::Rdma(options.device.clone());
        let spec = RailSpec { port: options.port, gid: options.gid, ..RailSpec::new(target) };
        self.push_verbs(options, spec)?;
        Ok(self)
    }

    #[cfg(feature = "verbs")]
    fn push_verbs(
        &mut self,
        options: railring_verbs::VerbsRailOptions,
        spec: RailSpec,
    ) -> Result<(), RailError> {
        let device = options.device.clone();
        let (control, link) = railring_verbs::VerbsRail::open(options)
            .map_err(|source| RailError::Verbs { device, source })?;
        self.rails.push(AnyRail { control, link: AnyLink::Verbs(Box::new(link)), spec });
        Ok(())
    }

    /// Adds a rail given by hand (`mlx5_0:1`, `file:/data`), as the command line and the
    /// configuration name them. A poller's `cpu`, a `node` and a `memory-node` are seen to when the
    /// engine is built, and so is `enabled=off`.
    ///
    /// # Errors
    /// The rail cannot be made, or not in this build.
    pub fn spec(mut self, spec: &RailSpec) -> Result<Self, RailError> {
        let unsupported = |why| RailError::Unsupported { rail: spec.to_string(), why };
        match &spec.target {
            RailTarget::Rdma(device) => self.rdma(device, spec)?,
            RailTarget::File(directory) => self.file_spec(directory, None, spec)?,
            RailTarget::TcpInterface(_) | RailTarget::TcpAddress(_) => {
                return Err(unsupported("this version has no TCP rails"));
            }
            RailTarget::Simulated(_) | RailTarget::Null(_) => {
                let why = "such rails are for measuring and tests, not for reading objects";
                return Err(unsupported(why));
            }
        }
        Ok(self)
    }

    pub(crate) fn file_spec(
        &mut self,
        directory: &str,
        node: Option<u32>,
        spec: &RailSpec,
    ) -> Result<(), RailError> {
        if !spec.endpoints.is_empty() {
            let why = "a directory's rail reaches what lies in it; leave the endpoints out";
            return Err(RailError::Unsupported { rail: spec.to_string(), why });
        }
        let known = FileRailOptions::default();
        let weight = spec.weight.unwrap_or(known.weight);
        let options = FileRailOptions { name: spec.name.clone(), weight, node, ..known };
        self.push_file(Path::new(directory), options, spec.clone())
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn rdma(&mut self, device: &str, spec: &RailSpec) -> Result<(), RailError> {
        self.push_verbs(verbs_options(device, spec)?, spec.clone())
    }

    #[cfg(not(feature = "verbs"))]
    pub(crate) fn rdma(&mut self, _device: &str, spec: &RailSpec) -> Result<(), RailError> {
        let why = "this build has no RDMA rails; build with the cargo feature verbs \
                   (needs libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config)";
        Err(RailError::Unsupported { rail: spec.to_string(), why })
    }

    /// How many rails there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rails.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rails.is_empty()
    }
}

/// What a specification says of a verbs rail; the rest is found out.
#[cfg(feature = "verbs")]
fn verbs_options(
    device: &str,
    spec: &RailSpec,
) -> Result<railring_verbs::VerbsRailOptions, RailError> {
    use railring_verbs::{Endpoint, PathMtu, VerbsRailOptions};
    let known = VerbsRailOptions::new(device);
    let mtu = match spec.mtu_bytes {
        None => None,
        Some(bytes) => Some(PathMtu::from_bytes(bytes).ok_or_else(|| RailError::Unsupported {
            rail: spec.to_string(),
            why: "a path MTU is 256, 512, 1024, 2048 or 4096 bytes",
        })?),
    };
    let endpoint = |given: &railring_topology::railspec::RailEndpoint| Endpoint {
        advertised: given.advertised.clone(),
        listener: given.listener.clone(),
    };
    Ok(VerbsRailOptions {
        port: spec.port,
        gid: spec.gid,
        mtu,
        hop_limit: spec.hops.unwrap_or(known.hop_limit),
        traffic_class: spec.traffic_class.unwrap_or(known.traffic_class),
        weight: spec.weight.unwrap_or(known.weight),
        name: spec.name.clone(),
        endpoints: spec.endpoints.iter().map(endpoint).collect(),
        ..known
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<RailSet, RailError> {
        RailSet::new().spec(&text.parse().expect("a specification"))
    }

    #[test]
    fn rails_given_by_hand_are_made_or_refused_with_a_reason() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text = format!("file:{},name=disk,weight=3", folder.path().display());
        let made = spec(&text).expect("a directory");
        let info = made.rails[0].control.info();
        assert_eq!((made.len(), &*info.name, info.weight), (1, "disk", 3));
        for (text, expected) in [
            ("tcp:eth0", "no TCP rails"),
            ("null:x", "for measuring"),
            (
                "no-such-device:1",
                if cfg!(feature = "verbs") { "RDMA device" } else { "feature verbs" },
            ),
        ] {
            let refused = spec(text).expect_err("it cannot be made").to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn every_field_of_a_specification_reaches_the_rail() {
        let text = "rdma:mlx5_0,port=2,gid=3,weight=4,mtu=2048,hops=5,class=6,name=a@x:1->y:2";
        let spec: RailSpec = text.parse().expect("a specification");
        let options = verbs_options("mlx5_0", &spec).expect("all fits");
        assert_eq!((options.port, options.gid, options.weight), (Some(2), Some(3), 4));
        assert_eq!(options.mtu.map(|mtu| mtu.bytes()), Some(2048));
        assert_eq!((options.hop_limit, options.traffic_class), (5, 6));
        assert_eq!(options.name.as_deref(), Some("a"));
        assert_eq!(options.endpoints[0].advertised, "x:1");
        assert_eq!(options.endpoints[0].listener.as_deref(), Some("y:2"));
    }
}
