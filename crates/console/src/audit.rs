//! `/pools/default/buckets/B/audit`: the paranoid walk over a bucket in service.

use crate::buckets::{missing, refused};
use crate::vbuckets::execute;
use crate::work::{Lane, Party};
use crate::{Console, Refusal};
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use kv::{Audited, Auditing, Bucket};
use serde_json::{Value, json};

/// `POST /pools/default/buckets/B/audit`: answers with the totals once the walk is complete, or with 500 and what is
/// wrong. It holds each vBucket's lock while it walks that vBucket, and the lock of the slabs while it walks the slabs.
pub async fn walk(State(console): State<Console>, party: Party, Path(name): Path<String>) -> Response {
    let Some(bucket) = console.node.bucket(&name) else { return missing() };
    let own = console.clone();
    let audit = move || audit(&own, &bucket).map_err(|reason| Refusal::Failed { reason });
    match console.work(Lane::Copies, &party, "dm:audit", audit).await.flatten() {
        Ok(audited) => Json(document(&audited)).into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// Yields to this thread's other duties between two vBuckets.
fn audit(console: &Console, bucket: &Bucket) -> Result<Audited, String> {
    let mut walk = Auditing::new(bucket);
    while execute(console, |cx| walk.step(cx))? {}
    walk.end()
}

fn document(audited: &Audited) -> Value {
    let found = &audited.found;
    json!({
        "atRest": audited.at_rest,
        "documents": found.documents,
        "itemBytes": found.item_bytes,
        "payloadBytes": found.payload_bytes,
        "metadataBytes": found.metadata_bytes,
        "indexBytes": found.index_bytes,
        "slots": found.slots,
        "slotBytes": found.slot_bytes,
        "slabBytes": found.slab_bytes,
    })
}
