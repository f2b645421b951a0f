//! A cluster map as it was last rendered: once for each version, and shared by all who are sent it.

use std::sync::Arc;

use crate::lock_order::{Ranked, rank};

/// What a map is rendered from: the node's revision, and of a bucket the changes of its roles and its manifest's uid.
pub(crate) type Version = [u64; 3];

/// The last one.
#[derive(Default)]
pub(crate) struct RenderedMap(Ranked<Option<(Version, Arc<str>)>, { rank::MAP }>);

impl RenderedMap {
    /// Returns the map of the present version. Callers wait while it is rendered.
    pub(crate) fn get(
        &self,
        version: impl FnOnce() -> Version,
        render: impl FnOnce(Version) -> String,
    ) -> Arc<str> {
        let mut last = self.0.lock();
        // ORDERING: before the map is rendered: what changes meanwhile makes another version.
        let version = version();
        if let Some((of, map)) = &*last
            && *of == version
        {
            return Arc::clone(map);
        }
        let map: Arc<str> = render(version).into();
        *last = Some((version, Arc::clone(&map)));
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_rendered_once() {
        let (rendered, mut count) = (RenderedMap::default(), 0);
        for (version, expected) in [(1, 1), (1, 1), (2, 2), (2, 2), (1, 3)] {
            let map = rendered.get(
                || [version, 0, 0],
                |[revision, ..]| {
                    count += 1;
                    revision.to_string()
                },
            );
            assert_eq!((&*map, count), (&*version.to_string(), expected));
        }
    }
}
