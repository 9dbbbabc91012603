//! Owns the main test of the rings: a random script of operations, in lock step with an oracle.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use proptest::prelude::*;
use sq_cq::{
    Bell, CallerEnd, CancelOutcome, Cqe, CqeFields, Handle, Permit, PollerEnd, PushError, ReadId,
    RingConfig, Sqe, pair,
};

/// Counts itself, so that a leak and a double drop both show.
struct Token {
    number: u64,
    alive: Rc<Cell<i64>>,
}

impl Token {
    fn new(number: u64, alive: &Rc<Cell<i64>>) -> Self {
        alive.set(alive.get() + 1);
        Self { number, alive: Rc::clone(alive) }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Push { slots: u32, count: u32 },
    Submit,
    Take { count: u32 },
    Complete { which: usize },
    Finish { which: usize },
    Publish,
    Pop { count: u32 },
    Cancel { which: usize },
    TakeCancel,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..5_u32, 1..40_u32).prop_map(|(slots, count)| Op::Push { slots, count }),
        1 => (0..2000_u32).prop_map(|slots| Op::Push { slots, count: 1 }),
        4 => Just(Op::Submit),
        4 => (1..40_u32).prop_map(|count| Op::Take { count }),
        6 => any::<usize>().prop_map(|which| Op::Complete { which }),
        8 => any::<usize>().prop_map(|which| Op::Finish { which }),
        4 => Just(Op::Publish),
        4 => (1..40_u32).prop_map(|count| Op::Pop { count }),
        4 => any::<usize>().prop_map(|which| Op::Cancel { which }),
        2 => Just(Op::TakeCancel),
    ]
}

fn config() -> impl Strategy<Value = RingConfig> {
    let start = prop_oneof![Just(0), Just(u32::MAX - 3), (u32::MAX - 2000)..=u32::MAX];
    (0..=10_u32, 0..=10_u32, start).prop_map(|(sq, cq, start_index)| RingConfig {
        sq_entries: 1 << sq,
        cq_entries: 1 << cq,
        start_index,
    })
}

/// What a read looks like to the oracle.
struct Running {
    permit: Permit,
    user_data: u64,
    slots_left: u32,
    token: Token,
}

struct Expected {
    user_data: u64,
    frees: u32,
    more: bool,
}

/// The rings under test beside the plain collections that say what they must do.
struct Bench {
    caller: CallerEnd<Token, Option<Token>>,
    poller: PollerEnd<Token, Option<Token>>,
    config: RingConfig,
    alive: Rc<Cell<i64>>,
    next_user_data: u64,
    slots_free: u32,
    pushed: VecDeque<(ReadId, u64, u32)>,
    submitted: VecDeque<(ReadId, u64, u32)>,
    /// Taken by the poller since it last told the caller of the room.
    taken_untold: u32,
    running: Vec<Running>,
    completed: VecDeque<Expected>,
    published: VecDeque<Expected>,
    live: HashMap<ReadId, u64>,
    ever: Vec<ReadId>,
    cancel_sent: HashSet<ReadId>,
    cancel_due: HashSet<ReadId>,
    full_answers: u64,
}

impl Bench {
    fn new(config: RingConfig) -> Self {
        let bell = Arc::new(Bell::new(1).expect("a descriptor"));
        let (caller, poller) = pair(config, bell, 0).expect("a valid config");
        Self {
            caller,
            poller,
            config,
            alive: Rc::default(),
            next_user_data: 0,
            slots_free: config.cq_entries,
            pushed: VecDeque::new(),
            submitted: VecDeque::new(),
            taken_untold: 0,
            running: Vec::new(),
            completed: VecDeque::new(),
            published: VecDeque::new(),
            live: HashMap::new(),
            ever: Vec::new(),
            cancel_sent: HashSet::new(),
            cancel_due: HashSet::new(),
            full_answers: 0,
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Push { slots, count } => (0..count).for_each(|_| self.push(slots)),
            Op::Submit => self.submit(),
            Op::Take { count } => (0..count).for_each(|_| self.take()),
            Op::Complete { which } => self.complete(which),
            Op::Finish { which } => self.finish(which),
            Op::Publish => {
                self.poller.publish();
                self.taken_untold = 0;
                self.published.append(&mut self.completed);
            }
            Op::Pop { count } => (0..count).for_each(|_| self.pop()),
            Op::Cancel { which } => self.cancel(which),
            Op::TakeCancel => self.take_cancel(),
        }
        self.check_gauges();
    }

    fn push(&mut self, slots: u32) {
        let user_data = self.next_user_data;
        let sqe = Sqe::read(Handle::NONE, Handle::NONE, user_data, 1).user_data(user_data);
        let token = Token::new(user_data, &self.alive);
        let slots_needed = slots.max(1);
        let in_sq = (self.pushed.len() + self.submitted.len()) as u32;
        match self.caller.push(sqe, slots, token) {
            Ok(id) => {
                assert!(slots_needed <= self.slots_free);
                assert!(in_sq < self.config.sq_entries);
                self.slots_free -= slots_needed;
                assert_eq!(self.live.insert(id, user_data), None, "a live id was given out again");
                self.ever.push(id);
                self.pushed.push_back((id, user_data, slots_needed));
                self.next_user_data += 1;
            }
            Err(refused) => {
                assert_eq!((refused.sqe, refused.attachment.number), (sqe, user_data));
                let capacity = self.config.cq_entries;
                if slots_needed > capacity {
                    let why = PushError::TooManyStripes { slots: slots_needed, capacity };
                    assert_eq!(refused.why, why);
                } else {
                    assert_eq!(refused.why, PushError::Full);
                    self.full_answers += 1;
                    let sq_may_be_full = in_sq + self.taken_untold >= self.config.sq_entries;
                    assert!(slots_needed > self.slots_free || sq_may_be_full);
                }
            }
        }
    }

    fn submit(&mut self) {
        assert_eq!(self.caller.submit() as usize, self.pushed.len());
        self.submitted.append(&mut self.pushed);
    }

    fn take(&mut self) {
        let taken = self.poller.pop();
        let Some((id, user_data, slots)) = self.submitted.pop_front() else {
            assert!(taken.is_none());
            self.taken_untold = 0;
            return;
        };
        let (sqe, permit, token) = taken.expect("a submitted SQE is there");
        assert_eq!((sqe.read_id(), sqe.get_user_data(), sqe.slots()), (id, user_data, slots));
        assert_eq!((permit.read_id(), permit.slots_left()), (id, slots));
        assert_eq!(token.number, user_data);
        if permit.is_cancelled() {
            assert!(self.cancel_sent.contains(&id));
        } else if self.cancel_sent.contains(&id) {
            self.cancel_due.insert(id);
        }
        self.taken_untold += 1;
        self.running.push(Running { permit, user_data, slots_left: slots, token });
    }

    fn complete(&mut self, which: usize) {
        let able: Vec<usize> =
            (0..self.running.len()).filter(|&index| self.running[index].slots_left > 1).collect();
        let Some(&index) = able.get(which % able.len().max(1)) else { return };
        let read = &mut self.running[index];
        let user_data = read.user_data;
        let cqe = Cqe::new(&CqeFields { user_data, ..CqeFields::default() });
        self.poller.complete(&mut read.permit, cqe, None);
        read.slots_left -= 1;
        assert_eq!(read.permit.slots_left(), read.slots_left);
        self.completed.push_back(Expected { user_data, frees: 1, more: true });
    }

    fn finish(&mut self, which: usize) {
        if self.running.is_empty() {
            return;
        }
        let read = self.running.swap_remove(which % self.running.len());
        self.cancel_due.remove(&read.permit.read_id());
        let user_data = read.user_data;
        let cqe = Cqe::new(&CqeFields { user_data, ..CqeFields::default() });
        self.poller.finish(read.permit, cqe, Some(read.token));
        self.completed.push_back(Expected { user_data, frees: read.slots_left, more: false });
    }

    fn pop(&mut self) {
        let popped = self.caller.pop();
        let Some(expected) = self.published.pop_front() else {
            assert!(popped.is_none());
            return;
        };
        let (cqe, token) = popped.expect("a published CQE is there");
        assert_eq!(cqe.user_data(), expected.user_data);
        assert_eq!(u32::from(cqe.frees()), expected.frees);
        assert_eq!((cqe.has_more(), token.is_none()), (expected.more, expected.more));
        assert_eq!(self.live.get(&cqe.read_id()), Some(&expected.user_data));
        if !expected.more {
            assert_eq!(token.map(|token| token.number), Some(expected.user_data));
            self.live.remove(&cqe.read_id());
            assert!(!self.caller.live(cqe.read_id()));
        }
        self.slots_free += expected.frees;
    }

    fn cancel(&mut self, which: usize) {
        let Some(&id) = self.ever.get(which % self.ever.len().max(1)) else { return };
        let outcome = self.caller.cancel(id);
        if !self.live.contains_key(&id) {
            assert_eq!(outcome, CancelOutcome::NotLive);
        } else if !self.cancel_sent.insert(id) {
            assert_eq!(outcome, CancelOutcome::AlreadySent);
        } else {
            assert_eq!(outcome, CancelOutcome::Sent);
            self.submitted.append(&mut self.pushed);
            if self.running.iter().any(|read| read.permit.read_id() == id) {
                self.cancel_due.insert(id);
            }
        }
    }

    fn take_cancel(&mut self) {
        match self.poller.pop_cancel() {
            Some(id) => assert!(self.cancel_due.remove(&id), "a cancel nobody is waiting for"),
            None => assert!(self.cancel_due.is_empty(), "a cancel was lost"),
        }
    }

    fn check_gauges(&self) {
        let in_sq = (self.pushed.len() + self.submitted.len()) as u32;
        let sq_len = self.caller.sq_len();
        assert!(in_sq <= sq_len && sq_len <= in_sq + self.taken_untold);
        assert_eq!(self.caller.cq_len() as usize, self.published.len());
        assert_eq!(self.caller.in_flight() as usize, self.live.len());
        assert_eq!(self.caller.reserved(), self.config.cq_entries - self.slots_free);
        assert_eq!(self.caller.full_answers(), self.full_answers);
    }

    /// Tears everything down in one of two orders; every attachment must be dropped exactly once.
    fn end(self, caller_first: bool) {
        for read in self.running {
            read.permit.abandon();
            drop(read.token);
        }
        if caller_first {
            drop(self.caller);
            assert!(self.poller.is_closed());
            drop(self.poller);
        } else {
            drop(self.poller);
            assert!(self.caller.is_closed());
            drop(self.caller);
        }
        assert_eq!(self.alive.get(), 0, "attachments alive after both ends were dropped");
    }
}

proptest! {
    #[test]
    fn rings_do_what_the_oracle_says(
        config in config(),
        ops in prop::collection::vec(op(), 1..300),
        caller_first: bool,
    ) {
        let mut bench = Bench::new(config);
        for op in &ops {
            bench.run(op);
        }
        bench.end(caller_first);
    }
}
