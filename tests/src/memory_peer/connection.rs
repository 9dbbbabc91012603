//! One reader's connection: its queue pair, and what is said over TCP.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use railring_dma::Regions;
use railring_verbs::ffi::{
    Access, Breaker, Cq, Init, Mr, Pd, Qp, QpCaps, ReadyToSend, Reset, Route, Wake, WcBatch,
};
use railring_verbs::hello::{
    Agreement, Hello, Message, OpenRequest, Opened, Refusal, Talk, TalkError,
};
use railring_verbs::{MtuWish, PathMtu, Timers};
use sq_cq::Status;

use super::faults::{Lie, Stage, Write};
use super::storage::filled;
use super::{PeerError, Shared, lock};

/// For a reader to finish a message that it began.
const PATIENCE: Duration = Duration::from_secs(10);
/// For a late write to succeed or give up.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
const CQ_ENTRIES: u32 = 16;
const WRITES_MAX: u32 = 4;
/// RDMA READs that a queue pair serves at once; devices offer at least so many.
const READS_IN: u8 = 16;

/// A queue pair that a reader reads from.
pub(super) struct Connection {
    /// None before it is ready, which may be late, and when it is gone.
    qp: Mutex<Option<Qp<ReadyToSend>>>,
    cq: Cq,
    pub(super) breaker: Breaker,
    stream: TcpStream,
}

/// A talk with a reader that ended before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error("a talk ended: {0}")]
    Talk(#[from] TalkError),
    #[error("a reader was refused: {0}")]
    Peer(#[from] PeerError),
    #[error("a reader was refused: {0}")]
    Refused(String),
}

impl From<std::io::Error> for ServeError {
    fn from(error: std::io::Error) -> Self {
        ServeError::Talk(error.into())
    }
}

/// Greets a reader, then answers where objects are until it goes.
pub(super) fn serve(shared: &Arc<Shared>, stream: TcpStream) -> Result<(), ServeError> {
    let mut talk = Talk::over(stream, PATIENCE)?;
    let Message::ClientHello(theirs) = talk.receive()? else {
        return Err(ServeError::Refused("its first message is no hello".to_owned()));
    };
    shared.sleep_for(Stage::Hello);
    let connection = match greet(shared, &mut talk, &theirs) {
        Ok(connection) => connection,
        Err(error) => {
            let refusal = Refusal::new(Status::REFUSED, &error.to_string());
            talk.send(&Message::Refused(refusal))?;
            return Err(error);
        }
    };
    let result = answer(shared, &mut talk);
    if !lock(&shared.faults).keeps_queue_pairs {
        lock(&shared.connections).retain(|one| !Arc::ptr_eq(one, &connection));
    }
    match result {
        // A reader that is through closes, and so does one that this peer's end cut off.
        Err(ServeError::Talk(TalkError::Closed)) => Ok(()),
        Err(_) if shared.is_ending() => Ok(()),
        other => other,
    }
}

fn answer(shared: &Shared, talk: &mut Talk) -> Result<(), ServeError> {
    loop {
        let Message::Open(request) = talk.receive_whenever()? else {
            return Err(ServeError::Refused("it does not ask to open anything".to_owned()));
        };
        shared.sleep_for(Stage::Open);
        talk.send(&shared.open(&request)?)?;
    }
}

/// Brings a queue pair up for a reader and says hello; both, or an error.
fn greet(
    shared: &Arc<Shared>,
    talk: &mut Talk,
    theirs: &Hello,
) -> Result<Arc<Connection>, ServeError> {
    let cq = Cq::new(&shared.device, CQ_ENTRIES, Wake::Never).map_err(PeerError::from)?;
    let caps = QpCaps { send_wrs: WRITES_MAX, sges: 1 };
    let qp = Qp::<Reset>::new(&shared.pd, &cq, caps).map_err(PeerError::from)?;
    let qp = qp.init(shared.local.port, Access::RemoteRead).map_err(PeerError::from)?;
    let ours = shared.hello(qp.qpn(), theirs.nonce)?;
    let agreed = ours.agree(theirs).map_err(|error| ServeError::Refused(error.to_string()))?;
    let connection = Arc::new(Connection {
        qp: Mutex::new(None),
        cq,
        breaker: qp.breaker(),
        stream: talk.stream().try_clone()?,
    });
    let late = lock(&shared.faults).delay_of(Stage::Ready);
    if late.is_zero() {
        connection.bring_up(shared, qp, (&ours, theirs), agreed)?;
        shared.join(&connection);
        talk.send(&Message::ServerHello(ours))?;
        return Ok(connection);
    }
    talk.send(&Message::ServerHello(ours))?;
    shared.join(&connection);
    let (theirs, same, others) = (*theirs, Arc::clone(&connection), Arc::clone(shared));
    // Beside the talk, which goes on.
    std::thread::spawn(move || {
        others.sleep(late);
        if let Err(error) = same.bring_up(&others, qp, (&ours, &theirs), agreed) {
            eprintln!("memory peer: late, and then: {error}");
        }
    });
    Ok(connection)
}

impl Connection {
    fn bring_up(
        &self,
        shared: &Shared,
        qp: Qp<Init>,
        (ours, theirs): (&Hello, &Hello),
        agreed: Agreement,
    ) -> Result<(), PeerError> {
        // No table has more entries than that.
        let gid_index = u8::try_from(shared.local.gid.index).unwrap_or(u8::MAX);
        let port = shared.local.port;
        let route = Route { port, gid_index, hop_limit: 64, traffic_class: 0 };
        let qp = qp.ready_to_receive(route, theirs, agreed, ours.timers)?;
        *lock(&self.qp) = Some(qp.ready_to_send(ours.psn, agreed, ours.timers)?);
        Ok(())
    }

    /// Ends everything of it at once, as a death would.
    pub(super) fn end(&self) {
        // A connection that is gone already is what is wanted.
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.breaker.fail();
        *lock(&self.qp) = None;
    }

    pub(super) fn write(&self, pd: &Pd, write: Write) -> Result<u32, PeerError> {
        let Write { address, rkey, bytes, fill } = write;
        let regions = Regions::new(1);
        let region = filled(&regions, &vec![fill; bytes as usize])
            .map_err(|why| PeerError::Memory { bytes: bytes as usize, why })?;
        let mr = Mr::register(pd, &region, 0..bytes as usize, Access::RemoteRead)?;
        let qp = lock(&self.qp);
        let qp = qp.as_ref().ok_or_else(|| PeerError::Nothing("queue pair yet".to_owned()))?;
        qp.post_write(1, &mr, bytes, address, rkey)?;
        let until = Instant::now() + WRITE_PATIENCE;
        let mut batch = WcBatch::default();
        while Instant::now() < until {
            self.cq.poll(&mut batch)?;
            if let Some(wc) = batch.take() {
                return Ok(wc.code());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
    }
}

impl Shared {
    fn join(&self, connection: &Arc<Connection>) {
        lock(&self.connections).push(Arc::clone(connection));
        // A peer that ends has emptied the list: who comes later ends by itself, or its talk would
        // keep the peer for as long as its reader stays.
        if self.is_ending() {
            connection.end();
        }
        self.greeted.fetch_add(1, Ordering::Relaxed);
    }

    fn sleep_for(&self, stage: Stage) {
        let time = lock(&self.faults).delay_of(stage);
        self.sleep(time);
    }

    /// In small steps: a peer that ends does not wait for its delays.
    fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_ending() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn hello(&self, qpn: u32, nonce: u64) -> Result<Hello, PeerError> {
        let port = self.local.port;
        let mtu = self.device.port(port)?.mtu.unwrap_or(PathMtu::B1024);
        Ok(Hello {
            qpn,
            psn: fastrand::u32(0..1 << 24),
            gid: self.device.gid(port, self.local.gid.index)?,
            mtu: MtuWish::AtMost(mtu),
            // Not 7 retries: rdma_rxe goes on for ever then. 67 ms, four times.
            timers: Timers::new(14, 3, 12, 6).expect("within their ranges"),
            reads_out: 0,
            reads_in: self.device.limits().reads_in.min(READS_IN),
            nonce,
        })
    }

    fn open(&self, request: &OpenRequest) -> Result<Message, PeerError> {
        let refused = |status, text: &str| Ok(Message::Refused(Refusal::new(status, text)));
        let mut storage = lock(&self.storage);
        let Some(held) = storage.find(&self.pd, &request.handle)? else {
            return refused(Status::NOT_FOUND, "no such handle");
        };
        if held.generation.is_some_and(|generation| generation != request.generation) {
            return refused(Status::STALE, "another generation");
        }
        let (address, bytes, rkey) = (held.address, held.bytes, held.rkey);
        let truth = Opened { address, bytes, generation: request.generation, rkey };
        Ok(Message::Opened(lock(&self.faults).lie.told_of(truth)))
    }
}

impl Lie {
    fn told_of(self, truth: Opened) -> Opened {
        match self {
            Lie::Truth => truth,
            Lie::Key(bits) => Opened { rkey: truth.rkey ^ bits, ..truth },
            Lie::Address(by) => Opened { address: truth.address.wrapping_add(by), ..truth },
            Lie::Length(by) => Opened { bytes: truth.bytes.saturating_add(by), ..truth },
            Lie::Generation(by) => {
                Opened { generation: truth.generation.wrapping_add(by), ..truth }
            }
        }
    }
}
