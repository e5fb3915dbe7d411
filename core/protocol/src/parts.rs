//! Eager messages in several packets: how they are cut, and how the receiver puts them together.
//!
//! A datagram holds no more than the path's MTU, so an eager message may take a few of them. They
//! are numbered in a row and the session delivers them in order; so one message at a time is put
//! together, and a table is not needed.

use std::ops::Range;

use thiserror::Error;

use super::wire::data::Packet;

/// How an eager message is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    total_bytes: u32,
    room_bytes: u32,
}

impl Cut {
    /// Cuts a message of `total_bytes` for packets that have room for `room_bytes` (0 counts as 1)
    /// behind the largest header, [`super::wire::data::MAX_FIRST_HEADER_BYTES`].
    #[must_use]
    pub fn new(total_bytes: u32, room_bytes: u32) -> Self {
        Cut {
            total_bytes,
            room_bytes: room_bytes.max(1),
        }
    }

    /// Packets that it takes: 1 for an empty message. One is written as Eager, more as EagerFirst
    /// and EagerPart.
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

/// The peer broke the rules of messages in parts; the session is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PartError {
    /// A part of a message that was not begun, or is whole.
    #[error("the peer sent a fragment of a message that was not begun")]
    NotBegun,
    /// A message before the one begun was whole.
    #[error("the peer began a message before the one before it was complete")]
    NotWhole,
    /// Not the next bytes of the message, or more than it has.
    #[error(
        "the peer sent a fragment at byte {got} of {total_bytes}, expected was byte {expected}"
    )]
    Place {
        /// Where the part should start, in bytes.
        expected: u32,
        /// Where it says to start.
        got: u32,
        /// Length of the message.
        total_bytes: u32,
    },
}

/// The role of a packet in the messages of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is not in parts.
    None,
    /// Bytes of the message begun last: put them where they belong.
    Bytes {
        /// Where in the message.
        offset_bytes: u32,
        /// Whether the message is whole with them.
        last: bool,
    },
}

/// The receiver's place in the message that a session's packets are bringing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    total_bytes: u32,
    have_bytes: u32,
}

impl Assembly {
    /// Judges the next packet that the session delivers. Call this before the packet is used.
    ///
    /// # Errors
    /// [`PartError`]; nothing is changed.
    #[inline]
    pub fn on_packet(&mut self, packet: &Packet<'_>) -> Result<Part, PartError> {
        match *packet {
            Packet::EagerFirst {
                total_bytes, part, ..
            } => {
                self.must_be_whole()?;
                *self = Assembly {
                    total_bytes,
                    have_bytes: 0,
                };
                Ok(self.take(part))
            }
            Packet::EagerPart { offset_bytes, part } => {
                if self.is_whole() {
                    return Err(PartError::NotBegun);
                }
                let left = u64::from(self.total_bytes - self.have_bytes);
                if offset_bytes != self.have_bytes || part.len() as u64 > left {
                    return Err(PartError::Place {
                        expected: self.have_bytes,
                        got: offset_bytes,
                        total_bytes: self.total_bytes,
                    });
                }
                Ok(self.take(part))
            }
            Packet::Eager { .. } | Packet::Rts { .. } => {
                self.must_be_whole()?;
                Ok(Part::None)
            }
            Packet::Fin { .. }
            | Packet::Cts(_)
            | Packet::Done { .. }
            | Packet::Resume(_)
            | Packet::Credit
            | Packet::Ack => Ok(Part::None),
        }
    }

    /// Whether no message is half here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.have_bytes == self.total_bytes
    }

    fn must_be_whole(&self) -> Result<(), PartError> {
        match self.is_whole() {
            true => Ok(()),
            false => Err(PartError::NotWhole),
        }
    }

    fn take(&mut self, part: &[u8]) -> Part {
        let offset_bytes = self.have_bytes;
        // At most `total_bytes`: the parser or the caller has checked it.
        self.have_bytes += part.len() as u32;
        Part::Bytes {
            offset_bytes,
            last: self.is_whole(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::data::Envelope;
    use proptest::prelude::*;

    fn first(total_bytes: u32, part: &[u8]) -> Packet<'_> {
        Packet::EagerFirst {
            envelope: Envelope::default(),
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
                let cut = Cut::new(total, room);
                let mut got = vec![0; message.len()];
                prop_assert_eq!(cut.ranges().count(), cut.packets() as usize);
                prop_assert!(cut.ranges().all(|range| range.len() <= room.max(1) as usize));
                if cut.packets() == 1 {
                    prop_assert!(cut.ranges().eq(std::iter::once(0..total)));
                    continue;
                }
                for range in cut.ranges() {
                    let part = &message[range.start as usize..range.end as usize];
                    let packet = match range.start {
                        0 => first(total, part),
                        offset_bytes => Packet::EagerPart { offset_bytes, part },
                    };
                    let Ok(Part::Bytes { offset_bytes, last }) = assembly.on_packet(&packet) else {
                        panic!("{range:?} refused");
                    };
                    got[offset_bytes as usize..][..part.len()].copy_from_slice(part);
                    prop_assert_eq!(last, range.end == total);
                }
                prop_assert!(assembly.is_whole());
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
                    1 if n > 0 => Packet::EagerPart { offset_bytes: n, part },
                    2 => Packet::Eager { envelope: Envelope::default(), payload: part },
                    _ => Packet::EagerPart { offset_bytes: assembly.have_bytes.max(1), part },
                };
                let before = assembly;
                match assembly.on_packet(&packet) {
                    Ok(Part::Bytes { offset_bytes, last }) => {
                        if let Packet::EagerFirst { total_bytes, .. } = packet {
                            total = total_bytes;
                        }
                        let end = offset_bytes + len as u32;
                        prop_assert!(end <= total);
                        prop_assert_eq!(last, end == total);
                    }
                    Ok(Part::None) => prop_assert!(before.is_whole()),
                    Err(_) => prop_assert_eq!(assembly, before),
                }
            }
        }
    }

    #[test]
    fn the_rules_are_kept() {
        let mut assembly = Assembly::default();
        let part = |offset_bytes| Packet::EagerPart {
            offset_bytes,
            part: b"ab",
        };
        assert_eq!(assembly.on_packet(&part(2)), Err(PartError::NotBegun));
        assembly.on_packet(&first(5, b"ab")).unwrap();
        assert_eq!(
            assembly.on_packet(&first(5, b"ab")),
            Err(PartError::NotWhole)
        );
        let place = |got| PartError::Place {
            expected: 2,
            got,
            total_bytes: 5,
        };
        assert_eq!(assembly.on_packet(&part(3)), Err(place(3)));
        let too_much = Packet::EagerPart {
            offset_bytes: 2,
            part: b"abcd",
        };
        assert_eq!(assembly.on_packet(&too_much), Err(place(2)));
        assembly.on_packet(&part(2)).unwrap();
        assert_eq!(
            assembly.on_packet(&Packet::EagerPart {
                offset_bytes: 4,
                part: b"a"
            }),
            Ok(Part::Bytes {
                offset_bytes: 4,
                last: true
            })
        );
        assert_eq!(assembly.on_packet(&part(5)), Err(PartError::NotBegun));
    }
}
