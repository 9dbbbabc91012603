//! Queue pairs: reliable connections that are brought up step by step, each step a type.
//!
//! ```text
//!  Qp<Reset> ──init──► Qp<Init> ──ready_to_receive──► Qp<ReadyToReceive> ──ready_to_send──►
//!  Qp<ReadyToSend>;  any ──fail──► Qp<Errored>
//! ```

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys as sys;

use super::cq::Cq;
use super::last_error;
use super::memory::{Access, Pd};
use crate::hello::{Agreement, Hello};
use crate::timers::Timers;

/// Just made.
#[derive(Debug)]
pub enum Reset {}
/// Bound to a port.
#[derive(Debug)]
pub enum Init {}
/// Knows its peer; serves RDMA READs.
#[derive(Debug)]
pub enum ReadyToReceive {}
/// Sends, too.
#[derive(Debug)]
pub enum ReadyToSend {}
/// Was told to fail: everything posted comes back flushed.
#[derive(Debug)]
pub enum Errored {}

/// What a queue pair should have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Work requests in the send queue.
    pub send_wrs: u32,
    /// Scatter entries of one work request.
    pub sges: u32,
}

/// A step of [`Qp`], for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpStep {
    /// To [`Init`].
    Init,
    /// To [`ReadyToReceive`].
    ReadyToReceive,
    /// To [`ReadyToSend`].
    ReadyToSend,
    /// To [`Errored`].
    Errored,
}

impl fmt::Display for QpStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            QpStep::Init => "init",
            QpStep::ReadyToReceive => "ready to receive",
            QpStep::ReadyToSend => "ready to send",
            QpStep::Errored => "error",
        })
    }
}

/// Why a queue pair was not made or not brought further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QpError {
    /// More than the device grants one queue pair.
    #[error(
        "a queue pair of {} work requests of {} scatter entries was refused; the device grants \
         {wrs} of {sges}", asked.send_wrs, asked.sges
    )]
    Caps {
        /// What was asked for.
        asked: QpCaps,
        /// The device's limit of work requests.
        wrs: u32,
        /// The device's limit of scatter entries.
        sges: u32,
    },
    /// The domain and the completion queue are of two devices.
    #[error("a queue pair needs its domain and completion queue on one device")]
    TwoDevices,
    /// The device did not make it.
    #[error(
        "the device makes no more queue pairs: {source}; it grants {limit}, to all processes \
         together"
    )]
    Refused {
        /// What the kernel said.
        source: io::Error,
        /// The device's limit.
        limit: u32,
    },
    /// A step was refused.
    #[error("queue pair {qpn} cannot go to {step}: {source}")]
    Step {
        /// Its number.
        qpn: u32,
        /// The step.
        step: QpStep,
        /// What the kernel said: ETIMEDOUT or ENETUNREACH for a peer that no route leads to.
        source: io::Error,
    },
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The local port, from 1.
    pub port: u8,
    /// The entry of its GID table that packets come from.
    pub gid_index: u8,
    /// Routers that packets may cross; at least 1.
    pub hop_limit: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
}

pub(super) struct QpInner {
    qp: NonNull<sys::ibv_qp>,
    qpn: u32,
    // Freed after the queue pair, by the order of these fields.
    pd: Pd,
    _cq: Cq,
}

// SAFETY: the library lets any thread use a queue pair; it locks inside.
unsafe impl Send for QpInner {}
// SAFETY: as above.
unsafe impl Sync for QpInner {}

impl Drop for QpInner {
    fn drop(&mut self) {
        // SAFETY: it was made once, and nobody else has it.
        let status = unsafe { sys::ibv_destroy_qp(self.qp.as_ptr()) };
        debug_assert_eq!(status, 0, "destroying a queue pair failed");
    }
}

impl QpInner {
    pub(super) fn as_ptr(&self) -> *mut sys::ibv_qp {
        self.qp.as_ptr()
    }

    fn modify(
        &self,
        step: QpStep,
        attributes: &mut sys::ibv_qp_attr,
        mask: &[sys::ibv_qp_attr_mask],
    ) -> Result<(), QpError> {
        let mask = mask.iter().fold(0, |all, bit| all | bit.0);
        let mask = i32::try_from(mask).expect("bits below 31");
        // SAFETY: the queue pair is there; the library reads the attributes that the mask names.
        let status = unsafe { sys::ibv_modify_qp(self.as_ptr(), attributes, mask) };
        match status {
            0 => Ok(()),
            errno => {
                let source = io::Error::from_raw_os_error(errno);
                Err(QpError::Step { qpn: self.qpn, step, source })
            }
        }
    }

    fn fail(&self) -> Result<(), QpError> {
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        self.modify(QpStep::Errored, &mut attributes, &[sys::ibv_qp_attr_mask::IBV_QP_STATE])
    }
}

fn no_attributes() -> sys::ibv_qp_attr {
    // SAFETY: numbers, and sixteen bytes: all zeros is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// A reliable connection in state `S`. Destroyed when dropped; destroying may take tens of
/// milliseconds and must not happen in a poller's turn.
pub struct Qp<S> {
    inner: Arc<QpInner>,
    granted: QpCaps,
    state: PhantomData<S>,
}

impl<S> fmt::Debug for Qp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = std::any::type_name::<S>().rsplit("::").next().unwrap_or_default();
        f.debug_struct("Qp")
            .field("qpn", &self.inner.qpn)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

/// Can make a queue pair fail from any thread, whatever its owner does meanwhile. Keeps it from
/// being destroyed.
#[derive(Clone)]
pub struct Breaker {
    inner: Arc<QpInner>,
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("qpn", &self.inner.qpn).finish_non_exhaustive()
    }
}

impl Breaker {
    /// Makes the queue pair fail: what is posted comes back flushed, and no answer of the peer is
    /// written any more once that is through the completion queue. Blocks for a system call.
    ///
    /// # Errors
    /// The device refuses; it is gone.
    pub fn fail(&self) -> Result<(), QpError> {
        self.inner.fail()
    }

    /// The queue pair's number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.inner.qpn
    }
}

impl<S> Qp<S> {
    /// Its number, 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.inner.qpn
    }

    /// What the device really granted.
    #[must_use]
    pub fn granted(&self) -> QpCaps {
        self.granted
    }

    /// The domain it is in.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// A handle to make it fail with, for another thread.
    #[must_use]
    pub fn breaker(&self) -> Breaker {
        Breaker { inner: Arc::clone(&self.inner) }
    }

    /// Makes it fail: what is posted comes back flushed, and peers cannot read or write any more.
    ///
    /// # Errors
    /// The device refuses; it is gone.
    pub fn fail(self) -> Result<Qp<Errored>, QpError> {
        self.inner.fail()?;
        Ok(self.into_state())
    }

    fn into_state<T>(self) -> Qp<T> {
        Qp { inner: self.inner, granted: self.granted, state: PhantomData }
    }

    pub(super) fn inner(&self) -> &Arc<QpInner> {
        &self.inner
    }

    pub(super) fn into_inner(self) -> Arc<QpInner> {
        self.inner
    }
}

impl Qp<Reset> {
    /// Makes a queue pair whose completions go to `cq`. It has no receive queue: nobody sends to
    /// it, peers only read (or are read from).
    ///
    /// # Errors
    /// More than the device grants.
    pub fn new(pd: &Pd, cq: &Cq, caps: QpCaps) -> Result<Qp<Reset>, QpError> {
        if cq.device().name() != pd.device().name() {
            return Err(QpError::TwoDevices);
        }
        let limits = pd.device().limits();
        let fits =
            (1..=limits.qp_wrs).contains(&caps.send_wrs) && (1..=limits.sges).contains(&caps.sges);
        if !fits {
            return Err(QpError::Caps { asked: caps, wrs: limits.qp_wrs, sges: limits.sges });
        }
        let mut wanted = sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: ptr::null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: caps.send_wrs,
                // Some drivers take 0 badly.
                max_recv_wr: 1,
                max_send_sge: caps.sges,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queue are there, of one device; the attributes are a local.
        let qp = unsafe { sys::ibv_create_qp(pd.as_ptr(), &raw mut wanted) };
        let qp = NonNull::new(qp)
            .ok_or_else(|| QpError::Refused { source: last_error(), limit: limits.qps })?;
        // SAFETY: it was just made.
        let qpn = unsafe { (*qp.as_ptr()).qp_num };
        // Some drivers write back what they granted, others leave what was asked for.
        let granted = QpCaps { send_wrs: wanted.cap.max_send_wr, sges: wanted.cap.max_send_sge };
        let inner = QpInner { qp, qpn, pd: pd.clone(), _cq: cq.clone() };
        Ok(Qp { inner: Arc::new(inner), granted, state: PhantomData })
    }

    /// Binds it to a port and says what its peer may do to memory of its domain: nothing with
    /// [`Access::LocalWrite`].
    ///
    /// # Errors
    /// The device refuses.
    pub fn init(self, port: u8, access: Access) -> Result<Qp<Init>, QpError> {
        use sys::ibv_qp_attr_mask as mask;
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = port;
        attributes.qp_access_flags = access.flags();
        self.inner.modify(
            QpStep::Init,
            &mut attributes,
            &[
                mask::IBV_QP_STATE,
                mask::IBV_QP_PKEY_INDEX,
                mask::IBV_QP_PORT,
                mask::IBV_QP_ACCESS_FLAGS,
            ],
        )?;
        Ok(self.into_state())
    }
}

impl Qp<Init> {
    /// Connects it to its peer, which can read from it afterwards. `timers` are this end's.
    ///
    /// # Errors
    /// The device refuses, often because no route leads to the peer's GID.
    pub fn ready_to_receive(
        self,
        route: Route,
        peer: &Hello,
        agreed: Agreement,
        timers: Timers,
    ) -> Result<Qp<ReadyToReceive>, QpError> {
        use sys::ibv_qp_attr_mask as mask;
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = agreed.mtu.code();
        attributes.dest_qp_num = peer.qpn;
        attributes.rq_psn = peer.psn;
        attributes.max_dest_rd_atomic = agreed.reads_in;
        attributes.min_rnr_timer = timers.rnr_timer();
        let address = &mut attributes.ah_attr;
        address.is_global = 1;
        address.port_num = route.port;
        address.grh.dgid = sys::ibv_gid { raw: peer.gid };
        address.grh.sgid_index = route.gid_index;
        address.grh.hop_limit = route.hop_limit;
        address.grh.traffic_class = route.traffic_class;
        self.inner.modify(
            QpStep::ReadyToReceive,
            &mut attributes,
            &[
                mask::IBV_QP_STATE,
                mask::IBV_QP_AV,
                mask::IBV_QP_PATH_MTU,
                mask::IBV_QP_DEST_QPN,
                mask::IBV_QP_RQ_PSN,
                mask::IBV_QP_MAX_DEST_RD_ATOMIC,
                mask::IBV_QP_MIN_RNR_TIMER,
            ],
        )?;
        Ok(self.into_state())
    }
}

impl Qp<ReadyToReceive> {
    /// Lets it send. `psn` is what this end's hello said.
    ///
    /// # Errors
    /// The device refuses.
    pub fn ready_to_send(
        self,
        psn: u32,
        agreed: Agreement,
        timers: Timers,
    ) -> Result<Qp<ReadyToSend>, QpError> {
        use sys::ibv_qp_attr_mask as mask;
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = psn;
        attributes.timeout = timers.ack_timeout();
        attributes.retry_cnt = timers.retries();
        attributes.rnr_retry = timers.rnr_retries();
        attributes.max_rd_atomic = agreed.reads_out;
        self.inner.modify(
            QpStep::ReadyToSend,
            &mut attributes,
            &[
                mask::IBV_QP_STATE,
                mask::IBV_QP_SQ_PSN,
                mask::IBV_QP_TIMEOUT,
                mask::IBV_QP_RETRY_CNT,
                mask::IBV_QP_RNR_RETRY,
                mask::IBV_QP_MAX_QP_RD_ATOMIC,
            ],
        )?;
        Ok(self.into_state())
    }
}
