//! The caller's contract of Railring: plain-data SQEs and CQEs, and the pair of rings they travel
//! on.
//!
//! ```text
//!                 submission ring: one Sqe + one A per read
//!            push, submit                              pop -> Sqe, Permit, A
//!            ----------->  [ ][ ][S][S][S][ ][ ][ ]  ----------->
//!             tail: the caller's        head: the poller's
//!  CallerEnd                                                      PollerEnd
//!             head: the caller's        tail: the poller's
//!            <-----------  [ ][C][C][C][C][ ][ ][ ]  <-----------
//!            pop -> Cqe, B                             complete, finish, publish
//!                 completion ring: one Cqe + one B per stripe
//!
//!            cancel  ------->  ids of live reads  ------->  pop_cancel
//!            submit  ------->  Bell: bit per ring, sleeping flag, eventfd
//!            wait    <-------  armed flag, eventfd  <-------  publish
//! ```
//!
//! A ring pair connects one caller's thread with one poller. What makes it different from two
//! queues:
//!
//! * **A push reserves.** It succeeds only if completion slots for all CQEs of the read are free,
//!   and takes them; popping a CQE gives them back. Only the caller does either, so it is plain
//!   arithmetic. A completion ring that overflows, or a completion that is lost, cannot be
//!   expressed.
//! * **A permit ends each read.** The poller gets the reserved slots as a [`Permit`] with the SQE.
//!   It spends them one CQE at a time, and exactly one CQE of a read lacks `MORE`, the last. A
//!   forgotten permit panics.
//! * **Ownership travels along.** Whatever must not be touched while the read runs is the SQE's
//!   attachment `A`; it comes back as part of a CQE's `B`. A refused push gives it back.
//! * **Batches.** Pushing and completing touch no shared line; `submit` and `publish` cost a store
//!   and a fence per batch.
//! * **Sleep without loss.** Both sides can sleep on an eventfd. The handshake is in
//!   [`Bell`]'s module, with the reason for each fence.
//!
//! There is no I/O here besides the eventfds, no thread, and no configuration.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use sq_cq::{Bell, Cqe, CqeFields, Handle, RingConfig, Sqe, pair};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let bell = Arc::new(Bell::new(1)?);
//! let config = RingConfig { sq_entries: 8, cq_entries: 8, ..RingConfig::default() };
//! let (mut caller, mut poller) = pair::<Vec<u8>, Option<Vec<u8>>>(config, Arc::clone(&bell), 0)?;
//!
//! // The caller: a read of two stripes, whose buffer goes along.
//! let sqe = Sqe::read(Handle::NONE, Handle::NONE, 0, 8192).user_data(7);
//! let id = caller.push(sqe, 2, vec![0; 8192])?;
//! caller.submit();
//!
//! // The poller, here on the same thread: the stripes complete in any order.
//! bell.take_ready(|_source| {
//!     while let Some((sqe, mut permit, buffer)) = poller.pop() {
//!         let fields = CqeFields { user_data: sqe.get_user_data(), ..CqeFields::default() };
//!         poller.complete(&mut permit, Cqe::new(&CqeFields { stripe: 1, ..fields }), None);
//!         poller.finish(permit, Cqe::new(&CqeFields { stripe: 0, ..fields }), Some(buffer));
//!     }
//! });
//! poller.publish();
//!
//! assert_eq!(caller.wait(2, Some(Duration::from_secs(1)), Duration::ZERO), 2);
//! let (first, nothing) = caller.pop().expect("two CQEs were waited for");
//! assert!(first.has_more() && first.stripe() == 1 && nothing.is_none());
//! let (last, buffer) = caller.pop().expect("two CQEs were waited for");
//! assert!(!last.has_more() && last.user_data() == 7 && last.read_id() == id);
//! assert_eq!(buffer.map(|buffer| buffer.len()), Some(8192));
//! assert!(!caller.live(id));
//! # Ok(())
//! # }
//! ```

mod caller;
mod cqe;
mod cursor;
mod doorbell;
mod event;
mod handle;
mod padded;
mod pair;
mod permit;
mod poller;
mod reads;
mod ring;
mod sqe;
mod status;
mod sync;

pub use caller::{CallerEnd, CallerWaker, PushError, PushRefused};
pub use cqe::{Cqe, CqeFields, CqeFlags, Proof};
pub use cursor::ENTRIES_MAX;
pub use doorbell::Bell;
pub use handle::{Handle, ReadId};
pub use pair::{Gauges, IndexAddresses, Pair, RingConfig, RingError, SLOTS_PER_READ_MAX, pair};
pub use permit::Permit;
pub use poller::PollerEnd;
pub use reads::CancelOutcome;
pub use sqe::{Opcode, Sqe, SqeFlags};
pub use status::{Blame, Status};
