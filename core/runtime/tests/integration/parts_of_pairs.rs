//! The transport of a pair that carries the parts of one-sided operations, and the turns of both.

use crate::recorder;
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::AddrFormat;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Paired;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RmaKind, RmaOp, SendOp};
use ferrofabric_runtime::fabric::{CntrAttr, CqAttr, Domain, Endpoint, EndpointConfig};

use recorder::{NODE, Recorder, SharedRecord, domain_of, name};

/// Writes to a peer, sends a message to it, and writes again. Returns what the far and the near
/// transport have sent.
fn sent<const PARTS: bool>() -> [Vec<MsgKind>; 2] {
    let records = [SharedRecord::default(), SharedRecord::default()];
    let [far, near] = records.clone();
    let domain = domain_of(AddrFormat::UNSPEC, move || {
        let far: Recorder = Recorder {
            record: far.clone(),
            ..Recorder::default()
        };
        let near = Recorder::<false, PARTS> {
            record: near.clone(),
            ..Recorder::default()
        };
        Paired::new(far, Some(near))
    });
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
    let dest = av.insert(&name(NODE, 1).to_bytes()).unwrap();
    write(&endpoint, dest);
    let op = SendOp {
        kind: MsgKind::Msg,
        dest,
        tag: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: 1,
        flags: Flags::empty(),
    };
    // SAFETY: there is no buffer.
    unsafe { endpoint.send(&op, &[]).unwrap() };
    write(&endpoint, dest);
    records.map(|record| std::mem::take(&mut record.lock().unwrap().sent))
}

fn write(endpoint: &Arc<dyn Endpoint>, dest: FiAddr) {
    static BYTES: [u8; 8] = [1; 8];
    let op = RmaOp {
        kind: RmaKind::Write,
        dest,
        key: 1,
        place: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: 2,
        flags: Flags::empty(),
    };
    let buffer = IoBuf {
        addr: BYTES.as_ptr() as usize,
        len: BYTES.len(),
    };
    // SAFETY: the bytes of a write are read alone, and these are there for ever.
    unsafe { endpoint.rma(&op, &[buffer]).unwrap() };
}

fn is_part(kind: &MsgKind) -> bool {
    kind.is_part()
}

/// Covers: PEER-13
#[test]
fn the_far_transport_carries_the_parts_that_the_near_one_does_not() {
    let [far, near] = sent::<false>();
    assert_eq!(near, [MsgKind::Msg]);
    assert!(far.len() >= 2 && far.iter().all(is_part), "{far:?}");
}

/// Covers: PEER-13
#[test]
fn the_near_transport_carries_all_that_it_can() {
    let [far, near] = sent::<true>();
    assert!(far.is_empty(), "{far:?}");
    assert!(
        near.iter().filter(|kind| is_part(kind)).count() >= 2,
        "{near:?}"
    );
    assert!(near.contains(&MsgKind::Msg), "{near:?}");
}

/// A domain of a pair whose near transport has moved so much in each turn, and the records of the
/// far and the near one.
fn moving(moves: usize) -> (Arc<dyn Domain>, [SharedRecord; 2]) {
    let records = [SharedRecord::default(), SharedRecord::default()];
    let [far, near] = records.clone();
    let domain = domain_of(AddrFormat::UNSPEC, move || {
        let far: Recorder = Recorder {
            record: far.clone(),
            ..Recorder::default()
        };
        let near: Recorder = Recorder {
            record: near.clone(),
            moves,
            ..Recorder::default()
        };
        Paired::new(far, Some(near))
    });
    (domain, records)
}

/// Reads a queue of such a domain. Returns the turns of the far and the near transport.
fn turns(moves: usize) -> [usize; 2] {
    const READS: usize = 90;
    let (domain, records) = moving(moves);
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    let _endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
    let count = || {
        records
            .each_ref()
            .map(|record| record.lock().unwrap().turns)
    };
    let before = count();
    for _ in 0..READS {
        assert_eq!(cq.read(&mut []), Ok(0));
    }
    let after = count();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn the_far_transport_waits_while_the_near_one_moves_and_gets_its_turns() {
    assert_eq!(turns(0), [90, 90]);
    assert_eq!(turns(1), [10, 90]);
}

/// A completion that was there before a device is armed raises no event.
#[test]
fn the_far_transport_is_driven_before_a_caller_sleeps() {
    let (domain, [far, near]) = moving(1);
    far.lock().unwrap().near = Some(near);
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    let cntr = domain.open_cntr(&CntrAttr::default()).unwrap();
    let _endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
    let waited = cntr.wait(1, Some(Duration::from_millis(1)));
    assert!(waited.is_err(), "{waited:?}");
    let behind = std::mem::take(&mut far.lock().unwrap().behind_at_arm);
    assert!(!behind.is_empty());
    assert!(behind.iter().all(|&turns| turns == 0), "{behind:?}");
}
