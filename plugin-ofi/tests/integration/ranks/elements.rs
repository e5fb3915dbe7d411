//! Elements of collectives with small whole values, and operators on them, one after the other.

#![allow(unreachable_pub, reason = "a part of test programs")]

use ferro_fi::abi::{fi_datatype, fi_op};

/// All types of elements that libfabric has operators for, or may have.
pub const DATATYPES: [fi_datatype; 16] = {
    let mut all = [fi_datatype(0); 16];
    let mut at = 0;
    while at < 16 {
        all[at] = fi_datatype(at as u32);
        at += 1;
    }
    all
};

/// All operators of reductions.
pub const OPERATORS: [fi_op; 10] = [
    fi_op::FI_MIN,
    fi_op::FI_MAX,
    fi_op::FI_SUM,
    fi_op::FI_PROD,
    fi_op::FI_LOR,
    fi_op::FI_LAND,
    fi_op::FI_BOR,
    fi_op::FI_BAND,
    fi_op::FI_LXOR,
    fi_op::FI_BXOR,
];

/// A whole number, or a complex one with whole parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    real: i64,
    imaginary: i64,
}

fn is_complex(datatype: fi_datatype) -> bool {
    matches!(
        datatype,
        fi_datatype::FI_FLOAT_COMPLEX
            | fi_datatype::FI_DOUBLE_COMPLEX
            | fi_datatype::FI_LONG_DOUBLE_COMPLEX
    )
}

fn is_unsigned(datatype: fi_datatype) -> bool {
    matches!(
        datatype,
        fi_datatype::FI_UINT8
            | fi_datatype::FI_UINT16
            | fi_datatype::FI_UINT32
            | fi_datatype::FI_UINT64
            | fi_datatype::FI_UINT128
    )
}

impl Element {
    /// An element for a number below 4, negative for some where the type has such values.
    pub fn of(datatype: fi_datatype, number: i64) -> Self {
        let real = match is_unsigned(datatype) {
            true => number,
            false => number - 1,
        };
        let imaginary = match is_complex(datatype) {
            true => 2 - number,
            false => 0,
        };
        Self { real, imaginary }
    }

    fn is_true(self) -> bool {
        self.real != 0 || self.imaginary != 0
    }

    /// The result of an operator.
    pub fn reduced(self, op: fi_op, other: Self) -> Self {
        let (a, b) = (self, other);
        let whole = |real| Self { real, imaginary: 0 };
        match op {
            fi_op::FI_MIN => whole(a.real.min(b.real)),
            fi_op::FI_MAX => whole(a.real.max(b.real)),
            fi_op::FI_SUM => Self {
                real: a.real + b.real,
                imaginary: a.imaginary + b.imaginary,
            },
            fi_op::FI_PROD => Self {
                real: a.real * b.real - a.imaginary * b.imaginary,
                imaginary: a.real * b.imaginary + a.imaginary * b.real,
            },
            fi_op::FI_LOR => whole(i64::from(a.is_true() || b.is_true())),
            fi_op::FI_LAND => whole(i64::from(a.is_true() && b.is_true())),
            fi_op::FI_LXOR => whole(i64::from(a.is_true() != b.is_true())),
            fi_op::FI_BOR => whole(a.real | b.real),
            fi_op::FI_BAND => whole(a.real & b.real),
            fi_op::FI_BXOR => whole(a.real ^ b.real),
            other => panic!("no operator of reductions: {other:?}"),
        }
    }
}

/// A whole number as a long double of x86: ten bytes, and six that have no meaning.
fn long_double(number: i64) -> [u8; 16] {
    let mut bytes = [0; 16];
    if number != 0 {
        let magnitude = number.unsigned_abs();
        let exponent = 16383 + 63 - magnitude.leading_zeros() as u16;
        let sign = u16::from(number < 0) << 15;
        bytes[..8].copy_from_slice(&(magnitude << magnitude.leading_zeros()).to_le_bytes());
        bytes[8..10].copy_from_slice(&(exponent | sign).to_le_bytes());
    }
    bytes
}

/// The bytes of elements.
pub fn encoded(datatype: fi_datatype, elements: &[Element]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &Element { real, imaginary } in elements {
        match datatype {
            fi_datatype::FI_INT8 | fi_datatype::FI_UINT8 => bytes.push(real as u8),
            fi_datatype::FI_INT16 | fi_datatype::FI_UINT16 => {
                bytes.extend((real as i16).to_le_bytes());
            }
            fi_datatype::FI_INT32 | fi_datatype::FI_UINT32 => {
                bytes.extend((real as i32).to_le_bytes());
            }
            fi_datatype::FI_INT64 | fi_datatype::FI_UINT64 => bytes.extend(real.to_le_bytes()),
            fi_datatype::FI_INT128 | fi_datatype::FI_UINT128 => {
                bytes.extend(i128::from(real).to_le_bytes());
            }
            fi_datatype::FI_FLOAT => bytes.extend((real as f32).to_le_bytes()),
            fi_datatype::FI_DOUBLE => bytes.extend((real as f64).to_le_bytes()),
            fi_datatype::FI_FLOAT_COMPLEX => {
                bytes.extend((real as f32).to_le_bytes());
                bytes.extend((imaginary as f32).to_le_bytes());
            }
            fi_datatype::FI_DOUBLE_COMPLEX => {
                bytes.extend((real as f64).to_le_bytes());
                bytes.extend((imaginary as f64).to_le_bytes());
            }
            fi_datatype::FI_LONG_DOUBLE => bytes.extend(long_double(real)),
            fi_datatype::FI_LONG_DOUBLE_COMPLEX => {
                bytes.extend(long_double(real));
                bytes.extend(long_double(imaginary));
            }
            other => panic!("no type of elements: {other:?}"),
        }
    }
    bytes
}

/// Whether the bytes of two lists of elements mean the same: those of long doubles have some
/// without a meaning, and zeros have two signs.
pub fn same(datatype: fi_datatype, one: &[u8], other: &[u8]) -> bool {
    let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let double = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let long = |bytes: &[u8]| {
        let is_zero = bytes[..8].iter().all(|&byte| byte == 0);
        (!is_zero).then(|| bytes[..10].to_vec())
    };
    let all = |size: usize, same: &dyn Fn(&[u8], &[u8]) -> bool| {
        one.len() == other.len()
            && (one.chunks(size).zip(other.chunks(size))).all(|(one, other)| same(one, other))
    };
    match datatype {
        fi_datatype::FI_FLOAT | fi_datatype::FI_FLOAT_COMPLEX => {
            all(4, &|one, other| float(one) == float(other))
        }
        fi_datatype::FI_DOUBLE | fi_datatype::FI_DOUBLE_COMPLEX => {
            all(8, &|one, other| double(one) == double(other))
        }
        fi_datatype::FI_LONG_DOUBLE | fi_datatype::FI_LONG_DOUBLE_COMPLEX => {
            all(16, &|one, other| long(one) == long(other))
        }
        _ => one == other,
    }
}
