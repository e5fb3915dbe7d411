//! The rounds of each operation, as one member takes part in them.
//!
//! A member's memory is a sequence of bytes. In each round it sends pieces of it, and puts what it
//! receives into it, or combines both. Each algorithm combines what members contribute in the order
//! of their ranks, so all members get the same bits, of floats too.

use std::ops::Range;

/// From this length on members reduce a piece of the data each, and then exchange the pieces.
const LONG_REDUCTION: usize = 32 << 10;

/// From this length on, among [`MANY_MEMBERS`], the root hands a piece of the data to each member,
/// and then they exchange the pieces.
const LONG_BROADCAST: usize = 128 << 10;
const MANY_MEMBERS: usize = 4;

/// One member's part in an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberSchedule {
    /// Bytes that the operation works on.
    pub(crate) memory: usize,
    /// One after the other.
    pub(crate) rounds: Vec<Round>,
    /// Bytes by which the memory rotates to the right at the end.
    pub(crate) rotation: usize,
    /// The first bytes of the memory, which are the result.
    pub(crate) result: usize,
}

/// Messages that are under way at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Messages to send.
    pub(crate) sends: Vec<Outgoing>,
    /// A message to receive.
    pub(crate) receive: Option<Incoming>,
}

/// A message to the member with a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    /// The rank.
    pub(crate) to: usize,
    /// The piece of memory.
    pub(crate) piece: Range<usize>,
}

/// A message of the member with a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incoming {
    /// The rank.
    pub(crate) from: usize,
    /// The piece of memory.
    pub(crate) piece: Range<usize>,
    /// Its use.
    pub(crate) placement: MessageUse,
}

/// The use of a message that is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageUse {
    /// It replaces the piece.
    Replace,
    /// The piece becomes the operator's result of the message and the piece: the message's elements
    /// are those of lower ranks.
    AfterLower,
    /// The piece becomes the operator's result of the piece and the message.
    BeforeUpper,
}

impl Round {
    fn send(to: usize, piece: Range<usize>) -> Self {
        Self::default().and_send(to, piece)
    }

    fn receive(from: usize, piece: Range<usize>, placement: MessageUse) -> Self {
        Self {
            sends: Vec::new(),
            receive: Some(Incoming {
                from,
                piece,
                placement,
            }),
        }
    }

    fn and_send(mut self, to: usize, piece: Range<usize>) -> Self {
        self.sends.push(Outgoing { to, piece });
        self
    }

    /// A message to a member, and one of the same member.
    fn exchange(
        with: usize,
        sent: Range<usize>,
        received: Range<usize>,
        placement: MessageUse,
    ) -> Self {
        Self::receive(with, received, placement).and_send(with, sent)
    }
}

/// No member leaves it before all have entered it: in each round the number of members doubles of
/// whose entry a member has a message.
pub(crate) fn barrier(rank: usize, members: usize) -> MemberSchedule {
    let rounds = powers_of_two(members).map(|distance| {
        Round::receive(
            (rank + members - distance) % members,
            0..0,
            MessageUse::Replace,
        )
        .and_send((rank + distance) % members, 0..0)
    });
    MemberSchedule {
        rounds: rounds.collect(),
        ..MemberSchedule::default()
    }
}

/// All members get the bytes of the root.
pub(crate) fn broadcast(rank: usize, members: usize, root: usize, bytes: usize) -> MemberSchedule {
    let relative = Relative::new(rank, members, root);
    let rounds = match bytes >= LONG_BROADCAST && members >= MANY_MEMBERS {
        true => broadcast_of_pieces(relative, bytes),
        false => relative.tree(|_| 0..bytes),
    };
    MemberSchedule {
        memory: bytes,
        rounds,
        rotation: 0,
        result: bytes,
    }
}

/// The root hands a piece to each member, along a tree; then the pieces go round in a ring.
fn broadcast_of_pieces(at: Relative, bytes: usize) -> Vec<Round> {
    let members = at.members;
    let piece = bytes.div_ceil(members);
    let start = |block: usize| (block * piece).min(bytes);
    let mut rounds = at.tree(|blocks| start(blocks.start)..start(blocks.end));
    let (next, previous) = (at.rank_of(at.place + 1), at.rank_of(at.place + members - 1));
    for step in 0..members - 1 {
        let block = |behind: usize| {
            let block = (at.place + members - behind) % members;
            start(block)..start(block + 1)
        };
        let round = Round::receive(previous, block(step + 1), MessageUse::Replace);
        rounds.push(round.and_send(next, block(step)));
    }
    rounds
}

/// Each member gets the block of its rank from the root. The root's memory has that of its own rank
/// first, and is rotated accordingly.
pub(crate) fn scatter(rank: usize, members: usize, root: usize, block: usize) -> MemberSchedule {
    let at = Relative::new(rank, members, root);
    let first = at.place;
    let own = |blocks: Range<usize>| (blocks.start - first) * block..(blocks.end - first) * block;
    MemberSchedule {
        memory: at.branch() * block,
        rounds: at.tree(own),
        rotation: 0,
        result: block,
    }
}

/// Each member gets the blocks of all, in the order of their ranks. Its memory has its own first.
pub(crate) fn allgather(rank: usize, members: usize, block: usize) -> MemberSchedule {
    let rounds = powers_of_two(members).map(|held| {
        let blocks = held.min(members - held) * block;
        let place = held * block;
        Round::receive(
            (rank + held) % members,
            place..place + blocks,
            MessageUse::Replace,
        )
        .and_send((rank + members - held) % members, 0..blocks)
    });
    MemberSchedule {
        memory: members * block,
        rounds: rounds.collect(),
        rotation: rank * block,
        result: members * block,
    }
}

/// Each member gets the operator's result of the elements of all, which have `element` bytes each.
pub(crate) fn allreduce(
    rank: usize,
    members: usize,
    bytes: usize,
    element: usize,
) -> MemberSchedule {
    let all = 0..bytes;
    // As many members as a power of two take part, and each of the first of them for another one.
    let partners = 1 << members.max(1).ilog2();
    let doubled = members - partners;
    let is_stand_in = rank < 2 * doubled && rank % 2 == 0;
    let mut rounds = Vec::new();
    if rank < 2 * doubled && !is_stand_in {
        rounds.push(Round::send(rank - 1, all.clone()));
        rounds.push(Round::receive(rank - 1, all, MessageUse::Replace));
    } else {
        if is_stand_in {
            rounds.push(Round::receive(
                rank + 1,
                all.clone(),
                MessageUse::BeforeUpper,
            ));
        }
        let place = match rank < 2 * doubled {
            true => rank / 2,
            false => rank - doubled,
        };
        let rank_of = |place: usize| match place < doubled {
            true => 2 * place,
            false => place + doubled,
        };
        rounds.extend(match bytes < LONG_REDUCTION {
            true => reduce_whole(place, partners, rank_of, bytes),
            false => reduce_pieces(place, partners, rank_of, bytes, element),
        });
        if is_stand_in {
            rounds.push(Round::send(rank + 1, all));
        }
    }
    MemberSchedule {
        memory: bytes,
        rounds,
        rotation: 0,
        result: bytes,
    }
}

/// In each round two members exchange all that they have.
fn reduce_whole(
    place: usize,
    partners: usize,
    rank_of: impl Fn(usize) -> usize,
    bytes: usize,
) -> Vec<Round> {
    let rounds = powers_of_two(partners).map(|mask| {
        let with = rank_of(place ^ mask);
        Round::exchange(with, 0..bytes, 0..bytes, side(place, mask))
    });
    rounds.collect()
}

/// In each round two members halve the piece that both work on, until each has a piece of its own;
/// then they exchange the pieces, in the reverse order.
fn reduce_pieces(
    place: usize,
    partners: usize,
    rank_of: impl Fn(usize) -> usize,
    bytes: usize,
    element: usize,
) -> Vec<Round> {
    let mut rounds = Vec::new();
    let mut back = Vec::new();
    let mut piece = 0..bytes;
    for mask in powers_of_two(partners) {
        let elements = piece.len() / element;
        let middle = piece.start + elements / 2 * element;
        let (kept, given) = match place & mask {
            0 => (piece.start..middle, middle..piece.end),
            _ => (middle..piece.end, piece.start..middle),
        };
        let with = rank_of(place ^ mask);
        rounds.push(Round::exchange(
            with,
            given.clone(),
            kept.clone(),
            side(place, mask),
        ));
        back.push(Round::exchange(
            with,
            kept.clone(),
            given,
            MessageUse::Replace,
        ));
        piece = kept;
    }
    rounds.extend(back.into_iter().rev());
    rounds
}

/// The side of the message of a member's partner.
fn side(place: usize, mask: usize) -> MessageUse {
    match place & mask {
        0 => MessageUse::BeforeUpper,
        _ => MessageUse::AfterLower,
    }
}

/// 1, 2, 4 and so on, below a number.
fn powers_of_two(below: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS)
        .map(|bit| 1 << bit)
        .take_while(move |&power| power < below)
}

/// A member's place in the tree of a root: its distance in ranks.
#[derive(Clone, Copy)]
struct Relative {
    place: usize,
    members: usize,
    root: usize,
}

impl Relative {
    fn new(rank: usize, members: usize, root: usize) -> Self {
        Self {
            place: (rank + members - root) % members,
            members,
            root,
        }
    }

    fn rank_of(self, place: usize) -> usize {
        (place + self.root) % self.members
    }

    /// The lowest bit of the place: the distance to the member above it in the tree.
    fn distance(self) -> usize {
        match self.place {
            0 => self.members.next_power_of_two(),
            place => 1 << place.trailing_zeros(),
        }
    }

    /// The number of members in the branch of this one.
    fn branch(self) -> usize {
        self.distance().min(self.members - self.place)
    }

    /// A message from above, and then one to each member below. `piece` has the bytes for a branch:
    /// for the members at some places.
    fn tree(self, piece: impl Fn(Range<usize>) -> Range<usize>) -> Vec<Round> {
        let place = self.place;
        let mut rounds = Vec::new();
        if place != 0 {
            let above = self.rank_of(place - self.distance());
            let bytes = piece(place..place + self.branch());
            rounds.push(Round::receive(above, bytes, MessageUse::Replace));
        }
        let mut below = Round::default();
        let mut end = place + self.branch();
        while end > place + 1 {
            // The longest branch comes first.
            let half = (end - place).next_power_of_two() / 2;
            below = below.and_send(self.rank_of(place + half), piece(place + half..end));
            end = place + half;
        }
        if !below.sends.is_empty() {
            rounds.push(below);
        }
        rounds
    }
}
