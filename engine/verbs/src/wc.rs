//! Work completion statuses: what each means, why it comes, and what to do.
//!
//! The codes are those of `enum ibv_wc_status` (ibv_poll_cq(3)); [`status_of`] is the one place
//! where they become a [`Status`].

use sq_cq::Status;

/// What a work completion status means to whoever has to act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcMeaning {
    /// The number in the completion.
    pub code: u32,
    /// Its name in the library, without `IBV_WC_`.
    pub name: &'static str,
    /// What happened.
    pub cause: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

/// The code of a request that was thrown back because the queue pair had failed before.
pub const FLUSHED: u32 = 5;

const fn row(
    code: u32,
    name: &'static str,
    cause: &'static str,
    advice: &'static str,
) -> WcMeaning {
    WcMeaning { code, name, cause, advice }
}

/// Every status there is, by code.
pub const WC_MEANINGS: [WcMeaning; 24] = [
    row(0, "SUCCESS", "the request is complete", "nothing to do"),
    row(
        1,
        "LOC_LEN_ERR",
        "the request is longer than the port's largest message, or than the buffer posted for it",
        "use a smaller request_bytes_max; if it persists this is a bug of the rail",
    ),
    row(
        2,
        "LOC_QP_OP_ERR",
        "the device found the queue pair inconsistent",
        "look at the kernel's log for the device; update its firmware or driver",
    ),
    row(
        3,
        "LOC_EEC_OP_ERR",
        "the end-to-end context is inconsistent",
        "not used by RC; see the driver",
    ),
    row(
        4,
        "LOC_PROT_ERR",
        "the local memory is not registered, or not for this access",
        "register the region with the rail before reading into it; was it unregistered meanwhile?",
    ),
    row(
        5,
        "WR_FLUSH_ERR",
        "the queue pair had failed before this request was done",
        "look for the first failure of the connection, which is the cause",
    ),
    row(6, "MW_BIND_ERR", "binding a memory window failed", "check the window's region and access"),
    row(
        7,
        "BAD_RESP_ERR",
        "the peer's answer broke the protocol",
        "check that both ends use the same path MTU and a supported driver",
    ),
    row(
        8,
        "LOC_ACCESS_ERR",
        "the local memory is not registered for what the peer does to it",
        "register with local write access",
    ),
    row(
        9,
        "REM_INV_REQ_ERR",
        "the peer's device cannot serve the request",
        "the peer must allow RDMA READ on its queue pair and the length must fit the message limit",
    ),
    row(
        10,
        "REM_ACCESS_ERR",
        "the peer's memory is not registered for this key and range",
        "the lease ended or the key is wrong; look the object up again",
    ),
    row(
        11,
        "REM_OP_ERR",
        "the peer's device failed while serving the request",
        "look at the peer's kernel log",
    ),
    row(
        12,
        "RETRY_EXC_ERR",
        "the peer did not answer within the acknowledge timeout and its retries",
        "the peer is gone, or the path is: check its process, the GID and its route, link and \
         firewall (UDP 4791), and that the path MTU fits the link",
    ),
    row(
        13,
        "RNR_RETRY_EXC_ERR",
        "the peer had no receive posted for as long as was waited",
        "the peer is overloaded; raise its receive queue or the retries",
    ),
    row(
        14,
        "LOC_RDD_VIOL_ERR",
        "the RDD of the queue pair is wrong",
        "not used by RC; see the driver",
    ),
    row(
        15,
        "REM_INV_RD_REQ_ERR",
        "the peer refused an RD request",
        "not used by RC; see the driver",
    ),
    row(16, "REM_ABORT_ERR", "the peer aborted the request", "look at the peer's kernel log"),
    row(
        17,
        "INV_EECN_ERR",
        "the end-to-end context number is wrong",
        "not used by RC; see the driver",
    ),
    row(
        18,
        "INV_EEC_STATE_ERR",
        "the end-to-end context is in the wrong state",
        "not used by RC; see the driver",
    ),
    row(19, "FATAL_ERR", "the device failed", "look at the kernel's log; the device must be reset"),
    row(
        20,
        "RESP_TIMEOUT_ERR",
        "an answer did not come in time",
        "the path is slow or lossy; raise the acknowledge timeout",
    ),
    row(
        21,
        "GENERAL_ERR",
        "the device gives no other reason",
        "look at vendor_err and the kernel's log",
    ),
    row(22, "TM_ERR", "tag matching failed", "not used by this rail; see the driver"),
    row(
        23,
        "TM_RNDV_INCOMPLETE",
        "a rendezvous of tag matching did not end",
        "not used by this rail; see the driver",
    ),
];

/// What `code` means; nothing for one that the library does not have (yet).
#[must_use]
pub fn meaning_of(code: u32) -> Option<&'static WcMeaning> {
    WC_MEANINGS.get(code as usize)
}

/// The engine's status for a work completion.
#[must_use]
pub fn status_of(code: u32) -> Status {
    Status::from_wc(code)
}

/// A line for people: name, cause and advice, with the device's own code.
#[must_use]
pub fn explain(code: u32, vendor: u32) -> String {
    match meaning_of(code) {
        Some(WcMeaning { name, cause, advice, .. }) => {
            format!("{name} (wc status {code}, vendor {vendor:#x}): {cause}; {advice}")
        }
        None => format!("wc status {code}, vendor {vendor:#x}: not known; see the driver"),
    }
}

#[cfg(test)]
mod tests {
    use sq_cq::Blame;

    use super::*;

    #[test]
    fn the_table_is_in_order_and_says_something() {
        for (index, row) in WC_MEANINGS.iter().enumerate() {
            assert_eq!(row.code as usize, index);
            assert!(row.cause.len() > 10 && row.advice.len() > 10, "{row:?}");
            let status = status_of(row.code);
            if index > 0 {
                // The same names as the engine prints.
                assert_eq!(status.to_string(), format!("{} (wc status {index})", row.name));
            }
        }
        assert!(status_of(0).is_ok());
        assert_eq!(meaning_of(24), None);
        assert!(explain(77, 3).contains("wc status 77"));
        assert!(explain(10, 0x88).contains("vendor 0x88"));
    }

    #[test]
    fn a_flush_is_nobodys_fault_and_a_refusal_is_the_peers() {
        assert_eq!(status_of(FLUSHED).blame(), Blame::Nobody);
        assert_eq!(status_of(10).blame(), Blame::Peer);
        assert_eq!(status_of(12).blame(), Blame::Rail);
        assert!(status_of(12).is_retryable());
    }
}
