//! Objects with known bytes: placements written by hand, and their contents put into a simulated
//! world.

use railring_catalog::checksum::{encode_table, stripe_checksum, table_checksum};
use railring_catalog::{ObjectKey, Owner, Placement, Source, StripePlacement};
use railring_sim::{SimWorld, SourceContent};

/// How an object is cut and copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the object.
    pub size_bytes: u64,
    /// Bytes of each stripe but the last.
    pub stripe_bytes: u64,
    /// Bytes of each block.
    pub block_bytes: u32,
    /// Owners of each stripe.
    pub copies: usize,
}

/// An object and what its bytes are.
#[derive(Clone, Debug)]
pub struct Known {
    /// Where it lies.
    pub placement: Placement,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

const ALIGN: usize = 4096;

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
}

/// Makes an object as [`build`] does and puts it into `world`.
#[must_use]
pub fn put(world: &SimWorld, name: &str, shape: Shape, endpoints: &[String], seed: u64) -> Known {
    let (known, files) = build(name, shape, endpoints, seed);
    let placement = &known.placement;
    for (endpoint, file) in endpoints.iter().zip(files) {
        world.put(endpoint, &placement.handle, SourceContent::new(placement.generation, file));
    }
    known
}

/// Makes an object of random bytes whose stripe `i` lies at endpoints `i`, `i + 1`, ... of
/// `endpoints`, and what is in the file of each endpoint.
#[must_use]
pub fn build(name: &str, shape: Shape, endpoints: &[String], seed: u64) -> (Known, Vec<Vec<u8>>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; usize::try_from(shape.size_bytes).expect("small")];
    rng.fill(&mut bytes);
    let generation = 1;
    let mut files: Vec<Vec<u8>> = vec![Vec::new(); endpoints.len()];
    let mut stripes = Vec::new();
    let stripe_bytes = usize::try_from(shape.stripe_bytes).expect("small");
    for (index, stripe) in bytes.chunks(stripe_bytes).enumerate() {
        let table = encode_table(stripe, shape.block_bytes);
        let mut owners = Vec::new();
        for copy in 0..shape.copies.min(endpoints.len()) {
            let source = (index + copy) % endpoints.len();
            let file = &mut files[source];
            let offset = file.len() as u64;
            file.extend_from_slice(stripe);
            pad(file);
            let table_offset = file.len() as u64;
            file.extend_from_slice(&table);
            pad(file);
            let source = u16::try_from(source).expect("few");
            owners.push(Owner { source, offset, table_offset });
        }
        stripes.push(StripePlacement {
            index: u32::try_from(index).expect("few"),
            len_bytes: stripe.len() as u64,
            owners,
            checksum: Some(stripe_checksum(stripe)),
            table_checksum: Some(table_checksum(&table)),
        });
    }
    let handle = format!("{name}.{generation}");
    let placement = Placement {
        key: ObjectKey::new("test", name).expect("a valid key"),
        generation,
        etag: String::new(),
        handle: handle.clone(),
        layout_version: 1,
        size_bytes: shape.size_bytes,
        stripe_bytes: shape.stripe_bytes,
        block_bytes: shape.block_bytes,
        sources: endpoints
            .iter()
            .map(|endpoint| Source { endpoint: endpoint.clone(), handle: handle.clone() })
            .collect(),
        stripes,
    };
    (Known { placement, bytes }, files)
}
