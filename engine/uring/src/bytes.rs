//! Which memory may be handed to the kernel: bytes that stay where they are and have one owner.

use railring_dma::Part;

/// Memory that the kernel may write while a ring owns the value.
///
/// # Safety
/// From the first call of [`StableBytes::address`] until the value is used otherwise or dropped,
/// `address()..address() + bytes()` must be
/// * mapped, initialised and writable, even if the value is leaked;
/// * the same range at every call, wherever the value was moved;
/// * read and written by nobody but the owner of the value.
pub unsafe trait StableBytes {
    /// The first byte. It may be written through as long as the value is owned and not otherwise
    /// used.
    fn address(&mut self) -> *mut u8;

    /// How many bytes there are.
    fn bytes(&self) -> usize;
}

// SAFETY: a vector's elements lie on the heap, are not moved with it, and are its own; nothing
// grows or shrinks it while only this trait is used. A leaked vector's allocation is never freed.
unsafe impl StableBytes for Vec<u8> {
    fn address(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: a part is the only owner of its bytes, which lie in a mapped region that stays mapped
// unless the part is repaid; its address does not change, and a part that is leaked or dropped
// keeps the region mapped for ever.
unsafe impl StableBytes for Part {
    fn address(&mut self) -> *mut u8 {
        Part::address(self).as_ptr()
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}
