//! Kinds and flags that are declared together with the list of them all. Random and hostile tests
//! draw from the list, so that they draw a new kind or flag on the day it is declared.

/// Constants of one type, and after them a list of all.
///
/// ```
/// ferrofabric_contracts::listed_constants! {
///     /// Colours.
///     pub(crate) const COLOURS: [u8];
///     /// Red.
///     pub(crate) const RED = 1;
///     /// Blue.
///     pub(crate) const BLUE = 2;
/// }
/// assert_eq!(COLOURS, &[RED, BLUE]);
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! listed_constants {
    (
        $(#[$list_meta:meta])* $list_visibility:vis const $list:ident: [$number:ty];
        $($(#[$meta:meta])* $visibility:vis const $name:ident = $value:expr;)+
    ) => {
        $($(#[$meta])* $visibility const $name: $number = $value;)+
        $(#[$list_meta])*
        #[allow(dead_code, reason = "some lists are for tests alone")]
        $list_visibility const $list: &[$number] = &[$($name),+];
    };
}

/// An enum of numbers, with the list of its variants and the way from a number to its variant.
///
/// ```
/// ferrofabric_contracts::listed_enum! {
///     /// A side.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Side: u8 {
///         /// Left.
///         Left = 1,
///         /// Right.
///         Right = 2,
///     }
/// }
/// assert_eq!(Side::ALL, [Side::Left, Side::Right]);
/// assert_eq!(Side::from_number(2), Some(Side::Right));
/// assert_eq!(Side::from_number(3), None);
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! listed_enum {
    (
        $(#[$meta:meta])* $visibility:vis enum $name:ident: $number:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $value:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[repr($number)]
        $visibility enum $name {
            $($(#[$variant_meta])* $variant = $value),+
        }

        #[allow(dead_code, reason = "some lists are for tests alone")]
        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The variant with this number; `None` for a number that is not known.
            #[inline]
            #[must_use]
            pub const fn from_number(number: $number) -> Option<Self> {
                match number {
                    $($value => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
