//! A trace for people: its stages, a table of its rails, and its timeline.

use std::fmt;

use super::{ReadTrace, TraceKind, TraceOf, TraceRail, TraceRecord, TraceStages};

/// Nanoseconds as milliseconds with three places, rounded down.
struct Ms(u64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0 / 1000;
        f.pad(&format!("{}.{:03}", us / 1000, us % 1000))
    }
}

impl fmt::Display for TraceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TraceKind::Plan => "plan",
            TraceKind::Queue => "queue",
            TraceKind::Wire => "wire",
            TraceKind::Disk => "disk",
            TraceKind::Verify => "verify",
            TraceKind::Publish => "publish",
        })
    }
}

impl fmt::Display for TraceOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TraceOf::Read => "read",
            TraceOf::Stripe => "stripe",
            TraceOf::Piece => "piece",
            TraceOf::Table => "table",
        })
    }
}

impl fmt::Display for TraceStages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "plan {} ms, queue {}, wire {}, disk {}, verify {}, publish {}",
            Ms(self.plan_ns),
            Ms(self.queue_ns),
            Ms(self.wire_ns),
            Ms(self.disk_ns),
            Ms(self.verify_ns),
            Ms(self.publish_ns),
        )
    }
}

impl fmt::Display for TraceRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = u128::from(self.moved_bytes) * 1000 / u128::from(self.busy_ns.max(1));
        write!(
            f,
            "{} {}: {} B in {} pieces, {} attempts, {} failed, {} stolen, busy {} ms, {rate} MB/s",
            self.kind,
            self.name,
            self.bytes,
            self.pieces,
            self.attempts,
            self.failures,
            self.steals,
            Ms(self.busy_ns),
        )
    }
}

impl ReadTrace {
    fn line(&self, f: &mut fmt::Formatter<'_>, record: &TraceRecord) -> fmt::Result {
        let length = record.to_ns - record.from_ns;
        write!(f, "\n{:>10} {:>10}  {:<8}", Ms(record.from_ns), Ms(length), record.kind)?;
        match record.of {
            TraceOf::Read => write!(f, "the read, {} B", record.bytes)?,
            TraceOf::Stripe => write!(f, "stripe {}, {} B", record.stripe, record.bytes)?,
            TraceOf::Piece => {
                let end = record.offset + record.bytes;
                write!(f, "stripe {}, bytes {}..{end}", record.stripe, record.offset)?;
            }
            TraceOf::Table => write!(f, "stripe {}, its block table", record.stripe)?,
        }
        if let Some(rail) = record.rail.and_then(|rail| self.rails.get(usize::from(rail))) {
            write!(f, ", {}", rail.name)?;
        }
        if record.attempt > 1 {
            write!(f, ", attempt {}", record.attempt)?;
        }
        if record.status.is_ok() { Ok(()) } else { write!(f, ": {}", record.status) }
    }
}

impl fmt::Display for ReadTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "read {}: {} of {} B in {} ms, {}",
            self.user_data,
            self.bytes,
            self.len_bytes,
            Ms(self.latency_ns()),
            self.status,
        )?;
        match self.bottleneck() {
            Some(verdict) => write!(f, "; it waited for: {verdict}")?,
            None => write!(f, "; it took no time")?,
        }
        write!(f, "\n  {}; popped {} ms later", self.stages, Ms(self.delivery_ns))?;
        for rail in self.rails.iter().filter(|rail| rail.attempts > 0) {
            write!(f, "\n  {rail}")?;
        }
        if let Some(last) = self.last_rail().filter(|_| self.stages.lone_ns > 0) {
            let alone = Ms(self.stages.lone_ns);
            write!(f, "\n  last to be done: {}, alone for {alone} ms", self.rails[last].name)?;
        }
        write!(f, "\n{:>10} {:>10}  what", "at ms", "for ms")?;
        for record in &self.records {
            self.line(f, record)?;
        }
        if self.records_dropped > 0 {
            write!(f, "\n  and {} more, which found no room", self.records_dropped)?;
        }
        Ok(())
    }
}
