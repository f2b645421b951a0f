//! Features a client asks for in HELLO and the server grants or not.

/// A feature code of HELLO.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Feature(pub u16);

crate::codes::codes! {
    Feature;
    TLS = 0x02;
    TCP_NODELAY = 0x03;
    MUTATION_SEQNO = 0x04;
    TCP_DELAY = 0x05;
    XATTR = 0x06;
    XERROR = 0x07;
    SELECT_BUCKET = 0x08;
    SNAPPY = 0x0a;
    JSON = 0x0b;
    DUPLEX = 0x0c;
    CLUSTERMAP_CHANGE_NOTIFICATION = 0x0d;
    UNORDERED_EXECUTION = 0x0e;
    TRACING = 0x0f;
    ALT_REQUEST_SUPPORT = 0x10;
    SYNC_REPLICATION = 0x11;
    COLLECTIONS = 0x12;
    SNAPPY_EVERYWHERE = 0x13;
    PRESERVE_TTL = 0x14;
    VATTR = 0x15;
    PITR = 0x16;
    SUBDOC_CREATE_AS_DELETED = 0x17;
    SUBDOC_DOCUMENT_MACRO_SUPPORT = 0x18;
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0x19;
    REPORT_UNIT_USAGE = 0x1a;
    NON_BLOCKING_THROTTLING_MODE = 0x1b;
    SUBDOC_REPLICA_READ = 0x1c;
    GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION = 0x1d;
    DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP = 0x1e;
    CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF = 0x1f;
    SUBDOC_ALLOWS_ACCESS_ON_MULTIPLE_XATTR_KEYS = 0x20;
    SUBDOC_BINARY_XATTR = 0x21;
}

impl std::fmt::Debug for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Feature({:#06x})", self.0),
        }
    }
}

/// A set of features with codes below 64.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct FeatureSet(u64);

impl FeatureSet {
    /// The set of these features.
    pub const fn of(features: &[Feature]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < features.len() {
            assert!(features[i].0 < 64, "feature codes are below 64");
            bits |= 1 << features[i].0;
            i += 1;
        }
        Self(bits)
    }

    /// Returns true if the feature is in the set.
    #[inline]
    pub const fn has(self, feature: Feature) -> bool {
        feature.0 < 64 && self.0 & (1 << feature.0) != 0
    }

    /// The set without a feature.
    #[must_use]
    pub const fn without(self, feature: Feature) -> Self {
        if feature.0 < 64 { Self(self.0 & !(1 << feature.0)) } else { self }
    }

    /// Adds a feature; codes from 64 on are ignored.
    pub fn insert(&mut self, feature: Feature) {
        if feature.0 < 64 {
            self.0 |= 1 << feature.0;
        }
    }
}

impl std::fmt::Debug for FeatureSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries((0..64).map(Feature).filter(|feature| self.has(*feature))).finish()
    }
}

/// The features in a HELLO body, in the order requested; `None` if its length is odd.
pub fn requested(body: &[u8]) -> Option<impl Iterator<Item = Feature> + '_> {
    let (pairs, rest) = body.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|pair| Feature(u16::from_be_bytes(*pair))))
}

/// Grants the requested features that are `offered`, each once. Returns the set and the body of the answer.
pub fn negotiate(requested: impl Iterator<Item = Feature>, offered: FeatureSet) -> (FeatureSet, Vec<u8>) {
    let mut granted = FeatureSet::default();
    let mut body = Vec::new();
    for feature in requested {
        if offered.has(feature) && !granted.has(feature) {
            granted.insert(feature);
            body.extend(feature.0.to_be_bytes());
        }
    }
    (granted, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_is_granted_and_only_once() {
        let offered = FeatureSet::of(&[Feature::XERROR, Feature::COLLECTIONS]);
        let body = [0, 7, 0, 0x0a, 0, 7, 0xff, 0xff, 0, 0x12];
        let (granted, answer) = negotiate(requested(&body).unwrap(), offered);
        assert_eq!(answer, [0, 7, 0, 0x12]);
        assert_eq!(granted, offered);
        assert!(!granted.has(Feature::SNAPPY) && !granted.has(Feature(0xffff)));
        assert!(!offered.without(Feature::XERROR).has(Feature::XERROR));
        assert_eq!(offered.without(Feature::SNAPPY).without(Feature(0xffff)), offered);
    }

    #[test]
    fn an_odd_body_is_refused() {
        assert!(requested(&[0, 7, 0]).is_none());
    }
}
