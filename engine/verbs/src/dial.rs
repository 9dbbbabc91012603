//! Connecting: the hello over TCP, the queue pair brought up, targets opened and opened again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sq_cq::Status;

use crate::ffi::{Access, Qp, QpCaps, QpError, ReadQueue};
use crate::hello::{Agreement, Hello, HelloError, Message, OpenRequest, Opened, Talk, TalkError};
use crate::shared::{Cutter, Desk, Shared, lock};
use crate::targets::Target;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// Nobody listens, or not in time.
    #[error("{endpoint} does not answer: {source}; is its server running?")]
    Tcp {
        /// Where was dialled.
        endpoint: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The exchange failed.
    #[error(transparent)]
    Talk(#[from] TalkError),
    /// The two ends do not fit together.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer refused.
    #[error("the peer refuses: {text} ({status})")]
    Refused {
        /// Its reason.
        status: Status,
        /// In its words.
        text: String,
    },
    /// No queue pair, or none to this peer.
    #[error(transparent)]
    Qp(#[from] QpError),
}

/// Why a target cannot be opened over a connection that is there.
#[derive(Debug)]
pub(crate) enum AskError {
    /// The connection is of no more use.
    Talk(TalkError),
    /// The peer said no.
    Refused { status: Status, text: String },
}

struct Dialled {
    talk: Talk,
    queue: ReadQueue,
    agreed: Agreement,
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

fn dial(shared: &Shared, address: &str) -> Result<Dialled, DialError> {
    let plan = &shared.dial;
    let mut talk = Talk::connect(address, plan.patience)
        .map_err(|source| DialError::Tcp { endpoint: address.to_owned(), source })?;
    let caps = QpCaps { send_wrs: plan.send_wrs, sges: plan.sges };
    let qp = Qp::new(&shared.pd, &shared.cq, caps)?.init(plan.route.port, access(shared))?;
    let nonce = random();
    let ours = Hello {
        qpn: qp.qpn(),
        psn: (random() & 0xff_ffff) as u32,
        gid: plan.gid,
        mtu: plan.mtu,
        timers: plan.timers,
        reads_out: plan.reads_out,
        reads_in: 0,
        nonce,
    };
    talk.send(&Message::ClientHello(ours))?;
    let theirs = match talk.receive()? {
        Message::ServerHello(theirs) => theirs,
        Message::Refused(refusal) => {
            return Err(DialError::Refused { status: refusal.status, text: refusal.text });
        }
        _ => return Err(TalkError::Unexpected("a hello was due").into()),
    };
    let agreed = ours.agree(&theirs)?;
    let qp = qp.ready_to_receive(plan.route, &theirs, agreed, plan.timers)?;
    let qp = qp.ready_to_send(ours.psn, agreed, plan.timers)?;
    let queue = ReadQueue::new(qp, shared.device.limits().read_sges);
    Ok(Dialled { talk, queue, agreed })
}

fn access(shared: &Shared) -> Access {
    #[cfg(feature = "fault")]
    if shared.dial.open_memory {
        return Access::RemoteWrite;
    }
    debug_assert!(!shared.dial.open_memory || cfg!(feature = "fault"));
    Access::LocalWrite
}

/// Asks for one target's memory.
pub(crate) fn ask(talk: &mut Talk, handle: &str, generation: u64) -> Result<Opened, AskError> {
    let request = OpenRequest { handle: handle.to_owned(), generation };
    talk.send(&Message::Open(request)).map_err(AskError::Talk)?;
    match talk.receive().map_err(AskError::Talk)? {
        Message::Opened(opened) if opened.generation == generation => Ok(opened),
        Message::Opened(opened) => Err(AskError::Refused {
            status: Status::STALE,
            text: format!("generation {} is there", opened.generation),
        }),
        Message::Refused(refusal) => {
            Err(AskError::Refused { status: refusal.status, text: refusal.text })
        }
        _ => Err(AskError::Talk(TalkError::Unexpected("opened was due"))),
    }
}

/// The row of a target that was opened.
pub(crate) fn target_of(connection: usize, opened: Opened) -> Target {
    Target {
        connection: u32::try_from(connection).expect("a few hundred"),
        address: opened.address,
        bytes: opened.bytes,
        rkey: opened.rkey,
        status: Status::OK,
    }
}

/// Connects, opens again what was open, and hands the queue to the link. The connection is not
/// living before.
pub(crate) fn establish(
    shared: &Shared,
    connection: usize,
    desk: &mut Desk,
) -> Result<(), DialError> {
    desk.talk = None;
    let Dialled { mut talk, queue, agreed } = dial(shared, &desk.address)?;
    for open in &desk.open {
        let row = match ask(&mut talk, &open.handle, open.generation) {
            Ok(opened) => target_of(connection, opened),
            Err(AskError::Refused { status, .. }) => Target {
                status,
                ..target_of(connection, Opened { address: 0, bytes: 0, generation: 0, rkey: 0 })
            },
            Err(AskError::Talk(error)) => return Err(error.into()),
        };
        shared.targets.change(open.id, row);
    }
    let stream = talk.stream().try_clone().map_err(TalkError::Io)?;
    let slot = &shared.connections[connection];
    let epoch = desk.last_epoch.checked_add(1).unwrap_or(1);
    desk.last_epoch = epoch;
    desk.talk = Some(talk);
    *lock(&shared.agreed) = format!(
        "path MTU {}, {} reads on the wire, {} work requests of {} entries, {}",
        agreed.mtu,
        agreed.reads_out,
        queue.capacity(),
        shared.dial.sges,
        shared.dial.timers
    );
    let breaker = queue.breaker();
    slot.proved.store(false, Ordering::Relaxed);
    shared.counts.made();
    *lock(&slot.cutter) = Some(Cutter { epoch, breaker, stream: Arc::new(stream) });
    // One that the link never took is destroyed here, on a control thread.
    let untaken = lock(&slot.hand_over).replace((epoch, queue));
    drop(untaken);
    // Release: pairs with the link's Acquire, which then finds the queue and the rows.
    slot.epoch.store(epoch, Ordering::Release);
    shared.ring();
    Ok(())
}
