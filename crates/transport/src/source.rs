//! Event sources that wrap one of several others.

/// Lets mio watch a type that has a method `source`.
macro_rules! delegate {
    ($type:ty) => {
        impl mio::event::Source for $type {
            fn register(
                &mut self,
                registry: &mio::Registry,
                token: mio::Token,
                interests: mio::Interest,
            ) -> std::io::Result<()> {
                self.source().register(registry, token, interests)
            }

            fn reregister(
                &mut self,
                registry: &mio::Registry,
                token: mio::Token,
                interests: mio::Interest,
            ) -> std::io::Result<()> {
                self.source().reregister(registry, token, interests)
            }

            fn deregister(&mut self, registry: &mio::Registry) -> std::io::Result<()> {
                self.source().deregister(registry)
            }
        }
    };
}

pub(crate) use delegate;
