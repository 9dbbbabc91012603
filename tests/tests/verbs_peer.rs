//! The memory peer is what tests take it for: it serves the bytes it was given, nobody can write
//! them, and each of its faults does what its name says.

use std::time::{Duration, Instant};

use railring_tests::guest;
use railring_tests::memory_peer::{
    Command, Lie, MemoryPeer, Over, PeerConfig, PeerProcess, Stage, Write,
};
use railring_tests::objects::{self, Shape};
use railring_tests::raw_reader::{RawConfig, RawReader};
use railring_tests::stored::random_bytes;
use railring_verbs::ffi::Access;
use railring_verbs::hello::Opened;

const DEVICE: &str = "rxe0";
const BYTES: usize = 300_000;
/// Codes of enum ibv_wc_status (ibv_poll_cq(3)).
const REMOTE_ACCESS: u32 = 10;
const REMOTE_INVALID: u32 = 9;
const NO_ANSWER: u32 = 12;
const FLUSHED: u32 = 5;

struct Scene {
    peer: MemoryPeer,
    reader: RawReader,
    opened: Opened,
    bytes: Vec<u8>,
}

/// A peer with one object, and a reader that has opened it; none outside of the guest.
fn scene(test: &str, prepare: impl FnOnce(&MemoryPeer)) -> Option<Scene> {
    guest::rails(test)?;
    let peer = MemoryPeer::start(PeerConfig::on(DEVICE)).expect("it starts");
    let bytes = random_bytes(3, BYTES);
    peer.put("object.1", 1, &bytes).expect("it is registered");
    prepare(&peer);
    let config = RawConfig::on(DEVICE, BYTES);
    let mut reader = RawReader::connect(&config, &peer.endpoint()).expect("it connects");
    let opened = reader.open("object.1", 1).expect("it opens");
    Some(Scene { peer, reader, opened, bytes })
}

impl Scene {
    fn read(&mut self) -> u32 {
        let bytes = u32::try_from(BYTES).expect("small");
        self.reader.read(&self.opened, 0, bytes).expect("a completion")
    }

    fn reads_right(&mut self) {
        self.reader.memory().fill(0);
        assert_eq!(self.read(), 0);
        assert!(self.reader.memory() == self.bytes, "bytes differ");
    }
}

#[test]
fn it_serves_what_it_was_given() {
    let Some(mut scene) = scene("it_serves_what_it_was_given", |_| {}) else { return };
    scene.reads_right();
    assert_eq!((scene.peer.connections(), scene.peer.greeted()), (1, 1));
    assert!(scene.reader.open("object.2", 1).is_err(), "there is no such object");
    assert!(scene.reader.open("object.1", 2).is_err(), "that generation is gone");
    scene.reads_right();
    // Its last byte, and one more than there is.
    let last = BYTES as u64 - 1;
    assert_eq!(scene.reader.read(&scene.opened, last, 1).expect("a completion"), 0);
    assert_eq!(scene.reader.memory()[0], scene.bytes[BYTES - 1]);
    let beyond = scene.opened.bytes;
    let code = scene.reader.read(&scene.opened, beyond, 1).expect("a completion");
    assert_eq!(code, REMOTE_ACCESS, "memory behind the object was read");
}

#[test]
fn it_serves_files_of_a_directory() {
    let Some(mut scene) = scene("it_serves_files_of_a_directory", |_| {}) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("below")).expect("a folder");
    std::fs::write(folder.path().join("below/data"), &scene.bytes[..1000]).expect("there is room");
    scene.peer.serve(&folder.path().join("below"));
    let opened = scene.reader.open("data", 77).expect("any generation will do");
    assert_eq!(scene.reader.read(&opened, 0, 1000).expect("a completion"), 0);
    assert!(scene.reader.memory()[..1000] == scene.bytes[..1000]);
    assert!(scene.reader.open("../below/data", 77).is_err(), "it stays below its folder");
}

#[test]
fn its_lies_are_refused_by_the_device() {
    for lie in [Lie::Key(0x100), Lie::Address(1 << 40)] {
        let Some(mut scene) = scene("its_lies_are_refused_by_the_device", |peer| peer.lie(lie))
        else {
            return;
        };
        assert_eq!(scene.read(), REMOTE_ACCESS, "{lie:?}");
        // Only what it says is wrong.
        scene.peer.lie(Lie::Truth);
        let config = RawConfig::on(DEVICE, BYTES);
        scene.reader = RawReader::connect(&config, &scene.peer.endpoint()).expect("it connects");
        scene.opened = scene.reader.open("object.1", 1).expect("it opens");
        scene.reads_right();
    }
}

#[test]
fn a_revoked_registration_ends_its_key() {
    let Some(mut scene) = scene("a_revoked_registration_ends_its_key", |_| {}) else { return };
    scene.reads_right();
    scene.peer.revoke("object.1").expect("there is one");
    assert_eq!(scene.read(), REMOTE_ACCESS);
    assert!(scene.peer.revoke("object.2").is_err());
}

#[test]
fn a_queue_pair_that_was_shut_does_not_answer() {
    let test = "a_queue_pair_that_was_shut_does_not_answer";
    let Some(mut scene) = scene(test, |_| {}) else { return };
    scene.reads_right();
    scene.peer.shut().expect("the device obeys");
    assert_eq!(scene.read(), NO_ANSWER);
    // The talk goes on: only its queue pair is broken.
    assert!(scene.reader.open("object.1", 1).is_ok());
}

#[test]
fn it_is_late_where_it_was_told_to_be() {
    let test = "it_is_late_where_it_was_told_to_be";
    let late = Duration::from_millis(400);
    for stage in [Stage::Hello, Stage::Open, Stage::Ready] {
        let start = Instant::now();
        let Some(mut scene) = scene(test, |peer| peer.delay(stage, late)) else { return };
        let opened = start.elapsed();
        if stage != Stage::Ready {
            assert!(opened >= late, "{stage:?}: {opened:?}");
        }
        // A read that is not answered is sent again, and again.
        scene.reads_right();
        assert!(start.elapsed() >= late, "{stage:?}");
    }
    let Some(scene) = scene(test, |_| {}) else { return };
    scene.peer.delay(Stage::Hello, Duration::from_secs(60));
    let patience = Duration::from_millis(200);
    let config = RawConfig { patience, ..RawConfig::on(DEVICE, BYTES) };
    let refused = RawReader::connect(&config, &scene.peer.endpoint()).expect_err("it is silent");
    assert!(refused.to_string().contains("did not answer within"), "{refused}");
}

#[test]
fn dropping_it_is_its_death() {
    let Some(mut scene) = scene("dropping_it_is_its_death", |_| {}) else { return };
    scene.reads_right();
    drop(std::mem::replace(
        &mut scene.peer,
        MemoryPeer::start(PeerConfig::on(DEVICE)).expect("another"),
    ));
    assert_eq!(scene.read(), NO_ANSWER);
    assert!(scene.reader.open("object.1", 1).is_err(), "nobody is there");
}

#[test]
fn it_writes_only_where_it_may() {
    let Some(mut scene) = scene("it_writes_only_where_it_may", |_| {}) else { return };
    scene.reader.memory().fill(1);
    let write = |(address, rkey), fill| {
        let write = Write { address, rkey, bytes: 4096, fill };
        scene.peer.write(Over::Newest, write).expect("a completion")
    };
    let code = write(scene.reader.memory_at(), 2);
    assert_eq!(code, REMOTE_INVALID, "a reader's queue pair takes no writes");
    assert!(scene.reader.memory().iter().all(|byte| *byte == 1));

    let config = RawConfig { access: Access::RemoteWrite, ..RawConfig::on(DEVICE, BYTES) };
    let mut open = RawReader::connect(&config, &scene.peer.endpoint()).expect("it connects");
    open.memory().fill(1);
    let (address, rkey) = open.memory_at();
    assert_eq!(write((address + 1, rkey), 2), 0);
    assert!(open.memory()[1..4097].iter().all(|byte| *byte == 2), "nothing was written");
    assert_eq!((open.memory()[0], open.memory()[4097]), (1, 1));

    // After its queue pair failed nothing arrives, whatever the permissions are.
    scene.peer.keep_queue_pairs();
    open.memory().fill(1);
    open.breaker().fail().expect("the device obeys");
    let code = write((address, rkey), 3);
    assert_eq!(code, NO_ANSWER);
    assert!(open.memory().iter().all(|byte| *byte == 1), "a late write arrived");
}

#[test]
fn a_peer_in_another_process_obeys_and_dies() {
    let test = "a_peer_in_another_process_obeys_and_dies";
    if guest::rails(test).is_none() {
        return;
    }
    let mut peer = PeerProcess::start(env!("CARGO_BIN_EXE_memory_peer"), DEVICE).expect("starts");
    let shape = Shape { size_bytes: 100_000, stripe_bytes: 65_536, block_bytes: 4096, copies: 1 };
    let object = Command::Object { name: "far".to_owned(), shape, seed: 5 };
    peer.tell(&object).expect("it has it");
    assert!(peer.tell(&Command::Revoke("near".to_owned())).is_err());
    let (known, files) = objects::build("far", shape, &[peer.endpoint().to_owned()], 5);
    let config = RawConfig::on(DEVICE, files[0].len());
    let mut reader = RawReader::connect(&config, peer.endpoint()).expect("it connects");
    let opened = reader.open(&known.placement.handle, 1).expect("it opens");
    let bytes = u32::try_from(files[0].len()).expect("small");
    assert_eq!(reader.read(&opened, 0, bytes).expect("a completion"), 0);
    assert!(reader.memory() == files[0], "bytes differ");
    assert_eq!(peer.tell(&Command::Connections).expect("it counts"), "1");
    peer.kill();
    let code = reader.read(&opened, 0, bytes).expect("a completion");
    assert!([NO_ANSWER, FLUSHED].contains(&code), "{code}");
}
