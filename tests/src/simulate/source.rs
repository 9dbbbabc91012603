//! Objects with known bytes for one run: block tables behind all stripes, checksums where the plan
//! has them.

use railring_catalog::checksum::{encode_table, stripe_checksum, table_checksum};
use railring_catalog::{ObjectKey, Owner, Placement, Source, StripePlacement};
use railring_sim::{SimWorld, SourceContent};

use super::dice::Dice;
use super::scenario::ObjectPlan;

/// What sources are padded to, so that every aligned request finds its bytes.
const ALIGN: usize = 4096;

/// An object of a run.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) plan: ObjectPlan,
    pub(crate) placement: Placement,
    pub(crate) bytes: Vec<u8>,
    /// Its number among the names of objects.
    pub(crate) name: usize,
    /// Another generation has taken its place.
    pub(crate) overwritten: bool,
}

/// How an object is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) object: usize,
    pub(crate) generation: u64,
}

impl Known {
    pub(crate) fn stripes(&self) -> u32 {
        u32::try_from(self.placement.stripes.len()).expect("few")
    }

    pub(crate) fn stripe_len(&self, index: u32) -> u64 {
        self.placement.stripes[index as usize].len_bytes
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
}

/// Makes the object and puts it into `world`. Stripe `i` lies at endpoints `i`, `i + 1`, ...
pub(crate) fn put(
    world: &SimWorld,
    names: Names,
    plan: &ObjectPlan,
    endpoints: &[String],
    dice: &mut Dice,
) -> Known {
    let mut bytes = vec![0; usize::try_from(plan.size_bytes).expect("small")];
    dice.fill(&mut bytes);
    let Names { object, generation } = names;
    let handle = format!("object{object}.1");
    let copies = plan.copies.min(endpoints.len());
    let stripe_bytes = usize::try_from(plan.stripe_bytes).expect("small");
    let mut files: Vec<Vec<u8>> = vec![Vec::new(); endpoints.len()];
    let mut stripes = Vec::new();
    let mut tables = Vec::new();
    for (index, stripe) in bytes.chunks(stripe_bytes).enumerate() {
        let owners = (0..copies).map(|copy| {
            let source = (index + copy) % endpoints.len();
            let offset = files[source].len() as u64;
            files[source].extend_from_slice(stripe);
            pad(&mut files[source]);
            Owner { source: u16::try_from(source).expect("few"), offset, table_offset: 0 }
        });
        let owners = owners.collect();
        let table = encode_table(stripe, plan.block_bytes);
        stripes.push(StripePlacement {
            index: u32::try_from(index).expect("few"),
            len_bytes: stripe.len() as u64,
            owners,
            checksum: plan.checksums.then(|| stripe_checksum(stripe)),
            table_checksum: plan.tables.then(|| table_checksum(&table)),
        });
        tables.push(table);
    }
    let starts: Vec<u64> = files.iter().map(|file| file.len() as u64).collect();
    for (stripe, table) in stripes.iter_mut().zip(&tables) {
        for owner in &mut stripe.owners {
            let file = &mut files[usize::from(owner.source)];
            owner.table_offset = file.len() as u64;
            file.extend_from_slice(table);
            pad(file);
        }
    }
    for ((endpoint, file), start) in endpoints.iter().zip(files).zip(starts) {
        let end = file.len() as u64;
        world.put(endpoint, &handle, SourceContent::new(generation, file).with_tables(start..end));
    }
    let source = |endpoint: &String| Source { endpoint: endpoint.clone(), handle: handle.clone() };
    let placement = Placement {
        key: ObjectKey::new("test", format!("object{object}")).expect("a valid key"),
        generation,
        etag: String::new(),
        handle: handle.clone(),
        layout_version: 1,
        size_bytes: plan.size_bytes,
        stripe_bytes: plan.stripe_bytes,
        block_bytes: plan.block_bytes,
        sources: endpoints.iter().map(source).collect(),
        stripes,
    };
    Known { plan: plan.clone(), placement, bytes, name: object, overwritten: false }
}
