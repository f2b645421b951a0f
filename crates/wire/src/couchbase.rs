//! What Couchbase KV adds to the binary framing: negotiated features, frame infos, collection ids in keys,
//! the error map, error contexts and server durations.
//!
//! Public documents: the Couchbase binary protocol description and SDK RFCs 0024 (fast failover),
//! 0059 (key-value error handling), 0035 (response time observability).

pub mod collection_id;
pub mod error_context;
pub mod error_map;
pub mod feature;
pub mod frame_info;
pub mod map_change;
pub mod server_duration;
pub mod subdocument;
pub mod with_meta;

pub use feature::{Feature, FeatureSet};
pub use frame_info::{Durability, FrameError, FrameInfos};
pub use map_change::MapChange;
