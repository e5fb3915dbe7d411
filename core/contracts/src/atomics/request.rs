//! The request of an atomic operation: a head of 16 bytes, the operands, and the compare values.
//! Elements are as they lie in memory, lowest byte first.

use super::{AtomicForm, AtomicOperator, Datatype, MAX_ATOMIC_BYTES};

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicHead {
    /// The initiator's number of the operation, which the reply has.
    pub number: u64,
    /// The form.
    pub form: AtomicForm,
    /// The operator.
    pub operator: AtomicOperator,
    /// The type of the elements.
    pub datatype: Datatype,
    /// Elements, at least one.
    pub count: u32,
}

/// The arrays of a request, each as long as the elements of the target; empty where the operation
/// has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicArrays<'a> {
    /// The operands.
    pub operands: &'a [u8],
    /// The compare values.
    pub compares: &'a [u8],
}

/// Why bytes are not a request that can be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Its number can not be read: there is no reply.
    Headless,
    /// There is no such form, operator or data type, or not together.
    Unsupported {
        /// The initiator's number of the operation.
        number: u64,
    },
    /// It has no elements, more than there may be, or another number than its bytes have room for.
    Length {
        /// The initiator's number of the operation.
        number: u64,
    },
}

impl AtomicHead {
    /// Bytes of a head.
    pub const BYTES: usize = 16;

    /// Bytes of the longest request.
    pub const MAX_REQUEST_BYTES: usize = Self::BYTES + 2 * MAX_ATOMIC_BYTES;

    /// The bytes of the head.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12] = self.form as u8;
        bytes[13] = self.operator as u8;
        bytes[14] = self.datatype as u8;
        bytes
    }

    /// Bytes of the target's elements.
    #[must_use]
    pub fn target_bytes(&self) -> usize {
        self.count as usize * self.datatype.size()
    }

    /// Reads a request.
    ///
    /// # Errors
    ///
    /// [`RequestError`].
    pub fn parse(request: &[u8]) -> Result<(Self, AtomicArrays<'_>), RequestError> {
        let (head, arrays) = request
            .split_first_chunk::<{ Self::BYTES }>()
            .ok_or(RequestError::Headless)?;
        let [
            n0,
            n1,
            n2,
            n3,
            n4,
            n5,
            n6,
            n7,
            c0,
            c1,
            c2,
            c3,
            form,
            operator,
            datatype,
            rest,
        ] = *head;
        let number = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let kinds = (
            AtomicForm::from_number(form),
            AtomicOperator::from_number(operator),
            Datatype::from_number(datatype),
        );
        let (Some(form), Some(operator), Some(datatype)) = kinds else {
            return Err(RequestError::Unsupported { number });
        };
        if !form.has(operator, datatype) || rest != 0 {
            return Err(RequestError::Unsupported { number });
        }
        let head = Self {
            number,
            form,
            operator,
            datatype,
            count: u32::from_le_bytes([c0, c1, c2, c3]),
        };
        let fits = (1..=datatype.max_count()).contains(&(head.count as usize));
        if !fits || arrays.len() != head.arrays() * head.target_bytes() {
            return Err(RequestError::Length { number });
        }
        let operands = match operator {
            AtomicOperator::Read => 0,
            _ => head.target_bytes(),
        };
        let (operands, compares) = arrays.split_at(operands);
        Ok((head, AtomicArrays { operands, compares }))
    }

    /// Number of arrays that a request has.
    fn arrays(&self) -> usize {
        match (self.form, self.operator) {
            (_, AtomicOperator::Read) => 0,
            (AtomicForm::Compare, _) => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(form: AtomicForm, operator: AtomicOperator, datatype: Datatype) -> AtomicHead {
        AtomicHead {
            number: (7 << 40) | 3,
            form,
            operator,
            datatype,
            count: 1,
        }
    }

    fn request(head: &AtomicHead) -> Vec<u8> {
        let arrays = vec![0xab; head.arrays() * head.target_bytes()];
        [&head.to_bytes()[..], &arrays].concat()
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        for &form in AtomicForm::ALL {
            for &operator in AtomicOperator::ALL {
                for &datatype in Datatype::ALL {
                    let mut head = head(form, operator, datatype);
                    if !form.has(operator, datatype) {
                        let (number, bytes) = (head.number, request(&head));
                        let refused = Err(RequestError::Unsupported { number });
                        assert_eq!(AtomicHead::parse(&bytes), refused);
                        continue;
                    }
                    for count in [1, 2, datatype.max_count()] {
                        head.count = count as u32;
                        let bytes = request(&head);
                        let (read, arrays) = AtomicHead::parse(&bytes).unwrap();
                        assert_eq!(read, head);
                        let lens = (arrays.operands.len(), arrays.compares.len());
                        let len = head.target_bytes();
                        assert_eq!(lens.0, len * usize::from(operator != AtomicOperator::Read));
                        assert_eq!(lens.1, len * usize::from(form == AtomicForm::Compare));
                    }
                }
            }
        }
    }

    #[test]
    fn counts_that_lie_are_refused() {
        let sound = head(AtomicForm::Fetch, AtomicOperator::Sum, Datatype::Uint32);
        let number = sound.number;
        for count in [0, 2, 1025, u32::MAX, u32::MAX / 4 + 2, 1 << 30] {
            let mut bytes = request(&sound);
            bytes[8..12].copy_from_slice(&u32::to_le_bytes(count));
            let refused = Err(RequestError::Length { number });
            assert_eq!(AtomicHead::parse(&bytes), refused, "{count}");
        }
        let most = AtomicHead {
            count: 1025,
            ..sound
        };
        let refused = Err(RequestError::Length { number });
        assert_eq!(AtomicHead::parse(&request(&most)), refused);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok((head, arrays)) = AtomicHead::parse(&bytes) {
                let len = AtomicHead::BYTES + arrays.operands.len() + arrays.compares.len();
                prop_assert_eq!(len, bytes.len());
                prop_assert!(head.form.has(head.operator, head.datatype));
            }
        }

        /// No byte of a sound request may change its lengths.
        #[test]
        fn a_changed_head_keeps_within_its_bytes(at in 0usize..16, value: u8, count in 1u32..20) {
            let mut sound = head(AtomicForm::Compare, AtomicOperator::Cswap, Datatype::Int16);
            sound.count = count;
            let mut bytes = request(&sound);
            bytes[at] = value;
            if let Ok((head, arrays)) = AtomicHead::parse(&bytes) {
                prop_assert!(head.count >= 1 && head.target_bytes() <= MAX_ATOMIC_BYTES);
                for array in [arrays.operands, arrays.compares] {
                    prop_assert!(array.is_empty() || array.len() == head.target_bytes());
                }
            }
        }
    }
}
