//! Fragmentation of eager messages: the sender cuts a message into packets, and the receiver joins
//! them.
//!
//! A datagram holds no more than the path's MTU, so an eager message may take several of them.
//! Their sequence numbers follow one another and the session delivers them in order. So the
//! receiver joins one message at a time, and needs no table. No fragment writes beyond the length
//! that the first packet gave.

use std::ops::Range;

use thiserror::Error;

use super::wire::data::DataPacket;

/// The sender's division of an eager message into fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentPlan {
    total_bytes: u32,
    room_bytes: u32,
}

impl FragmentPlan {
    /// Cuts a message of `total_bytes` for packets that have room for `room_bytes` (0 counts as 1)
    /// behind the largest header, [`super::wire::data::MAX_FIRST_HEADER_BYTES`].
    #[must_use]
    pub fn new(total_bytes: u32, room_bytes: u32) -> Self {
        FragmentPlan {
            total_bytes,
            room_bytes: room_bytes.max(1),
        }
    }

    /// Number of packets for the message: 1 for an empty message. One is written as Eager, more as
    /// EagerFirst and EagerPart.
    #[must_use]
    pub fn packets(&self) -> u32 {
        self.total_bytes.div_ceil(self.room_bytes).max(1)
    }

    /// The range of the message's bytes in each packet, in order.
    pub fn ranges(self) -> impl Iterator<Item = Range<u32>> {
        (0..self.packets()).map(move |number| {
            let start = number * self.room_bytes;
            start..start.saturating_add(self.room_bytes).min(self.total_bytes)
        })
    }
}

/// A violation of the rules of fragmentation by the peer. The receiver must end the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FragmentError {
    /// A fragment of a message that was not begun, or is complete.
    #[error("the peer sent a fragment of a message that was not begun")]
    NotBegun,
    /// A message whose predecessor is not complete.
    #[error("the peer began a message before the one before it was complete")]
    NotComplete,
    /// The fragment does not begin at the next byte, or ends beyond the message.
    #[error(
        "the peer sent a fragment at byte {got} of {total_bytes}, expected was byte {expected}"
    )]
    Offset {
        /// The next byte of the message.
        expected: u32,
        /// First byte of the fragment.
        got: u32,
        /// Length of the message.
        total_bytes: u32,
    },
}

/// The role of a packet in the messages of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketRole {
    /// It is no fragment.
    Other,
    /// A fragment of the message begun last, for the caller to copy to its offset.
    Fragment {
        /// Offset of the fragment in the message.
        offset_bytes: u32,
        /// Whether it completes the message.
        last: bool,
    },
}

/// The receiver's position in the message that a session's packets carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    total_bytes: u32,
    have_bytes: u32,
}

impl Assembly {
    /// Judges the next packet that the session delivers. Call this before the packet is used.
    ///
    /// # Errors
    /// [`FragmentError`]; nothing is changed.
    #[inline]
    pub fn on_packet(&mut self, packet: &DataPacket<'_>) -> Result<PacketRole, FragmentError> {
        match *packet {
            DataPacket::EagerFirst {
                total_bytes, part, ..
            } => {
                self.check_complete()?;
                *self = Assembly {
                    total_bytes,
                    have_bytes: 0,
                };
                Ok(self.take(part))
            }
            DataPacket::EagerPart { offset_bytes, part } => {
                if self.is_complete() {
                    return Err(FragmentError::NotBegun);
                }
                let left = u64::from(self.total_bytes - self.have_bytes);
                if offset_bytes != self.have_bytes || part.len() as u64 > left {
                    return Err(FragmentError::Offset {
                        expected: self.have_bytes,
                        got: offset_bytes,
                        total_bytes: self.total_bytes,
                    });
                }
                Ok(self.take(part))
            }
            DataPacket::Eager { .. } | DataPacket::Rts { .. } | DataPacket::Envelope { .. } => {
                self.check_complete()?;
                Ok(PacketRole::Other)
            }
            DataPacket::Fin { .. }
            | DataPacket::Cts(_)
            | DataPacket::Done { .. }
            | DataPacket::Pull { .. }
            | DataPacket::Pulled { .. }
            | DataPacket::PulledRts { .. }
            | DataPacket::Unsent { .. }
            | DataPacket::Resume(_)
            | DataPacket::Credit
            | DataPacket::Ack => Ok(PacketRole::Other),
        }
    }

    /// Whether no message is incomplete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.have_bytes == self.total_bytes
    }

    fn check_complete(&self) -> Result<(), FragmentError> {
        match self.is_complete() {
            true => Ok(()),
            false => Err(FragmentError::NotComplete),
        }
    }

    fn take(&mut self, part: &[u8]) -> PacketRole {
        let offset_bytes = self.have_bytes;
        // At most `total_bytes`: the parser or the caller has checked it.
        self.have_bytes += part.len() as u32;
        PacketRole::Fragment {
            offset_bytes,
            last: self.is_complete(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::data::DataEnvelope;
    use proptest::prelude::*;

    fn first(total_bytes: u32, part: &[u8]) -> DataPacket<'_> {
        DataPacket::EagerFirst {
            envelope: DataEnvelope::default(),
            total_bytes,
            part,
        }
    }

    proptest! {
        /// The receiver joins the fragments to the same message, byte for byte.
        #[test]
        fn messages_survive_fragmentation(lengths in proptest::collection::vec(0..5000u32, 1..10), room in 0..1500u32) {
            let mut assembly = Assembly::default();
            for total in lengths {
                let message: Vec<u8> = (0..total).map(|n| (n % 251) as u8).collect();
                let plan = FragmentPlan::new(total, room);
                let mut got = vec![0; message.len()];
                prop_assert_eq!(plan.ranges().count(), plan.packets() as usize);
                prop_assert!(plan.ranges().all(|range| range.len() <= room.max(1) as usize));
                if plan.packets() == 1 {
                    prop_assert!(plan.ranges().eq(std::iter::once(0..total)));
                    continue;
                }
                for range in plan.ranges() {
                    let part = &message[range.start as usize..range.end as usize];
                    let packet = match range.start {
                        0 => first(total, part),
                        offset_bytes => DataPacket::EagerPart { offset_bytes, part },
                    };
                    let Ok(PacketRole::Fragment { offset_bytes, last }) = assembly.on_packet(&packet) else {
                        panic!("{range:?} refused");
                    };
                    got[offset_bytes as usize..][..part.len()].copy_from_slice(part);
                    prop_assert_eq!(last, range.end == total);
                }
                prop_assert!(assembly.is_complete());
                prop_assert_eq!(got, message);
            }
        }

        /// For any sequence of packets from a hostile peer, no byte goes beyond the message that
        /// was begun.
        #[test]
        fn hostile_fragments_stay_within_the_message(
            packets in proptest::collection::vec((0..4u8, 0..40u32, 1..20usize), 0..60),
        ) {
            let bytes = [0; 20];
            let mut assembly = Assembly::default();
            let mut total = 0;
            for (kind, n, len) in packets {
                let part = &bytes[..len];
                let packet = match kind {
                    0 if n > len as u32 => first(n, part),
                    1 if n > 0 => DataPacket::EagerPart { offset_bytes: n, part },
                    2 => DataPacket::Eager { envelope: DataEnvelope::default(), payload: part },
                    _ => DataPacket::EagerPart { offset_bytes: assembly.have_bytes.max(1), part },
                };
                let before = assembly;
                match assembly.on_packet(&packet) {
                    Ok(PacketRole::Fragment { offset_bytes, last }) => {
                        if let DataPacket::EagerFirst { total_bytes, .. } = packet {
                            total = total_bytes;
                        }
                        let end = offset_bytes + len as u32;
                        prop_assert!(end <= total);
                        prop_assert_eq!(last, end == total);
                    }
                    Ok(PacketRole::Other) => prop_assert!(before.is_complete()),
                    Err(_) => prop_assert_eq!(assembly, before),
                }
            }
        }
    }

    #[test]
    fn the_rules_are_kept() {
        let mut assembly = Assembly::default();
        let part = |offset_bytes| DataPacket::EagerPart {
            offset_bytes,
            part: b"ab",
        };
        assert_eq!(assembly.on_packet(&part(2)), Err(FragmentError::NotBegun));
        assembly.on_packet(&first(5, b"ab")).unwrap();
        assert_eq!(
            assembly.on_packet(&first(5, b"ab")),
            Err(FragmentError::NotComplete)
        );
        let place = |got| FragmentError::Offset {
            expected: 2,
            got,
            total_bytes: 5,
        };
        assert_eq!(assembly.on_packet(&part(3)), Err(place(3)));
        let too_much = DataPacket::EagerPart {
            offset_bytes: 2,
            part: b"abcd",
        };
        assert_eq!(assembly.on_packet(&too_much), Err(place(2)));
        assembly.on_packet(&part(2)).unwrap();
        assert_eq!(
            assembly.on_packet(&DataPacket::EagerPart {
                offset_bytes: 4,
                part: b"a"
            }),
            Ok(PacketRole::Fragment {
                offset_bytes: 4,
                last: true
            })
        );
        assert_eq!(assembly.on_packet(&part(5)), Err(FragmentError::NotBegun));
    }
}
