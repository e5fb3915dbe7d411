//! The addresses of endpoints as the suite has them, 64 bytes in the format of ours. An address of
//! our own provider is such an address. For one of another provider the suite gets an address that
//! stands for it, which leads back to the provider's bytes here and in this process alone.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr};

/// The node of addresses that stand for those of other providers.
const STAND_IN_NODE: u64 = 0x7374_616e_642d_696e;

/// The distance between the incarnations of stand-ins: those between are nobody's, and the suite
/// may invent them.
const DISTANCE: u64 = 1 << 20;

#[derive(Default)]
struct StandIns {
    bytes: HashMap<[u8; NATIVE_LEN], Vec<u8>>,
    natives: HashMap<Vec<u8>, NativeAddr>,
}

static STAND_INS: LazyLock<Mutex<StandIns>> = LazyLock::new(Mutex::default);

/// The suite's address for the bytes of a provider's.
pub fn native(address: &[u8]) -> NativeAddr {
    if let Ok(native) = NativeAddr::from_bytes(address) {
        return native;
    }
    let address = whole(address);
    let mut known = STAND_INS.lock().unwrap();
    if let Some(native) = known.natives.get(&address) {
        return *native;
    }
    let number = known.natives.len() as u64 + 1;
    let native = NativeAddr {
        incarnation: number * DISTANCE,
        node: STAND_IN_NODE,
        shm: Some(number),
        verbs: None,
    };
    known.natives.insert(address.clone(), native);
    known.bytes.insert(native.to_bytes(), address);
    native
}

/// The bytes of a provider's address for the suite's. `None`: the suite's stands for no endpoint,
/// or its length is not that of an address, and `fi_av_insert` takes no lengths.
pub fn bytes(native: &[u8]) -> Option<Vec<u8>> {
    let whole: &[u8; NATIVE_LEN] = native.try_into().ok()?;
    if let Some(bytes) = STAND_INS.lock().unwrap().bytes.get(whole) {
        return Some(bytes.clone());
    }
    let stands_in = |addr: NativeAddr| addr.node == STAND_IN_NODE;
    match NativeAddr::from_bytes(native) {
        Ok(addr) if stands_in(addr) => None,
        _ => Some(native.to_vec()),
    }
}

/// An address that is text ends with its first 0, whatever length a call reports.
fn whole(address: &[u8]) -> Vec<u8> {
    match address.starts_with(b"fi_") {
        true => address
            .iter()
            .take_while(|byte| **byte != 0)
            .copied()
            .chain([0])
            .collect(),
        false => address.to_vec(),
    }
}
