//! A passive peer: serves one registered region to whoever says hello.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use railring_dma::{Pool, PoolOptions, Region, RegionConfig, Regions};
use railring_verbs::ffi::{Access, Cq, Device, Mr, Pd, Qp, QpCaps, ReadyToSend, Route, Wake};
use railring_verbs::hello::{Hello, Message, Opened, Refusal, Talk};
use railring_verbs::{LocalPort, MtuWish, PathMtu, Timers};
use sq_cq::Status;

pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What a peer serves and how.
pub(crate) struct Served {
    pub(crate) port: LocalPort,
    pub(crate) mr: Mutex<Option<Mr>>,
    pub(crate) bytes: u64,
    pub(crate) generation: u64,
    pub(crate) mtu: MtuWish,
    pub(crate) qps: Mutex<Vec<Qp<ReadyToSend>>>,
    /// Says hello and leaves its queue pairs unconnected: nobody answers a read.
    pub(crate) is_silent: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
    /// Added to every key it gives.
    pub(crate) key_lie: AtomicU32,
    pub(crate) cq: Cq,
    pd: Pd,
    _region: Region,
}

/// A peer that listens.
pub(crate) struct Peer {
    pub(crate) endpoint: String,
    pub(crate) served: Arc<Served>,
    _accept: JoinHandle<()>,
}

/// The byte at `offset` of what a peer serves.
pub(crate) fn byte_at(offset: usize) -> u8 {
    (offset.wrapping_mul(31) ^ (offset >> 8).wrapping_mul(7)) as u8
}

/// A region, all of it one pool slot, filled by `fill`.
pub(crate) fn region(bytes: usize, fill: impl Fn(usize) -> u8) -> (Region, Pool) {
    let regions = Regions::new(1);
    let region = regions.allocate(RegionConfig::new(bytes)).expect("memory");
    let pool = Pool::new(&region, bytes, PoolOptions::default()).expect("one slot");
    let (mut loan, mut part) = pool.take().expect("one slot").lend();
    part.as_mut_slice().iter_mut().enumerate().for_each(|(at, byte)| *byte = fill(at));
    loan.repay(part).expect("it is of this loan");
    drop(loan.settle().expect("all is back"));
    (region, pool)
}

pub(crate) fn route(port: &LocalPort) -> Route {
    let gid_index = u8::try_from(port.gid.index).expect("a small table");
    Route { port: port.port, gid_index, hop_limit: 64, traffic_class: 0 }
}

impl Peer {
    /// Serves `bytes` bytes of [`byte_at`] as generation 1 of any handle but "missing".
    pub(crate) fn new(device: &Device, port: &LocalPort, bytes: usize, mtu: MtuWish) -> Peer {
        let pd = Pd::new(device).expect("a domain");
        let cq = Cq::new(device, 16, Wake::Never).expect("a queue");
        let (region, _pool) = region(bytes, byte_at);
        let mr = Mr::register(&pd, &region, 0..bytes, Access::RemoteRead).expect("memory");
        let served = Arc::new(Served {
            port: port.clone(),
            mr: Mutex::new(Some(mr)),
            bytes: bytes as u64,
            generation: 1,
            mtu,
            qps: Mutex::new(Vec::new()),
            is_silent: AtomicBool::new(false),
            streams: Mutex::new(Vec::new()),
            key_lie: AtomicU32::new(0),
            cq,
            pd,
            _region: region,
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let endpoint = listener.local_addr().expect("bound").to_string();
        let serving = Arc::clone(&served);
        let accept = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let served = Arc::clone(&serving);
                let kept = stream.try_clone().expect("a descriptor");
                served.streams.lock().expect("no panic").push(kept);
                std::thread::spawn(move || {
                    let talk = Talk::over(stream, PATIENCE).expect("a socket");
                    serve(&served, talk);
                });
            }
        });
        Peer { endpoint, served, _accept: accept }
    }
}

impl Served {
    /// Ends every conversation, as a process does that ends; new ones are answered.
    pub(crate) fn hang_up(&self) {
        self.qps.lock().expect("no panic").clear();
        for stream in self.streams.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(served: &Served, mut talk: Talk) {
    let Ok(Message::ClientHello(theirs)) = talk.receive() else { return };
    let qp = Qp::new(&served.pd, &served.cq, QpCaps { send_wrs: 4, sges: 1 }).expect("a qp");
    let ours = Hello {
        qpn: qp.qpn(),
        psn: 77,
        gid: served.port.gid.address.octets(),
        mtu: served.mtu,
        timers: Timers::default(),
        reads_out: 0,
        reads_in: 16,
        nonce: theirs.nonce,
    };
    let agreed = match ours.agree(&theirs) {
        Ok(agreed) => agreed,
        Err(why) => {
            let refusal = Refusal::new(Status::REFUSED, &why.to_string());
            let _ = talk.send(&Message::Refused(refusal));
            return;
        }
    };
    let qp = qp.init(served.port.port, Access::RemoteRead).expect("init");
    let _unconnected = if served.is_silent.load(Relaxed) {
        Some(qp)
    } else {
        let route = route(&served.port);
        let qp = qp.ready_to_receive(route, &theirs, agreed, ours.timers).expect("receive");
        let qp = qp.ready_to_send(ours.psn, agreed, ours.timers).expect("send");
        served.qps.lock().expect("no panic").push(qp);
        None
    };
    if talk.send(&Message::ServerHello(ours)).is_err() {
        return;
    }
    while let Ok(Message::Open(open)) = talk.receive_whenever() {
        let refuse = |status, text| Message::Refused(Refusal::new(status, text));
        let answer = match served.mr.lock().expect("no panic").as_ref() {
            _ if open.handle == "missing" => refuse(Status::NOT_FOUND, "no such handle"),
            _ if open.generation != served.generation => refuse(Status::STALE, "another one"),
            None => refuse(Status::REFUSED, "revoked"),
            Some(mr) => Message::Opened(Opened {
                address: mr.address(),
                bytes: served.bytes,
                generation: served.generation,
                rkey: mr.rkey().wrapping_add(served.key_lie.load(Relaxed)),
            }),
        };
        if talk.send(&answer).is_err() {
            return;
        }
    }
}

pub(crate) const ANY_MTU: MtuWish = MtuWish::AtMost(PathMtu::B4096);
