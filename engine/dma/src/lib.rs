//! Memory on its way to a device, *owned*, so that two writers of the same bytes do not compile.
//!
//! A [`Region`] is memory that rails register. A [`Pool`] cuts it into slots and hands each out
//! as a [`Lease`]: exclusive ownership of a range of bytes. [`Lease::lend`] turns a lease into a
//! [`Loan`], which stays with whoever wants the lease back, and a [`Part`], which travels to a
//! transport, may be split on the way, and is the right to read and write its bytes. Parts come
//! back by [`Loan::repay`]; when all have, [`Loan::settle`] gives the lease.
//!
//! ```
//! use railring_dma::{Pool, PoolOptions, RegionConfig, Regions};
//!
//! let regions = Regions::new(8);
//! let region = regions.allocate(RegionConfig::new(1 << 20))?;
//! let pool = Pool::new(&region, 64 << 10, PoolOptions::default())?;
//!
//! let lease = pool.take().expect("nothing else has taken a slot");
//! let (mut loan, part) = lease.lend();
//! let (mut head, tail) = part.split_at(16);
//! head.as_mut_slice().fill(7);                    // what a transport does
//! let receipt = loan.repay(head).expect("the part is of this loan");
//! assert_eq!(loan.bytes(&receipt), Some(&[7; 16][..])); // readable while the tail is in flight
//! assert!(pool.free() < pool.slots());
//! loan.repay(tail).expect("the part is of this loan");
//! drop(loan.settle().expect("everything came back"));
//! assert_eq!(pool.free(), pool.slots());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The invariant behind the unsafe code
//!
//! *Every byte of a mapped region has at most one owner among: the free bit of its pool slot, a
//! lease, a loan (bytes that came back), a part.* Each value is not `Clone`, and each operation
//! consumes the owners it makes new ones from. A region is unmapped only when no pool, lease or
//! loan of it is left, and a loan that is dropped with parts still out keeps the region for ever:
//! losing a part leaks memory, it never frees memory that a device may still write.

mod borrowed;
mod late;
mod lease;
mod loan;
mod map;
mod memlock;
mod part;
mod placement;
mod pool;
mod region;
mod registry;
mod serial;

#[cfg(feature = "fault")]
pub use late::LateWriter;
pub use lease::{JoinError, Lease, SplitError};
pub use loan::{Impounded, Loan, Receipt};
pub use map::{HugePages, PageKind, Pages, Populate};
pub use memlock::{MemlockBudget, MemlockError, MemlockLimit};
pub use part::Part;
pub use placement::Placement;
pub use pool::{Pool, PoolError, PoolOptions};
pub use region::{Region, RegionConfig, RegionError};
pub use registry::{RegionId, Regions, RegionsStats};
