//! Limits on the elements of collective operations, which each operation has for itself.
//!
//! `off_coll` counts the elements of a message, and those of a copy, in 31 bits. A message has at
//! most as many bytes as the endpoint's. So a limit depends on the messages that the operation
//! sends, and with that on the number of members.

/// Elements of a message, or of a copy, at most.
const MAX_ELEMENTS: usize = i32::MAX as usize;

/// The messages of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessagePattern {
    /// Each has the elements of one member: barriers, allreduces and allgathers.
    OneMember,
    /// A tree: each has those of all members in a branch (scatters).
    Tree,
    /// The data is cut into as many pieces as there are members, for a tree and then a ring
    /// (broadcasts).
    TreeOfPieces,
}

impl MessagePattern {
    /// Elements at most that such an operation of so many members has: of the bytes of an element
    /// (0: it has no data), with messages of so many bytes.
    pub(super) fn max_elements(self, members: usize, bytes: usize, max_msg: usize) -> usize {
        let members = members.max(1);
        let of_message = max_msg
            .checked_div(bytes)
            .map_or(MAX_ELEMENTS, |elements| elements.min(MAX_ELEMENTS));
        let of_tree = (MAX_ELEMENTS / members).min(of_message / largest_branch(members));
        match self {
            Self::OneMember => of_message,
            Self::Tree => of_tree,
            Self::TreeOfPieces => of_tree * members,
        }
    }

    /// The limit where the number of members is not known.
    ///
    /// That of a tree is the one of two members: `n` members have at least the `n`th part of twice
    /// as much. The one of a tree of pieces holds for all groups that have no more members than the
    /// data has elements.
    pub(super) fn max_elements_of_any(self, bytes: usize, max_msg: usize) -> usize {
        match self {
            Self::OneMember => self.max_elements(1, bytes, max_msg),
            Self::Tree | Self::TreeOfPieces => Self::Tree.max_elements(2, bytes, max_msg),
        }
    }
}

/// Members at most whose elements a message of a tree has: the root sends to the member that is
/// the largest power of two away what belongs to that one and all behind it, and then half as far.
fn largest_branch(members: usize) -> usize {
    let farthest = members.next_power_of_two() / 2;
    (members - farthest).max(farthest / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest message of a tree, in members, by the steps of `off_coll`: each member sends to
    /// those that are ever smaller powers of two away, from the one below its own lowest bit.
    fn largest_message(members: usize) -> usize {
        let mut largest = 0;
        for rank in 0..members {
            let lowest = match rank {
                0 => members.next_power_of_two(),
                rank => rank & rank.wrapping_neg(),
            };
            let mut left = lowest.min(members - rank);
            let mut mask = lowest / 2;
            while mask > 0 {
                if rank + mask < members {
                    largest = largest.max(left - mask);
                    left = mask;
                }
                mask /= 2;
            }
        }
        largest
    }

    #[test]
    fn branches_are_those_of_the_tree() {
        for members in 2..200 {
            assert_eq!(
                largest_branch(members),
                largest_message(members),
                "{members}"
            );
        }
        assert_eq!(largest_branch(1), 1);
    }

    #[test]
    fn limits_are_those_of_messages_and_copies() {
        use MessagePattern::{OneMember, Tree, TreeOfPieces};
        const GIB: usize = 1 << 30;
        for members in 1..50 {
            for bytes in [1, 4, 32] {
                let limit = |pattern: MessagePattern| pattern.max_elements(members, bytes, GIB);
                assert_eq!(limit(OneMember), GIB / bytes);
                let (most, more) = (limit(Tree), limit(Tree) + 1);
                let fits = |count: usize| {
                    count * largest_branch(members) * bytes <= GIB
                        && count * members <= MAX_ELEMENTS
                };
                assert!(fits(most) && !fits(more), "{members} of {bytes}");
                assert_eq!(limit(TreeOfPieces), most * members);
                let any = TreeOfPieces.max_elements_of_any(bytes, GIB);
                assert!(any <= limit(TreeOfPieces), "{members} of {bytes}");
                let any = Tree.max_elements_of_any(bytes, GIB);
                assert!(
                    members == 1 || any * 2 / members <= most,
                    "{members} of {bytes}"
                );
            }
        }
        // No bytes, and more than messages have.
        assert_eq!(OneMember.max_elements(5, 0, 0), MAX_ELEMENTS);
        assert_eq!(Tree.max_elements(2, 8, 7), 0);
        assert_eq!(Tree.max_elements(0, 1, 1), 1);
    }
}
