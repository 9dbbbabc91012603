//! The wrappers of the library: limits, registration, and one read by hand.

use std::time::{Duration, Instant};

use railring_dma::Part;
use railring_transport::WrId;
use railring_verbs::ffi::{
    Access, Cq, CqError, Device, DeviceError, Ended, Keys, Mr, MrError, Pd, PushRefused, Qp,
    QpCaps, QpError, Read, ReadQueue, Wake, WcBatch, devices,
};
use railring_verbs::hello::{Hello, Message, OpenRequest, Opened, Talk};
use railring_verbs::{LocalPort, Timers};

use crate::device_or_skip;
use crate::peer::{ANY_MTU, PATIENCE, Peer, byte_at, region, route};

#[test]
fn devices_are_listed_or_it_is_said_why_not() {
    match devices() {
        Ok(names) => {
            let missing = Device::open("no-such-device").expect_err("it does not exist");
            assert!(matches!(&missing, DeviceError::NoSuchDevice { .. }), "{missing}");
            assert!(missing.to_string().contains(&names[0]), "{missing}");
        }
        Err(error) => {
            println!("SKIP devices_are_listed: {error}");
            assert!(error.to_string().len() > 40, "it says what to do: {error}");
        }
    }
}

#[test]
fn more_than_the_device_has_is_refused_with_its_limit() {
    let (device, _, _) = device_or_skip!("more_than_the_device_has");
    let limits = *device.limits();
    println!("{limits:?}");
    let cq = Cq::new(&device, limits.cqes + 1, Wake::Never).expect_err("one too many");
    assert!(matches!(cq, CqError::Size { limit, .. } if limit == limits.cqes), "{cq}");
    let cq = Cq::new(&device, 16, Wake::Never).expect("a queue");
    assert!(cq.entries() >= 16);
    let pd = Pd::new(&device).expect("a domain");
    for caps in [
        QpCaps { send_wrs: limits.qp_wrs + 1, sges: 1 },
        QpCaps { send_wrs: 1, sges: limits.sges + 1 },
        QpCaps { send_wrs: 0, sges: 1 },
    ] {
        let refused = Qp::new(&pd, &cq, caps).expect_err("too much");
        assert!(matches!(refused, QpError::Caps { .. }), "{refused}");
    }
    let (region, _pool) = region(4096, |_| 0);
    let nothing = Mr::register(&pd, &region, 10..10, Access::LocalWrite);
    assert!(matches!(nothing, Err(MrError::Range { .. })));
    let beyond = Mr::register(&pd, &region, 0..usize::MAX, Access::LocalWrite);
    assert!(matches!(beyond, Err(MrError::Range { .. })));
}

/// A connection made by hand.
pub(crate) struct ByHand {
    pub(crate) reads: ReadQueue,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
    pub(crate) talk: Talk,
}

pub(crate) fn connect(device: &Device, port: &LocalPort, endpoint: &str, depth: u32) -> ByHand {
    let pd = Pd::new(device).expect("a domain");
    let cq = Cq::new(device, 64, Wake::Descriptor).expect("a queue");
    let qp = Qp::new(&pd, &cq, QpCaps { send_wrs: depth, sges: 2 }).expect("a qp");
    let mut talk = Talk::connect(endpoint, PATIENCE).expect("the peer listens");
    let ours = Hello {
        qpn: qp.qpn(),
        psn: 5,
        gid: device.gid(port.port, port.gid.index).expect("its gid"),
        mtu: ANY_MTU,
        timers: Timers::default(),
        reads_out: 16,
        reads_in: 0,
        nonce: 99,
    };
    talk.send(&Message::ClientHello(ours)).expect("sent");
    let Message::ServerHello(theirs) = talk.receive().expect("an answer") else {
        panic!("no hello");
    };
    let agreed = ours.agree(&theirs).expect("they fit");
    let qp = qp.init(port.port, Access::LocalWrite).expect("init");
    let qp = qp.ready_to_receive(route(port), &theirs, agreed, ours.timers).expect("receive");
    let qp = qp.ready_to_send(ours.psn, agreed, ours.timers).expect("send");
    ByHand { reads: ReadQueue::new(qp, device.limits().read_sges), cq, pd, talk }
}

/// Asks for the peer's memory.
pub(crate) fn open(talk: &mut Talk) -> Opened {
    let open = OpenRequest { handle: "a".into(), generation: 1 };
    talk.send(&Message::Open(open)).expect("sent");
    let Message::Opened(opened) = talk.receive().expect("an answer") else { panic!("refused") };
    opened
}

/// The read of the part's length in slot `slot`, from as many lengths into the peer's memory.
pub(crate) fn read(slot: u32, generation: u32, part: Part, mr: &Mr, opened: Opened) -> Read {
    let bytes = u32::try_from(part.len()).expect("short");
    Read {
        wr: WrId { slot, generation },
        part,
        bytes,
        keys: Keys { first: mr.lkey(), first_bytes: usize::MAX, rest: 0 },
        address: opened.address + u64::from(slot) * u64::from(bytes),
        rkey: opened.rkey,
        signal: false,
    }
}

/// Polls until `count` reads are done.
pub(crate) fn finish(cq: &Cq, reads: &mut ReadQueue, count: usize) -> Vec<(u32, Part)> {
    let mut done = Vec::new();
    let mut batch = WcBatch::default();
    let until = Instant::now() + Duration::from_secs(20);
    while done.len() < count {
        assert!(Instant::now() < until, "only {done:?} came");
        cq.poll(&mut batch).expect("the queue works");
        while let Some(wc) = batch.take() {
            let known = reads.complete(wc, &mut |wr, part, ended| {
                assert!(matches!(ended, Ended::Done { .. }), "{ended:?}");
                done.push((wr.slot, part));
            });
            assert!(known);
        }
    }
    done
}

#[test]
fn bytes_come_by_rdma_read_and_parts_only_when_they_are_over() {
    let (device, port, _) = device_or_skip!("bytes_come_by_rdma_read");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let ByHand { mut reads, cq, pd, mut talk } = connect(&device, &port, &peer.endpoint, 16);
    assert_eq!(peer.served.qps.lock().expect("no panic").len(), 1);
    let opened = open(&mut talk);

    let (memory, pool) = region(1 << 20, |_| 0);
    // Two registrations that meet in the middle of a part.
    let split = 300 << 10;
    let low = Mr::register(&pd, &memory, 0..split, Access::LocalWrite).expect("memory");
    let high = Mr::register(&pd, &memory, split..1 << 20, Access::LocalWrite).expect("memory");
    let (mut loan, mut rest) = pool.take().expect("free").lend();
    let piece = 64 << 10;
    for slot in 0..16 {
        let (part, after) = rest.split_at(piece);
        rest = after;
        let from = slot as usize * piece;
        let keys =
            Keys { first: low.lkey(), first_bytes: split.saturating_sub(from), rest: high.lkey() };
        let read = Read {
            wr: WrId { slot, generation: 1 },
            part,
            bytes: piece as u32,
            keys,
            address: opened.address + from as u64,
            rkey: opened.rkey,
            signal: slot % 3 == 0,
        };
        reads.push(read).expect("there is room");
    }
    let (_, more) = region(4096, |_| 0);
    let (_loan, part) = more.take().expect("free").lend();
    let full = Read {
        wr: WrId { slot: 16, generation: 1 },
        bytes: part.len() as u32,
        part,
        keys: Keys { first: 0, first_bytes: usize::MAX, rest: 0 },
        address: 0,
        rkey: 0,
        signal: true,
    };
    assert!(matches!(reads.push(full), Err(PushRefused::Full(_))));
    assert_eq!(reads.post().expect("the device takes all"), 16);

    let done = finish(&cq, &mut reads, 16);
    for (at, (slot, part)) in done.into_iter().enumerate() {
        assert_eq!(slot as usize, at, "a send queue ends in order");
        let right = part.as_slice().iter().enumerate();
        assert!(right.into_iter().all(|(byte, found)| *found == byte_at(at * piece + byte)));
        loan.repay(part).expect("it is of this loan");
    }
    assert!(reads.is_empty());
    drop(reads);
}
