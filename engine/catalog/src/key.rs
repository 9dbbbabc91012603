//! The name of an object: a namespace and a key, checked once so that nothing checks again.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest namespace, in bytes of UTF-8.
pub const NAMESPACE_BYTES_MAX: usize = 255;
/// Longest key, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 1024;

/// A checked object name, written `NAMESPACE/KEY`.
///
/// The first `/` ends the namespace; the key may hold further ones. No part between two `/` is
/// empty, `.` or `..`, and there are no control characters, so a key can be shown, logged and
/// turned into a path by people who do not read this sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectKey {
    namespace: String,
    key: String,
}

/// Why a string is not an object name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There is no `/`.
    #[error("object name has no '/': write it as NAMESPACE/KEY")]
    MissingSeparator,
    /// A namespace given by itself holds a `/`.
    #[error("namespace holds a '/' at byte {at}: only the key may")]
    SeparatorInNamespace {
        /// Byte position in the namespace.
        at: usize,
    },
    /// Nothing stands before the first `/`.
    #[error("namespace is empty: write the object name as NAMESPACE/KEY")]
    EmptyNamespace,
    /// Nothing stands after the first `/`.
    #[error("key is empty: write the object name as NAMESPACE/KEY")]
    EmptyKey,
    /// The namespace is longer than [`NAMESPACE_BYTES_MAX`].
    #[error("namespace has {bytes} bytes, the limit is {NAMESPACE_BYTES_MAX}: shorten it")]
    NamespaceTooLong {
        /// Bytes given.
        bytes: usize,
    },
    /// The key is longer than [`KEY_BYTES_MAX`].
    #[error("key has {bytes} bytes, the limit is {KEY_BYTES_MAX}: shorten it")]
    KeyTooLong {
        /// Bytes given.
        bytes: usize,
    },
    /// A NUL character.
    #[error("object name holds NUL at byte {at}: remove it")]
    Nul {
        /// Byte position in the namespace or the key.
        at: usize,
    },
    /// A control character other than NUL.
    #[error("object name holds the control character {code:#04x} at byte {at}: remove it")]
    Control {
        /// Byte position in the namespace or the key.
        at: usize,
        /// The character's code point.
        code: u32,
    },
    /// A part between two `/` is `.` or `..`.
    #[error("object name holds the path component {component:?}: object names are not paths")]
    DotComponent {
        /// The component, `.` or `..`.
        component: &'static str,
    },
    /// Two `/` follow each other, or the key begins or ends with one.
    #[error("key holds an empty component: remove the leading, trailing or doubled '/'")]
    EmptyComponent,
}

impl ObjectKey {
    /// Checks a namespace and a key.
    ///
    /// # Errors
    /// The first rule that is broken, lengths first, so that a huge string is not looked through.
    pub fn new(namespace: impl Into<String>, key: impl Into<String>) -> Result<Self, KeyError> {
        let (namespace, key) = (namespace.into(), key.into());
        Self::check_namespace(&namespace)?;
        if key.is_empty() {
            return Err(KeyError::EmptyKey);
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(KeyError::KeyTooLong { bytes: key.len() });
        }
        check_characters(&key)?;
        check_components(&key)?;
        Ok(Self { namespace, key })
    }

    /// Checks a namespace by itself, as for a listing.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check_namespace(namespace: &str) -> Result<(), KeyError> {
        if namespace.is_empty() {
            return Err(KeyError::EmptyNamespace);
        }
        if namespace.len() > NAMESPACE_BYTES_MAX {
            return Err(KeyError::NamespaceTooLong { bytes: namespace.len() });
        }
        if let Some(at) = namespace.find('/') {
            return Err(KeyError::SeparatorInNamespace { at });
        }
        check_characters(namespace)?;
        check_components(namespace)
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The key inside the namespace.
    pub fn key(&self) -> &str {
        &self.key
    }
}

fn check_characters(text: &str) -> Result<(), KeyError> {
    match text.char_indices().find(|(_, c)| c.is_control()) {
        None => Ok(()),
        Some((at, '\0')) => Err(KeyError::Nul { at }),
        Some((at, c)) => Err(KeyError::Control { at, code: u32::from(c) }),
    }
}

fn check_components(text: &str) -> Result<(), KeyError> {
    for component in text.split('/') {
        match component {
            "" => return Err(KeyError::EmptyComponent),
            "." => return Err(KeyError::DotComponent { component: "." }),
            ".." => return Err(KeyError::DotComponent { component: ".." }),
            _ => {}
        }
    }
    Ok(())
}

impl FromStr for ObjectKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let (namespace, key) = text.split_once('/').ok_or(KeyError::MissingSeparator)?;
        Self::new(namespace, key)
    }
}

impl TryFrom<String> for ObjectKey {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl From<ObjectKey> for String {
    fn from(key: ObjectKey) -> Self {
        key.to_string()
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.key)
    }
}
