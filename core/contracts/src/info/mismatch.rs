//! Why a candidate is none for the hints, in the words of the manual pages.

use std::fmt::{self, Write};

use super::models::{AddrFormat, EpType, Progress, ResourceMgmt};
use crate::addr::{Address, NativeAddr};
use crate::flags::{Flags, Mode, MrMode, Order};
use crate::size::Size;
use crate::types::AvType;

/// The first field by which a candidate was ruled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The field, as fi_getinfo(3) names it.
    pub field: &'static str,
    /// The value in the hints.
    pub asked: String,
    /// The value of the candidate.
    pub offered: String,
    /// The change of the hints that this field would match.
    pub mend: String,
}

impl Mismatch {
    pub(super) fn new<T: Shown + ?Sized>(
        field: &'static str,
        asked: &T,
        offered: &T,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            field,
            asked: asked.shown(),
            offered: offered.shown(),
            mend: mend.into(),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} asked for is {}, offered is {}",
            self.field, self.asked, self.offered
        )
    }
}

/// A field's value in words.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

macro_rules! bits {
    ($($kind:ident: $prefix:literal),+) => {$(
        impl Shown for $kind {
            fn shown(&self) -> String {
                let mut names = self.iter_names();
                let mut text = String::new();
                for (name, _) in names.by_ref() {
                    let _ = write!(text, "{}{}{name}", if text.is_empty() { "" } else { " | " }, $prefix);
                }
                match (names.remaining().bits(), text.is_empty()) {
                    (0, true) => "nothing".to_owned(),
                    (0, false) => text,
                    (rest, true) => format!("{rest:#x}"),
                    (rest, false) => format!("{text} | {rest:#x}"),
                }
            }
        }
    )+};
}

bits!(Flags: "FI_", Mode: "FI_", MrMode: "FI_MR_", Order: "FI_ORDER_");

macro_rules! printed {
    ($($kind:ty: $form:literal),+) => {$(
        impl Shown for $kind {
            fn shown(&self) -> String {
                format!($form, self)
            }
        }
    )+};
}

printed!(
    Size: "{}", usize: "{}", u32: "{}", u64: "{:#x}", str: "{:?}", NativeAddr: "{}", Address: "{}",
    AddrFormat: "{:?}", EpType: "{:?}", Progress: "{:?}", ResourceMgmt: "{:?}", AvType: "{:?}"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_shown_by_the_names_of_the_manual_pages() {
        assert_eq!((Flags::MSG | Flags::RMA).shown(), "FI_MSG | FI_RMA");
        assert_eq!(MrMode::empty().shown(), "nothing");
        assert_eq!(MrMode::LOCAL.shown(), "FI_MR_LOCAL");
        assert_eq!(Order::SAS.shown(), "FI_ORDER_SAS");
        let unknown = Mode::from_bits_retain(1);
        assert_eq!(unknown.shown(), "0x1");
        assert_eq!((unknown | Mode::CONTEXT).shown(), "FI_CONTEXT | 0x1");
    }
}
