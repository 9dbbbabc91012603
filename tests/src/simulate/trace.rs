//! What happened in a run, in order: hashed as it happens, and readable afterwards.

use std::fmt::Write as _;

use railring_transport::Nanos;

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// One read, by its user data.
    Read(u64),
    /// Everything.
    Run,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// `a` bytes wanted from `b`.
    Pushed,
    Refused,
    Submitted,
    CancelSent,
    TokenCancelled,
    /// Stripe `a`, status `b`.
    Completed,
    /// Read status `a`.
    Ended,
    RingDropped,
    ObjectClosed,
    /// Rail `a`, to `b`.
    Enabled,
    /// Object `a`, by generation `b`.
    Overwritten,
    /// Of `a` bytes, and whether it was.
    PoolMade,
    PoolDropped,
    /// Rail `a`: queued / came back / cancelled / quiesced, wr slot and generation in `b`.
    Queued,
    Refusal,
    Reaped,
    CancelledWr,
    QuiescedWr,
    /// Poller `a`, until `b`.
    Slept,
    /// Poller `a`.
    Woke,
    /// Poller `a`.
    Panicked,
    RingForgotten,
    /// Caller `a`, and whether there was nothing to pop.
    Waits,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Nanos,
    about: About,
    what: What,
    a: u64,
    b: u64,
    /// First and last byte of a transfer, in the read's memory.
    bytes: (usize, usize),
}

/// The record of a run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    now: Nanos,
    hash: u64,
    entries: Vec<Entry>,
}

/// Mixes a word into a hash: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Trace {
    pub(crate) fn set_time(&mut self, now: Nanos) {
        self.now = now;
    }

    pub(crate) fn note(&mut self, about: About, what: What, a: u64, b: u64) {
        let read = match about {
            About::Read(read) => read,
            About::Run => u64::MAX,
        };
        for word in [self.now.0, read, what as u64, a, b] {
            self.hash = mix(self.hash, word);
        }
        self.entries.push(Entry { at: self.now, about, what, a, b, bytes: (0, 0) });
    }

    /// A transfer of bytes `from..to` of a read's memory.
    pub(crate) fn note_transfer(
        &mut self,
        about: About,
        what: What,
        (rail, wr): (u64, u64),
        bytes: (usize, usize),
    ) {
        self.note(about, what, rail, wr);
        if let Some(entry) = self.entries.last_mut() {
            entry.bytes = bytes;
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// What happened to one read, and to everything meanwhile.
    pub(crate) fn timeline(&self, read: Option<u64>) -> String {
        let mine = |entry: &&Entry| match (entry.about, read) {
            (About::Read(about), Some(read)) => about == read,
            (About::Read(_), None) => false,
            (About::Run, _) => true,
        };
        let mut text = String::new();
        let start = super::START;
        for entry in self.entries.iter().filter(mine) {
            let microseconds = entry.at.since(start) as f64 / 1e3;
            let _ = writeln!(text, "  {microseconds:>12.3} us  {}", entry.line());
        }
        text
    }
}

fn terms(bits: u64) -> String {
    let names = ["scattered", "quiet", "allow partial", "fail fast", "skip verify"];
    let on = names.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    on.map(|(_, name)| format!(", {name}")).collect()
}

impl Entry {
    fn line(&self) -> String {
        let (a, b) = (self.a, self.b);
        let status = |raw: u64| {
            let raw = i32::from_ne_bytes((raw as u32).to_ne_bytes());
            sq_cq::Status::from_raw(raw).to_string()
        };
        let (from, to) = self.bytes;
        // A work request by slot and generation, as `WrId::to_bits` has them.
        let wr = |b: u64| {
            let wr = railring_transport::WrId::from_bits(b);
            format!("wr {}.{} (bytes {from}..{to})", wr.slot, wr.generation)
        };
        match self.what {
            What::Pushed => format!("pushed: {a} bytes, ring {}{}", b & 0xff, terms(b >> 8)),
            What::Refused => "push refused".to_owned(),
            What::Submitted => format!("ring {a} submitted"),
            What::CancelSent => "cancel sent".to_owned(),
            What::TokenCancelled => format!("token {a} cancelled"),
            What::Completed => format!("CQE: stripe {a}, {}", status(b)),
            What::Ended => format!("ended: {}", status(a)),
            What::RingDropped => format!("ring {a} dropped"),
            What::ObjectClosed => format!("object {a} closed"),
            What::Enabled => format!("rail {a} switched {}", if b == 0 { "off" } else { "on" }),
            What::Overwritten => format!("object {a} overwritten by generation {b}"),
            What::PoolMade if b == 0 => format!("a pool of {a} bytes refused"),
            What::PoolMade => format!("a pool of {a} bytes made"),
            What::PoolDropped => "a pool dropped".to_owned(),
            What::Queued => format!("rail {a} takes {}", wr(b)),
            What::Refusal => format!("rail {a} does not take {}", wr(b)),
            What::Reaped => format!("rail {a} gives back {}", wr(b)),
            What::CancelledWr => format!("rail {a} is asked to cancel {}", wr(b)),
            What::Slept if b == u64::MAX => format!("poller {a} sleeps"),
            What::Slept => {
                let until = Nanos(b).since(super::START) as f64 / 1e3;
                format!("poller {a} sleeps until {until:.3} us")
            }
            What::Panicked => format!("poller {a} panics"),
            What::RingForgotten => format!("ring {a} forgotten"),
            What::Woke => format!("poller {a} wakes"),
            What::Waits if b == 0 => format!("ring {a} has something: its caller does not wait"),
            What::Waits => format!("the caller of ring {a} waits"),
            What::QuiescedWr => format!("rail {a} must make quiet {}", wr(b)),
        }
    }
}
