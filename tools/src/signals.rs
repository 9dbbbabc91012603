//! Ctrl-C and its kin: the first asks the work to stop and clean up, the second ends the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The work was stopped by a signal and has cleaned up.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Whether somebody asked for an end. Cheap to clone and to ask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on SIGINT, SIGTERM and SIGHUP set it; each of them a second time has its usual
    /// effect, at once.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal must not yet see its own mark.
            flag::register_conditional_default(signal, Arc::clone(&stop.0))?;
            flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error once it is set, to leave with `?`.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.is_set() { Err(Interrupted) } else { Ok(()) }
    }
}
