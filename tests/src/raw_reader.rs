//! A reader without an engine: one queue pair, one read at a time. What the memory peer is checked
//! with, before anything is built on it.

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use railring::topology::Discovery;
use railring_dma::{Lease, Loan, Region, RegionConfig, Regions};
use railring_transport::WrId;
use railring_verbs::ffi::{
    Access, Breaker, Cq, Device, Ended, Keys, Mr, Pd, Qp, QpCaps, Read, ReadQueue, Reset, Route,
    Wake, WcBatch,
};
use railring_verbs::hello::{Hello, Message, OpenRequest, Opened, Talk};
use railring_verbs::{LocalPort, MtuWish, PathMtu, Timers};

/// Whatever stands in the way of a test.
pub type Failure = Box<dyn Error + Send + Sync>;

/// How long one read may take, retries and all.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a peer, and memory to read into.
#[derive(Debug)]
pub struct RawReader {
    talk: Talk,
    queue: ReadQueue,
    cq: Cq,
    mr: Mr,
    lease: Option<Lease>,
    loan: Option<Loan>,
    _region: Region,
    generation: u32,
}

/// How a raw reader is set up.
#[derive(Clone, Debug)]
pub struct RawConfig {
    /// The RDMA device.
    pub device: String,
    /// What the peer may do to the reader's memory.
    pub access: Access,
    /// Bytes to read into.
    pub bytes: usize,
    /// For one message of the peer's.
    pub patience: Duration,
    /// The queue pair's retry settings.
    pub timers: Timers,
}

impl RawConfig {
    /// Reads up to `bytes` at a time over a device; the peer may write nothing.
    #[must_use]
    pub fn on(device: &str, bytes: usize) -> RawConfig {
        // 268 ms, four times: a dead peer is noticed in a second.
        let timers = Timers::new(16, 3, 12, 6).expect("within their ranges");
        let patience = Duration::from_secs(5);
        RawConfig { device: device.to_owned(), access: Access::LocalWrite, bytes, patience, timers }
    }
}

impl RawReader {
    /// Connects to a peer at `host:port`.
    ///
    /// # Errors
    /// Whatever the library or the peer says.
    pub fn connect(config: &RawConfig, endpoint: &str) -> Result<RawReader, Failure> {
        let local = LocalPort::find(&Discovery::live().read()?, &config.device, None, None)?;
        let port = local.port;
        let device = Device::open(&config.device)?;
        let pd = Pd::new(&device)?;
        let region = Regions::new(1).allocate(RegionConfig::new(config.bytes))?;
        let lease = Lease::whole(&region)?;
        let mr = Mr::register(&pd, &region, 0..config.bytes, config.access)?;
        let cq = Cq::new(&device, 16, Wake::Never)?;
        let qp = Qp::<Reset>::new(&pd, &cq, QpCaps { send_wrs: 4, sges: 1 })?;
        let qp = qp.init(port, config.access)?;
        let ours = Hello {
            qpn: qp.qpn(),
            psn: fastrand::u32(0..1 << 24),
            gid: device.gid(port, local.gid.index)?,
            mtu: MtuWish::AtMost(device.port(port)?.mtu.unwrap_or(PathMtu::B1024)),
            timers: config.timers,
            reads_out: device.limits().reads_out.min(16),
            reads_in: 0,
            nonce: fastrand::u64(..),
        };
        let mut talk = Talk::connect(endpoint, config.patience)?;
        talk.send(&Message::ClientHello(ours))?;
        let theirs = match talk.receive()? {
            Message::ServerHello(theirs) => theirs,
            other => return Err(format!("no server hello: {other:?}").into()),
        };
        let agreed = ours.agree(&theirs)?;
        let gid_index = u8::try_from(local.gid.index)?;
        let route = Route { port, gid_index, hop_limit: 64, traffic_class: 0 };
        let qp = qp.ready_to_receive(route, &theirs, agreed, ours.timers)?;
        let qp = qp.ready_to_send(ours.psn, agreed, ours.timers)?;
        let queue = ReadQueue::new(qp, 1);
        let lease = Some(lease);
        Ok(RawReader { talk, queue, cq, mr, lease, loan: None, _region: region, generation: 0 })
    }

    /// Asks where an object is.
    ///
    /// # Errors
    /// The peer refuses, or is gone.
    pub fn open(&mut self, handle: &str, generation: u64) -> Result<Opened, Failure> {
        let request = OpenRequest { handle: handle.to_owned(), generation };
        self.talk.send(&Message::Open(request))?;
        match self.talk.receive()? {
            Message::Opened(opened) => Ok(opened),
            other => Err(format!("not opened: {other:?}").into()),
        }
    }

    /// Reads `bytes` of what was opened, from `offset` on. The code is that of the completion.
    ///
    /// # Errors
    /// The request was not accepted, or no completion came.
    pub fn read(&mut self, from: &Opened, offset: u64, bytes: u32) -> Result<u32, Failure> {
        self.post(from, offset, bytes)?;
        self.wait()
    }

    /// Posts a read and does not wait for it.
    ///
    /// # Errors
    /// The request was not accepted.
    pub fn post(&mut self, from: &Opened, offset: u64, bytes: u32) -> Result<(), Failure> {
        let lease = self.lease.take().ok_or("another read is under way")?;
        let (loan, part) = lease.lend();
        self.generation += 1;
        let wr = WrId { slot: 0, generation: self.generation };
        let lkey = self.mr.lkey();
        let keys = Keys { first: lkey, first_bytes: part.len(), rest: lkey };
        let address = from.address + offset;
        let read = Read { wr, part, bytes, keys, address, rkey: from.rkey, signal: true };
        self.queue.push(read).map_err(|refused| format!("{refused:?}"))?;
        self.queue.post().map_err(|(_, error)| error)?;
        self.loan = Some(loan);
        Ok(())
    }

    /// Waits for the read that was posted.
    ///
    /// # Errors
    /// No completion came.
    pub fn wait(&mut self) -> Result<u32, Failure> {
        let until = Instant::now() + PATIENCE;
        let mut batch = WcBatch::default();
        while Instant::now() < until {
            self.cq.poll(&mut batch)?;
            let Some(wc) = batch.take() else { continue };
            let mut back = None;
            self.queue.complete(wc, &mut |_, part, ended| back = Some((part, ended)));
            let (part, ended) = back.ok_or("a completion of nothing")?;
            let mut loan = self.loan.take().ok_or("nothing was posted")?;
            loan.repay(part).map_err(|_| "a part of another lease")?;
            self.lease = Some(loan.settle().map_err(|_| "a part is missing")?);
            return Ok(match ended {
                Ended::Done { .. } => 0,
                Ended::Failed { code, .. } => code,
                Ended::Flushed => railring_verbs::wc::FLUSHED,
                Ended::Refused { errno } => return Err(io::Error::from_raw_os_error(errno).into()),
            });
        }
        Err("no completion came".into())
    }

    /// The memory, while no read is under way.
    ///
    /// # Panics
    /// One is.
    pub fn memory(&mut self) -> &mut [u8] {
        self.lease.as_mut().expect("no read is under way").as_mut_slice()
    }

    /// Address and key of the memory, as a peer would have to know them to write it.
    #[must_use]
    pub fn memory_at(&self) -> (u64, u32) {
        (self.mr.address(), self.mr.rkey())
    }

    /// Makes its queue pair fail.
    #[must_use]
    pub fn breaker(&self) -> Breaker {
        self.queue.breaker()
    }
}
