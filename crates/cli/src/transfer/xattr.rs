//! User extended attributes. Others belong to the system and are not sent.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{XattrFlags, fsetxattr, getxattr, listxattr};

use super::message::{Entry, MAX_XATTR_BYTES, Xattr};

const USER: &[u8] = b"user.";
/// Maximum number of attributes of one entry.
const MAX_COUNT: usize = 128;

/// A file's attributes.
pub(super) fn list(path: &Path) -> io::Result<Vec<Xattr>> {
    let mut names = vec![0; MAX_XATTR_BYTES];
    let len = match listxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(e) => return Err(e.into()),
    };
    let mut found = Vec::new();
    let mut value = vec![0; MAX_XATTR_BYTES];
    for name in names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(USER)) {
        let len = getxattr(path, name, &mut value[..])?;
        found.push(Xattr { name: name.to_vec(), value: value[..len].to_vec() });
    }
    if !are_right(&found) {
        let why = format!("more than {MAX_XATTR_BYTES} bytes or {MAX_COUNT} attributes");
        return Err(io::Error::other(why));
    }
    Ok(found)
}

/// Whether these attributes are acceptable from a sender.
pub(super) fn are_right(xattrs: &[Xattr]) -> bool {
    let bytes: usize = xattrs.iter().map(|x| x.name.len() + x.value.len()).sum();
    bytes <= MAX_XATTR_BYTES
        && xattrs.len() <= MAX_COUNT
        && xattrs.iter().all(|x| x.name.starts_with(USER) && !x.name.contains(&0))
}

/// Sets the attributes of an entry on its file.
pub(super) fn set(file: &File, entry: &Entry) -> io::Result<()> {
    for Xattr { name, value } in &entry.xattrs {
        fsetxattr(file, &name[..], value, XattrFlags::empty())?;
    }
    Ok(())
}
