//! The contexts of operations: numbers to the suite, pointers to C. Each pointer leads to memory
//! for a provider that writes there while the operation is under way (`FI_CONTEXT2`, `FI_CLAIM`).

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use ferro_fi::abi::fi_context2;

/// The contexts of a domain's operations. Memory stays until the domain closes: an operation may
/// complete after its endpoint has closed.
#[derive(Default)]
pub struct Contexts(Mutex<ContextMemory>);

#[derive(Default)]
struct ContextMemory {
    /// Addresses, by endpoint and number.
    addresses: HashMap<(usize, u64), usize>,
    /// Numbers, by address.
    numbers: HashMap<usize, u64>,
}

impl Contexts {
    /// The pointer for a number of an endpoint's, always the same.
    pub fn pointer(&self, endpoint: usize, number: u64) -> *mut c_void {
        let ContextMemory { addresses, numbers } = &mut *self.0.lock().unwrap();
        let address = addresses.entry((endpoint, number)).or_insert_with(|| {
            let memory = Box::into_raw(Box::<fi_context2>::default());
            numbers.insert(memory as usize, number);
            memory as usize
        });
        *address as *mut c_void
    }

    /// The number for a pointer; 0 for the operations that have none (`fi_inject`).
    pub fn number(&self, pointer: *mut c_void) -> u64 {
        if pointer.is_null() {
            return 0;
        }
        let numbers = &self.0.lock().unwrap().numbers;
        *numbers
            .get(&(pointer as usize))
            .unwrap_or_else(|| panic!("no operation has had the context {pointer:?}"))
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        for address in self.0.get_mut().unwrap().numbers.keys() {
            // SAFETY: it is this object's, and the domain that may have used it has closed.
            drop(unsafe { Box::from_raw(*address as *mut fi_context2) });
        }
    }
}
