//! Modes of memory registration (fi_mr(3)).

use ferrofabric_contracts::flags::{Flags, Mode, MrMode};
use ferrofabric_contracts::info::{DomainAttr, FabricAttr, Info, filter};

use crate::getinfo::candidates::everything;

const NONE: MrMode = MrMode::empty();
const BASIC: MrMode = MrMode::VIRT_ADDR
    .union(MrMode::ALLOCATED)
    .union(MrMode::PROV_KEY);

fn hints(caps: Flags, asked: MrMode) -> Info {
    Info {
        caps,
        domain: DomainAttr {
            mr_mode: asked,
            ..DomainAttr::default()
        },
        ..Info::default()
    }
}

/// The registration modes that an application must support on a domain that needs `needs`; `None`
/// if its hints are refused.
fn granted(hints: &Info, needs: MrMode) -> Option<(MrMode, Mode)> {
    let mut candidate = everything();
    candidate.domain.mr_mode = needs;
    match filter(hints, &candidate) {
        Ok(offer) => Some((offer.domain.mr_mode, offer.mode)),
        Err(why) => {
            assert_eq!(why.field, "domain_attr->mr_mode", "{why}");
            None
        }
    }
}

fn registered(caps: Flags, needs: MrMode, asked: MrMode) -> Option<MrMode> {
    let (mr_mode, mode) = granted(&hints(caps, asked), needs)?;
    assert_eq!(mode, Mode::empty());
    Some(mr_mode)
}

/// Covers: GI-2
#[test]
fn modes_of_targets_must_be_in_the_hints() {
    let rma = Flags::RMA;
    assert_eq!(registered(rma, BASIC, BASIC | MrMode::LOCAL), Some(BASIC));
    assert_eq!(registered(rma, BASIC, BASIC - MrMode::ALLOCATED), None);
    assert_eq!(registered(rma, BASIC, NONE), None);
    assert_eq!(registered(rma, NONE, BASIC), Some(NONE));
    assert_eq!(registered(rma | Flags::READ, BASIC, NONE), Some(NONE));
    assert_eq!(registered(Flags::ATOMIC, MrMode::RAW, NONE), None);
}

/// Covers: GI-2
#[test]
fn messages_need_registration_only_where_local_buffers_do() {
    let msg = Flags::MSG;
    let local = MrMode::LOCAL;
    assert_eq!(registered(msg, BASIC | MrMode::ENDPOINT, NONE), Some(NONE));
    assert_eq!(registered(msg, local | BASIC, BASIC), None);
    assert_eq!(
        registered(msg, local | BASIC, local | BASIC),
        Some(local | MrMode::ALLOCATED)
    );
}

/// Covers: GI-2
#[test]
fn a_registration_mode_is_needed_with_its_capability_only() {
    let hmem = Flags::MSG | Flags::HMEM;
    assert_eq!(registered(Flags::MSG, MrMode::HMEM, NONE), Some(NONE));
    assert_eq!(registered(hmem, MrMode::HMEM, NONE), None);
    assert_eq!(
        registered(hmem, MrMode::HMEM, MrMode::HMEM),
        Some(MrMode::HMEM)
    );

    let collective = Flags::MSG | Flags::COLLECTIVE;
    assert_eq!(registered(Flags::MSG, MrMode::COLLECTIVE, NONE), Some(NONE));
    assert_eq!(registered(collective, MrMode::COLLECTIVE, NONE), None);

    let events = Flags::RMA | Flags::RMA_EVENT;
    assert_eq!(registered(Flags::RMA, MrMode::RMA_EVENT, NONE), Some(NONE));
    assert_eq!(registered(events, MrMode::RMA_EVENT, NONE), None);
}

/// Covers: GI-2
#[test]
fn the_old_mode_names_stand_alone() {
    let rma = Flags::RMA;
    let (basic, scalable) = (MrMode::BASIC, MrMode::SCALABLE);
    assert_eq!(registered(rma, BASIC, basic), Some(basic));
    assert_eq!(registered(rma, BASIC, basic | MrMode::LOCAL), None);
    assert_eq!(registered(rma, BASIC, basic | scalable), None);
    assert_eq!(registered(rma, BASIC, scalable), None);
    assert_eq!(registered(rma, BASIC | MrMode::ENDPOINT, basic), None);
    assert_eq!(registered(rma, NONE, scalable), Some(scalable));
    // Offsets, and keys that the application chooses, are not part of `BASIC`.
    assert_eq!(registered(rma, NONE, basic), None);
    // A candidate may serve them by that name, and has no duties by any other.
    assert_eq!(registered(rma, basic, basic), Some(basic));
    assert_eq!(registered(rma, basic, scalable), Some(scalable));
    for asked in [NONE, BASIC, BASIC | MrMode::LOCAL] {
        assert_eq!(registered(rma, basic, asked), Some(NONE));
    }
    assert_eq!(registered(rma, basic | MrMode::LOCAL, basic), None);
    assert_eq!(registered(rma, basic | MrMode::RAW, basic), None);
    // For messages there is no difference.
    for needs in [NONE, BASIC] {
        for old in [basic, scalable] {
            assert_eq!(registered(Flags::MSG, needs, old), Some(old));
        }
    }
}

/// Covers: GI-2, GI-4
#[test]
fn with_the_old_names_local_registration_is_a_mode_of_its_own() {
    let needs = BASIC | MrMode::LOCAL;
    let mut hints = hints(Flags::RMA, MrMode::BASIC);
    assert_eq!(granted(&hints, needs), None);
    hints.mode = Mode::LOCAL_MR | Mode::CONTEXT;
    assert_eq!(
        granted(&hints, needs),
        Some((MrMode::BASIC, Mode::LOCAL_MR))
    );
    assert_eq!(granted(&hints, BASIC), Some((MrMode::BASIC, Mode::empty())));
    // Beside other bits it does not count.
    hints.domain.mr_mode = BASIC;
    assert_eq!(granted(&hints, needs), None);
}

/// Covers: GI-2, GI-9
#[test]
fn before_version_1_5_there_are_only_the_old_names_and_0_is_either() {
    let asked = |version, caps, needs, mr_mode| {
        let fabric = FabricAttr {
            api_version: version,
            ..FabricAttr::default()
        };
        let hints = hints(caps, mr_mode);
        granted(&Info { fabric, ..hints }, needs).map(|(mr_mode, _)| mr_mode)
    };
    let (old, new) = ((1 << 16) | 4, (1 << 16) | 5);
    let (rma, basic) = (Flags::RMA, MrMode::BASIC);
    assert_eq!(asked(old, rma, BASIC, NONE), Some(basic));
    assert_eq!(asked(old, rma, NONE, NONE), Some(MrMode::SCALABLE));
    assert_eq!(asked(old, Flags::MSG, BASIC, NONE), Some(MrMode::SCALABLE));
    assert_eq!(asked(old, rma, basic, NONE), Some(MrMode::SCALABLE));
    assert_eq!(asked(old, rma, basic, basic), Some(basic));
    assert_eq!(asked(old, rma, basic, BASIC | basic), Some(basic));
    assert_eq!(asked(new, rma, basic, basic), Some(basic));
    assert_eq!(asked(old, rma, BASIC | MrMode::RAW, NONE), None);
    assert_eq!(asked(old, rma, BASIC, MrMode::SCALABLE), None);
    assert_eq!(asked(old, rma, BASIC, BASIC), Some(basic));
    assert_eq!(asked(new, rma, BASIC, BASIC), Some(BASIC));
    assert_eq!(asked(new, rma, BASIC, NONE), None);
    // NULL hints have no version.
    let mut null_hints = Info::null_hints();
    null_hints.fabric.api_version = old;
    assert_eq!(granted(&null_hints, BASIC), Some((basic, Mode::empty())));
}
