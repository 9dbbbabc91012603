//! Names of the errors that `io_uring` and files give, for messages and statistics.

/// The symbol of an errno value (`EPERM`), or `errno N` where this crate knows no name for it.
///
/// ```
/// assert_eq!(railring_uring::errno_name(1), "EPERM");
/// assert_eq!(railring_uring::errno_name(9999), "errno 9999");
/// ```
#[must_use]
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EINVAL => "EINVAL",
        libc::ENFILE => "ENFILE",
        libc::EMFILE => "EMFILE",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::ENOSYS => "ENOSYS",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ESTALE => "ESTALE",
        libc::ECANCELED => "ECANCELED",
        _ => return format!("errno {errno}"),
    };
    name.to_owned()
}
