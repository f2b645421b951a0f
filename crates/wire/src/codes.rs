//! Codes with names.

/// Constants of a type that wraps a number, and the names behind its numbers.
macro_rules! codes {
    ($type:ident; $($name:ident = $code:literal;)*) => {
        impl $type {
            $(#[doc = concat!("`", stringify!($name), "`, ", stringify!($code), ".")]
            pub const $name: Self = Self($code);)*

            /// The name of the code; `None` for one that no protocol defines here.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use codes;
