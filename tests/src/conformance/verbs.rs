//! Verbs rails that pull from memory peers, each over a device of the guest.

use std::sync::Arc;

use railring_transport::RailControl;
use railring_verbs::{Endpoint, VerbsLink, VerbsRail, VerbsRailOptions};

use super::{ENDPOINTS, Time, Transport};
use crate::guest;
use crate::memory_peer::{MemoryPeer, PeerConfig};

/// Verbs rails and their peers, in this process.
pub struct Verbs {
    peers: Vec<MemoryPeer>,
    rails: usize,
    devices: usize,
}

impl std::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verbs").field("rails", &self.rails).finish_non_exhaustive()
    }
}

impl Verbs {
    fn device(&self, index: usize) -> String {
        format!("rxe{}", index % self.devices)
    }
}

impl Transport for Verbs {
    type Link = VerbsLink;
    const TIME: Time = Time::Real;

    fn new() -> Result<Self, String> {
        let devices =
            guest::devices().ok_or("not on a machine with software RDMA set up for it")?;
        let devices = usize::try_from(devices).expect("few");
        let mut verbs = Verbs { peers: Vec::new(), rails: 0, devices };
        for endpoint in 0..ENDPOINTS {
            let peer = MemoryPeer::start(PeerConfig::on(&verbs.device(endpoint)));
            verbs.peers.push(peer.map_err(|error| error.to_string())?);
        }
        Ok(verbs)
    }

    fn endpoint(&self, index: usize) -> String {
        self.peers[index].endpoint()
    }

    fn put(&mut self, endpoint: usize, name: &str, bytes: &[u8]) -> String {
        self.peers[endpoint].put(name, 1, bytes).expect("it is registered");
        name.to_owned()
    }

    fn rail(&mut self, endpoint: usize, depth: u32) -> (Arc<dyn RailControl>, VerbsLink) {
        self.rails += 1;
        let advertised = self.endpoint(endpoint);
        let options = VerbsRailOptions {
            queue_depth: depth,
            endpoints: vec![Endpoint { advertised, listener: None }],
            name: Some(format!("verbs{}", self.rails)),
            ..VerbsRailOptions::new(self.device(endpoint))
        };
        let (control, link) = VerbsRail::open(options).expect("the rail opens");
        (control, link)
    }
}
