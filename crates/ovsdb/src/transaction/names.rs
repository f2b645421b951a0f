//! Named UUIDs of a transaction: a name may be used before the insert that gives it.

use std::collections::HashMap;

use crate::uuid::Uuid;

/// The names, and where UUIDs come from.
pub(super) struct Names<'r> {
    symbols: HashMap<Box<str>, Symbol>,
    random: &'r mut dyn FnMut() -> Uuid,
}

struct Symbol {
    uuid: Uuid,
    /// Whether an insert has defined the name.
    created: bool,
}

impl<'r> Names<'r> {
    pub fn new(random: &'r mut dyn FnMut() -> Uuid) -> Self {
        Self { symbols: HashMap::new(), random }
    }

    /// A new UUID.
    pub fn random(&mut self) -> Uuid {
        (self.random)()
    }

    /// The UUID of a name.
    pub fn resolve(&mut self, name: &str) -> Option<Uuid> {
        if let Some(symbol) = self.symbols.get(name) {
            return Some(symbol.uuid);
        }
        let uuid = self.random();
        self.symbols.insert(name.into(), Symbol { uuid, created: false });
        Some(uuid)
    }

    /// Names a row, which has `uuid`, or the UUID that earlier uses of the name got. `None` if the name is taken.
    pub fn create(&mut self, name: &str, uuid: Option<Uuid>) -> Option<Uuid> {
        if let Some(symbol) = self.symbols.get_mut(name) {
            if symbol.created {
                return None;
            }
            symbol.created = true;
            // COMPAT: earlier uses of the name keep the UUID that was generated for it.
            if let Some(uuid) = uuid {
                symbol.uuid = uuid;
            }
            return Some(symbol.uuid);
        }
        let uuid = uuid.unwrap_or_else(|| self.random());
        self.symbols.insert(name.into(), Symbol { uuid, created: true });
        Some(uuid)
    }
}
