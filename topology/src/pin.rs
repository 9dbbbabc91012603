//! Binding the calling thread, and only it, to CPUs by real id, and reading back what the kernel
//! made of it.

use crate::cpuset::CpuSet;
use crate::id::CpuId;
use std::io;

/// CPUs that a fixed-size `cpu_set_t` can name; `core_affinity` uses that type.
const FIXED_MASK_CPUS: u16 = 1024;
/// 64-bit words in the longest mask tried: 65,536 CPUs, eight times what Linux supports.
const MASK_WORDS_MAX: usize = 1024;

/// A binding of the calling thread, as asked for and as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The CPUs that were asked for.
    pub asked: CpuSet,
    /// The CPUs the thread may run on now, read back from the kernel.
    pub got: CpuSet,
}

impl Pinned {
    /// The CPUs that were asked for and not granted: the kernel leaves out silently what is
    /// offline, absent or outside the process's cpuset.
    #[must_use]
    pub fn dropped(&self) -> CpuSet {
        self.asked.difference(&self.got)
    }

    /// True when the thread runs exactly where it was asked to.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.asked == self.got
    }
}

/// Why a thread was not pinned. The thread's binding is what it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// No CPU was named.
    #[error("cannot pin a thread to no cpu at all; name at least one")]
    Empty,
    /// The kernel refused every CPU that was named.
    #[error(
        "cannot pin to cpus {asked}: this thread may use {allowed} ({source}); choose among those \
         or widen the cpuset"
    )]
    Refused {
        /// The CPUs that were asked for.
        asked: CpuSet,
        /// The thread's binding, which stays as it was. A cpuset may allow more.
        allowed: CpuSet,
        /// What the kernel said.
        source: io::Error,
    },
    /// The binding could not be read.
    #[error("cannot read this thread's cpu affinity with sched_getaffinity: {source}")]
    Unreadable {
        /// What the kernel said.
        source: io::Error,
    },
}

/// The CPUs the calling thread may run on: its affinity mask, which the kernel keeps inside the
/// cgroup's cpuset. The mask is grown until it is as long as the kernel's.
///
/// # Errors
/// [`PinError::Unreadable`] when the system call is refused (a sandbox may).
pub fn allowed_cpus() -> Result<CpuSet, PinError> {
    let mut mask = vec![0_u64; usize::from(FIXED_MASK_CPUS) / 64];
    loop {
        let bytes = size_of_val(mask.as_slice());
        // SAFETY: `mask` is `bytes` bytes of writable memory that outlive the call, and the call
        // writes no more than that; pid 0 is the calling thread.
        let rc = unsafe { libc::sched_getaffinity(0, bytes, mask.as_mut_ptr().cast()) };
        if rc == 0 {
            return Ok(CpuSet::from_words(mask));
        }
        let source = io::Error::last_os_error();
        // sched_getaffinity(2): EINVAL when the mask is shorter than the kernel's.
        let longer = mask.len() * 2;
        if source.raw_os_error() != Some(libc::EINVAL) || longer > MASK_WORDS_MAX {
            return Err(PinError::Unreadable { source });
        }
        mask = vec![0; longer];
    }
}

/// Binds the calling thread, and no other, to `cpus` (one [`CpuId`] or a [`CpuSet`]), and reads the
/// binding back. Call it on the thread itself, before it allocates, so that its memory is near.
///
/// A CPU that exists and is allowed is enough: the kernel drops the others silently, and
/// [`Pinned::dropped`] names them.
///
/// # Errors
/// [`PinError::Empty`] for the empty set, [`PinError::Refused`] when none of the CPUs can be used,
/// [`PinError::Unreadable`] when the binding cannot be read back.
pub fn pin_current_thread(cpus: impl Into<CpuSet>) -> Result<Pinned, PinError> {
    let asked = cpus.into();
    if asked.is_empty() {
        return Err(PinError::Empty);
    }
    let single = asked.first().filter(|_| asked.len() == 1);
    // `core_affinity` says only yes or no, so a no is asked again for its reason.
    let set = single.is_some_and(set_one);
    if !set && let Err(source) = set_mask(&asked) {
        return Err(PinError::Refused { asked, allowed: allowed_cpus()?, source });
    }
    Ok(Pinned { asked, got: allowed_cpus()? })
}

/// True when `core_affinity` bound the thread to exactly this CPU; false also beyond its mask.
fn set_one(cpu: CpuId) -> bool {
    let core = core_affinity::CoreId { id: usize::from(cpu.0) };
    cpu.0 < FIXED_MASK_CPUS && core_affinity::set_for_current(core)
}

fn set_mask(cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.words();
    // SAFETY: `words` is `size_of_val(words)` bytes of readable memory that outlive the call; pid 0
    // is the calling thread, so no other thread's binding changes.
    let rc = unsafe { libc::sched_setaffinity(0, size_of_val(words), words.as_ptr().cast()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPU the calling thread is on at this moment, where the kernel says.
#[must_use]
pub fn current_cpu() -> Option<CpuId> {
    // SAFETY: sched_getcpu takes no arguments and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    u16::try_from(cpu).ok().map(CpuId)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bindings belong to threads, so each test pins one of its own.
    fn on_a_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(body).join().expect("the test's thread ended well")
    }

    #[test]
    fn each_allowed_cpu_can_be_pinned_and_is_read_back() {
        let allowed = allowed_cpus().expect("readable here");
        assert!(!allowed.is_empty());
        for cpu in allowed.iter() {
            let (pinned, on) = on_a_thread(move || {
                (pin_current_thread(cpu).expect("an allowed cpu"), current_cpu())
            });
            assert!(pinned.is_exact(), "{pinned:?}");
            assert_eq!(on, Some(cpu));
        }
        assert_eq!(allowed_cpus().expect("readable here"), allowed, "the caller's binding changed");
    }

    #[test]
    fn a_thread_pinned_before_can_be_pinned_elsewhere_by_real_id() {
        let allowed = allowed_cpus().expect("readable here");
        let (Some(first), Some(last)) = (allowed.first(), allowed.last()) else { panic!("no cpu") };
        let pinned = on_a_thread(move || {
            pin_current_thread(first).expect("an allowed cpu");
            // The new thread starts with the narrow mask of the pinned one.
            on_a_thread(move || pin_current_thread(last).expect("an allowed cpu"))
        });
        assert!(pinned.is_exact(), "{pinned:?}");
    }

    #[test]
    fn cpus_that_do_not_exist_are_named_when_others_do() {
        let allowed = allowed_cpus().expect("readable here");
        let mut asked = allowed.clone();
        asked.insert(CpuId(60_000));
        let pinned = on_a_thread(move || pin_current_thread(&asked).expect("some cpus exist"));
        assert_eq!(pinned.got, allowed);
        assert_eq!(pinned.dropped(), CpuSet::from(CpuId(60_000)));
    }

    #[test]
    fn a_set_of_absent_cpus_is_refused_and_changes_nothing() {
        let before = allowed_cpus().expect("readable here");
        for cpu in [CpuId(1000), CpuId(60_000)] {
            let expected = before.clone();
            on_a_thread(move || {
                let error = pin_current_thread(cpu).expect_err("no such cpu here");
                assert!(matches!(error, PinError::Refused { .. }), "{error:?}");
                assert!(error.to_string().contains(&cpu.to_string()), "{error}");
                assert_eq!(allowed_cpus().expect("readable here"), expected);
            });
        }
        assert!(matches!(pin_current_thread(CpuSet::new()), Err(PinError::Empty)));
    }
}
