//! The rules of matching, one by one.

use super::*;

const A: FiAddr = FiAddr(1);
const B: FiAddr = FiAddr(2);
const ANY: FiAddr = FiAddr::UNSPEC;

fn message(src: FiAddr, tag: u64) -> Arrived {
    message_of(src, tag, 10)
}

fn message_of(src: FiAddr, tag: u64, len: u64) -> Arrived {
    Arrived {
        src,
        tag,
        len,
        data: 0,
        flags: Flags::empty(),
    }
}

fn receive(src: FiAddr, tag: u64, ignore: u64, context: u64) -> PostedReceive {
    PostedReceive {
        src,
        tag,
        ignore,
        buf: ReceiveBuffers::One(IoBuf {
            addr: 0x1000,
            len: 100,
        }),
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}

/// Posts, and says which message came of it.
fn post(m: &mut Matcher<u32>, p: PostedReceive) -> Option<u32> {
    m.post(p).map(|start| start.message.token)
}

/// Arrives, and says which receive was taken.
fn arrive(m: &mut Matcher<u32>, a: Arrived) -> Option<u64> {
    m.arrive(&a).map(|matched| matched.context)
}

/// Covers: PEER-8
#[test]
fn a_message_takes_the_oldest_receive_across_classes() {
    let mut m = Matcher::new(1);
    assert_eq!(post(&mut m, receive(ANY, 0x10, 0x0f, 1)), None);
    assert_eq!(post(&mut m, receive(A, 0x12, 0, 2)), None);
    assert_eq!(post(&mut m, receive(ANY, 0x12, 0, 3)), None);
    assert_eq!(post(&mut m, receive(A, 0, u64::MAX, 4)), None);
    assert_eq!(post(&mut m, receive(A, 0x12, 0, 5)), None);
    assert_eq!(arrive(&mut m, message(B, 0x99)), None);
    for context in 1..=5 {
        assert_eq!(arrive(&mut m, message(A, 0x12)), Some(context));
    }
    assert_eq!(arrive(&mut m, message(A, 0x12)), None);
}

/// Covers: PEER-9
#[test]
fn a_receive_takes_the_oldest_message() {
    // Once short enough to be scanned, once long enough for a view.
    for depth in [3, 300] {
        let mut m = Matcher::new(1);
        for token in 0..depth {
            let from = if token % 2 == 0 { A } else { B };
            assert_eq!(arrive(&mut m, message(from, 7)), None);
            m.queue(message(from, 7), token);
        }
        assert_eq!(post(&mut m, receive(B, 7, 0, 1)), Some(1));
        assert_eq!(post(&mut m, receive(ANY, 7, 0, 2)), Some(0));
        assert_eq!(post(&mut m, receive(ANY, 6, 1, 3)), Some(2));
        assert_eq!(post(&mut m, receive(ANY, 6, 0, 4)), None);
    }
}

/// Covers: PEER-8, PEER-10
#[test]
fn an_unknown_sender_matches_no_directed_receive_until_it_is_known() {
    let mut m = Matcher::new(1);
    assert_eq!(post(&mut m, receive(A, 5, 0, 1)), None);
    for token in 0..3 {
        assert_eq!(arrive(&mut m, message(FiAddr::NOTAVAIL, 5)), None);
        m.queue(message(FiAddr::NOTAVAIL, 5), token);
    }
    assert_eq!(post(&mut m, receive(A, 5, 0, 2)), None);
    assert_eq!(post(&mut m, receive(ANY, 5, 0, 3)), Some(0));

    let mut start = Vec::new();
    m.resolve(|_| FiAddr::NOTAVAIL, &mut start);
    assert!(start.is_empty());
    m.queue(message(FiAddr::NOTAVAIL, 5), 3);
    m.resolve(|_| A, &mut start);
    let pairs: Vec<_> = start
        .iter()
        .map(|s| (s.matched.context, s.message.token, s.message.arrived.src))
        .collect();
    assert_eq!(pairs, [(1, 1, A), (2, 2, A)]);
    // The third is queued still, and a directed receive finds it now.
    assert_eq!(post(&mut m, receive(B, 5, 0, 4)), None);
    assert_eq!(post(&mut m, receive(A, 5, 0, 5)), Some(3));
}

/// Resolved messages of a sender come before its later ones, in views that exist already.
///
/// Covers: PEER-10
#[test]
fn resolved_messages_keep_their_place() {
    let mut m = Matcher::new(1);
    for token in 0..40 {
        let from = if token < 20 { FiAddr::NOTAVAIL } else { A };
        m.queue(message(from, 5), token);
    }
    assert_eq!(m.peek(A, 5, 0).unwrap().token, 20);
    assert_eq!(m.unexpected.views(), 1);
    m.resolve(|_| A, &mut Vec::new());
    for token in 0..30 {
        assert_eq!(post(&mut m, receive(A, 5, 0, 0)), Some(token));
    }
}

/// Messages of a removed address go to nobody who gets the address next.
///
/// Covers: AV-17
#[test]
fn a_forgotten_source_is_unknown() {
    for depth in [2, 50] {
        let mut m = Matcher::new(1);
        for token in 0..depth {
            m.queue(message(A, 5), token);
        }
        assert_eq!(m.peek(A, 5, 0).unwrap().token, 0);
        m.forget_source(A);
        assert_eq!(m.peek(A, 5, 0), None);
        let any = m.peek(ANY, 5, 0).unwrap();
        assert_eq!((any.token, any.arrived.src), (0, FiAddr::NOTAVAIL));
        m.queue(message(A, 5), 99);
        assert_eq!(post(&mut m, receive(A, 5, 0, 0)), Some(99));
    }
}

/// Covers: PEER-8
#[test]
fn peek_leaves_discard_takes() {
    let mut m = Matcher::new(1);
    assert_eq!(m.peek(ANY, 5, 0), None);
    m.queue(message(A, 5), 1);
    m.queue(message(A, 5), 2);
    assert_eq!(m.peek(ANY, 4, 0), None);
    assert_eq!(m.peek(ANY, 5, 0).unwrap().token, 1);
    assert_eq!(m.peek(A, 5, 0).unwrap().token, 1);
    assert_eq!(m.discard(B, 5, 0), None);
    assert_eq!(m.discard(A, 5, 0).unwrap().token, 1);
    assert_eq!(m.peek(A, 5, 0).unwrap().token, 2);
}

/// Covers: PEER-8
#[test]
fn a_claimed_message_is_for_its_context_only() {
    let mut m = Matcher::new(1);
    m.queue(message(A, 5), 1);
    m.queue(message(FiAddr::NOTAVAIL, 5), 2);
    m.queue(message(A, 5), 3);
    assert_eq!(m.claim(ANY, 5, 0, 70).unwrap().token, 1);
    assert_eq!(m.claim(ANY, 5, 0, 80).unwrap().token, 2);
    assert_eq!(m.claim(ANY, 6, 0, 90), None);
    assert_eq!((m.unexpected.len(), m.unexpected.claimed()), (1, 2));
    assert_eq!(post(&mut m, receive(ANY, 5, 0, 70)), Some(3));
    assert_eq!(post(&mut m, receive(ANY, 5, 0, 71)), None);
    // It learns its source, but does not go to a receive that is posted.
    let mut start = Vec::new();
    m.resolve(|_| B, &mut start);
    assert!(start.is_empty());
    assert_eq!(m.take_claimed(80).unwrap().arrived.src, B);
    assert_eq!(m.take_claimed(80), None);
    assert_eq!(m.take_claimed(70).unwrap().token, 1);
    assert_eq!(m.take_claimed(70), None);
}

/// Covers: PEER-8
#[test]
fn cancel_takes_the_oldest_with_the_context() {
    let mut m = Matcher::new(1);
    for n in 0..100u64 {
        assert_eq!(post(&mut m, receive(ANY, n, n % 3, n % 10)), None);
    }
    assert_eq!(m.cancel(11), None);
    assert_eq!(m.cancel(3).unwrap().posted.tag, 3);
    assert_eq!(m.cancel(3).unwrap().posted, receive(ANY, 13, 1, 3));
    assert_eq!(arrive(&mut m, message(A, 13)), None);
    assert_eq!(m.posted.len(), 98);
}

/// Receives of collective operations have contexts of their own.
#[test]
fn cancel_leaves_collectives_alone() {
    let mut m = Matcher::new(1);
    for n in 0..4u64 {
        let mut posted = receive(ANY, n, 0, 7);
        posted.flags.set(Flags::COLLECTIVE, n % 2 == 0);
        assert_eq!(post(&mut m, posted), None);
    }
    assert_eq!(m.cancel(7).unwrap().posted.tag, 1);
    assert_eq!(m.cancel_collective(7).unwrap().posted.tag, 0);
    assert_eq!(m.cancel(7).unwrap().posted.tag, 3);
    assert_eq!(m.cancel(7), None);
    assert_eq!(m.cancel_collective(7).unwrap().posted.tag, 2);
    assert_eq!(m.cancel_collective(7), None);
}

/// Covers: PEER-8
#[test]
fn a_multi_receive_hands_out_pieces() {
    let mut m = Matcher::new(25);
    let mut start = Vec::new();
    m.post_multi(receive(ANY, 0, u64::MAX, 1), &mut start);
    assert!(start.is_empty());
    let mut pieces = Vec::new();
    let mut place = |matched: MatchedReceive| {
        let first = matched.buf.segments()[0];
        pieces.push(matched.piece);
        (first.addr - 0x1000, first.len)
    };
    let mut next = |len| place(m.arrive(&message_of(A, 0, len)).unwrap());
    assert_eq!(next(40), (0, 40));
    assert_eq!(next(0), (40, 0));
    assert_eq!(next(35), (40, 35));
    assert_eq!(next(1), (75, 25), "the last piece is all that is left");
    assert_eq!(arrive(&mut m, message(A, 0)), None);
    // The last piece to complete releases the buffer, in any order of completion.
    for piece in [pieces[3], pieces[0], pieces[1]] {
        assert_eq!(m.complete_piece(piece), MultiReceiveState::InUse);
    }
    assert_eq!(m.complete_piece(pieces[2]), MultiReceiveState::Released);

    // A message that is longer than the rest of the buffer gets the whole rest. No length makes the
    // arithmetic overflow.
    m.post_multi(receive(ANY, 0, u64::MAX, 2), &mut start);
    let long = m.arrive(&message_of(A, 0, u64::MAX)).unwrap();
    assert_eq!(long.buf.segments()[0].len, 100);
    assert_eq!(m.complete_piece(long.piece), MultiReceiveState::Released);

    // Posting takes the messages that wait. The rest of the buffer stays posted.
    for (token, len) in [(1, 30), (2, 10), (3, 5)] {
        m.queue(message_of(A, 0, len), token);
    }
    m.post_multi(receive(ANY, 0, u64::MAX, 3), &mut start);
    let places: Vec<_> = start
        .iter()
        .map(|s| s.matched.buf.segments()[0])
        .map(|b| (b.addr - 0x1000, b.len))
        .collect();
    assert_eq!(places, [(0, 30), (30, 10), (40, 5)]);
    let left = m.cancel(3).unwrap();
    assert_eq!(
        left.posted.buf,
        ReceiveBuffers::One(IoBuf {
            addr: 0x1000 + 45,
            len: 55
        })
    );
    // Taken back, but in use until its pieces are complete.
    assert_eq!(left.busy, start[0].matched.piece);
    for (n, s) in start.iter().enumerate() {
        let done = m.complete_piece(s.matched.piece);
        let last = n == start.len() - 1;
        let expected = if last {
            MultiReceiveState::TakenBack
        } else {
            MultiReceiveState::InUse
        };
        assert_eq!(done, expected);
    }
}

/// Covers: PEER-8
#[test]
fn the_whole_iov_comes_back() {
    let mut m: Matcher<u32> = Matcher::new(1);
    let iov = [IoBuf { addr: 8, len: 3 }, IoBuf { addr: 99, len: 4 }];
    let mut p = receive(A, 1, 0, 7);
    p.buf = ReceiveBuffers::Many(Box::new(iov));
    assert_eq!(m.post(p.clone()), None);
    assert_eq!(m.arrive(&message(A, 1)).unwrap().buf.segments(), iov);
    assert_eq!(m.post(p.clone()), None);
    assert_eq!(m.cancel(7).unwrap().posted, p.clone());
    m.queue(message(A, 1), 1);
    assert_eq!(m.post(p).unwrap().matched.buf.segments(), iov);
}

/// Nobody else notices.
#[test]
fn a_failed_source_takes_its_own_with_it() {
    for depth in [4, 60] {
        let mut m = Matcher::new(1);
        for token in 0..depth {
            m.queue(message(if token % 2 == 0 { A } else { B }, 5), token);
        }
        m.claim(A, 5, 0, 9).unwrap();
        for (src, ignore, context) in [(A, 0, 1), (ANY, 0, 2), (B, 0, 3), (A, 0xf0, 4)] {
            assert_eq!(post(&mut m, receive(src, 8, ignore, context)), None);
        }
        let (mut receives, mut messages) = (Vec::new(), Vec::new());
        m.fail_source(A, |u| u.token != 2, &mut receives, &mut messages);
        let contexts: Vec<_> = receives.iter().map(|t| t.posted.context).collect();
        assert_eq!(contexts, [1, 4]);
        let tokens: Vec<_> = messages.iter().map(|u| u.token).collect();
        let lost: Vec<_> = (0..depth).step_by(2).filter(|&t| t != 2).collect();
        assert_eq!(tokens, lost);
        assert_eq!(m.take_claimed(9), None);
        assert_eq!(post(&mut m, receive(ANY, 5, 0, 5)), Some(1));
        assert_eq!(post(&mut m, receive(A, 5, 0, 6)), Some(2));
        assert_eq!(arrive(&mut m, message(B, 8)), Some(2));

        // Of unknown senders only the messages that are named are lost, and no receive waits for
        // them alone.
        receives.clear();
        messages.clear();
        for token in [99, 98] {
            m.queue(message(FiAddr::NOTAVAIL, 6), token);
        }
        post(&mut m, receive(ANY, 77, 0, 7));
        let lost = |u: &Unexpected<u32>| u.token == 99;
        m.fail_source(FiAddr::NOTAVAIL, lost, &mut receives, &mut messages);
        assert!(receives.is_empty());
        assert!(messages.iter().map(|u| u.token).eq([99]));
        assert_eq!(post(&mut m, receive(ANY, 6, 0, 8)), Some(98));
    }
}

/// Views are few and are dropped when no search uses them. Their absence changes no result.
#[test]
fn views_are_bounded_and_go_when_idle() {
    let mut m = Matcher::new(1);
    for token in 0..100 {
        m.queue(message(A, token), token as u32);
    }
    for ignore in 0..50u64 {
        let oldest = (0..100).find(|tag| (tag ^ 99) & !ignore == 0).unwrap();
        assert_eq!(m.peek(ANY, 99, ignore).unwrap().token, oldest as u32);
        assert!(m.unexpected.views() <= 8);
    }
    for token in 100..1000 {
        m.queue(message(A, token), token as u32);
    }
    assert_eq!(m.unexpected.views(), 0);
    assert_eq!(m.peek(ANY, 500, 0).unwrap().token, 500);
    while m.discard(ANY, 0, u64::MAX).is_some() {}
    assert_eq!((m.unexpected.views(), m.unexpected.len()), (0, 0));
    m.queue(message(A, 1), 7);
    assert_eq!(post(&mut m, receive(A, 1, 0, 0)), Some(7));
}

/// More masks at one time than there are tables for: order and answers stay right.
#[test]
fn any_number_of_masks() {
    let mut m = Matcher::new(1);
    for n in 0..300u64 {
        assert_eq!(post(&mut m, receive(ANY, 1 << 20, n, n)), None);
    }
    assert_eq!(m.cancel(290).unwrap().posted.ignore, 290);
    for n in (0..300).filter(|&n| n != 290) {
        assert_eq!(arrive(&mut m, message(A, 1 << 20)), Some(n));
    }
    // The tables are empty again and serve other masks.
    for n in 1000..1300 {
        assert_eq!(post(&mut m, receive(ANY, 1 << 20, n, n)), None);
        assert_eq!(arrive(&mut m, message(A, 1 << 20)), Some(n));
    }
    assert!(m.posted.classes() <= 64);
}

/// Several receives that are alike, then one that matches fewer or other messages: that receive
/// takes the messages that the others do not match.
///
/// Covers: PEER-8
#[test]
fn one_that_is_not_like_the_others_ends_their_row() {
    let others = [
        (receive(B, 2, 0, 9), message(B, 2)),
        (receive(A, 3, 0, 9), message(A, 3)),
        (receive(A, 2, 1, 9), message(A, 3)),
        (receive(ANY, 2, 0, 9), message(B, 2)),
    ];
    for (other, its_own) in others {
        for alike in [4, 5, 16, 17] {
            let mut m = Matcher::new(1);
            for context in 0..alike {
                assert_eq!(post(&mut m, receive(A, 2, 0, context)), None);
            }
            assert_eq!(post(&mut m, other.clone()), None);
            assert_eq!(arrive(&mut m, its_own), Some(9), "{other:?} behind {alike}");
            for context in 0..alike {
                assert_eq!(arrive(&mut m, message(A, 2)), Some(context));
            }
            assert_eq!(arrive(&mut m, message(A, 2)), None);
        }
    }
}

mod keys {
    use super::*;
    use ferrofabric_contracts::types::key_source;
    use proptest::prelude::*;

    /// A message's number, and the key that it came with.
    type Keyed = (usize, u32);

    #[derive(Clone, Copy, Debug)]
    struct KeyedWant {
        src: FiAddr,
        tag: u64,
        ignore: u64,
    }

    impl KeyedWant {
        fn takes(&self, src: FiAddr, key: u32, tag: u64) -> bool {
            let from = self.src == ANY || self.src == src || self.src == key_source(key);
            from && (self.tag ^ tag) & !self.ignore == 0
        }
    }

    fn any_want() -> impl Strategy<Value = KeyedWant> {
        let src = prop_oneof![Just(ANY), Just(A), Just(B), (0..2u32).prop_map(key_source)];
        (src, 0..2u64, prop_oneof![Just(0), Just(u64::MAX)])
            .prop_map(|(src, tag, ignore)| KeyedWant { src, tag, ignore })
    }

    /// A receive, or a message: source, key, tag.
    fn any_step() -> impl Strategy<Value = Result<KeyedWant, (FiAddr, u32, u64)>> {
        let src = prop_oneof![Just(A), Just(B), Just(FiAddr::NOTAVAIL)];
        prop_oneof![
            any_want().prop_map(Ok),
            (src, 0..2u32, 0..2u64).prop_map(Err)
        ]
    }

    proptest! {
        /// Covers: AV-21
        #[test]
        fn keys_match_as_in_a_plain_list(steps in prop::collection::vec(any_step(), 0..120)) {
            let mut m: Matcher<Keyed> = Matcher::new(1);
            m.set_key_of(|(_, key)| key_source(*key));
            let mut posted: Vec<(u64, KeyedWant)> = Vec::new();
            let mut waiting: Vec<(usize, (FiAddr, u32, u64))> = Vec::new();
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Ok(want) => {
                        let p = receive(want.src, want.tag, want.ignore, n as u64);
                        let got = m.post(p).map(|start| start.message.token.0);
                        let takes = |(_, (src, key, tag)): &(_, (FiAddr, u32, u64))| {
                            want.takes(*src, *key, *tag)
                        };
                        let at = waiting.iter().position(takes);
                        prop_assert_eq!(got, at.map(|at| waiting.remove(at).0));
                        if got.is_none() {
                            posted.push((n as u64, want));
                        }
                    }
                    Err((src, key, tag)) => {
                        let a = message(src, tag);
                        let got = m.arrive_with_key(&a, key_source(key)).map(|m| m.context);
                        let at = posted.iter().position(|(_, want)| want.takes(src, key, tag));
                        prop_assert_eq!(got, at.map(|at| posted.remove(at).0));
                        if got.is_none() {
                            m.queue(a, (n, key));
                            waiting.push((n, (src, key, tag)));
                        }
                    }
                }
            }
        }
    }
}
