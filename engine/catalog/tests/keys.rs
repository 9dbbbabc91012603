//! Object names: what is accepted comes back unchanged, each kind of bad name has its own error.

use proptest::prelude::*;
use railring_catalog::{KEY_BYTES_MAX, KeyError, NAMESPACE_BYTES_MAX, ObjectKey};

#[test]
fn every_kind_of_bad_name_has_its_own_error() {
    let long_namespace = format!("{}/k", "n".repeat(NAMESPACE_BYTES_MAX + 1));
    let long_key = format!("n/{}", "k".repeat(10_000));
    let cases = [
        ("", KeyError::MissingSeparator),
        ("model", KeyError::MissingSeparator),
        ("/k", KeyError::EmptyNamespace),
        ("n/", KeyError::EmptyKey),
        ("n//k", KeyError::EmptyComponent),
        ("n/k/", KeyError::EmptyComponent),
        ("n/a//b", KeyError::EmptyComponent),
        ("n/..", KeyError::DotComponent { component: ".." }),
        ("n/a/../b", KeyError::DotComponent { component: ".." }),
        ("../k", KeyError::DotComponent { component: ".." }),
        ("n/./b", KeyError::DotComponent { component: "." }),
        ("./b", KeyError::DotComponent { component: "." }),
        ("n/a\0b", KeyError::Nul { at: 1 }),
        ("n\0/a", KeyError::Nul { at: 1 }),
        ("n/ab\n", KeyError::Control { at: 2, code: 10 }),
        ("n/é\u{85}", KeyError::Control { at: 2, code: 0x85 }),
        (&long_namespace, KeyError::NamespaceTooLong { bytes: 256 }),
        (&long_key, KeyError::KeyTooLong { bytes: 10_000 }),
    ];
    for (text, error) in cases {
        assert_eq!(text.parse::<ObjectKey>(), Err(error), "{text:.40?}");
    }
    let error = long_key.parse::<ObjectKey>().expect_err("too long");
    assert_eq!(error.to_string(), "key has 10000 bytes, the limit is 1024: shorten it");
    assert_eq!(ObjectKey::new("a/b", "k"), Err(KeyError::SeparatorInNamespace { at: 1 }));
}

#[test]
fn names_at_the_limits_are_accepted() {
    let text = format!("{}/{}", "n".repeat(NAMESPACE_BYTES_MAX), "k".repeat(KEY_BYTES_MAX));
    assert_eq!(text.parse::<ObjectKey>().expect("at the limit").to_string(), text);
    for text in ["n/...", "n/a.b/.c", ".n/k ", "n/ключ/鍵"] {
        assert_eq!(text.parse::<ObjectKey>().expect("legal").to_string(), text);
    }
}

proptest! {
    #[test]
    fn parsing_never_panics_and_gives_back_what_it_accepts(text in "(\\PC|[/.\0\n]){0,40}") {
        match text.parse::<ObjectKey>() {
            Ok(key) => {
                prop_assert_eq!(key.to_string(), text.clone());
                prop_assert_eq!(ObjectKey::new(key.namespace(), key.key()), Ok(key.clone()));
                let json = serde_json::to_string(&key).expect("a string");
                prop_assert_eq!(serde_json::from_str::<ObjectKey>(&json).expect("its own"), key);
            }
            Err(_) => prop_assert!(serde_json::from_value::<ObjectKey>(text.into()).is_err()),
        }
    }
}
