//! Reads that are traced, on the caller's side. Nothing here runs for any other.

use sq_cq::{Cqe, ReadId};

use super::Ring;
use crate::home::Attached;
use crate::loans::{Loans, lend, take_back};
use crate::memory::PartList;
use crate::push::{self, PushError, Refused};
use crate::read::Read;
use crate::trace::ReadTrace;

impl Ring {
    /// Where the time of a traced read went, from its last CQE on until as many others of this ring
    /// were traced since as there is room for. `None` for a read that was not traced.
    #[must_use]
    pub fn trace(&self, cqe: &Cqe) -> Option<&ReadTrace> {
        self.traces.as_ref()?.find(cqe.read_id())
    }

    /// All traces that are kept, the oldest first.
    pub fn traces(&self) -> impl Iterator<Item = &ReadTrace> {
        self.traces.iter().flat_map(|traces| traces.all())
    }

    /// Reads that were to be traced and were not, because all traces were under way. Monotone.
    #[must_use]
    pub fn traces_dropped(&self) -> u64 {
        self.traces.as_ref().map_or(0, |traces| traces.dropped())
    }

    /// What [`Ring::push`] does, with a trace sent along with the memory.
    #[cold]
    #[expect(clippy::result_large_err, reason = "a refused read comes back whole, lease and all")]
    pub(super) fn push_traced<'o>(&mut self, mut read: Read<'o>) -> Result<ReadId, Refused<'o>> {
        let checked = push::check(&read, &self.shared, self.end.slots_per_read_max());
        let checked = match checked.and_then(|checked| self.check_regions(&read).map(|()| checked))
        {
            Ok(checked) => checked,
            Err(why) => return Err(Refused { why, read }),
        };
        let now = self.now();
        let Some(traces) = &mut self.traces else {
            return Err(Refused { why: PushError::NoTraces, read });
        };
        let pushed_at = *self.batch_at.get_or_insert(now);
        let (memory, loans) = lend(read.into.take(), checked.bytes);
        let memory = traces.attach(memory, pushed_at);
        let attached = Attached { memory, token: read.token.take(), pushed_at };
        let deadline = read.deadline.at(pushed_at);
        let sqe = if deadline == 0 { checked.sqe } else { checked.sqe.deadline_ns(deadline) };
        match self.end.push(sqe, checked.slots, attached) {
            Ok(id) => {
                self.open[id.slot as usize] = loans;
                if let Some(object) = read.object {
                    self.hold_object(id.slot, object);
                }
                Ok(id)
            }
            Err(refused) => {
                let Attached { memory, token, .. } = refused.attachment;
                let memory = traces.detach(memory, loans.as_ref());
                read.token = token;
                read.into = take_back(loans, memory);
                Err(Refused { why: refused.why.into(), read })
            }
        }
    }

    /// The last CQE of a read brought a list, and perhaps a trace in it, which is kept. The list of
    /// a scattered read goes back.
    #[cold]
    #[inline(never)]
    pub(super) fn keep_trace(
        &mut self,
        read: ReadId,
        list: Option<Box<PartList>>,
    ) -> Option<Box<PartList>> {
        let mut list = list?;
        let Some(traces) = &mut self.traces else { return Some(list) };
        if let Some(trace) = list.trace.take() {
            traces.keep(read, trace, self.shared.clock.now());
        }
        if matches!(self.open[read.slot as usize], Some(Loans::Many(_))) {
            return Some(list);
        }
        traces.keep_list(list);
        None
    }
}
