//! The matcher against a model that scans vectors, over random programs.

use ferrofabric_contracts::types::MrDesc;
use proptest::prelude::*;

use super::*;

/// One call, or several calls that a transport makes as one unit.
#[derive(Clone, Debug)]
enum ModelCall {
    /// `arrive`, and `queue` if nothing matches.
    Arrive {
        src: FiAddr,
        tag: u64,
        len: u64,
    },
    Post {
        want: ModelWant,
        context: u64,
    },
    PostList {
        want: ModelWant,
        context: u64,
    },
    PostMulti {
        want: ModelWant,
        context: u64,
        len: usize,
    },
    Cancel {
        context: u64,
    },
    Peek(ModelWant),
    Claim {
        want: ModelWant,
        context: u64,
    },
    TakeClaimed {
        context: u64,
    },
    Discard(ModelWant),
    Resolve {
        src: u64,
    },
    Forget {
        src: FiAddr,
    },
    Fail {
        src: FiAddr,
        all: bool,
    },
    MinMultiRecv {
        bytes: usize,
    },
    /// A transport completes a piece of a multi-receive.
    Complete {
        nth: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct ModelWant {
    src: FiAddr,
    tag: u64,
    ignore: u64,
}

impl ModelWant {
    fn takes(&self, a: &Arrived) -> bool {
        let from = self.src == FiAddr::UNSPEC || (a.src != FiAddr::NOTAVAIL && a.src == self.src);
        from && (self.tag ^ a.tag) & !self.ignore == 0
    }
}

struct ModelPosted {
    posted: PostedReceive,
    /// The number of a multi-receive.
    multi: Option<usize>,
}

/// A multi-receive: its pieces in use, and the result of [`Matcher::complete_piece`] for the last
/// of them.
#[derive(Default)]
struct ModelMulti {
    out: usize,
    end: Option<MultiReceiveState>,
}

/// A match as the model has it: with no piece, but the number of the multi-receive.
type ModelMatched = (MatchedReceive, Option<usize>);

impl ModelPosted {
    fn want(&self) -> ModelWant {
        let PostedReceive {
            src, tag, ignore, ..
        } = self.posted;
        ModelWant { src, tag, ignore }
    }
}

#[derive(Clone, Copy)]
struct ModelMessage {
    message: Unexpected<u64>,
    claimed: Option<(u64, u64)>,
}

/// Tokens number the messages in order of arrival, descriptors the receives in order of posting.
#[derive(Default)]
struct MatchModel {
    posted: Vec<ModelPosted>,
    multis: Vec<ModelMulti>,
    /// Pieces that are out, as the matcher names them.
    out: Vec<(Piece, usize)>,
    messages: Vec<ModelMessage>,
    min_multi_recv: usize,
    claims: u64,
}

impl MatchModel {
    /// The part of a receive that a message takes, and whether that was the last part.
    fn consume(
        &mut self,
        posted: &mut PostedReceive,
        multi: Option<usize>,
        len: u64,
    ) -> (ModelMatched, bool) {
        let mut matched = MatchedReceive {
            buf: posted.buf.clone(),
            desc: posted.desc,
            context: posted.context,
            flags: posted.flags,
            piece: Piece::NONE,
        };
        let mut done = true;
        if let (Some(_), ReceiveBuffers::One(buf)) = (multi, &mut posted.buf) {
            let len = len as usize;
            if buf.len >= len && buf.len - len >= self.min_multi_recv {
                done = false;
                matched.buf = ReceiveBuffers::One(IoBuf {
                    addr: buf.addr,
                    len,
                });
                buf.addr += len;
                buf.len -= len;
            }
        }
        if let Some(multi) = multi {
            self.multis[multi].out += 1;
            self.multis[multi].end = done.then_some(MultiReceiveState::Released);
        }
        ((matched, multi), done)
    }

    fn arrive(&mut self, a: &Arrived) -> Option<ModelMatched> {
        let at = self.posted.iter().position(|p| p.want().takes(a))?;
        let ModelPosted { mut posted, multi } = self.posted.remove(at);
        let (matched, done) = self.consume(&mut posted, multi, a.len);
        if !done {
            self.posted.insert(at, ModelPosted { posted, multi });
        }
        Some(matched)
    }

    /// The same match on both sides? Pieces of one multi-receive have one name, which no other has.
    fn same(&mut self, ours: Option<MatchedReceive>, model: Option<ModelMatched>) -> bool {
        let (Some(mut ours), Some((model, multi))) = (ours.clone(), model.clone()) else {
            return ours.is_none() && model.is_none();
        };
        let piece = std::mem::replace(&mut ours.piece, Piece::NONE);
        let Some(multi) = multi else {
            return piece == Piece::NONE && ours == model;
        };
        let named = |(p, m): &(Piece, usize)| (*p == piece) == (*m == multi);
        let good = piece != Piece::NONE && self.out.iter().all(named);
        self.out.push((piece, multi));
        good && ours == model
    }

    fn same_starts(
        &mut self,
        ours: Vec<Match<u64>>,
        model: Vec<(ModelMatched, Unexpected<u64>)>,
    ) -> bool {
        ours.len() == model.len()
            && ours
                .into_iter()
                .zip(model)
                .all(|(ours, (matched, message))| {
                    ours.message == message && self.same(Some(ours.matched), Some(matched))
                })
    }

    /// Takes a receive out.
    fn take_back(&mut self, taken: ModelPosted) -> (PostedReceive, bool) {
        let busy = taken.multi.is_some_and(|multi| {
            self.multis[multi].end = Some(MultiReceiveState::TakenBack);
            self.multis[multi].out != 0
        });
        (taken.posted, busy)
    }

    fn same_taken(&self, ours: &WithdrawnReceive, (posted, busy): &(PostedReceive, bool)) -> bool {
        ours.posted == *posted && (ours.busy != Piece::NONE) == *busy
    }

    fn find(&self, want: ModelWant) -> Option<usize> {
        self.messages
            .iter()
            .position(|m| m.claimed.is_none() && want.takes(&m.message.arrived))
    }

    fn post(
        &mut self,
        mut posted: PostedReceive,
        multi: bool,
    ) -> Vec<(ModelMatched, Unexpected<u64>)> {
        let PostedReceive {
            src, tag, ignore, ..
        } = posted;
        let multi = multi.then(|| {
            self.multis.push(ModelMulti::default());
            self.multis.len() - 1
        });
        let mut start = Vec::new();
        while let Some(at) = self.find(ModelWant { src, tag, ignore }) {
            let message = self.messages.remove(at).message;
            let (matched, done) = self.consume(&mut posted, multi, message.arrived.len);
            start.push((matched, message));
            if done {
                return start;
            }
        }
        self.posted.push(ModelPosted { posted, multi });
        start
    }

    fn resolve(&mut self, src: u64) -> Vec<(ModelMatched, Unexpected<u64>)> {
        let mut start = Vec::new();
        let tokens: Vec<u64> = self.messages.iter().map(|m| m.message.token).collect();
        for token in tokens {
            let by_token = |m: &ModelMessage| m.message.token == token;
            let at = self.messages.iter().position(by_token).unwrap();
            let m = &mut self.messages[at];
            if m.message.arrived.src != FiAddr::NOTAVAIL || token % 3 != src {
                continue;
            }
            m.message.arrived.src = FiAddr(src);
            if m.claimed.is_some() {
                continue;
            }
            let message = m.message;
            if let Some(matched) = self.arrive(&message.arrived) {
                self.messages.remove(at);
                start.push((matched, message));
            }
        }
        start
    }

    fn queued(&self) -> usize {
        self.messages.iter().filter(|m| m.claimed.is_none()).count()
    }
}

fn arrived(src: FiAddr, tag: u64, len: u64) -> Arrived {
    Arrived {
        src,
        tag,
        len,
        data: tag ^ len,
        flags: Flags::REMOTE_CQ_DATA,
    }
}

fn run(program: &[ModelCall]) -> Result<(), TestCaseError> {
    let mut matcher: Matcher<u64> = Matcher::new(0);
    let mut model = MatchModel {
        min_multi_recv: 1,
        ..MatchModel::default()
    };
    let mut messages = 0;
    let mut posts = 0;
    let mut receive = |want: ModelWant, context: u64, buf: ReceiveBuffers| {
        posts += 1;
        PostedReceive {
            src: want.src,
            tag: want.tag,
            ignore: want.ignore,
            buf,
            desc: MrDesc::from_number(posts),
            context,
            flags: Flags::COMPLETION,
        }
    };
    let one = |len| ReceiveBuffers::One(IoBuf { addr: 0x1000, len });
    for op in program {
        match *op {
            ModelCall::Arrive { src, tag, len } => {
                let a = arrived(src, tag, len);
                let matched = matcher.arrive(&a);
                let unexpected = matched.is_none();
                let expected = model.arrive(&a);
                prop_assert!(model.same(matched, expected));
                if unexpected {
                    let token = messages;
                    messages += 1;
                    matcher.queue(a, token);
                    let message = Unexpected { arrived: a, token };
                    model.messages.push(ModelMessage {
                        message,
                        claimed: None,
                    });
                }
            }
            ModelCall::Post { want, context } => {
                let p = receive(want, context, one(64));
                let start: Vec<_> = matcher.post(p.clone()).into_iter().collect();
                let expected = model.post(p, false);
                prop_assert!(model.same_starts(start, expected));
            }
            ModelCall::PostList { want, context } => {
                let list = [IoBuf { addr: 8, len: 8 }, IoBuf { addr: 32, len: 4 }];
                let p = receive(want, context, ReceiveBuffers::Many(Box::new(list)));
                let mut start = Vec::new();
                matcher.post_multi(p.clone(), &mut start);
                let expected = model.post(p, true);
                prop_assert!(model.same_starts(start, expected));
            }
            ModelCall::PostMulti { want, context, len } => {
                let p = receive(want, context, one(len));
                let mut start = Vec::new();
                matcher.post_multi(p.clone(), &mut start);
                let expected = model.post(p, true);
                prop_assert!(model.same_starts(start, expected));
            }
            ModelCall::Cancel { context } => {
                let with = |p: &ModelPosted| p.posted.context == context;
                let at = model.posted.iter().position(with);
                let expected = at.map(|at| {
                    let taken = model.posted.remove(at);
                    model.take_back(taken)
                });
                match (matcher.cancel(context), expected) {
                    (Some(taken), Some(expected)) => {
                        prop_assert!(model.same_taken(&taken, &expected));
                    }
                    (taken, expected) => prop_assert!(taken.is_none() && expected.is_none()),
                }
            }
            ModelCall::Peek(w) => {
                let expected = model.find(w).map(|at| model.messages[at].message);
                prop_assert_eq!(matcher.peek(w.src, w.tag, w.ignore), expected);
            }
            ModelCall::Claim { want: w, context } => {
                let expected = model.find(w).map(|at| {
                    model.claims += 1;
                    model.messages[at].claimed = Some((context, model.claims));
                    model.messages[at].message
                });
                prop_assert_eq!(matcher.claim(w.src, w.tag, w.ignore, context), expected);
            }
            ModelCall::TakeClaimed { context } => {
                let claim = |m: &ModelMessage| m.claimed.filter(|c| c.0 == context);
                let first = (0..model.messages.len())
                    .filter(|&at| claim(&model.messages[at]).is_some())
                    .min_by_key(|&at| claim(&model.messages[at]));
                let expected = first.map(|at| model.messages.remove(at).message);
                prop_assert_eq!(matcher.take_claimed(context), expected);
            }
            ModelCall::Discard(w) => {
                let expected = model.find(w).map(|at| model.messages.remove(at).message);
                prop_assert_eq!(matcher.discard(w.src, w.tag, w.ignore), expected);
            }
            ModelCall::Resolve { src } => {
                let mut start = Vec::new();
                let source_of = |m: &Unexpected<u64>| {
                    if m.token % 3 == src {
                        FiAddr(src)
                    } else {
                        FiAddr::NOTAVAIL
                    }
                };
                matcher.resolve(source_of, &mut start);
                let expected = model.resolve(src);
                prop_assert!(model.same_starts(start, expected));
            }
            ModelCall::Forget { src } => {
                matcher.forget_source(src);
                for m in &mut model.messages {
                    if m.message.arrived.src == src {
                        m.message.arrived.src = FiAddr::NOTAVAIL;
                    }
                }
            }
            ModelCall::Fail { src, all } => {
                let lost = |m: &Unexpected<u64>| all || m.token % 2 == 0;
                let (mut receives, mut messages) = (Vec::new(), Vec::new());
                matcher.fail_source(src, lost, &mut receives, &mut messages);
                let known = src != FiAddr::NOTAVAIL;
                let expected = model.posted.extract(|p| known && p.posted.src == src);
                prop_assert_eq!(receives.len(), expected.len());
                for (taken, expected) in receives.iter().zip(expected) {
                    let expected = model.take_back(expected);
                    prop_assert!(model.same_taken(taken, &expected));
                }
                let expected = model
                    .messages
                    .extract(|m| m.message.arrived.src == src && lost(&m.message))
                    .map(|m| m.message);
                prop_assert!(messages.into_iter().eq(expected));
            }
            ModelCall::MinMultiRecv { bytes } => {
                matcher.set_min_multi_recv(bytes);
                model.min_multi_recv = bytes.max(1);
                prop_assert_eq!(matcher.min_multi_recv(), bytes.max(1));
            }
            ModelCall::Complete { nth } => {
                if !model.out.is_empty() {
                    let (piece, multi) = model.out.swap_remove(nth % model.out.len());
                    let multi = &mut model.multis[multi];
                    multi.out -= 1;
                    let expected = match multi.out {
                        0 => multi.end.unwrap_or(MultiReceiveState::InUse),
                        _ => MultiReceiveState::InUse,
                    };
                    prop_assert_eq!(matcher.complete_piece(piece), expected);
                }
            }
        }
        prop_assert_eq!(matcher.posted.len(), model.posted.len());
        prop_assert_eq!(matcher.unexpected.len(), model.queued());
        let claimed = model.messages.len() - model.queued();
        prop_assert_eq!(matcher.unexpected.claimed(), claimed);
    }
    // The remaining receives come out in order.
    for context in 0..CONTEXTS {
        while let Some(taken) = matcher.cancel(context) {
            let with = |p: &ModelPosted| p.posted.context == context;
            let at = model.posted.iter().position(with).unwrap();
            prop_assert_eq!(taken.posted, model.posted.remove(at).posted);
        }
        while matcher.take_claimed(context).is_some() {}
    }
    prop_assert!(model.posted.is_empty());
    let mut left = model.messages.extract(|m| m.claimed.is_none());
    while let Some(message) = matcher.discard(FiAddr::UNSPEC, 0, u64::MAX) {
        prop_assert_eq!(Some(message), left.next().map(|m| m.message));
    }
    prop_assert!(left.next().is_none());
    prop_assert_eq!((matcher.posted.len(), matcher.unexpected.len()), (0, 0));
    prop_assert_eq!(matcher.unexpected.claimed(), 0);
    Ok(())
}

/// Contexts of receives are below.
const CONTEXTS: u64 = 6;

trait Extract<M> {
    /// Takes out what satisfies `take`, in order.
    fn extract(&mut self, take: impl Fn(&M) -> bool) -> std::vec::IntoIter<M>;
}

impl<M> Extract<M> for Vec<M> {
    fn extract(&mut self, take: impl Fn(&M) -> bool) -> std::vec::IntoIter<M> {
        let (out, stay) = std::mem::take(self).into_iter().partition(take);
        *self = stay;
        let out: Vec<M> = out;
        out.into_iter()
    }
}

fn source() -> impl Strategy<Value = FiAddr> {
    prop_oneof![4 => known_source(), 1 => Just(FiAddr::NOTAVAIL)]
}

fn known_source() -> impl Strategy<Value = FiAddr> {
    (0..3u64).prop_map(FiAddr)
}

/// `bits` 2: few masks and deep queues; 7: more masks than there are classes.
fn want(bits: u32) -> impl Strategy<Value = ModelWant> {
    let all = (1u64 << bits) - 1;
    let ignore = prop_oneof![3 => Just(0), 2 => 0..=all, 1 => Just(u64::MAX)];
    let src = prop_oneof![4 => known_source(), 6 => Just(FiAddr::UNSPEC)];
    (src, 0..=all, ignore).prop_map(|(src, tag, ignore)| ModelWant { src, tag, ignore })
}

fn op(bits: u32, arrive: u32, post: u32) -> impl Strategy<Value = ModelCall> {
    let want = || want(bits);
    let context = || 0..CONTEXTS;
    prop_oneof![
        arrive => (source(), 0..1u64 << bits, 0..40u64)
            .prop_map(|(src, tag, len)| ModelCall::Arrive { src, tag, len }),
        post => (want(), context()).prop_map(|(want, context)| ModelCall::Post { want, context }),
        1 => (want(), context()).prop_map(|(want, context)| ModelCall::PostList { want, context }),
        2 => (want(), context(), 0..200usize)
            .prop_map(|(want, context, len)| ModelCall::PostMulti { want, context, len }),
        2 => context().prop_map(|context| ModelCall::Cancel { context }),
        1 => want().prop_map(ModelCall::Peek),
        1 => (want(), context()).prop_map(|(want, context)| ModelCall::Claim { want, context }),
        1 => context().prop_map(|context| ModelCall::TakeClaimed { context }),
        1 => want().prop_map(ModelCall::Discard),
        1 => (0..3u64).prop_map(|src| ModelCall::Resolve { src }),
        1 => source().prop_map(|src| ModelCall::Forget { src }),
        1 => (source(), any::<bool>()).prop_map(|(src, all)| ModelCall::Fail { src, all }),
        1 => (0..32usize).prop_map(|bytes| ModelCall::MinMultiRecv { bytes }),
        5 => any::<usize>().prop_map(|nth| ModelCall::Complete { nth }),
    ]
}

/// Programs in which receives pile up, messages pile up, or neither.
fn program() -> impl Strategy<Value = Vec<ModelCall>> {
    (
        prop_oneof![Just(2u32), Just(7u32)],
        prop_oneof![Just((10u32, 40u32)), Just((40, 10)), Just((20, 20))],
    )
        .prop_flat_map(|(bits, (arrive, post))| {
            prop::collection::vec(op(bits, arrive, post), 1..400)
        })
}

/// Programs of receives that are alike, up to more than stand in a row without a table, and now and
/// then something else.
fn stream() -> impl Strategy<Value = Vec<ModelCall>> {
    let (src, tag) = (FiAddr(1), 2);
    let want = move |ignore| ModelWant { src, tag, ignore };
    (1..40u32, prop_oneof![Just(0), Just(1)]).prop_flat_map(move |(post, ignore)| {
        let step = prop_oneof![
            post => (0..CONTEXTS).prop_map(move |context| ModelCall::Post { want: want(ignore), context }),
            20 => (0..40u64).prop_map(move |len| ModelCall::Arrive { src, tag, len }),
            1 => op(2, 10, 10),
        ];
        prop::collection::vec(step, 1..200)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// For any calls in any order, the matcher returns the model's results.
    ///
    /// Covers: PEER-8, PEER-9, PEER-10
    #[test]
    fn matches_as_the_model(program in program()) {
        run(&program)?;
    }

    /// Covers: PEER-8
    #[test]
    fn alike_receives_match_as_the_model(program in stream()) {
        run(&program)?;
    }
}
