//! Owns the tests of `Status`: literals from the manuals, and laws over all values.

use proptest::prelude::*;

use super::*;

/// errno(3): numbers from the manual, not from the table under test.
#[test]
fn errnos_are_what_the_manual_says() {
    for (name, errno) in [
        ("EPERM", 1),
        ("ENOENT", 2),
        ("EINTR", 4),
        ("EIO", 5),
        ("ENXIO", 6),
        ("EBADF", 9),
        ("EAGAIN", 11),
        ("ENOMEM", 12),
        ("EACCES", 13),
        ("EFAULT", 14),
        ("EBUSY", 16),
        ("ENODEV", 19),
        ("EINVAL", 22),
        ("ENOSPC", 28),
        ("EPIPE", 32),
        ("ECONNRESET", 104),
        ("ENOBUFS", 105),
        ("ETIMEDOUT", 110),
        ("ECONNREFUSED", 111),
        ("ESTALE", 116),
        ("ECANCELED", 125),
    ] {
        let status = Status::from_errno(errno);
        assert_eq!(status.raw(), -errno);
        assert_eq!(status.errno(), Some(errno));
        assert_eq!(status.to_string(), format!("{name} (errno {errno})"));
        assert_eq!(Status::from_errno(-errno), status, "an io_uring CQE carries it negated");
    }
}

/// The table agrees with the C library's numbers too, where the platform is not asm-generic.
#[test]
fn errnos_agree_with_the_c_library() {
    use rustix::io::Errno;
    for (errno, literal) in [
        (Errno::INTR, 4),
        (Errno::IO, 5),
        (Errno::AGAIN, 11),
        (Errno::NOBUFS, 105),
        (Errno::STALE, 116),
        (Errno::CANCELED, 125),
    ] {
        assert_eq!(errno.raw_os_error(), literal);
    }
}

/// ibv_poll_cq(3) and `enum ibv_wc_status` of infiniband/verbs.h.
#[test]
fn work_completion_statuses_are_what_verbs_h_says() {
    let flush = Status::from_wc(5);
    assert_eq!(flush.raw(), -65_541);
    assert_eq!(flush.to_string(), "WR_FLUSH_ERR (wc status 5)");
    assert_eq!(flush.blame(), Blame::Nobody);
    assert_eq!(Status::from_wc(10).to_string(), "REM_ACCESS_ERR (wc status 10)");
    assert_eq!(Status::from_wc(10).blame(), Blame::Peer);
    assert_eq!(Status::from_wc(12).to_string(), "RETRY_EXC_ERR (wc status 12)");
    assert_eq!(Status::from_wc(12).blame(), Blame::Rail);
    assert_eq!(Status::from_wc(13).to_string(), "RNR_RETRY_EXC_ERR (wc status 13)");
    assert!(Status::from_wc(13).is_backpressure());
    assert_eq!(Status::from_wc(23).to_string(), "TM_RNDV_INCOMPLETE (wc status 23)");
    assert_eq!(Status::from_wc(4).blame(), Blame::Caller);
}

#[test]
fn own_codes_keep_their_numbers() {
    assert_eq!(Status::CANCELLED.raw(), -131_073);
    assert_eq!(Status::NOT_FOUND.raw(), -131_077);
    assert_eq!(Status::STALE.raw(), -131_078);
    assert_eq!(Status::LIMIT_EXCEEDED.raw(), -131_087);
    assert_eq!(Status::STUCK.to_string(), "stuck");
}

#[test]
fn zero_is_ok_from_every_source() {
    for status in
        [Status::from_errno(0), Status::from_wc(0), Status::from_wire(0), Status::default()]
    {
        assert_eq!(status, Status::OK);
        assert!(status.is_ok() && !status.is_retryable() && !status.is_backpressure());
        assert_eq!((status.blame(), status.to_string().as_str()), (Blame::Nobody, "ok"));
    }
}

#[test]
fn classes() {
    assert!(Status::from_errno(11).is_backpressure(), "EAGAIN");
    assert!(Status::from_errno(105).is_backpressure(), "ENOBUFS");
    assert!(!Status::from_errno(4).is_backpressure(), "EINTR");
    assert!(Status::from_errno(4).is_retryable(), "EINTR");
    assert!(!Status::from_errno(22).is_retryable(), "EINVAL");
    assert_eq!(Status::from_errno(22).blame(), Blame::Caller);
    assert_eq!(Status::from_errno(5).blame(), Blame::Rail);
    assert!(Status::STALE.is_stale() && !Status::STALE.is_retryable());
    assert!(Status::VERSION_CHANGED.is_stale());
    assert_eq!(Status::CHECKSUM_MISMATCH.blame(), Blame::Data);
    assert!(Status::CHECKSUM_MISMATCH.is_retryable());
    assert!(!Status::CANCELLED.is_retryable());
    assert!(Status::LIMIT_EXCEEDED.is_backpressure());
}

/// Only rail faults cool a rail down; a peer's answers never do.
#[test]
fn no_answer_of_a_peer_blames_our_rail() {
    for code in 1..=u16::MAX {
        assert_ne!(Status::from_wire(code).blame(), Blame::Rail, "wire code {code}");
    }
    assert_eq!(Status::from_wire(5).to_string(), "not found (said the peer)");
    assert!(Status::from_wire(6).is_stale());
}

#[test]
fn unknown_codes_print_as_themselves() {
    assert_eq!(Status::from_errno(4000).to_string(), "errno 4000");
    assert_eq!(Status::from_wc(99).to_string(), "wc status 99");
    assert_eq!(Status::from_wire(999).to_string(), "wire code 999");
    assert_eq!(Status::from_raw(-131_999).to_string(), "railring code 927");
    assert_eq!(Status::from_raw(7).to_string(), "status 7");
    assert_eq!(Status::from_raw(i32::MIN).to_string(), "status -2147483648");
    assert!(Status::from_errno(4000).is_retryable());
}

#[test]
fn tables_are_sorted_for_the_search() {
    for table in [ERRNOS, WCS, OWNS] {
        assert!(table.is_sorted_by(|a, b| a.code < b.code));
    }
}

proptest! {
    #[test]
    fn no_value_panics_and_each_survives(raw: i32) {
        let status = Status::from_raw(raw);
        prop_assert_eq!(status.raw(), raw);
        prop_assert!(!status.to_string().is_empty());
        prop_assert_eq!(status.is_ok(), raw == 0);
        let _ = (status.blame(), status.is_retryable(), status.is_stale());
        prop_assert!(!status.is_backpressure() || status.is_retryable());
        prop_assert!(!(status.is_stale() && status.is_retryable()));
    }

    #[test]
    fn sources_do_not_overlap(errno: i32, wc in 1..u32::MAX, wire in 1..u16::MAX) {
        let errno = Status::from_errno(errno);
        let (wc, wire) = (Status::from_wc(wc), Status::from_wire(wire));
        prop_assert!(errno != wc && wc != wire && wire != errno);
        prop_assert!(wc.errno().is_none() && wire.errno().is_none());
    }

    #[test]
    fn wire_codes_round_trip(code: u16) {
        prop_assert_eq!(Status::from_wire(code).wire_code(), Some(code));
    }
}
