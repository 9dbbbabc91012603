//! Placing a mapping on a NUMA node, where the kernel lets us.

use memmap2::MmapRaw;

/// The highest node number that fits the mask given to the kernel.
pub(crate) const NODE_MAX: u32 = MASK_WORDS as u32 * usize::BITS - 1;

const MASK_WORDS: usize = 1024 / usize::BITS as usize;

/// On which node a region's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// No node was named: each page is on the node of the thread that touched it first.
    FirstTouch,
    /// The kernel will take pages from this node, and from others only when it has none left.
    Node(u32),
    /// A node was named but the kernel refused: EPERM in many containers, ENOSYS without NUMA,
    /// EINVAL for a node that is absent or not allowed. Pages are placed as by `FirstTouch`;
    /// touch them from a thread on the node.
    Refused {
        /// The node named.
        node: u32,
        /// What the kernel said.
        errno: i32,
    },
    /// The caller's memory; not looked into.
    Foreign,
}

/// Prefers `node` for the pages of `memory`, of which none may have been touched.
pub(crate) fn place(memory: &MmapRaw, node: Option<u32>) -> Placement {
    let Some(node) = node else { return Placement::FirstTouch };
    let mut mask = [0_usize; MASK_WORDS];
    let Some(word) = mask.get_mut((node / usize::BITS) as usize) else {
        return Placement::Refused { node, errno: libc::EINVAL };
    };
    *word = 1 << (node % usize::BITS);
    // The kernel reads one bit less than it is told (mm/mempolicy.c, get_nodes).
    let mask_bits = MASK_WORDS * usize::BITS as usize + 1;
    let no_flags = 0_usize;
    // SAFETY: mbind reads `mask`, which is as long as said, and changes only the policy of pages
    // that `memory` owns.
    let refused = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.as_mut_ptr(),
            memory.len(),
            // Not MPOL_BIND: a full node would then kill the process instead of being a little
            // slow.
            libc::MPOL_PREFERRED as usize,
            mask.as_ptr(),
            mask_bits,
            no_flags,
        )
    };
    if refused == 0 {
        return Placement::Node(node);
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Placement::Refused { node, errno }
}
