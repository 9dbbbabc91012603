//! Laws of the hello codec: what is encoded is decoded again, and no bytes do harm.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use railring_verbs::hello::{
    DecodeError, HEADER_BYTES, Header, Hello, HelloError, Message, OpenRequest, Opened,
    PAYLOAD_BYTES_MAX, Refusal, Talk, TalkError,
};
use railring_verbs::{MtuWish, PathMtu, Timers};
use sq_cq::Status;

fn hellos() -> impl Strategy<Value = Hello> {
    let number = 0_u32..1 << 24;
    let mtu = (0_u32..5, any::<bool>()).prop_map(|(code, exactly)| {
        let mtu = PathMtu::from_code(code + 1).expect("one of five");
        if exactly { MtuWish::Exactly(mtu) } else { MtuWish::AtMost(mtu) }
    });
    let timers = (1_u8..32, 0_u8..7, 1_u8..32, 0_u8..7)
        .prop_map(|(a, b, c, d)| Timers::new(a, b, c, d).expect("in range"));
    let reads = (any::<u8>(), any::<u8>());
    (number.clone(), number, any::<[u8; 16]>(), mtu, timers, reads, any::<u64>()).prop_map(
        |(qpn, psn, gid, mtu, timers, (reads_out, reads_in), nonce)| Hello {
            qpn,
            psn,
            gid,
            mtu,
            timers,
            reads_out,
            reads_in,
            nonce,
        },
    )
}

fn messages() -> impl Strategy<Value = Message> {
    let opened = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
        |(address, bytes, generation, rkey)| {
            let bytes = bytes.min(u64::MAX - address);
            Message::Opened(Opened { address, bytes, generation, rkey })
        },
    );
    prop_oneof![
        hellos().prop_map(Message::ClientHello),
        hellos().prop_map(Message::ServerHello),
        (".{0,300}", any::<u64>())
            .prop_map(|(handle, generation)| Message::Open(OpenRequest { handle, generation })),
        (1_u16.., ".{0,100}").prop_map(|(code, text)| {
            Message::Refused(Refusal { status: Status::from_wire(code), text })
        }),
        opened,
    ]
}

fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
    let (head, payload) = bytes.split_first_chunk::<HEADER_BYTES>().expect("a header");
    Message::decode(Header::decode(head)?, payload)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_again(message in messages()) {
        match message.encode() {
            Ok(bytes) => {
                prop_assert!(bytes.len() <= HEADER_BYTES + PAYLOAD_BYTES_MAX);
                prop_assert_eq!(decode(&bytes), Ok(message));
            }
            // A handle may be too long in bytes.
            Err(error) => {
                let DecodeError::Field { field, .. } = error else { panic!("{error}") };
                prop_assert!(field == "handle" || field == "text");
            }
        }
    }

    #[test]
    fn bytes_that_are_decoded_are_encoded_the_same(
        kind in 0_u16..8, payload in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut bytes = b"RRVH\x01\x00".to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(&payload);
        if let Ok(message) = decode(&bytes) {
            prop_assert_eq!(message.encode(), Ok(bytes));
        }
    }

    #[test]
    fn one_changed_byte_is_another_message_or_none(
        message in messages(), at in any::<usize>(), flip in 1_u8..,
    ) {
        let Ok(mut bytes) = message.encode() else { return Ok(()) };
        let at = at % bytes.len();
        bytes[at] ^= flip;
        prop_assert_ne!(decode(&bytes), Ok(message));
    }

    #[test]
    fn a_message_cut_short_or_with_more_behind_it_is_none(
        message in messages(), cut in 1_usize..40,
    ) {
        let Ok(bytes) = message.encode() else { return Ok(()) };
        let (head, payload) = bytes.split_first_chunk::<HEADER_BYTES>().expect("a header");
        let header = Header::decode(head).expect("it was just made");
        let short = &payload[..payload.len().saturating_sub(cut)];
        if short.len() < payload.len() {
            prop_assert!(Message::decode(header, short).is_err());
        }
        let longer: Vec<u8> = payload.iter().copied().chain((0..cut).map(|_| 0)).collect();
        prop_assert!(Message::decode(header, &longer).is_err());
        // The same with a header that says so.
        let mut relabelled = bytes.clone();
        relabelled[8..12].copy_from_slice(&(longer.len() as u32).to_le_bytes());
        relabelled.extend((0..cut).map(|_| 0));
        prop_assert!(decode(&relabelled).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES..90),
    ) {
        let _ = decode(&bytes);
    }

    #[test]
    fn two_hellos_agree_the_same_seen_from_both_ends(a in hellos(), b in hellos()) {
        let b = Hello { nonce: a.nonce, ..b };
        match (a.agree(&b), b.agree(&a)) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(ours.mtu, theirs.mtu);
                prop_assert_eq!(ours.reads_out, theirs.reads_in);
                prop_assert_eq!(ours.reads_in, theirs.reads_out);
                prop_assert!(ours.reads_out <= a.reads_out && ours.reads_out <= b.reads_in);
            }
            (Err(HelloError::Mtu(_)), theirs) => prop_assert!(theirs.is_err()),
            (ours, theirs) => prop_assert!(
                a.reads_out > 0 && b.reads_in == 0 || b.reads_out > 0 && a.reads_in == 0,
                "{:?} {:?}", ours, theirs
            ),
        }
    }
}

#[test]
fn lengths_are_checked_before_anything_is_kept_for_them() {
    let head = |length: u32| {
        let mut head = *b"RRVH\x01\x00\x04\x00\0\0\0\0";
        head[8..].copy_from_slice(&length.to_le_bytes());
        Header::decode(&head)
    };
    assert_eq!(head(2048).map(|header| header.payload_bytes()), Ok(2048));
    assert_eq!(head(2049), Err(DecodeError::TooLong { bytes: 2049 }));
    assert_eq!(head(u32::MAX), Err(DecodeError::TooLong { bytes: u32::MAX }));
    // A text length that lies about what follows.
    let open = Message::Open(OpenRequest { handle: "abc".into(), generation: 7 });
    let mut bytes = open.encode().expect("short");
    bytes[HEADER_BYTES + 8] = 200;
    assert!(matches!(decode(&bytes), Err(DecodeError::Length { kind: 4, .. })));
    bytes[HEADER_BYTES + 9] = 255;
    assert!(matches!(decode(&bytes), Err(DecodeError::Field { field: "handle", .. })));
}

#[test]
fn another_version_or_another_protocol_is_said_to_be_one() {
    assert_eq!(
        Header::decode(b"RRVH\x02\x00\x01\x00\0\0\0\0"),
        Err(DecodeError::Version { theirs: 2 })
    );
    let http = Header::decode(b"HTTP/1.1 400").expect_err("no hello");
    assert!(http.to_string().contains("is the port the right one?"), "{http}");
}

#[test]
fn a_hello_without_end_is_refused() {
    let mut bytes = Message::ClientHello(Hello {
        qpn: 1,
        psn: 2,
        gid: [0; 16],
        mtu: MtuWish::AtMost(PathMtu::B1024),
        timers: Timers::default(),
        reads_out: 1,
        reads_in: 1,
        nonce: 3,
    })
    .encode()
    .expect("in range");
    bytes[HEADER_BYTES + 27] = 0; // the acknowledge timeout
    assert!(matches!(decode(&bytes), Err(DecodeError::Timers(_))));
}

#[test]
fn a_refusal_is_cut_to_what_a_message_takes() {
    let refusal = Refusal::new(Status::STALE, &"ü".repeat(400));
    assert!(refusal.status.is_stale());
    let bytes = Message::Refused(refusal).encode().expect("cut to length");
    assert!(decode(&bytes).is_ok());
    assert_eq!(Refusal::new(Status::from_errno(5), "").status, Status::from_wire(7));
}

fn pair(patience: Duration) -> (Talk, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let endpoint = listener.local_addr().expect("bound").to_string();
    let talk = Talk::connect(&endpoint, patience).expect("it listens");
    (talk, listener.accept().expect("somebody connected").0)
}

#[test]
fn a_peer_that_dribbles_is_given_up_within_the_patience() {
    let (mut talk, mut other) = pair(Duration::from_millis(200));
    let slow = std::thread::spawn(move || {
        for byte in b"RRVH\x01\x00\x04\x00\x20\0\0\0aaaaaaaaaaaaaaaaaaaaaaaaaa" {
            if other.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let start = Instant::now();
    assert!(matches!(talk.receive(), Err(TalkError::TimedOut(_))));
    assert!(start.elapsed() >= Duration::from_millis(200));
    drop(talk);
    slow.join().expect("it only writes");
}

#[test]
fn an_end_between_messages_is_told_from_one_within() {
    let (mut talk, other) = pair(Duration::from_secs(5));
    drop(other);
    assert!(matches!(talk.receive(), Err(TalkError::Closed)));
    let (mut talk, mut other) = pair(Duration::from_secs(5));
    other.write_all(b"RRVH\x01").expect("loopback");
    drop(other);
    assert!(matches!(talk.receive(), Err(TalkError::Io(_))));
}
