//! The law of the crate: each byte has one owner, and what is given back is free again.

mod common;

use common::HeapRegion;
use proptest::prelude::*;
use railring_dma::{Impounded, Lease, Loan, Part, Pool, PoolOptions, Receipt, Regions};

const SLOTS: usize = 3;
const SLOT_BYTES: usize = 12;
const STRIDE_BYTES: usize = 16;
/// Behind an odd byte: the first slot does not begin with the region, the last ends with it.
const REGION_START: usize = 1;
const REGION_BYTES: usize = SLOTS * STRIDE_BYTES + SLOT_BYTES - REGION_START;

#[derive(Debug, Clone, Copy)]
enum Op {
    Take,
    SplitLease(usize, usize),
    JoinLeases(usize, usize),
    DropLease(usize),
    Lend(usize),
    SplitPart(usize, usize),
    JoinParts(usize, usize),
    Write(usize, u8),
    Repay(usize, usize),
    RepayLate(usize, usize),
    ForgetPart(usize),
    Settle(usize),
    SettleImpounded(usize),
    Impound(usize),
    DropLoan(usize),
    DropImpounded(usize),
    JoinReceipts(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let (i, at) = (0..8_usize, 0..SLOT_BYTES + 2);
    prop_oneof![
        3 => Just(Op::Take),
        2 => (i.clone(), at.clone()).prop_map(|(i, at)| Op::SplitLease(i, at)),
        2 => (i.clone(), i.clone()).prop_map(|(i, j)| Op::JoinLeases(i, j)),
        2 => i.clone().prop_map(Op::DropLease),
        4 => i.clone().prop_map(Op::Lend),
        4 => (i.clone(), at).prop_map(|(i, at)| Op::SplitPart(i, at)),
        2 => (i.clone(), i.clone()).prop_map(|(i, j)| Op::JoinParts(i, j)),
        3 => (i.clone(), any::<u8>()).prop_map(|(i, byte)| Op::Write(i, byte)),
        9 => (i.clone(), i.clone()).prop_map(|(i, j)| Op::Repay(i, j)),
        2 => (i.clone(), i.clone()).prop_map(|(i, j)| Op::RepayLate(i, j)),
        1 => i.clone().prop_map(Op::ForgetPart),
        5 => i.clone().prop_map(Op::Settle),
        1 => i.clone().prop_map(Op::SettleImpounded),
        1 => i.clone().prop_map(Op::Impound),
        1 => i.clone().prop_map(Op::DropLoan),
        1 => i.clone().prop_map(Op::DropImpounded),
        2 => (i.clone(), i).prop_map(|(i, j)| Op::JoinReceipts(i, j)),
    ]
}

/// A value with what the oracle knows of it: the bytes it has to do with, and the lending they
/// are of.
#[derive(Debug)]
struct Known<T> {
    value: T,
    start: usize,
    bytes: usize,
    lending: u64,
}

impl<T> Known<T> {
    fn slot(&self) -> usize {
        // An empty lease at the end of the last slot's bytes still is of that slot.
        self.start / STRIDE_BYTES
    }

    fn end(&self) -> usize {
        self.start + self.bytes
    }

    fn holds<U>(&self, other: &Known<U>) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }
}

/// The real values, each with the oracle's knowledge, and what every byte should hold.
struct World {
    regions: Regions,
    heap: HeapRegion,
    pool: Pool,
    leases: Vec<Known<Lease>>,
    loans: Vec<Known<Loan>>,
    impounded: Vec<Known<Impounded>>,
    parts: Vec<Known<Part>>,
    receipts: Vec<Known<Receipt>>,
    leaked: Vec<(usize, usize)>,
    content: Vec<u8>,
    lendings: u64,
}

fn pick<T>(values: &mut Vec<Known<T>>, index: usize) -> Option<Known<T>> {
    if values.is_empty() { None } else { Some(values.swap_remove(index % values.len())) }
}

impl World {
    fn new() -> World {
        let regions = Regions::new(1);
        let heap = HeapRegion::new(&regions, REGION_START, REGION_BYTES);
        let options = PoolOptions { alignment: STRIDE_BYTES };
        let pool = Pool::new(&heap.region, SLOT_BYTES, options).expect("three slots fit");
        let content = vec![0; SLOTS * STRIDE_BYTES];
        World {
            regions,
            heap,
            pool,
            leases: Vec::new(),
            loans: Vec::new(),
            impounded: Vec::new(),
            parts: Vec::new(),
            receipts: Vec::new(),
            leaked: Vec::new(),
            content,
            lendings: 0,
        }
    }

    /// Offset of an address from the first slot.
    fn start(&self, address: std::ptr::NonNull<u8>) -> usize {
        let base = self.heap.region.base().as_ptr() as usize;
        address.as_ptr() as usize - base.next_multiple_of(STRIDE_BYTES)
    }

    fn add_lease(&mut self, value: Lease) {
        let (start, bytes) = (self.start(value.address()), value.len());
        self.leases.push(Known { value, start, bytes, lending: 0 });
    }

    fn add_part(&mut self, value: Part, lending: u64) {
        let (start, bytes) = (self.start(value.address()), value.len());
        self.parts.push(Known { value, start, bytes, lending });
    }

    /// What a real lease says is what the oracle expects of it.
    fn step(&mut self, op: Op) {
        match op {
            Op::Take | Op::SplitLease(..) | Op::JoinLeases(..) | Op::DropLease(_) | Op::Lend(_) => {
                self.step_lease(op);
            }
            Op::SplitPart(..) | Op::JoinParts(..) | Op::Write(..) | Op::ForgetPart(_) => {
                self.step_part(op);
            }
            Op::Repay(..) | Op::RepayLate(..) => self.step_repay(op),
            _ => self.step_end(op),
        }
    }

    fn step_lease(&mut self, op: Op) {
        match op {
            Op::Take => {
                let free = self.pool.free();
                let taken = self.pool.take();
                assert_eq!(taken.is_some(), free > 0);
                if let Some(lease) = taken {
                    assert_eq!(lease.len(), SLOT_BYTES);
                    assert_eq!(lease.address().as_ptr() as usize % STRIDE_BYTES, 0);
                    self.add_lease(lease);
                }
            }
            Op::SplitLease(i, mid) => {
                let Some(known) = pick(&mut self.leases, i) else { return };
                match known.value.split_at(mid) {
                    Ok((first, second)) => {
                        assert_eq!((first.len(), second.len()), (mid, known.bytes - mid));
                        self.add_lease(first);
                        self.add_lease(second);
                    }
                    Err(refused) => {
                        assert!(mid > known.bytes && refused.mid == mid);
                        self.add_lease(refused.lease);
                    }
                }
            }
            Op::JoinLeases(i, j) => {
                let Some(one) = pick(&mut self.leases, i) else { return };
                let Some(two) = pick(&mut self.leases, j) else {
                    return self.add_lease(one.value);
                };
                let neighbours = one.end() == two.start;
                match one.value.join(two.value) {
                    Ok(lease) => {
                        assert!(neighbours && lease.len() == one.bytes + two.bytes);
                        self.add_lease(lease);
                    }
                    Err(refused) => {
                        assert!(!neighbours);
                        self.add_lease(refused.first);
                        self.add_lease(refused.second);
                    }
                }
            }
            Op::DropLease(i) => drop(pick(&mut self.leases, i)),
            Op::Lend(i) => {
                let Some(Known { value, start, bytes, .. }) = pick(&mut self.leases, i) else {
                    return;
                };
                self.lendings += 1;
                let lending = self.lendings;
                let (loan, part) = value.lend();
                assert_eq!(
                    (loan.len(), loan.outstanding_bytes(), part.len()),
                    (bytes, bytes, bytes)
                );
                self.loans.push(Known { value: loan, start, bytes, lending });
                self.add_part(part, lending);
            }
            _ => unreachable!("only lease operations come here"),
        }
    }

    fn step_part(&mut self, op: Op) {
        match op {
            Op::SplitPart(i, at) => {
                let Some(known) = pick(&mut self.parts, i) else { return };
                let (first, second) = known.value.split_at(at);
                assert_eq!(first.len(), at.min(known.bytes));
                assert_eq!(first.len() + second.len(), known.bytes);
                self.add_part(first, known.lending);
                self.add_part(second, known.lending);
            }
            Op::JoinParts(i, j) => {
                let Some(one) = pick(&mut self.parts, i) else { return };
                let Some(two) = pick(&mut self.parts, j) else {
                    return self.add_part(one.value, one.lending);
                };
                let neighbours = one.end() == two.start;
                match one.value.join(two.value) {
                    // Parts of two halves of a lease may have been lent under one number; joining
                    // them is pointless (no loan takes them) but harmless, so the oracle does not
                    // care. It splits them again.
                    Ok(part) if one.lending != two.lending => {
                        let (first, second) = part.split_at(one.bytes);
                        self.add_part(first, one.lending);
                        self.add_part(second, two.lending);
                    }
                    Ok(part) => {
                        assert!(neighbours && part.len() == one.bytes + two.bytes);
                        self.add_part(part, one.lending);
                    }
                    Err((first, second)) => {
                        assert!(!neighbours || one.lending != two.lending);
                        self.add_part(first, one.lending);
                        self.add_part(second, two.lending);
                    }
                }
            }
            Op::Write(i, byte) => {
                let count = self.parts.len();
                if count == 0 {
                    return;
                }
                let part = &mut self.parts[i % count];
                part.value.as_mut_slice().fill(byte);
                let range = part.start..part.end();
                self.content[range].fill(byte);
            }
            Op::ForgetPart(i) => {
                if let Some(known) = pick(&mut self.parts, i) {
                    known.value.forget();
                }
            }
            _ => unreachable!("only part operations come here"),
        }
    }

    fn step_repay(&mut self, op: Op) {
        match op {
            Op::Repay(i, j) => {
                let Some(part) = pick(&mut self.parts, i) else { return };
                // Half of the time its own loan, else any.
                let own =
                    self.loans.iter().position(|loan| loan.lending == part.lending && j % 2 == 0);
                let count = self.loans.len();
                let Some(loan) = self.loans.get_mut(own.unwrap_or(j % count.max(1))) else {
                    return self.parts.push(part);
                };
                let right = loan.lending == part.lending;
                let (start, bytes, lending) = (part.start, part.bytes, loan.lending);
                match loan.value.repay(part.value) {
                    Ok(receipt) => {
                        assert!(right || bytes == 0, "a loan took a part of another");
                        assert_eq!(receipt.len(), bytes);
                        self.receipts.push(Known { value: receipt, start, bytes, lending });
                    }
                    Err(refused) => {
                        assert!(!right, "a loan refused its own part");
                        self.add_part(refused, part.lending);
                    }
                }
            }
            Op::RepayLate(i, j) => {
                let Some(part) = pick(&mut self.parts, i) else { return };
                let Some(mut impounded) = pick(&mut self.impounded, j) else {
                    return self.parts.push(part);
                };
                let right = impounded.lending == part.lending;
                match impounded.value.repay(part.value) {
                    Ok(lease) => {
                        assert!(right || part.bytes == 0);
                        match lease {
                            Some(lease) => {
                                assert_eq!(impounded.value.bytes(), 0);
                                self.add_lease(lease);
                            }
                            None => self.impounded.push(impounded),
                        }
                    }
                    Err(refused) => {
                        assert!(!right);
                        self.add_part(refused, part.lending);
                        self.impounded.push(impounded);
                    }
                }
            }
            _ => unreachable!("only repayments come here"),
        }
    }

    fn step_end(&mut self, op: Op) {
        match op {
            Op::Settle(i) => {
                let Some(loan) = pick(&mut self.loans, i) else { return };
                let out = self.outstanding(&loan);
                match loan.value.settle() {
                    Ok(lease) => {
                        assert_eq!(out, 0, "settled with bytes still out");
                        self.add_lease(lease);
                    }
                    Err(value) => {
                        assert!(out > 0 && value.outstanding_bytes() > 0);
                        self.loans.push(Known { value, ..loan });
                    }
                }
            }
            Op::SettleImpounded(i) => {
                let Some(impounded) = pick(&mut self.impounded, i) else { return };
                match impounded.value.settle() {
                    Ok(lease) => self.add_lease(lease),
                    Err(value) => self.impounded.push(Known { value, ..impounded }),
                }
            }
            Op::Impound(i) => {
                let Some(loan) = pick(&mut self.loans, i) else { return };
                let Known { value, start, bytes, lending } = loan;
                self.impounded.push(Known { value: value.impound(), start, bytes, lending });
            }
            Op::DropLoan(i) => {
                let Some(loan) = pick(&mut self.loans, i) else { return };
                if loan.value.outstanding_bytes() > 0 {
                    self.leaked.push((loan.slot(), loan.bytes));
                }
                drop(loan.value);
            }
            Op::DropImpounded(i) => {
                let Some(impounded) = pick(&mut self.impounded, i) else { return };
                if impounded.value.outstanding_bytes() > 0 {
                    self.leaked.push((impounded.slot(), impounded.bytes));
                }
                drop(impounded.value);
            }
            Op::JoinReceipts(i, j) => {
                let count = self.receipts.len();
                if count == 0 {
                    return;
                }
                let (one, two) = (&self.receipts[i % count], &self.receipts[j % count]);
                if let Some(value) = one.value.join(two.value) {
                    assert_eq!(one.end(), two.start);
                    if one.lending == two.lending {
                        let (start, lending) = (one.start, one.lending);
                        self.receipts.push(Known { value, start, bytes: value.len(), lending });
                    }
                }
            }
            _ => unreachable!("all others went elsewhere"),
        }
    }

    /// Bytes of a loan that are in parts, or were forgotten.
    fn outstanding<T>(&self, loan: &Known<T>) -> usize {
        let mut back = vec![false; self.content.len()];
        for receipt in self.receipts.iter().filter(|receipt| receipt.lending == loan.lending) {
            back[receipt.start..receipt.end()].fill(true);
        }
        (loan.start..loan.end()).filter(|at| !back[*at]).count()
    }

    fn check(&self) {
        self.check_owners();
        self.check_receipts();
        let holders = self.leases.iter().map(Known::slot).chain(self.loans.iter().map(Known::slot));
        let holders = holders.chain(self.impounded.iter().map(Known::slot));
        let mut taken = [false; SLOTS];
        for slot in holders.chain(self.leaked.iter().map(|(slot, _)| *slot)) {
            taken[slot] = true;
        }
        let free = taken.iter().filter(|taken| !**taken).count();
        assert_eq!(self.pool.free(), free, "a slot is free exactly when everything of it is back");
        let stats = self.regions.stats();
        let impounded: usize = self.impounded.iter().map(|impounded| impounded.bytes).sum();
        let leaked: usize = self.leaked.iter().map(|(_, bytes)| bytes).sum();
        let taken = (SLOTS - free) * SLOT_BYTES;
        assert_eq!(stats.impounded_bytes, impounded as u64);
        assert_eq!(stats.leaked_bytes, leaked as u64);
        assert_eq!(stats.leased_bytes, (taken - impounded - leaked) as u64);
    }

    /// No two owners of a byte; and each finds there what was last written by an owner.
    fn check_owners(&self) {
        let mut owned = vec![false; self.content.len()];
        let leases = self.leases.iter().map(|known| (known.start, known.value.as_slice()));
        let parts = self.parts.iter().map(|known| (known.start, known.value.as_slice()));
        for (start, bytes) in leases.chain(parts) {
            let range = start..start + bytes.len();
            assert_eq!(bytes, &self.content[range.clone()]);
            for at in range {
                assert!(!owned[at], "two owners of byte {at}");
                owned[at] = true;
            }
        }
        for loan in &self.loans {
            assert_eq!(loan.value.outstanding_bytes(), self.outstanding(loan));
        }
    }

    /// A receipt opens its own loan and no other, the later ones of the same bytes included.
    fn check_receipts(&self) {
        for loan in &self.loans {
            for receipt in self.receipts.iter().filter(|receipt| receipt.bytes > 0) {
                let bytes = loan.value.bytes(&receipt.value);
                let own = loan.lending == receipt.lending;
                assert_eq!(bytes.is_some(), own && loan.holds(receipt));
                if let Some(bytes) = bytes {
                    assert_eq!(bytes, &self.content[receipt.start..receipt.end()]);
                }
            }
        }
    }

    /// Everything comes back, as far as it was not lost.
    fn finish(mut self) {
        while !self.parts.is_empty() {
            let part = self.parts.swap_remove(0);
            let lending = part.lending;
            if part.bytes == 0 {
                continue; // owed to nobody
            }
            if let Some(loan) = self.loans.iter_mut().find(|loan| loan.lending == lending) {
                loan.value.repay(part.value).expect("its own part");
            } else if let Some(late) =
                self.impounded.iter_mut().find(|late| late.lending == lending)
            {
                drop(late.value.repay(part.value).expect("its own part"));
            }
        }
        let lost_loans = self.loans.drain(..).filter_map(|loan| loan.value.settle().err()).count();
        let lost =
            self.impounded.drain(..).filter(|late| late.value.outstanding_bytes() > 0).count();
        self.leases.clear();
        let leaks = lost_loans + lost + self.leaked.len() > 0;
        assert!(leaks || self.pool.free() == SLOTS);
        drop(self.pool);
        assert_eq!(self.heap.free(), !leaks, "a region ends exactly when nothing can write it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 250 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn each_byte_has_one_owner(script in prop::collection::vec(op(), 0..80)) {
        let mut world = World::new();
        for op in script {
            world.step(op);
            world.check();
        }
        world.finish();
    }
}
