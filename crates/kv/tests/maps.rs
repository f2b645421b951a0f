//! The cluster map: rendered once for each version, with a bounded list of nodes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use kv::cluster_config::{bucket_level, cluster_level};
use kv::replication::{PeerNode, Replication};
use kv::topology::Topology;
use kv::{Bucket, BucketSettings, Limits, Node, NodeContext, NodeSettings, VbId, VbState};
use serde_json::Value;

fn node() -> (Arc<Node>, Arc<Bucket>, NodeContext) {
    let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    let bucket = node.create_bucket("b", BucketSettings::default()).unwrap();
    let cx = NodeContext::new(Arc::clone(&node), 0);
    (node, bucket, cx)
}

fn parsed(map: &str) -> Value {
    serde_json::from_str(map).unwrap()
}

#[test]
fn a_map_is_rendered_once_for_each_version() {
    let (node, bucket, mut cx) = node();
    for get in [|node: &Node, _: &Bucket| cluster_level(node), bucket_level] {
        let first = get(&node, &bucket);
        assert!(Arc::ptr_eq(&first, &get(&node, &bucket)));
        node.note_map_change();
        let second = get(&node, &bucket);
        assert!(!Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second, &get(&node, &bucket)));
        assert_eq!(parsed(&second)["rev"].as_u64(), Some(node.map_revision()));
    }
    // A role is shown before the revision is raised.
    let before = bucket_level(&node, &bucket);
    let topology = Topology::new([[None::<&str>; 0]; 0]).ok();
    bucket.set_vbucket(&mut cx, VbId(3), VbState::Replica, topology);
    let after = bucket_level(&node, &bucket);
    assert!(!Arc::ptr_eq(&before, &after));
    assert_eq!(parsed(&after)["vBucketServerMap"]["vBucketMap"][3][0], -1);
}

#[test]
fn a_map_has_all_peers_and_few_others() {
    let (node, bucket, mut cx) = node();
    let peers = (0..40).map(|number| PeerNode {
        name: format!("peer-{number}").into(),
        host: format!("10.0.0.{number}").into(),
        kv: Some(11210),
        ..PeerNode::default()
    });
    node.set_replication(Replication {
        node: Some("n1".into()),
        peers: peers.collect(),
        ..Replication::default()
    });
    for vb in 0..bucket.vbuckets() {
        let stranger = |number: u16| format!("{}-{number}:11210", "x".repeat(240));
        let names = [stranger(2 * vb), stranger(2 * vb + 1), format!("peer-{}", vb % 40)];
        let chain = [Some("n1"), Some(&names[0]), Some(&names[1]), Some(&names[2])];
        bucket.set_vbucket(&mut cx, VbId(vb), VbState::Active, Some(Topology::new([chain]).unwrap()));
    }
    let map = bucket_level(&node, &bucket);
    let servers = parsed(&map)["vBucketServerMap"]["serverList"].as_array().unwrap().clone();
    let of = |what: &str| servers.iter().filter(|server| server.as_str().unwrap().starts_with(what)).count();
    assert_eq!((servers.len(), of("10.0.0."), of("xxx")), (57, 40, 16));
    assert!(map.len() < 64 << 10, "{}", map.len());
    // Those that are left out are nobody.
    assert_eq!(parsed(&map)["vBucketServerMap"]["vBucketMap"][1023].as_array().unwrap()[1], -1);
}
