//! The manifest: one generation's placement as bytes, and back without trusting any of them.

use crate::format::{FormatError, Reader, StoreId, Writer};
use crate::names::{KeyHash, Name};
use railring_catalog::{
    Geometry, ObjectKey, Owner, Placement, PlacementError, Source, StripePlacement,
};

/// Version of the layout rules that this software writes.
pub(crate) const LAYOUT_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"RRMANIF\n";
const FIXED_BYTES: usize = 128;
const STRIPE_BYTES: usize = 16;
const OWNER_BYTES: usize = 24;

/// One generation of an object in this store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) store_id: StoreId,
    pub(crate) key: ObjectKey,
    pub(crate) generation: u64,
    pub(crate) nonce: u64,
    pub(crate) created_ns: u64,
    pub(crate) size_bytes: u64,
    pub(crate) stripe_bytes: u64,
    pub(crate) block_bytes: u32,
    /// Directories of the store.
    pub(crate) directories: u16,
    pub(crate) copies: u16,
    pub(crate) stripes: Vec<StripeSums>,
    /// `copies` for each stripe.
    pub(crate) extents: Vec<Extent>,
}

/// A stripe's two checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripeSums {
    pub(crate) stripe: u64,
    pub(crate) table: u64,
}

/// Where one copy of a stripe lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) directory: u16,
    pub(crate) offset: u64,
    pub(crate) table_offset: u64,
}

impl Manifest {
    pub(crate) fn name(&self) -> Name {
        let hash = KeyHash::of(&self.key);
        Name { hash, generation: self.generation, nonce: self.nonce }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (namespace, key) = (self.key.namespace().as_bytes(), self.key.key().as_bytes());
        let names = (namespace.len() + key.len()).next_multiple_of(8);
        let records = self.stripes.len() * STRIPE_BYTES + self.extents.len() * OWNER_BYTES;
        let bytes = FIXED_BYTES + names + records + 8;
        let mut w = Writer::new(MAGIC, bytes);
        w.u32(LAYOUT_VERSION).u64(bytes as u64).bytes(&self.store_id.0);
        w.u64(self.generation).u64(self.nonce).u64(self.name().hash.0).u64(self.created_ns);
        w.u64(self.size_bytes).u64(self.stripe_bytes);
        w.u32(self.block_bytes).u32(self.stripes.len() as u32);
        // ObjectKey bounds both lengths far below 2^16.
        w.u16(self.copies).u16(self.directories).u16(namespace.len() as u16).u16(key.len() as u16);
        w.zeros_to(FIXED_BYTES).bytes(namespace).bytes(key).zeros_to(FIXED_BYTES + names);
        let copies = usize::from(self.copies);
        for (sums, extents) in self.stripes.iter().zip(self.extents.chunks(copies.max(1))) {
            w.u64(sums.stripe).u64(sums.table);
            for extent in extents {
                w.u16(extent.directory).bytes(&[0; 6]);
                w.u64(extent.offset).u64(extent.table_offset);
            }
        }
        w.seal()
    }

    /// Decodes and checks everything that can be checked without knowing where it was found.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::unseal(bytes, MAGIC)?;
        let field = |field| FormatError::Field { field };
        if r.u32()? != LAYOUT_VERSION {
            return Err(field("layout version"));
        }
        if r.u64()? != bytes.len() as u64 {
            return Err(FormatError::Length { bytes: bytes.len() as u64 });
        }
        let (store_id, generation, nonce, hash) = (r.store_id()?, r.u64()?, r.u64()?, r.u64()?);
        let (created_ns, size_bytes, stripe_bytes) = (r.u64()?, r.u64()?, r.u64()?);
        let (block_bytes, stripe_count) = (r.u32()?, r.u32()?);
        let (copies, directories) = (r.u16()?, r.u16()?);
        let (namespace_bytes, key_bytes) = (r.u16()?, r.u16()?);
        r.zeros(24)?;
        let key = decode_key(&mut r, namespace_bytes, key_bytes)?;
        if KeyHash::of(&key).0 != hash {
            return Err(field("key hash"));
        }
        if copies == 0 || copies > directories {
            return Err(field("number of copies"));
        }
        let geometry = Geometry::new(size_bytes, stripe_bytes, block_bytes)
            .map_err(PlacementError::Geometry)?;
        if geometry.stripe_count() != stripe_count {
            return Err(field("stripe count"));
        }
        let mut manifest = Self {
            store_id,
            key,
            generation,
            nonce,
            created_ns,
            size_bytes,
            stripe_bytes,
            block_bytes,
            directories,
            copies,
            stripes: Vec::new(),
            extents: Vec::new(),
        };
        manifest.decode_stripes(&mut r, stripe_count as usize)?;
        manifest.placement(|index| index.to_string()).validate()?;
        Ok(manifest)
    }

    fn decode_stripes(&mut self, r: &mut Reader<'_>, stripes: usize) -> Result<(), FormatError> {
        let copies = usize::from(self.copies);
        // At most 65,535 x (16 + 65,535 x 24): no overflow. Only after this may memory be taken.
        if r.rest() != stripes * (STRIPE_BYTES + copies * OWNER_BYTES) {
            return Err(FormatError::Field { field: "length of the stripe records" });
        }
        self.stripes.reserve_exact(stripes);
        self.extents.reserve_exact(stripes * copies);
        for _ in 0..stripes {
            self.stripes.push(StripeSums { stripe: r.u64()?, table: r.u64()? });
            for _ in 0..copies {
                let directory = r.u16()?;
                r.zeros(6)?;
                let (offset, table_offset) = (r.u64()?, r.u64()?);
                if directory >= self.directories {
                    return Err(FormatError::Field { field: "directory of a stripe" });
                }
                self.extents.push(Extent { directory, offset, table_offset });
            }
        }
        Ok(())
    }

    /// Owners of stripe `index`, in order of preference.
    pub(crate) fn extents(&self, index: usize) -> &[Extent] {
        let copies = usize::from(self.copies);
        &self.extents[index * copies..(index + 1) * copies]
    }

    /// Directories that hold a stripe, ascending.
    pub(crate) fn data_directories(&self) -> Vec<u16> {
        let mut used: Vec<u16> = self.extents.iter().map(|e| e.directory).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// How long the data file of `directory` must be at least.
    pub(crate) fn data_file_bytes(&self, directory: u16) -> u64 {
        let ends = self.extents.iter().zip(0usize..).filter(|(e, _)| e.directory == directory);
        ends.map(|(e, i)| {
            let index = i / usize::from(self.copies);
            let start = index as u64 * self.stripe_bytes;
            let len = self.stripe_bytes.min(self.size_bytes - start);
            let table = railring_catalog::checksum::table_bytes(len, self.block_bytes);
            (e.offset + len).max(e.table_offset + table)
        })
        .max()
        .unwrap_or(0)
        .next_multiple_of(railring_catalog::EXTENT_ALIGN)
    }

    /// The placement, with `endpoint` naming the directories.
    pub(crate) fn placement(&self, endpoint: impl Fn(u16) -> String) -> Placement {
        let name = self.name();
        let used = self.data_directories();
        let source =
            |&directory: &u16| Source { endpoint: endpoint(directory), handle: name.data() };
        let owner = |e: &Extent| Owner {
            // `used` holds every directory there is.
            source: used.binary_search(&e.directory).unwrap_or_default() as u16,
            offset: e.offset,
            table_offset: e.table_offset,
        };
        let stripe = |(index, sums): (usize, &StripeSums)| StripePlacement {
            index: index as u32,
            len_bytes: self.stripe_bytes.min(self.size_bytes - index as u64 * self.stripe_bytes),
            owners: self.extents(index).iter().map(owner).collect(),
            checksum: Some(sums.stripe),
            table_checksum: Some(sums.table),
        };
        Placement {
            key: self.key.clone(),
            generation: self.generation,
            etag: format!("{:016x}", self.nonce),
            handle: name.to_string(),
            layout_version: LAYOUT_VERSION,
            size_bytes: self.size_bytes,
            stripe_bytes: self.stripe_bytes,
            block_bytes: self.block_bytes,
            sources: used.iter().map(source).collect(),
            stripes: self.stripes.iter().enumerate().map(stripe).collect(),
        }
    }
}

fn decode_key(r: &mut Reader<'_>, namespace: u16, key: u16) -> Result<ObjectKey, FormatError> {
    let bytes = usize::from(namespace) + usize::from(key);
    let text = r.take(bytes)?;
    r.zeros(bytes.next_multiple_of(8) - bytes)?;
    let utf8 = |bytes| std::str::from_utf8(bytes).ok();
    let (namespace, key) = text.split_at(usize::from(namespace));
    match (utf8(namespace), utf8(key)) {
        (Some(namespace), Some(key)) => Ok(ObjectKey::new(namespace, key)?),
        _ => Err(FormatError::Field { field: "object name" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use railring_catalog::checksum::stripe_checksum;

    fn manifest(size_bytes: u64, directories: u16, copies: u16) -> Manifest {
        let stripes = size_bytes.div_ceil(5000);
        let extent = |stripe: u64, copy: u16| {
            let directory = ((stripe + u64::from(copy)) % u64::from(directories)) as u16;
            let offset = 4096 + stripe * 16_384;
            Extent { directory, offset, table_offset: offset + 8192 }
        };
        Manifest {
            store_id: StoreId([3; 16]),
            key: "models/llama".parse().expect("legal"),
            generation: 9,
            nonce: 0xfeed,
            created_ns: 1,
            size_bytes,
            stripe_bytes: 5000,
            block_bytes: 4096,
            directories,
            copies,
            stripes: (0..stripes).map(|i| StripeSums { stripe: i << 40, table: i }).collect(),
            extents: (0..stripes).flat_map(|i| (0..copies).map(move |c| extent(i, c))).collect(),
        }
    }

    fn reseal(bytes: &mut [u8]) {
        let (body, sum) = bytes.split_last_chunk_mut::<8>().expect("a manifest is longer");
        *sum = stripe_checksum(body).to_le_bytes();
    }

    #[test]
    fn layout_is_as_documented() {
        let m = manifest(5001, 2, 1);
        let bytes = m.encode();
        assert_eq!(bytes.len(), 128 + 16 + 2 * (16 + 24) + 8);
        assert_eq!(bytes[..16], *b"RRMANIF\n\x01\0\0\0\x01\0\0\0");
        let u64_at = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("inside"));
        let fixed = [16, 40, 48, 56, 64, 72, 80].map(u64_at);
        assert_eq!(fixed, [232, 9, 0xfeed, m.name().hash.0, 1, 5001, 5000]);
        assert_eq!(u64_at(88), 2 << 32 | 4096);
        assert_eq!(u64_at(96), 5 << 48 | 6 << 32 | 2 << 16 | 1);
        assert_eq!(bytes[128..144], *b"modelsllama\0\0\0\0\0");
        // The second stripe: its sums, its one owner.
        assert_eq!([184, 192, 200, 208, 216].map(u64_at), [1 << 40, 1, 1, 20_480, 28_672]);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = manifest(5001, 2, 2).encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&bad).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn comes_back(size in 0u64..40_000, directories in 1u16..5, copies in 1u16..5) {
            let m = manifest(size, directories, copies.min(directories));
            prop_assert_eq!(Manifest::decode(&m.encode()), Ok(m.clone()));
            for directory in m.data_directories() {
                let longest = m.extents.iter().filter(|e| e.directory == directory)
                    .map(|e| e.table_offset + 4096).max();
                prop_assert_eq!(Some(m.data_file_bytes(directory)), longest);
            }
        }

        /// Bytes that an enemy wrote and sealed: refused, or the one encoding of what they say.
        #[test]
        fn what_is_accepted_has_one_encoding(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(), cuts in any::<bool>(),
        ) {
            let mut bytes = manifest(5001, 2, 2).encode();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if cuts {
                bytes.truncate(8 + cut.index(bytes.len() - 8));
            }
            reseal(&mut bytes);
            if let Ok(decoded) = Manifest::decode(&bytes) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }

        #[test]
        fn lengths_that_claim_too_much_cost_nothing(
            field in 96usize..104, low in any::<u8>(), count in any::<u32>(),
        ) {
            let mut bytes = manifest(5001, 2, 2).encode();
            bytes[field] = low;
            bytes[92..96].copy_from_slice(&count.to_le_bytes());
            bytes[72..80].copy_from_slice(&(u64::from(count) * 5000).to_le_bytes());
            reseal(&mut bytes);
            prop_assert!(Manifest::decode(&bytes).is_err());
        }
    }
}
