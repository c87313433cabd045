//! Sets of texts on the wire that are closed in the schema but open in the decoder, so that a later version breaks nobody.

/// Declares a closed set of texts on the wire that reads any other text as `Unknown`. For the API types of this crate and of the
/// controllers.
#[macro_export]
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident, empty = $first:ident { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
            /// A text of a later version, kept as it is.
            Unknown(Box<str>),
        }

        impl $name {
            /// Every text that the schema admits.
            pub const KNOWN: &'static [&'static str] = &[$(stringify!($variant)),+];

            /// The text on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                    Self::Unknown(text) => text,
                }
            }

            /// Reads the text on the wire; total, and empty is the default.
            pub fn parse(text: &str) -> Self {
                match text {
                    "" => Self::$first,
                    $(stringify!($variant) => Self::$variant,)+
                    other => Self::Unknown(other.into()),
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::$first
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::parse(&<::std::borrow::Cow<str> as ::serde::Deserialize>::deserialize(deserializer)?))
            }
        }

        impl ::schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!({"type": "string", "enum": Self::KNOWN})
            }
        }
    };
}

pub(crate) use open_enum;
