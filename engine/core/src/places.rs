//! Where rails' memory goes: the node that a plan names, and what is done when the kernel refuses.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use railring_dma::{HugePages, Placement, Populate, Region, RegionConfig, RegionError, Regions};

/// Where a rail is on the machine, and where its memory goes. All `None`: nothing is known, and
/// memory lies where it is first touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailPlace {
    /// The memory node it is nearest to.
    pub node: Option<u32>,
    /// The node of its buffers; by default its own.
    pub memory_node: Option<u32>,
    /// The device it goes through.
    pub device: Option<String>,
    /// The PCI function of that.
    pub pci: Option<String>,
}

/// Runs what it is given on a thread that runs on a memory node's CPUs, or does not run it. Used
/// where the kernel refuses to place memory: pages then lie where they are first touched.
pub type NodeHook = Arc<dyn Fn(u32, &mut (dyn FnMut() + Send)) + Send + Sync>;

/// On which memory node a pool lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolNode {
    /// Where the plan puts the rails' buffers, if it is one node for all of them; else as
    /// `FirstTouch`, for then the thread that uses the memory knows better.
    #[default]
    Planned,
    /// On the node of the thread that touches a page first.
    FirstTouch,
    /// On this node.
    Node(u32),
}

/// Memory for reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many leases it holds.
    pub slots: usize,
    /// Bytes of each.
    pub slot_bytes: usize,
    /// Alignment of each, a power of two. Default 4,096, which direct I/O wants.
    pub alignment: usize,
    /// Huge pages or not. Default: where there are any.
    pub huge_pages: HugePages,
    /// The memory node to place it on. Default: the plan's. A kernel that refuses (EPERM in many
    /// containers) is survived, and shown in `EngineStats::regions_misplaced`.
    pub node: PoolNode,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            slots: 64,
            slot_bytes: 1 << 20,
            alignment: 4096,
            huge_pages: HugePages::Try,
            node: PoolNode::Planned,
        }
    }
}

/// The places of an engine's rails.
#[derive(Default)]
pub(crate) struct Places {
    of_rails: Box<[RailPlace]>,
    on_node: Option<NodeHook>,
    /// Regions whose node the kernel refused.
    misplaced: AtomicU64,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").field("of_rails", &self.of_rails).finish_non_exhaustive()
    }
}

impl Places {
    pub(crate) fn new(of_rails: Vec<RailPlace>, on_node: Option<NodeHook>) -> Self {
        Places { of_rails: of_rails.into(), on_node, misplaced: AtomicU64::new(0) }
    }

    pub(crate) fn of_rail(&self, rail: usize) -> RailPlace {
        self.of_rails.get(rail).cloned().unwrap_or_default()
    }

    pub(crate) fn misplaced(&self) -> u64 {
        self.misplaced.load(Ordering::Relaxed)
    }

    /// The node that a pool is to be placed on.
    pub(crate) fn node_of(&self, wish: PoolNode) -> Option<u32> {
        match wish {
            PoolNode::FirstTouch => None,
            PoolNode::Node(node) => Some(node),
            PoolNode::Planned => {
                let first = self.of_rails.first()?.memory_node?;
                let same = |place: &RailPlace| place.memory_node == Some(first);
                self.of_rails.iter().all(same).then_some(first)
            }
        }
    }

    /// Memory on the node that `config` names, or as near as can be had.
    pub(crate) fn allocate(
        &self,
        regions: &Regions,
        config: RegionConfig,
    ) -> Result<Region, RegionError> {
        let region = regions.allocate(config)?;
        let Placement::Refused { node, errno } = region.placement() else { return Ok(region) };
        if self.misplaced.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(node, errno, "the kernel refuses to place memory; first touch decides");
        }
        let Some(on_node) = &self.on_node else { return Ok(region) };
        let touched = RegionConfig { node: None, populate: Populate::Now, ..config };
        let mut made = None;
        on_node(node, &mut || made = regions.allocate(touched).ok());
        Ok(made.unwrap_or(region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(nodes: &[Option<u32>]) -> Places {
        let place = |&memory_node: &Option<u32>| RailPlace {
            node: None,
            memory_node,
            ..RailPlace::default()
        };
        Places::new(nodes.iter().map(place).collect(), None)
    }

    #[test]
    fn a_pool_goes_where_all_rails_want_it() {
        let planned = |nodes: &[_]| places(nodes).node_of(PoolNode::Planned);
        assert_eq!(planned(&[Some(1), Some(1)]), Some(1));
        assert_eq!(planned(&[Some(1), Some(0)]), None);
        assert_eq!(planned(&[None, Some(0)]), None);
        assert_eq!(planned(&[]), None);
        assert_eq!(places(&[Some(1)]).node_of(PoolNode::FirstTouch), None);
        assert_eq!(places(&[Some(1)]).node_of(PoolNode::Node(3)), Some(3));
    }

    #[test]
    fn a_node_that_is_refused_is_counted_and_touched_for() {
        // The highest node that can be named: no kernel here has it.
        let absent = 1023;
        let regions = Regions::new(8);
        let config = RegionConfig { node: Some(absent), ..RegionConfig::new(1 << 16) };
        let plain = Places::new(Vec::new(), None);
        let region = plain.allocate(&regions, config).expect("survived");
        assert!(matches!(region.placement(), Placement::Refused { node: 1023, .. }));
        assert_eq!(plain.misplaced(), 1);
        let asked = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&asked);
        let hook: NodeHook = Arc::new(move |node, make| {
            seen.store(node.into(), Ordering::Relaxed);
            make();
        });
        let hooked = Places::new(Vec::new(), Some(hook));
        let region = hooked.allocate(&regions, config).expect("survived");
        assert_eq!(region.placement(), Placement::FirstTouch);
        assert_eq!((asked.load(Ordering::Relaxed), hooked.misplaced()), (1023, 1));
        let lazy = Places::new(Vec::new(), Some(Arc::new(|_, _| {})));
        assert!(lazy.allocate(&regions, config).is_ok(), "a hook that does nothing");
    }
}
