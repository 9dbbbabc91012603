//! For tests: a peer that writes into its reader's memory when nobody expects it any more.
#![cfg(feature = "fault")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rdma_sys as sys;

use super::memory::Mr;
use super::qp::{Qp, ReadyToSend};

impl Qp<ReadyToSend> {
    /// Posts an RDMA WRITE of the first `bytes` of `from` to the peer's memory at `address`, key
    /// `rkey`, signalled as `wr_id`. At most as much is written as `from` has; `from` must live
    /// until the completion, which is the caller's to see to (the device reads what it pinned).
    ///
    /// # Errors
    /// `from` is of another domain, or the send queue is full.
    pub fn post_write(
        &self,
        wr_id: u64,
        from: &Mr,
        bytes: u32,
        address: u64,
        rkey: u32,
    ) -> io::Result<()> {
        if !from.pd().is(self.pd()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let length = bytes.min(u32::try_from(from.bytes()).unwrap_or(u32::MAX));
        let mut sge = sys::ibv_sge { addr: from.address(), length, lkey: from.lkey() };
        // SAFETY: numbers and raw pointers: all zeros is a value.
        let mut wr: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.wr_id = wr_id;
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        wr.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        wr.wr.rdma = sys::rdma_t { remote_addr: address, rkey };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there; the chain is one local request with one local entry,
        // which the library copies before it returns. Local memory is only read.
        let errno = unsafe { sys::ibv_post_send(self.inner().as_ptr(), &raw mut wr, &raw mut bad) };
        match errno {
            0 => Ok(()),
            errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(super::last_error()),
        }
    }
}
