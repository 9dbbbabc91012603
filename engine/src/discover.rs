//! The rails of a machine's plan, as far as this build can use them.

use railring_sim::NullConfig;
use railring_topology::assign::{Policy, Rails};
use railring_topology::plan::{PassedOver, RailPath, RailPlacement};
use railring_topology::railspec::{RailSpec, RailTarget};
use railring_topology::{Discovery, Machine, assign};

use crate::rails::{RailError, RailSet};

impl RailSet {
    /// The rails of this machine: its RDMA ports, as far as this build can use them (with the
    /// feature `verbs`). Takes tens of milliseconds. What is there and cannot be used is in
    /// [`unused`](Self::unused).
    ///
    /// # Errors
    /// A rail cannot be opened.
    pub fn discover() -> Result<Self, RailError> {
        Self::discover_with(&Discovery::live(), &Policy::default())
    }

    /// The rails that a policy chooses on a machine: also one file rail per directory that the
    /// discovery was told of, with the node of the disk it lies on. The engine puts their pollers
    /// and memory where the machine's plan says.
    ///
    /// ```
    /// use railring::topology::assign::Rails;
    /// use railring::topology::{Discovery, Policy};
    /// use railring::{Engine, RailSet};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let home = tempfile::tempdir()?;
    /// let machine = Discovery::live().directory(home.path());
    /// let files = Policy { rails: Rails::File, ..Policy::default() };
    /// let rails = RailSet::discover_with(&machine, &files)?;
    /// let engine = Engine::builder().rails(rails).build()?;
    /// for seat in engine.seats() {
    ///     println!("poller {}: asked for {:?}, runs on {:?}", seat.poller, seat.asked, seat.got);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The machine cannot be read, or has not what the policy names, or a rail cannot be opened.
    pub fn discover_with(discovery: &Discovery, policy: &Policy) -> Result<Self, RailError> {
        Self::planned(discovery.read()?, policy)
    }

    /// As [`discover_with`](Self::discover_with), on a machine that was read before.
    ///
    /// # Errors
    /// The machine has not what the policy names, or a rail cannot be opened.
    pub fn planned(machine: Machine, policy: &Policy) -> Result<Self, RailError> {
        let all = Policy { rails_max: None, pins: Vec::new(), ..policy.clone() };
        let found = assign(&machine, &all)?;
        let (mut unused, mut passed_over) = (Vec::new(), found.passed_over);
        let mut usable = Vec::new();
        for (index, rail) in found.rails.iter().enumerate() {
            let given = match &policy.rails {
                Rails::Given(specs) => specs.get(index),
                _ => None,
            };
            match (usable_here(rail), given) {
                (Ok(spec), given) => usable.push(RailSpec {
                    name: Some(rail.name.clone()),
                    ..given.cloned().unwrap_or(spec)
                }),
                (Err(why), Some(spec)) => {
                    return Err(RailError::Unsupported { rail: spec.to_string(), why });
                }
                (Err(why), None) => {
                    unused.push(PassedOver { name: rail.name.clone(), why: why.to_owned() });
                }
            }
        }
        // Those that are not used must not take cores, or count among so many at most.
        let policy = Policy { rails: Rails::Given(usable.clone()), ..policy.clone() };
        let plan = assign(&machine, &policy)?;
        passed_over.extend(plan.passed_over);
        let machine = Some(machine);
        let mut set = RailSet { machine, policy, unused, passed_over, ..RailSet::default() };
        for rail in &plan.rails {
            let spec = usable.iter().find(|spec| spec.name.as_ref() == Some(&rail.name));
            set.open(rail, spec.expect("the plan is one of these rails"))?;
        }
        Ok(set)
    }

    /// Opens a rail of a plan.
    fn open(&mut self, rail: &RailPlacement, spec: &RailSpec) -> Result<(), RailError> {
        let node = rail.node.map(|node| u32::from(node.0));
        match &spec.target {
            RailTarget::File(directory) => self.file_spec(directory, node, spec),
            RailTarget::Rdma(device) => self.rdma(device, &with_port(rail, spec)),
            _ => {
                let weight = spec.weight.unwrap_or(1);
                let config = NullConfig { weight, ..NullConfig::new(rail.name.clone()) };
                self.push_null(config, spec.clone())
            }
        }
    }

    /// Rails of the machine's plan that this build cannot use, with why.
    #[must_use]
    pub fn unused(&self) -> &[PassedOver] {
        &self.unused
    }

    /// Devices of the machine that are no rails of its plan, with why.
    #[must_use]
    pub fn passed_over(&self) -> &[PassedOver] {
        &self.passed_over
    }

    /// The names of the rails, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.rails.iter().map(|rail| rail.control.info().name).collect()
    }

    /// The names of those that are not to be used from the start.
    pub(crate) fn disabled(&self) -> Vec<String> {
        let off = self.rails.iter().filter(|rail| rail.spec.enabled == Some(false));
        off.map(|rail| rail.control.info().name).collect()
    }
}

/// The port and the GID that the plan chose, where none was named.
fn with_port(rail: &RailPlacement, spec: &RailSpec) -> RailSpec {
    let RailPath::Rdma { port, gid, .. } = &rail.path else { return spec.clone() };
    let chosen = gid.as_ref().map(|gid| gid.index);
    RailSpec { port: Some(*port), gid: spec.gid.or(chosen), ..spec.clone() }
}

/// What this build opens for a rail of a plan, or why it opens nothing.
fn usable_here(rail: &RailPlacement) -> Result<RailSpec, &'static str> {
    match &rail.path {
        RailPath::File { directory, .. } => Ok(RailSpec::new(RailTarget::File(directory.clone()))),
        RailPath::Other { spec } => match spec.strip_prefix("null:") {
            Some(name) => Ok(RailSpec::new(RailTarget::Null(name.to_owned()))),
            None => Err("rails of this kind are for tests and are not built in"),
        },
        RailPath::Rdma { device, port, .. } if cfg!(feature = "verbs") => {
            let target = RailTarget::Rdma(device.clone());
            Ok(RailSpec { port: Some(*port), ..RailSpec::new(target) })
        }
        RailPath::Rdma { .. } => Err("this build has no RDMA rails (the cargo feature verbs)"),
        RailPath::Tcp { .. } => Err("this version has no TCP rails"),
        _ => Err("this version has no rails of this kind"),
    }
}
