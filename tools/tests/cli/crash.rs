//! Kill: a put that dies at any point leaves a store in which everything listed verifies.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::rig::{Place, seed};

const KILLS: usize = 32;

#[test]
fn a_put_killed_anywhere_leaves_a_good_store() {
    let mut random = fastrand::Rng::with_seed(seed("a_put_killed_anywhere"));
    let place = Place::new(2);
    let file = place.file("f", 6_000_000, 1);
    let expected = fs::read(&file).expect("there");
    let file = file.to_str().expect("UTF-8");
    let (mut killed, mut finished) = (0, 0);
    // How long one takes here, found as we go; kills are spread over that time.
    let mut longest = 60_000;
    while killed < KILLS && finished < 4 * KILLS {
        let key = format!("a/{}", random.u8(..3));
        let mut command = place.command(&["put", file, "--key", &key, "--stripe", "256K"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs");
        std::thread::sleep(Duration::from_micros(random.u64(..longest)));
        child.kill().expect("sent");
        if child.wait().expect("ends").success() {
            finished += 1;
            longest = (longest * 3 / 4).max(500);
        } else {
            killed += 1;
            longest = longest * 11 / 10;
        }
        // The first ones may die before there is a store.
        if killed % 8 == 1 && place.disks.iter().all(|disk| disk.join("railring-store").exists()) {
            place.run(&["verify"]).good();
        }
    }
    println!("{killed} killed, {finished} were faster");
    assert!(killed >= KILLS, "only {killed} of {KILLS} were killed in time");
    place.run(&["put", file, "--key", "a/last"]).good();
    assert!(place.leftovers().is_empty(), "{:?}", place.leftovers());
    place.run(&["verify"]).good();
    for object in place.run(&["ls", "--json"]).good().json() {
        let key = object["key"].as_str().expect("text").to_owned();
        assert!(place.run(&["get", &key]).good().out == expected, "{key}");
    }
}
