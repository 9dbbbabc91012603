//! `railring doctor --rdma-selftest`: one RDMA READ from each active port to itself, compared.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use railring::dma::{Lease, Region, RegionConfig, Regions};
use railring::topology::Machine;
use railring::topology::machine::{PortState, RdmaDevice, RdmaPort};
use railring::transport::WrId;
use railring::verbs::ffi::{
    Access, Cq, Device, Ended, Keys, Mr, Pd, Qp, QpCaps, Read, ReadQueue, ReadyToReceive,
    ReadyToSend, Reset, Route, Wake, WcBatch,
};
use railring::verbs::hello::Hello;
use railring::verbs::wc::explain;
use railring::verbs::{LocalPort, MtuWish, PathMtu, Timers};

use super::super::{Finding, State};
use crate::units::Bytes;

/// For all ports together.
const TIME_MAX: Duration = Duration::from_secs(10);
const BYTES: usize = 256 << 10;

/// A finding per port.
pub(super) fn run(machine: &Machine) -> Vec<Finding> {
    let until = Instant::now() + TIME_MAX;
    let ports =
        machine.rdma.iter().flat_map(|device| device.ports.iter().map(move |p| (device, p)));
    let findings: Vec<_> =
        ports.map(|(device, port)| test_port(machine, device, port, until)).collect();
    if !findings.is_empty() {
        return findings;
    }
    let meaning = "there is nothing to test";
    vec![
        Finding::new("self-test", State::Broken, "no RDMA port", meaning)
            .mend("load the card's driver, or make a software device, as above"),
    ]
}

fn test_port(machine: &Machine, device: &RdmaDevice, port: &RdmaPort, until: Instant) -> Finding {
    let check = format!("self-test {}/{}", device.name, port.number);
    if port.state != Some(PortState::Active) {
        let meaning = "the port cannot be tested while it is not active";
        return Finding::new(&check, State::Absent, "not active", meaning)
            .mend("see the port above");
    }
    let local = match LocalPort::find(machine, &device.name, Some(port.number), None) {
        Ok(local) => local,
        Err(error) => {
            let meaning = "no rail can be made on this port";
            return Finding::new(&check, State::Broken, error.to_string(), meaning)
                .mend("see the port above");
        }
    };
    match read_from_itself(&local, until) {
        Ok(time) => {
            let found = format!("{} read in {time:.2?}, bytes equal", Bytes(BYTES as u64));
            let meaning = "RDMA READ works on this port, from the device to itself";
            Finding::new(&check, State::Good, found, meaning)
        }
        Err(error) => {
            let meaning = "verbs rails on this port will fail likewise";
            Finding::new(&check, State::Broken, crate::chain(&error), meaning)
                .mend("see what the message says, and the findings above")
        }
    }
}

/// Memory filled with something, and its registration. The region outlives the registration.
struct Memory {
    mr: Mr,
    lease: Lease,
    _region: Region,
}

impl Memory {
    fn new(
        pd: &Pd,
        regions: &Regions,
        access: Access,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Self> {
        let region = regions.allocate(RegionConfig::new(BYTES))?;
        let mut lease = Lease::whole(&region)?;
        fill(lease.as_mut_slice());
        let mr = Mr::register(pd, &region, 0..BYTES, access)?;
        Ok(Memory { mr, lease, _region: region })
    }
}

fn read_from_itself(local: &LocalPort, until: Instant) -> Result<Duration> {
    let device = Device::open(&local.device)?;
    let pd = Pd::new(&device)?;
    let cq = Cq::new(&device, 4, Wake::Never)?;
    let regions = Regions::new(2);
    let random = |bytes: &mut [u8]| fastrand::fill(bytes);
    let source = Memory::new(&pd, &regions, Access::RemoteRead, random)?;
    let target = Memory::new(&pd, &regions, Access::LocalWrite, |bytes| bytes.fill(0))?;
    let (reader, _server) = connect(&device, &pd, &cq, local)?;
    let mut queue = ReadQueue::new(reader, 1);

    let (mut loan, part) = target.lease.lend();
    let lkey = target.mr.lkey();
    let keys = Keys { first: lkey, first_bytes: BYTES, rest: lkey };
    let (address, rkey) = (source.mr.address(), source.mr.rkey());
    let wr = WrId { slot: 0, generation: 1 };
    let bytes = u32::try_from(BYTES)?;
    let begun = Instant::now();
    let read = Read { wr, part, bytes, keys, address, rkey, signal: true };
    queue.push(read).map_err(|refused| anyhow!("the request was refused: {refused:?}"))?;
    queue.post().map_err(|(_, error)| error).context("the device refused the request")?;
    let part = wait(&cq, &mut queue, until)?;
    let time = begun.elapsed();
    loan.repay(part).map_err(|_| anyhow!("memory of another read came back"))?;
    let landed = loan.settle().map_err(|_| anyhow!("memory is missing"))?;
    if landed.as_slice() != source.lease.as_slice() {
        bail!("the read succeeded and its bytes are not those of the source");
    }
    Ok(time)
}

/// The part that a successful completion brings back.
fn wait(cq: &Cq, queue: &mut ReadQueue, until: Instant) -> Result<railring::dma::Part> {
    let mut batch = WcBatch::default();
    while Instant::now() < until {
        cq.poll(&mut batch).context("the completion queue cannot be polled")?;
        let Some(wc) = batch.take() else {
            std::hint::spin_loop();
            continue;
        };
        let (code, vendor) = (wc.code(), wc.vendor());
        let mut back = None;
        queue.complete(wc, &mut |_, part, ended| back = Some((part, ended)));
        match back {
            Some((part, Ended::Done { .. })) => return Ok(part),
            _ => bail!("{}", explain(code, vendor)),
        }
    }
    bail!("no completion came in time")
}

/// Two queue pairs of one device, each the other's peer.
fn connect(
    device: &Device,
    pd: &Pd,
    cq: &Cq,
    local: &LocalPort,
) -> Result<(Qp<ReadyToSend>, Qp<ReadyToReceive>)> {
    let caps = QpCaps { send_wrs: 2, sges: 1 };
    let reader = Qp::<Reset>::new(pd, cq, caps)?.init(local.port, Access::LocalWrite)?;
    let server = Qp::<Reset>::new(pd, cq, caps)?.init(local.port, Access::RemoteRead)?;
    // Short: a device that does not hear itself is found out in half a second.
    let timers = Timers::new(14, 3, 12, 6)?;
    let hello = |qpn, reads_out, reads_in| -> Result<Hello> {
        Ok(Hello {
            qpn,
            psn: fastrand::u32(0..1 << 24),
            gid: device.gid(local.port, local.gid.index)?,
            mtu: MtuWish::AtMost(device.port(local.port)?.mtu.unwrap_or(PathMtu::B256)),
            timers,
            reads_out,
            reads_in,
            nonce: 0,
        })
    };
    let (ours, theirs) = (hello(reader.qpn(), 1, 0)?, hello(server.qpn(), 0, 1)?);
    let gid_index = u8::try_from(local.gid.index)?;
    let route = Route { port: local.port, gid_index, hop_limit: 1, traffic_class: 0 };
    let server = server.ready_to_receive(route, &ours, theirs.agree(&ours)?, timers)?;
    let agreed = ours.agree(&theirs)?;
    let reader = reader.ready_to_receive(route, &theirs, agreed, timers)?;
    Ok((reader.ready_to_send(ours.psn, agreed, timers)?, server))
}
